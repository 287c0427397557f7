"""`%sky exec`: a command of the shell on the nodes, shown as a cell is."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psutil
import pytest

from tests.magics.notebook import Cell, Notebook, notebook
from tests.pool.pools import wait_until

# No other test's.
SLEEP = f"sleep {10**6 + os.getpid()}"


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with notebook(tmp_path_factory.mktemp("notebook")) as book:
        cell = book.run("%load_ext sky_jupyter\n%sky up --nodes 2 --ranks-per-node 2 --name commands")
        assert cell.status == "ok", cell.outputs
        yield book
        book.run("%sky down")


def test_a_command_runs_once_a_node_with_the_ranks_environment_unless_each_rank_is_meant(book: Notebook) -> None:
    assert book.run("%sky exec -- echo node $SKY_NODE of $SKY_OF | tr -d ' '").body == ["[0] node0of", "[2] node1of"]
    assert book.run("%sky exec -- echo why >&2").body == ["[0,2] why"]
    assert book.run("%sky exec --per-rank --on 1-3 -- echo rank $SKY_RANK").body == [
        "[1] rank 1",
        "[2] rank 2",
        "[3] rank 3",
    ]
    book.run("%%sky\nimport os\nos.environ['MINE'] = 'set'")
    assert book.run("%sky exec --on 3 -- echo $MINE; command -v python").body == [
        "set",
        book.value("__import__('sys').prefix") + "/bin/python",
    ]


def test_an_exit_status_fails_the_run_and_other_nodes_go_on(book: Notebook) -> None:
    cell = book.run("%sky exec -- echo begun; if [ $SKY_NODE = 0 ]; then exit 3; fi; sleep 0.3; echo done")
    assert cell.status == "error"
    assert (cell.error_name, cell.body[0]) == ("CellError", "[0,2] begun")
    assert "[2] done" in cell.body
    assert "exit status 3: echo begun" in cell.error
    assert "shell_command" not in cell.error
    assert book.value("_sky.errors[0].status") == 3
    assert book.run("%sky exec --on 0 -- kill -9 $$").error.splitlines()[-1].startswith("killed by SIGKILL (9): kill")


def test_an_interrupt_ends_the_command_and_the_pool_goes_on(book: Notebook) -> None:
    deaf = f"trap '' INT; {SLEEP} & wait; {SLEEP}"
    for command in (f"echo begun; {SLEEP}", f'echo begun; bash -c "{deaf}"'):
        cell = book.run(f"%sky exec -- {command}", until=_has_begun)
        assert cell.error_name in ("KeyboardInterrupt", "CellError")
    wait_until(lambda: not any(_sleeps(one) for one in psutil.process_iter()))
    assert book.run("%sky exec --on head -- echo well").body == ["well"]


def _has_begun(cell: Cell) -> bool:
    return any("begun" in text for text in cell.updates)


def _sleeps(process: psutil.Process) -> bool:
    try:
        return process.cmdline() == SLEEP.split()
    except psutil.Error:
        return False


def test_a_detached_command_goes_on_and_is_waited_for(book: Notebook) -> None:
    assert "continues" in book.run("%sky exec --detach --on 0 -- sleep 0.2; echo over").stream()
    assert book.run("%sky wait").body == ["over"]
