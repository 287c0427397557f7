"""Cells that show nothing go the short way of calls: they leave no journal, and lose nothing where they are opened."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sky_jupyter as sky
from sky_jupyter.capture.collect import collect
from sky_jupyter.node.protocol import rpc
from sky_jupyter.pool.base.event_loop import loop
from sky_jupyter.pool.execution.direct_calls import DirectCalls
from sky_jupyter.pool.execution.short_cell import ShortCell
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.result import CellError, CellResult
from tests.pool.pools import local_pool, run, wait_until


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with local_pool(nodes=2) as live:
        cell(live, "kept_first = 0")
        wait_until(lambda: live.calls.short.direct.is_possible)
        yield live


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How the cells went: ``short``, or ``opened`` after that."""
    went: list[str] = []
    make = DirectCalls.make

    def made(calls: DirectCalls, call: Any, presses: list[object]) -> bool:
        is_made = make(calls, call, presses)
        if isinstance(call, ShortCell) and is_made:
            went.append("opened" if call.opened else "short")
        return is_made

    monkeypatch.setattr(DirectCalls, "make", made)
    return went


def cell(pool: Pool, code: str, **options: Any) -> CellResult:
    """Run a cell as a magic does; the notebook has no names."""
    started = pool.submission.begin_cell(code, collect(code, {}, pool.ledger), attended=True, **options)
    try:
        return pool.attend(started)
    finally:
        pool.note_writes(started, {})


def names(pool: Pool) -> list[dict[str, Any]]:
    """Return the names that the cells here have assigned on each rank."""
    return list(run(pool, "{name: value for name, value in globals().items() if name.startswith('kept_')}"))


@contextlib.contextmanager
def interrupted(pool: Pool, folder: Path) -> Iterator[str]:
    """Interrupt a cell once all of its ranks are at it; yield the lines that it has to begin with."""

    def interrupt() -> None:
        wait_until(lambda: len(list(folder.iterdir())) == 2)
        pool.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    yield f"import os, pathlib\n(pathlib.Path({str(folder)!r}) / str(os.getpid())).touch()\n"
    thread.join()


def journals(pool: Pool, run: str) -> list[str]:
    """Return the journals of a run that have something in them."""
    texts = [path.read_text() for path in Path(pool.hosts[0].folder).rglob(f"{run}.jsonl*")]
    return [text for text in texts if text.endswith("\n")]


def begun(pool: Pool, run: str) -> dict[str, Any]:
    """Return how a run began, as the first node has it in a journal."""
    answers = loop().call(pool.control.ask(rpc.LIST_RUNS, [0], runs=[run]), timeout=60)
    found: dict[str, Any] = answers[0][run]["begin"]
    return found


def test_a_cell_that_shows_nothing_is_in_the_registry_and_in_journals(pool: Pool, ways: list[str]) -> None:
    result = cell(pool, "import os\nkept_pid = os.getpid()")
    assert list(result) == [None, None]
    assert result.stdout(0) == ""
    assert set(ways) <= {"short", "opened"}
    assert begun(pool, result.run)["mine"] == (0,)
    assert {"kept_pid", "os"} <= pool.ledger.nodes_own
    pids = [found["kept_pid"] for found in names(pool)]
    assert len(set(pids)) == 2

    def row() -> Any:
        return next((one for one in pool.registry.runs(pool.id) if one.id == result.run), None)

    wait_until(lambda: row() is not None and row().state == "ok")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("import sys\nfor kept_n in range(3):\n    sys.stdout.write(f'{kept_n}\\n')", "0\n1\n2\n"),
        ("import time\nkept_t = time.sleep(0.3)", ""),
        ("import sys, time\nkept_t = time.sleep(0.2), sys.stdout.write('late\\n')", "late\n"),
        ("import os\nkept_n = os.write(1, b'native\\n')", "native\n"),
    ],
    ids=["prints", "takes long", "prints late", "native"],
)
def test_a_cell_that_shows_something_or_takes_long_is_opened_and_whole(
    pool: Pool, ways: list[str], code: str, text: str
) -> None:
    result = cell(pool, code)
    assert ways == ["opened"]
    assert [result.stdout(rank) for rank in (0, 1)] == [text, text]
    assert begun(pool, result.run)["content"]["code"] == code


def test_a_cell_that_looks_as_if_it_showed_something_goes_the_long_way(pool: Pool, ways: list[str]) -> None:
    for code in ("kept_first", "print('x')", "def f():\n    display(1)", "get_ipython().run_line_magic('pwd', '')"):
        cell(pool, code)
    assert list(cell(pool, "1 + 1")) == [2, 2]
    assert ways == []


def test_an_error_has_its_traceback_and_the_names_before_it(pool: Pool, ways: list[str]) -> None:
    with pytest.raises(CellError) as caught:
        cell(pool, "kept_before = 1\nkept_after = 1 / 0")
    assert ways == ["opened"]
    assert [type(error) for error in caught.value.errors.values()] == [ZeroDivisionError] * 2
    assert "kept_after = 1 / 0" in str(caught.value.errors[1].__notes__)
    assert "kept_before" in pool.ledger.nodes_own
    assert all("kept_after" not in found for found in names(pool))


def test_one_rank_prints_and_the_other_is_quiet(pool: Pool) -> None:
    result = cell(
        pool, "import sys, os\nif os.environ.get('SKY_RANK') == '1':\n    kept_n = sys.stdout.write('one\\n')"
    )
    found = [result.stdout(rank) for rank in (0, 1)]
    assert found in (["", "one\n"], ["", ""])
    info = cell(
        pool,
        "import sys, sky_jupyter as sky\nif sky.instance_info().rank:\n    kept_n = sys.stdout.write('one\\n')",
    )
    assert [info.stdout(rank) for rank in (0, 1)] == ["", "one\n"]


def test_a_cell_on_one_rank_is_that_ranks(pool: Pool) -> None:
    cell(pool, "kept_where = [1]", ranks=[1])
    assert ["kept_where" in found for found in names(pool)] == [False, True]
    assert pool.ledger.nodes_own >= {"kept_where"}


def test_an_interrupt_stops_a_cell_that_was_short_until_then(pool: Pool, ways: list[str], tmp_path: Path) -> None:
    with interrupted(pool, tmp_path) as begins, pytest.raises(CellError, match="stopped"):
        cell(pool, f"{begins}import time\nkept_t = time.sleep(60)")
    assert ways == ["opened"]
    cell(pool, "kept_t = 'alive'")
    assert [found["kept_t"] for found in names(pool)] == ["alive"] * 2


def test_a_rank_that_dies_in_it_is_named_and_replaced(pool: Pool) -> None:
    with pytest.raises(CellError) as caught:
        cell(pool, "import os, sky_jupyter as sky\nif sky.instance_info().rank == 1:\n    kept_x = os._exit(3)")
    assert list(caught.value.errors) == [1]
    assert "rank 1" in str(caught.value.errors[1])
    pool.settle()
    cell(pool, "kept_again = 1")
    assert [found["kept_again"] for found in names(pool)] == [1, 1]


def test_a_cell_gets_its_journal_once_the_notebook_pauses(pool: Pool) -> None:
    runs = [cell(pool, f"kept_last = {number}").run for number in range(30)]
    wait_until(lambda: all(len(journals(pool, one)) == 2 for one in runs))
    for one in runs:
        for text in journals(pool, one):
            assert [json.loads(line)["kind"] for line in text.splitlines()] == ["begin", "end"]


def test_a_cell_whose_notebook_goes_has_a_journal_at_once(pool: Pool) -> None:
    result = cell(pool, "kept_last = 1")
    pool.calls.short.close()
    wait_until(lambda: len(journals(pool, result.run)) == 2)
    assert begun(pool, result.run)["content"]["code"] == "kept_last = 1"
    cell(pool, "kept_last = 2")
    assert [found["kept_last"] for found in names(pool)] == [2, 2]


def test_a_broken_connection_neither_loses_nor_repeats_a_cell(pool: Pool, tmp_path: Path) -> None:
    cell(pool, "kept_last = 2")
    wait_until(lambda: pool.calls.short.direct.is_possible)
    marks = tmp_path / "marks"
    writes = f"with open({str(marks)!r}, 'a') as file:\n    kept_n = file.write('x')"
    breaker = threading.Thread(target=lambda: (wait_until(marks.exists), pool.calls.short.close()))
    breaker.start()
    result = cell(pool, f"import time\n{writes}\nkept_t = time.sleep(0.08)")
    breaker.join()
    assert list(result) == [None, None]
    assert marks.read_text() == "xx"


def test_context_variables_hold_whichever_way_cells_and_calls_go(pool: Pool, ways: list[str]) -> None:
    cell(pool, "import contextvars, decimal\nkept_var = contextvars.ContextVar('kept')\nkept_token = kept_var.set(1)")
    run(pool, "decimal.getcontext().prec = 7")
    cell(pool, "kept_seen = kept_var.get(), decimal.getcontext().prec")
    assert list(run(pool, "kept_seen, kept_var.get(), decimal.getcontext().prec")) == [((1, 7), 1, 7)] * 2
    cell(pool, "kept_token = kept_var.set(2)")
    assert list(run(pool, "kept_var.get()")) == [2, 2]

    @sky.function
    def sets() -> Any:
        variable = vars(sys.modules["__main__"])["kept_var"]
        seen = variable.get()
        variable.set(3)
        return seen

    assert sets() @ pool == [2, 2]
    # What a call sets ends with it.
    assert list(run(pool, "kept_var.get()")) == [2, 2]
    assert "short" in ways


def test_a_cell_may_await(pool: Pool, ways: list[str], tmp_path: Path) -> None:
    cell(pool, "import asyncio\nkept_n = await asyncio.sleep(0.01, 'slept')")
    cell(pool, "async def double(x):\n    await asyncio.sleep(0)\n    return 2 * x\nkept_m = await double(4)")
    assert [(found["kept_n"], found["kept_m"]) for found in names(pool)] == [("slept", 8)] * 2
    assert ways
    with interrupted(pool, tmp_path) as begins, pytest.raises(CellError, match="stopped"):
        cell(pool, f"{begins}kept_n = await asyncio.sleep(60)")
    assert [found["kept_n"] for found in names(pool)] == ["slept"] * 2


def test_cells_and_calls_keep_their_order(pool: Pool) -> None:
    cell(pool, "kept_list = []")

    @sky.function
    def note(number: int) -> None:
        vars(sys.modules["__main__"])["kept_list"].append(number)

    for number in range(0, 30, 3):
        note(number) @ pool
        cell(pool, f"kept_list += [{number + 1}]")
        run(pool, f"kept_list.append({number + 2})")
    assert [found["kept_list"] for found in names(pool)] == [list(range(30))] * 2


def test_a_cell_waits_for_what_its_rank_does(pool: Pool, ways: list[str]) -> None:
    @sky.function
    def sleeps() -> float:
        time.sleep(0.5)
        return time.time()

    waiting = sleeps().on(0) > pool
    cell(pool, "import time\nkept_time = time.time()")
    ended = waiting.result()
    assert next(found["kept_time"] for found in names(pool)) >= ended
