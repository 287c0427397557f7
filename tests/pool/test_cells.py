"""Cells on a pool of two local nodes: what they return, print, keep and raise."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sky_jupyter as sky
from sky_jupyter.capture.collect import Capture
from sky_jupyter.errors import RankDied, SpecError
from sky_jupyter.node.protocol import rpc
from sky_jupyter.pool.base.event_loop import loop
from sky_jupyter.pool.base.events import NoticeEvent, OutputEvent
from sky_jupyter.pool.execution.orphaned_runs import take_stock
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.result import CellError, RankInterrupted, TimedOut
from sky_jupyter.util.text import plain
from tests.pool.pools import begin, local_pool, run, underway, wait_until

WHO = "import sky_jupyter as sky; rank = sky.instance_info().rank\n"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with local_pool() as pool:
        run(pool, WHO)
        yield pool


def test_each_rank_returns_its_last_expression(pool: Pool) -> None:
    result = run(pool, "rank * 10")
    assert list(result) == result.values == [0, 10]
    assert result[1] == 10
    assert result.head == 0
    assert result.elapsed > 0


def test_every_rank_knows_its_place(pool: Pool) -> None:
    fields = ["node", "rank", "total_nodes", "world_size", "ranks_per_node", "local_rank", "is_head"]
    fields += ["head_addr", "peers"]
    result = run(pool, f"info = sky.instance_info(); [getattr(info, name) for name in {fields!r}]")
    assert result[0] == [0, 0, 2, 2, 1, 0, True, "127.0.0.1", ("127.0.0.1", "127.0.0.1")]
    assert result[1] == [1, 1, 2, 2, 1, 0, False, "127.0.0.1", ("127.0.0.1", "127.0.0.1")]


def test_a_rank_has_no_debugger_before_one_is_asked_for_and_imports_one_of_its_own(pool: Pool) -> None:
    code = "import sys; before = 'debugpy' in sys.modules; import debugpy; (before, debugpy.__name__)"
    assert run(pool, code).values == [(False, "debugpy")] * 2


def test_the_namespace_is_kept_between_cells(pool: Pool) -> None:
    run(pool, "kept = [rank]")
    run(pool, "kept.append('more')")
    assert run(pool, "kept").values == [[0, "more"], [1, "more"]]


def test_the_notebooks_values_and_functions_are_sent(pool: Pool) -> None:
    namespace: dict[str, Any] = {"base": 40}
    exec("def add(x):\n    return base + x", namespace)
    assert run(pool, "add(rank)", namespace).values == [40, 41]
    namespace["base"] = 50
    assert run(pool, "add(rank)", namespace).values == [50, 51]


def test_a_large_array_is_the_ranks_own_to_write(pool: Pool) -> None:
    namespace: dict[str, Any] = {"array": np.arange(100_000)}
    assert run(pool, "array[0] = rank + 7; int(array[0]), int(array[-1])", namespace).values == [(7, 99999), (8, 99999)]
    assert namespace["array"][0] == 0


def test_blobs_are_gone_when_the_run_is(pool: Pool) -> None:
    run(pool, "len(array)", {"array": np.arange(100_000)})
    assert list(Path(pool.hosts[0].blobs).iterdir()) == []


def test_a_class_of_the_notebook_comes_back_as_itself(pool: Pool) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("class Point:\n    def __init__(self, x):\n        self.x = x", namespace)
    result = run(pool, "Point(rank)", namespace)
    assert [point.x for point in result] == [0, 1]


def test_output_of_python_native_code_and_subprocesses_is_kept_in_order(pool: Pool) -> None:
    code = (
        "import os, subprocess\nprint('one', flush=True)\nos.write(1, b'two\\n')\nsubprocess.run(['echo', 'three'])\n"
    )
    code += "import sys; print('oops', file=sys.stderr)"
    result = run(pool, code)
    for rank in (0, 1):
        assert sorted(result.stdout(rank).split()) == ["one", "three", "two"]
        assert result.stderr(rank) == "oops\n"


def test_text_that_is_not_unicode_is_shown_with_all_around_it(pool: Pool) -> None:
    code = r"""
import sys
print("before"); print("half \ud83d of 😀"); print("after", file=sys.stderr)
from IPython.display import display
display({"text/plain": "plain \ud83d"}, raw=True)
{"k": "\ud83d"}
"""
    result = run(pool, code)
    for rank in (0, 1):
        assert result.stdout(rank) == "before\nhalf \\ud83d of 😀\n"
        assert result.stderr(rank) == "after\n"
        assert result[rank] == {"k": "\ud83d"}


def test_an_error_whose_text_is_not_unicode_ends_its_cell(pool: Pool) -> None:
    with pytest.raises(CellError) as caught:
        run(pool, 'raise ValueError("no token for \\ud83d")')
    assert "ValueError: no token for \\ud83d" in str(caught.value)
    assert list(caught.value.errors) == [0, 1]
    assert run(pool, "rank").values == [0, 1]


def test_what_goes_to_stdout_and_stderr_in_turn_keeps_its_order(pool: Pool) -> None:
    texts: list[str] = []

    def listen(event: Any) -> None:
        if isinstance(event, OutputEvent) and event.rank == 0 and event.event["kind"] == "stream":
            texts.append(event.event["text"])

    code = "import sys\nfor i in range(5): print('out', i); print('err', i, file=sys.stderr)"
    pool.attend(begin(pool, code, listener=listen))
    assert "".join(texts).split("\n")[:4] == ["out 0", "err 0", "out 1", "err 1"]


def test_a_result_can_be_sent_to_the_nodes(pool: Pool) -> None:
    result = run(pool, "import numpy; numpy.full(200_000, rank)")
    sent = run(pool, "answer.errors, [int(part[0]) for part in answer]", {"answer": result})
    assert sent.values == [({}, [0, 1])] * 2


def test_no_line_of_a_flood_is_lost_or_doubled_while_the_listener_is_slow(pool: Pool) -> None:
    def slow(event: Any) -> None:
        time.sleep(0.001)

    result = pool.attend(begin(pool, "for i in range(30_000): print(rank, i)", listener=slow))
    for rank in (0, 1):
        assert result.stdout(rank).splitlines() == [f"{rank} {i}" for i in range(30_000)]


@pytest.mark.slow
def test_the_last_lines_of_a_run_come_before_its_end(pool: Pool) -> None:
    code = "import sys\nfor i in range(3000): print(rank, i)\nprint('last', file=sys.stderr)"
    for _ in range(40):
        result = run(pool, code)
        assert [result.stdout(rank).count("\n") for rank in (0, 1)] == [3000, 3000]
        assert [result.stderr(rank) for rank in (0, 1)] == ["last\n"] * 2


def test_output_comes_while_the_cell_runs(pool: Pool, tmp_path: Path) -> None:
    seen, go = threading.Event(), tmp_path / "go"

    def listen(event: Any) -> None:
        if isinstance(event, OutputEvent) and event.event["kind"] == "stream":
            seen.set()

    waits = f"import os, time\nprint('early', flush=True)\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)"
    current = begin(pool, waits, listener=listen)
    assert seen.wait(60)
    assert current.left == [0, 1]
    go.touch()
    pool.attend(current)


def test_a_cell_with_top_level_await_runs(pool: Pool) -> None:
    assert run(pool, "import asyncio\nawait asyncio.sleep(0.01, rank)").values == [0, 1]


def shown(pool: Pool, code: str) -> list[tuple[str, str]]:
    """What rank 0 shows of a cell, in its order: kinds and texts."""
    items: list[dict[str, Any]] = []

    def listen(event: Any) -> None:
        if isinstance(event, OutputEvent) and event.rank == 0 and event.event["kind"] != "end":
            items.append(event.event)

    # What `collect` reads is transformed; what the nodes run is the cell itself.
    pool.attend(pool.submission.begin_cell(code, Capture(), listener=listen))
    return [(item["kind"], item.get("text") or item["data"]["text/plain"]) for item in items]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("len?", "Return the number of items in a container."),
        ("%pdoc len", "Return the number of items in a container."),
        ("%prun sum(range(3))", "function calls"),
        ("get_ipython().set_next_input('y = 1')", "y = 1"),
    ],
)
def test_what_a_front_end_would_page_or_add_is_shown(pool: Pool, code: str, text: str) -> None:
    shows = [said for kind, said in shown(pool, code) if kind == "display"]
    assert text in "".join(shows)


def test_every_result_of_a_cell_is_shown_and_the_last_is_its_own(pool: Pool) -> None:
    run(pool, "get_ipython().ast_node_interactivity = 'all'")
    try:
        assert shown(pool, "1\nprint('two')\n3\n4") == [
            ("display", "1"),
            ("stream", "two\n"),
            ("display", "3"),
            ("result", "4"),
        ]
        assert run(pool, "rank\nrank + 1").values == [1, 2]
    finally:
        run(pool, "get_ipython().ast_node_interactivity = 'last_expr'")
    inner = "done = get_ipython().run_cell('10 + 1')\n5"
    assert shown(pool, inner) == [("display", "11"), ("result", "5")]
    assert run(pool, inner).values == [5, 5]


def test_shell_lines_and_magics_run_on_the_nodes(pool: Pool) -> None:
    result = pool.attend(pool.submission.begin_cell("!echo from {rank}\n%time sum(range(10))", Capture()))
    assert "from 1" in result.stdout(1)


def test_an_error_keeps_its_type_its_line_and_its_rank(pool: Pool) -> None:
    code = "# %%sky\nx = 1\nif rank == 1:\n    raise FileNotFoundError(2, 'not there', 'data.csv')\nrank"
    with pytest.raises(CellError) as caught:
        run(pool, code, count=7)
    error = caught.value
    assert list(error.errors) == [1]
    assert isinstance(error.errors[1], FileNotFoundError)
    assert error.errors[1].filename == "data.csv"
    assert "rank 1 (node 1)" in error.errors[1].__notes__[0]
    assert error.result[0] == 0
    shown = "\n".join(error._render_traceback_())
    assert "rank 1" in shown
    assert "In[7]" in shown
    assert "line 4" in shown
    with pytest.raises(FileNotFoundError):
        error.result[1]


def test_the_errors_of_a_run_can_be_caught_by_their_type(pool: Pool) -> None:
    with pytest.raises(CellError) as caught:
        run(pool, "raise KeyError('k') if rank else ValueError('v')")
    group = caught.value.subgroup(KeyError)
    assert group is not None
    assert [type(error) for error in group.exceptions] == [KeyError]


def test_the_same_traceback_of_several_ranks_is_shown_once(pool: Pool) -> None:
    with pytest.raises(CellError) as caught:
        run(pool, "1 / 0")
    shown = "\n".join(caught.value._render_traceback_())
    assert shown.count("division by zero") == 1
    assert "ranks 0-1" in shown


def test_an_exception_of_a_cells_own_class_comes_back_with_its_class(pool: Pool) -> None:
    with pytest.raises(CellError) as caught:
        run(
            pool,
            "class Strange(Exception):\n    def __init__(self, a, b): super().__init__('odd')\nraise Strange(1, 2)",
        )
    error = caught.value.errors[0]
    assert (type(error).__name__, str(error)) == ("Strange", "odd")


@pytest.mark.parametrize(
    "body",
    [
        "def __str__(self): return self.missing",
        "filename = property(lambda self: 1 / 0)",
        "def __getattr__(self, name): return getattr(self.inner, name)",
        "def __reduce_ex__(self, version): raise SystemExit(3)",
    ],
)
def test_an_exception_whose_class_raises_as_it_is_looked_at_is_its_cells_error(pool: Pool, body: str) -> None:
    current = begin(pool, f"class Odd(FileNotFoundError):\n    {body}\nraise Odd()")
    with pytest.raises(CellError):
        pool.attend(current)
    assert [outcome.end["ename"] for outcome in current.outcomes.values()] == ["Odd", "Odd"]


def test_a_syntax_error_on_the_node_is_the_cells_error(pool: Pool) -> None:
    from sky_jupyter.capture.collect import Capture

    with pytest.raises(CellError) as caught:
        pool.attend(pool.submission.begin_cell("x = = 1", Capture()))
    assert isinstance(caught.value.errors[0], SyntaxError)


def test_a_cell_can_run_on_some_ranks_only(pool: Pool) -> None:
    result = run(pool, "rank", ranks=[1])
    assert result.ranks == (1,)
    assert result.head == 1
    with pytest.raises(IndexError, match="no result 1: the cell ran on rank 1, and results are counted from 0"):
        result[1]


def test_a_rank_that_the_pool_does_not_have_is_refused(pool: Pool) -> None:
    with pytest.raises(SpecError, match="has ranks 0 to 1, not 2, 9"):
        begin(pool, "1", ranks=[0, 2, 9])


def test_what_was_sent_to_one_rank_only_is_sent_again_to_all(pool: Pool) -> None:
    namespace = {"for_one": "here"}
    assert run(pool, "for_one", namespace, ranks=[1]).values == ["here"]
    assert run(pool, "for_one", namespace).values == ["here", "here"]


def test_an_interrupt_reaches_every_rank_and_leaves_the_namespace(pool: Pool) -> None:
    run(pool, "before = 'kept'")
    current = begin(pool, "import time\nwhile True: time.sleep(0.05)")
    threading.Timer(0.3, lambda: pool.interrupt(current)).start()
    with pytest.raises(CellError) as caught:
        pool.attend(current)
    assert {type(error) for error in caught.value.errors.values()} == {RankInterrupted}
    assert run(pool, "before").values == ["kept", "kept"]


def test_an_interrupt_of_a_cell_that_waits_for_another_ends_it_and_not_the_other(pool: Pool, tmp_path: Path) -> None:
    go = tmp_path / "go"
    training = underway(pool, f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)\n'trained'")
    try:
        waiting = begin(pool, "never = 1")
        pool.interrupt(waiting)
        wait_until(waiting.over.is_set)
        assert training.left == [0, 1]
    finally:
        go.touch()
    with pytest.raises(CellError) as caught:
        pool.attend(waiting)
    assert "by you while it waited for its turn" in str(caught.value.errors[0])
    assert pool.attend(training).values == ["trained", "trained"]
    assert run(pool, "'never' in globals()").values == [False, False]


def test_an_interrupt_of_a_cell_that_waits_for_a_repair_ends_it_before_the_repair_is_done(pool: Pool) -> None:
    repaired = asyncio.Event()

    async def repair() -> None:
        await repaired.wait()

    async def let_it_wait() -> None:
        assert pool.supervisor.repairs.mending

    loop().loop.call_soon_threadsafe(pool.supervisor.repairs.begin, repair())
    try:
        waiting = begin(pool, "never = 1")
        loop().call(let_it_wait())
        pool.interrupt(waiting)
        wait_until(waiting.over.is_set)
        assert pool.supervisor.repairs.mending
    finally:
        loop().loop.call_soon_threadsafe(repaired.set)
    with pytest.raises(CellError) as caught:
        pool.attend(waiting)
    assert "by you while it waited for a repair" in str(caught.value.errors[0])
    assert run(pool, "'never' in globals()").values == [False, False]


def test_an_interrupt_reaches_a_subprocess_of_a_rank(pool: Pool) -> None:
    current = begin(pool, "import subprocess\nsubprocess.run(['sleep', '60'])")
    threading.Timer(0.3, lambda: pool.interrupt(current)).start()
    with pytest.raises(CellError):
        pool.attend(current)
    sleeping = run(pool, "import psutil; [p.name() for p in psutil.Process().children()]")
    assert sleeping.values == [[], []]


def test_a_cell_is_stopped_when_its_time_is_up(pool: Pool) -> None:
    with pytest.raises(CellError) as caught:
        run(pool, "import time; time.sleep(60)", timeout=0.5)
    assert "longer than 0.5 s" in str(caught.value.errors[0])
    assert run(pool, "rank").values == [0, 1]


# Each as IPython transforms it, with what has to be told of it.
FAILING = {
    "a file that raises": ("get_ipython().run_line_magic('run', '{folder}/bad.py')", "lost"),
    "a file that is no Python": ("get_ipython().run_line_magic('run', '{folder}/odd.py')", "was never closed"),
    "a file that exits": ("get_ipython().run_line_magic('run', '{folder}/ends.py')", "SystemExit: 3"),
    "a module that raises": ("get_ipython().run_line_magic('run', '-m bad')", "lost"),
    "a group": (
        "import sys\nif sys.version_info < (3, 11): from exceptiongroup import ExceptionGroup\n"
        "raise ExceptionGroup('several', [ValueError('lost')])",
        "ValueError: lost",
    ),
    "a magic that is misused": ("get_ipython().run_line_magic('cd', '-x /')", "UsageError"),
    "a question": ("input('how many?')", "input() does not work on a rank"),
    "a secret question": ("import getpass\ngetpass.getpass()", "getpass() does not work on a rank"),
    "a breakpoint": ("breakpoint()\nprint('went on')", "breakpoint() does not work on a rank"),
    "a debugger": ("get_ipython().run_line_magic('debug', '')", "%debug does not work on a rank"),
}


def test_a_cell_whose_row_was_still_queued_as_its_manager_was_killed_is_recorded_by_the_next(pool: Pool) -> None:
    """Rows of runs are written a moment after the run: what is missing then is deleted here."""
    first, last = (run(pool, f"recorded = {number}").run for number in (1, 2))
    pool.registry.flush()
    with pool.registry.transaction() as connection:
        connection.execute("DELETE FROM runs WHERE id = ?", (last,))
        connection.execute("UPDATE runs SET state = 'running' WHERE id = ?", (first,))
    take_stock(pool)
    newest, before = pool.registry.runs(pool.id, 2)
    assert [(row.id, row.state, row.code) for row in (before, newest)] == [
        (first, "ok", "recorded = 1"),
        (last, "ok", "recorded = 2"),
    ]
    # A run without values has no folder, neither in memory nor on disk.
    assert not [path for host in pool.hosts for path in host.blobs.glob(f"*{last}*")]


@pytest.fixture(scope="module")
def files(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Files that a rank can run; the folder is one that it imports from."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "bad.py").write_text("print('begun')\nraise ValueError('lost')\n")
    (folder / "odd.py").write_text("print(\n")
    (folder / "ends.py").write_text("raise SystemExit(3)\n")
    (folder / "fine.py").write_text("import sys\nfound = sys.argv[1:]\nsys.exit(0)\n")
    run(pool, f"import sys\nsys.path.insert(0, {str(folder)!r})")
    return str(folder)


@pytest.mark.parametrize("what", FAILING)
def test_what_fails_in_a_cell_fails_the_cell_and_says_why(pool: Pool, files: str, what: str) -> None:
    code, told = FAILING[what]
    with pytest.raises(CellError) as failed:
        run(pool, code.replace("{folder}", files))
    (block,) = failed.value._blocks
    assert told in plain(block)
    assert "site-packages" not in block
    assert str(Path(sky.__file__).parent) not in block
    assert "went on" not in failed.value.result.stdout(0)


def test_a_file_that_ends_well_gives_its_names(pool: Pool, files: str) -> None:
    assert run(pool, f"get_ipython().run_line_magic('run', '{files}/fine.py a b')\nfound").values == [["a", "b"]] * 2
    assert run(pool, f"get_ipython().run_line_magic('run', '-e {files}/ends.py')\n1").values == [1, 1]


def test_a_failure_that_code_shows_itself_is_output(pool: Pool) -> None:
    shown = run(pool, "print('before')\n_ = get_ipython().run_cell('1/0')\nprint('after')")
    assert shown.stdout(1) == "before\nafter\n"
    assert "ZeroDivisionError: division by zero" in plain(shown.stderr(1))
    caught = "try:\n    1/0\nexcept Exception:\n    get_ipython().showtraceback()"
    assert "ZeroDivisionError: division by zero" in plain(run(pool, caught).stderr(0))


@pytest.mark.parametrize(
    "call", ["system('sleep 60')", "getoutput('sleep 60')", "run_cell_magic('bash', '', 'sleep 60')"]
)
def test_a_shell_command_that_is_stopped_stops_its_cell(pool: Pool, call: str) -> None:
    with pytest.raises(CellError) as stopped:
        run(pool, f"get_ipython().{call}\nprint('went on')", timeout=0.5)
    assert all(isinstance(stopped.value.errors[rank], TimedOut) for rank in (0, 1))
    assert "went on" not in stopped.value.result.stdout(0)


def test_an_interrupt_that_the_code_raises_itself_keeps_its_text(pool: Pool) -> None:
    with pytest.raises(CellError) as stopped:
        run(pool, "raise KeyboardInterrupt('mine')")
    assert "interrupted: KeyboardInterrupt: mine" in str(stopped.value.errors[0])


def test_no_program_takes_a_rank_for_a_prompt_that_somebody_types_at(pool: Pool) -> None:
    assert run(pool, "import sys; hasattr(sys, 'ps1')").values == [False, False]


def test_a_rank_has_no_arguments_of_its_host(pool: Pool) -> None:
    assert run(pool, "import sys; sys.argv").values == [[""]] * 2
    assert run(pool, "import argparse; vars(argparse.ArgumentParser().parse_args())").values == [{}, {}]


def test_other_ranks_get_their_grace_when_one_fails(pool: Pool) -> None:
    code = "import time\nif rank == 1: raise ValueError('first')\ntime.sleep(1)\n'done'"
    with pytest.raises(CellError) as caught:
        run(pool, code, grace=10)
    assert caught.value.result[0] == "done"
    with pytest.raises(CellError) as caught:
        run(pool, code.replace("sleep(1)", "sleep(60)"), grace=0.3)
    assert isinstance(caught.value.errors[0], RankInterrupted)
    assert "rank 1 had failed" in str(caught.value.errors[0])


def test_an_interrupt_ends_the_grace_of_other_ranks(pool: Pool, tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"""
import os, time
if rank == 1: raise ValueError("first")
try:
    print("at it", flush=True)
    while True: time.sleep(0.02)
except KeyboardInterrupt:
    while not os.path.exists({str(go)!r}): time.sleep(0.02)
"""
    told: list[str] = []

    def listen(event: Any) -> None:
        if isinstance(event, NoticeEvent):
            told.append(event.text)

    current = begin(pool, code, grace=600, listener=listen)
    try:
        wait_until(lambda: current.failed == [1] and "at it" in "".join(current.outcomes[0].stdout))
        pool.interrupt(current)
        # What the user's interrupt does to a rank that goes on.
        wait_until(lambda: any("rank 0 does not respond" in text for text in told))
    finally:
        go.touch()
    with pytest.raises(CellError) as caught:
        pool.attend(current)
    assert list(caught.value.errors) == [1]


def test_a_rank_that_ignores_interrupts_is_replaced(pool: Pool) -> None:
    run(pool, "mine = rank")
    code = (
        "import signal, time\nif rank == 1:\n    signal.signal(signal.SIGINT, signal.SIG_IGN)\n    time.sleep(60)\nrank"
    )
    with pytest.raises(CellError) as caught:
        run(pool, code, timeout=4)
    assert isinstance(caught.value.errors[1], RankInterrupted | RankDied)
    assert caught.value.result[0] == 0
    pool.settle()
    assert pool.take_restarted() == {1}
    assert run(pool, "mine", ranks=[0]).values == [0]
    run(pool, WHO)


def test_a_run_id_that_an_agent_knows_is_not_run_twice(pool: Pool) -> None:
    run(pool, "counter = 0")
    current = begin(pool, "counter += 1; counter")
    assert pool.attend(current).values == [1, 1]
    assert pool.control is not None
    content = {"kind": "cell", "code": "counter += 1", "manifest": {"values": [], "modules": []}, "count": 1}
    answers = loop().call(pool.control.ask(rpc.START_RUN, run=current.id, ranks=[0, 1], content=content))
    assert {answer["state"] for answer in answers.values()} == {"known"}
    assert run(pool, "counter").values == [1, 1]


def test_the_journal_holds_every_event_in_order(pool: Pool) -> None:
    from sky_jupyter.node.journal.journal import lines_of

    current = begin(pool, "print('journalled'); rank")
    pool.attend(current)
    assert pool.control is not None
    answer = loop().call(pool.control.ask(rpc.READ_EVENTS, [1], run=current.id, start=0))[1]
    events = lines_of(answer["data"])
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert [event["kind"] for event in events] == ["begin", "stream", "result", "end"]
    assert answer["over"]


def test_a_notebooks_folder_is_the_ranks_working_folder(pool: Pool) -> None:
    assert run(pool, "import os; os.getcwd()").values == [os.getcwd()] * 2
