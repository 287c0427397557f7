"""Kept pools outlive their notebooks: found again, taken up, refused, taken over, and at last ended."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sky_jupyter.pool.registry.registry import Registry, running
from sky_jupyter.pool.registry.rows import PoolRow
from tests.conftest import pool_folders
from tests.magics.notebook import Cell, Notebook, notebook
from tests.pool.test_faults import eventually
from tests.took import Took

LOAD = "%load_ext sky_jupyter"


def is_noted(name: str) -> bool:
    """Whether the registry has a run of a pool that goes on: it is written beside the run, which may begin before."""
    registry = Registry()
    try:
        row = registry.pool(name)
        return row is not None and bool(registry.running_runs(row.id))
    finally:
        registry.close()


def the_pool(name: str) -> PoolRow:
    registry = Registry()
    try:
        row = registry.pool(name)
    finally:
        registry.close()
    assert row is not None
    return row


@pytest.fixture
def name() -> Iterator[str]:
    """The name of a pool that is ended when the test is over, whoever manages it."""
    name = f"kept-{random.Random().randrange(1 << 40):x}"
    yield name
    registry = Registry()
    try:
        rows = [row for row in registry.pools() if row.name == name]
        for row in rows:
            if row.host_lives:
                os.kill(row.host_pid, signal.SIGTERM)
                assert eventually(lambda row=row: not row.host_lives)
    finally:
        registry.close()
    assert all(pool_folders(row.id) == [] for row in rows)


def up(page: Notebook, name: str, options: str = "") -> None:
    page.run(LOAD)
    cell = page.run(f"%sky up --nodes 2 --keep --name {name} {options}")
    assert cell.status == "ok", cell.outputs


def kill(page: Notebook) -> None:
    """The notebook's kernel ends without a word."""
    page.manager.signal_kernel(signal.SIGKILL)
    process = psutil.Process(page.manager.provisioner.pid)  # type: ignore[union-attr]
    assert eventually(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


def kept(folder: Path) -> list[Path]:
    """The values that a pool keeps in one of its folders."""
    return [path for path in folder.glob("kept/*") if path.is_file()]


def test_a_new_notebook_is_told_of_a_kept_pool_and_shows_its_running_cell_from_the_first_byte(
    tmp_path: Path, name: str, took: Took
) -> None:
    go = tmp_path / "go"

    def goes_on(cell: Cell) -> bool:
        if cell.displays and "line 99" in cell.run:
            go.touch()
        return False

    with notebook(tmp_path) as page:
        up(page, name)
        page.run("%%sky\nfirst = 'here'\n'of an earlier run'")
        page.client.execute(
            "%%sky\nimport os, time\nfor i in range(150):\n    print('line', i); time.sleep(.01)\n"
            f"    while i == 100 and not os.path.exists({str(go)!r}): time.sleep(0.05)\n'the end'"
        )
        assert eventually(lambda: running(the_pool(name)) and is_noted(name))
        kill(page)
    with notebook(tmp_path) as page:
        loaded = page.run(LOAD)
        told = loaded.stream()
        took.row(
            "the notebook's kernel is killed, and the pool was made with `--keep`",
            see="in the next kernel, that the pool lives and what runs; `%sky attach` shows all of it",
            kept="everything on the nodes, all output, all results",
            told=loaded.elapsed,
        )
        assert re.search(rf"pool {name}: 2 local nodes, kept, runs \w+ \(for i in .*:\) for \d min; `%sky attach", told)
        cell = page.run(f"%sky attach {name}", until=goes_on)
        assert cell.status == "ok"
        assert [f"line {i}" in cell.run for i in (0, 1, 148, 149)] == [True] * 4, cell.displays
        assert page.value("_sky.values") == ["the end", "the end"]
        assert page.value("_sky.stdout(1).count('line')") == 150
        # While its ranks are busy, Tab and Shift-Tab go by these.
        page.run("import sky_jupyter.pool.open_pools as opened")
        assert page.value("any('first = ' in source for source in opened.pools.current.sources)")
        assert page.run("%%sky\nfirst").status == "ok"
        assert page.value("_sky.values") == ["here", "here"]
        listed = page.run(f"%sky runs --name {name}").stream()
        (earlier,) = re.findall(r"(\w{8}) .* first = 'here'", listed)
        page.run(f"%sky wait {earlier}")
        assert page.value("_sky.values") == ["of an earlier run"] * 2
        (printed,) = re.findall(r"(\w{8}) .* for i in range", listed)
        logged = page.run(f"%sky logs {printed} --rank 1").stream()
        assert logged.split("\n")[:3] == ["line 0", "line 1", "line 2"]
        page.run("%sky down")


@pytest.mark.slow
def test_a_notebook_that_keeps_its_pool_runs_from_top_to_bottom_again(tmp_path: Path, name: str) -> None:
    """With the same line, which finds its own pool; a name alone, or another line, makes none beside it."""
    begin, go = f"%%sky --nodes 2 --keep --name {name}", tmp_path / "go"
    with notebook(tmp_path) as page:
        page.run(LOAD)
        assert page.run(f"{begin}\nmade = 5").status == "ok"
        beside = page.run(f"%%sky --detach\nimport os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)")
        assert "continues" in beside.stream()
    pool = the_pool(name)
    with notebook(tmp_path) as page:
        page.run(LOAD)
        line = f"pool {name}: 2 local nodes, kept, runs"
        assert line in page.run("%sky").stream()
        assert line in page.run(f"%sky status {name}").stream()
        for alone in (f"%%sky --name {name}\n1", f"%sky up {name}"):
            told = page.run(alone).error
            assert line in told
            assert f"`%sky attach {name}` attaches to it" in told
        other = page.run(f"%%sky --nodes 3 --keep --name {name}\n1").error
        assert f"a kept pool '{name}' is running, and the options ask for another one: nodes: 2 -> 3" in other
        assert f"%sky down {name}" in page.complete("%sky down ")
        again = page.run(f"%sky up --nodes 2 --keep --name {name}")
        assert "2 local nodes attached" in again.displays[0].data["text/plain"]
        go.touch()
        assert page.run(f"{begin}\nmade").status == "ok"
        assert page.value("_sky.values") == [5, 5]
        assert the_pool(name).id == pool.id
        assert page.run(f"%sky down {name}").stream() == f"pool {name}: ended\n"


@pytest.mark.slow
def test_a_pool_that_another_notebook_manages_is_refused_until_it_is_taken_over(tmp_path: Path, name: str) -> None:
    with notebook(tmp_path) as first, notebook(tmp_path) as second:
        up(first, name)
        first.run("import numpy; data = numpy.arange(300_000.0)")
        first.run("%%sky\nmine = 7; float(data[1])")
        sent = {path.name: path.stat().st_ino for folder in pool_folders(the_pool(name).id) for path in kept(folder)}
        assert len(sent) == 1
        second.run(LOAD)
        beside = second.run(f"%%sky --name {name}\n1")
        assert f"pool '{name}' is managed by" in beside.error
        assert f"`%sky attach {name} --take-over` takes it over" in beside.error
        refused = second.run(f"%sky attach {name}")
        assert refused.error_name == "PoolError"
        assert "--take-over" in refused.error
        assert str(first.manager.provisioner.pid) in refused.error  # type: ignore[union-attr]
        assert first.run("%%sky\nmine").status == "ok"
        taken = second.run(f"%sky attach {name} --take-over")
        assert taken.status == "ok"
        second.run("%%sky\nmine")
        assert second.value("_sky.values") == [7, 7]
        # What the first notebook has sent is not sent again.
        second.run("import numpy; again = numpy.arange(300_000.0)")
        second.run("%%sky\nfloat(again[1])")
        assert second.value("_sky.values") == [1, 1]
        found = {path.name: path.stat().st_ino for folder in pool_folders(the_pool(name).id) for path in kept(folder)}
        assert found == sent
        time.sleep(2)
        lost = first.run("%%sky\nmine = 8")
        assert "another notebook has taken pool" in lost.error
        second.run("%%sky\nmine")
        assert second.value("_sky.values") == [7, 7]
        second.run("%sky down")


@pytest.mark.slow
def test_a_manager_that_stood_still_while_it_was_replaced_is_not_obeyed(tmp_path: Path, name: str, took: Took) -> None:
    with notebook(tmp_path) as first, notebook(tmp_path) as second:
        up(first, name)
        first.run("%%sky\nmine = 7")
        old = psutil.Process(first.manager.provisioner.pid)  # type: ignore[union-attr]
        old.suspend()
        try:
            second.run(LOAD)
            taken = second.run(f"%sky attach {name} --take-over")
            assert taken.status == "ok"
        finally:
            old.resume()
        took.row(
            "another notebook takes the pool over from one that stands still",
            see="its pool; in the first one, who has taken it",
            kept="everything; what the first one still asks for is refused",
            taken_over=taken.elapsed,
        )
        first.run("%%sky\nmine = 8")
        second.run("%%sky\nmine")
        assert second.value("_sky.values") == [7, 7]
        second.run("%sky down")


@pytest.mark.slow
def test_a_run_that_is_let_go_is_shown_and_kept_when_it_is_waited_for(tmp_path: Path, name: str) -> None:
    go = tmp_path / "go"
    wait = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)\n"
    with notebook(tmp_path) as page:
        page.run(LOAD)
        page.run(f"%sky up --nodes 2 --name {name}")
        # The cell is back before the run can have ended.
        cell = page.run(f"%%sky --detach --out later\nprint('begun')\n{wait}made = 5; made * 2")
        go.touch()
        assert "continues" in cell.stream()
        shown = page.run("%sky wait")
        assert "begun" in shown.run
        assert page.value("later.values") == [10, 10]
        page.run("%%sky --detach\nimport time; time.sleep(1); made = 6")
        # The next cell comes after it, and reads what it assigned.
        page.run("%%sky\nmade")
        assert page.value("_sky.values") == [6, 6]
        page.run("%sky down")


@pytest.mark.slow
def test_a_kept_pool_ends_by_itself_when_nobody_comes_back_even_without_its_scheduler(
    tmp_path: Path, name: str, took: Took
) -> None:
    go = tmp_path / "go"
    with notebook(tmp_path) as page:
        up(page, name, "--idle-timeout 10s")
        page.client.execute(f"%%sky\nimport os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)\n'over'")
        assert eventually(lambda: running(the_pool(name)))
        row = the_pool(name)
        kill(page)
    killed = time.monotonic()
    host = psutil.Process(row.host_pid)
    # Again and again, until the host leaves it.
    for _ in range(7):
        for child in host.children():
            listening = [c for c in child.net_connections() if c.status == "LISTEN"]
            if listening and (Path(row.folders[0]) / "scheduler.log").exists() and _is_scheduler(child, row):
                child.kill()
        time.sleep(0.5)
    # A run in progress keeps the lease until it ends.
    time.sleep(max(0.0, 14 - (time.monotonic() - killed)))
    assert row.host_lives
    go.touch()
    assert eventually(lambda: not row.host_lives)
    ended = time.monotonic() - killed
    took.row(
        "nobody comes back to a kept pool (`--idle-timeout 10s`, a run of 15 s, the scheduler killed 7 times)",
        see="nothing: no process and no file is left",
        kept="the run goes on to its end first; no name",
        ended=ended,
    )
    assert eventually(lambda: pool_folders(row.id) == [])


def _is_scheduler(process: psutil.Process, row: PoolRow) -> bool:
    return any(file.path == f"{row.folders[0]}/scheduler.log" for file in process.open_files())


@pytest.mark.slow
@pytest.mark.parametrize("kills", [7, pytest.param(20, marks=pytest.mark.long)])
def test_kills_of_the_notebook_lose_no_line_and_no_result_and_run_nothing_twice(
    tmp_path: Path, name: str, kills: int
) -> None:
    seed = random.Random().randrange(1 << 30)
    print(f"seed {seed}")
    moments = random.Random(seed)
    cell = """%%sky
import time, sky_jupyter as sky
rank = sky.instance_info().rank
open('{folder}/{number}-' + str(rank), 'a').write('x')
for line in range(100):
    print('{number}:', line)
    if line % 10 == 0: time.sleep(0.05)
('result', {number}, rank)"""
    with notebook(tmp_path) as page:
        up(page, name)
        kill(page)
    for number in range(kills):
        with notebook(tmp_path) as page:
            page.run(LOAD)
            # What the last one left behind is shown first.
            assert page.run(f"%sky attach {name}").status == "ok"
            page.client.execute(cell.format(folder=tmp_path, number=number))
            time.sleep(moments.uniform(0, 1.0))
            kill(page)
    with notebook(tmp_path) as page:
        page.run(LOAD)
        page.run(f"%sky attach {name}")
        page.run(
            "from sky_jupyter.pool.open_pools import pools\n"
            "logs = [pools.current.log(id) for id in pools.current.runs()]"
        )
        runs = page.value("[(r.values, [r.stdout(k) for k in r.ranks], len(r.errors)) for r in logs]")
        page.run("%sky down")
    began = {values[0][1] for values, _, _ in runs}
    for values, outputs, errors in runs:
        number = values[0][1]
        assert errors == 0
        assert values == [("result", number, 0), ("result", number, 1)]
        assert outputs == ["".join(f"{number}: {line}\n" for line in range(100))] * 2
    marks = {path.name: path.read_text() for path in tmp_path.glob("*-[01]")}
    assert marks == {f"{number}-{rank}": "x" for number in began for rank in (0, 1)}
    # Some are killed before their cell has begun; most are not.
    assert len(began) >= kills // 2, seed
