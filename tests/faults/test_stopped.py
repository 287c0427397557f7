"""Who stands still while a cell runs: the notebook's kernel or the scheduler, for a while or past the lease."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import pool_folders
from tests.faults.families import family, peaks
from tests.magics.notebook import Notebook, notebook
from tests.magics.test_reattach import LOAD, name, the_pool, up
from tests.pool.pools import local_pool, run
from tests.pool.test_faults import eventually
from tests.took import Took

__all__ = ["name"]
pytestmark = pytest.mark.slow
MB = 1_000_000
LINES = 600_000
FLOOD = f"""%%sky
import os
for start in range(0, {LINES}, 1000):
    os.write(1, b"".join(b"%08d%s\\n" % (line, b"." * 91) for line in range(start, start + 1000)))
"the end"
"""
IN_ORDER = f"""
def in_order(text):
    lines = text.split("\\n")
    return lines.pop() == "" and len(lines) == {LINES} and all(int(line[:8]) == i for i, line in enumerate(lines))
"""


def journal_size(folder: Path, node: int) -> int:
    size = 0
    for path in (folder / f"n{node}" / "journal").glob("*"):
        try:
            size += path.stat().st_size
        except FileNotFoundError:
            continue
    return size


def execute(page: Notebook, code: str) -> str:
    """Begin a cell, and do not wait for its end."""
    return str(page.client.execute(code))


def underway(pool: Any) -> None:
    """Wait until both ranks have printed something."""
    journals = [Path(pool.folders[0]) / f"n{node}" / "journal" for node in (0, 1)]
    assert eventually(lambda: all(any(b'"stream"' in file.read_bytes() for file in one.glob("*")) for one in journals))


def ended(page: Notebook, request: str, seconds: float = 120) -> str:
    """Wait for a cell that was begun; how it ended."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        reply = page.client.get_shell_msg(timeout=seconds)
        if reply["parent_header"].get("msg_id") == request:
            return str(reply["content"].get("evalue", reply["content"]["status"]))
    raise TimeoutError(request)


@pytest.mark.parametrize("who", ["manager", "scheduler"])
def test_what_floods_while_nobody_reads_takes_no_memory_and_all_of_it_comes_later(
    tmp_path: Path, name: str, who: str, took: Took
) -> None:
    with notebook(tmp_path) as page:
        up(page, name)
        page.run("%%sky\n'warm'")
        row = the_pool(name)
        processes = family(page, row.id)
        pool = {kind: process for kind, process in processes.items() if kind != "manager"}
        assert {"scheduler", "n0/agent", "n0/rank0", "n1/rank1"} <= set(pool)
        with peaks(pool) as grown:
            request = execute(page, FLOOD)
            folder = Path(row.folders[0])
            assert eventually(lambda: journal_size(folder, 0) > MB)
            processes[who].suspend()
            stopped = time.monotonic()
            try:
                # It goes on, to its end, whoever reads.
                assert eventually(lambda: min(journal_size(folder, node) for node in (0, 1)) > 100 * LINES, 90)
                time.sleep(max(0.0, stopped + 5 - time.monotonic()))
            finally:
                processes[who].resume()
            resumed = time.monotonic()
            assert ended(page, request) == "ok"
            late = time.monotonic() - resumed
        assert {kind: size // MB for kind, size in grown.items() if size > 90 * MB} == {}
        page.run(IN_ORDER)
        assert page.value("[in_order(_sky.stdout(rank)) for rank in _sky.ranks]") == [True, True]
        assert page.value("_sky.values") == ["the end", "the end"]
        page.run("%%sky\n40 + 2")
        assert page.value("_sky.values") == [42, 42]
        page.run("%sky down")
    took.row(
        f"the {'notebook' if who == 'manager' else who} stands still while each rank prints 60 MB",
        see="all of it, in order, once it goes on",
        kept="everything; no process of the pool grew by more than 90 MB",
        caught_up=late,
    )


def test_a_notebook_that_stood_still_for_ten_seconds_has_missed_nothing(tmp_path: Path, name: str, took: Took) -> None:
    with notebook(tmp_path) as page:
        up(page, name, "--idle-timeout 20s")
        page.run("%%sky\nmine = 7")
        manager = psutil.Process(page.manager.provisioner.pid)  # type: ignore[union-attr]
        request = execute(page, "%%sky\nimport time\nfor i in range(60): print(i); time.sleep(0.05)\nmine += 1; mine")
        underway(the_pool(name))
        manager.suspend()
        # The run ends meanwhile, and nobody is heard of by the nodes for as long.
        time.sleep(10)
        manager.resume()
        resumed = time.monotonic()
        assert ended(page, request) == "ok"
        late = time.monotonic() - resumed
        assert page.value("[_sky.stdout(rank).split() for rank in _sky.ranks]") == [[str(i) for i in range(60)]] * 2
        assert page.value("_sky.values") == [8, 8]
        assert the_pool(name).host_lives
        page.run("%%sky\nmine")
        assert page.value("_sky.values") == [8, 8]
        page.run("%sky down")
    took.row(
        "the notebook stands still for 10 s",
        see="what was printed meanwhile, and the result, once it goes on",
        kept="everything",
        caught_up=late,
    )


@pytest.mark.parametrize("how", ["made", "attached"])
def test_a_notebook_that_stood_still_past_the_lease_is_told_that_it_ended(
    tmp_path: Path, name: str, how: str, took: Took
) -> None:
    with notebook(tmp_path) as first, notebook(tmp_path) as second:
        up(first, name, "--idle-timeout 10s")
        page = first
        if how == "attached":
            page = second
            page.run(LOAD)
            assert page.run(f"%sky attach {name} --take-over").status == "ok"
        row = the_pool(name)
        manager = psutil.Process(page.manager.provisioner.pid)  # type: ignore[union-attr]
        request = execute(page, "%%sky\nimport time\nfor i in range(60): print(i); time.sleep(0.05)\n'the end'")
        underway(row)
        manager.suspend()
        stopped = time.monotonic()
        try:
            # The run goes on to its end first.
            assert eventually(lambda: not row.host_lives)
            lived = time.monotonic() - stopped
            assert lived > 11
            assert eventually(lambda: pool_folders(row.id) == [])
        finally:
            manager.resume()
        resumed = time.monotonic()
        # All that the nodes said before they ended has come.
        assert ended(page, request) == "ok"
        assert page.value("_sky.values") == ["the end", "the end"]
        assert page.value("_sky.stdout(1).split()[-1]") == "59"
        cell = page.run("%%sky\n1")
        late = time.monotonic() - resumed
        assert "lease ended: nodes that hear of no notebook for 10 s end (--idle-timeout 10)" in cell.error
        assert "`%sky restart` recreates the pool" in cell.error
        assert page.run(f"%sky restart --name {name}").status == "ok"
        page.run("%%sky\n40 + 2")
        assert page.value("_sky.values") == [42, 42]
        page.run("%sky down")
    took.row(
        "the notebook stands still for longer than `--idle-timeout`",
        see="that the pool's lease ended, and how to recreate the pool",
        kept="nothing of the nodes: they ended, once the run was over",
        told=late,
    )


def test_what_a_rank_prints_is_not_kept_in_its_memory() -> None:
    with local_pool(nodes=1) as pool:
        measure = "import os, psutil\npsutil.Process().memory_info().rss"
        before = run(pool, measure).head
        flood = "from IPython.display import display_pretty\nfor i in range(150):\n    print('x' * 100_000)\n"
        for _ in range(2):
            run(pool, flood + "    display_pretty('y' * 100_000, raw=True)")
        assert run(pool, measure).head - before < 25 * MB
