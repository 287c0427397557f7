"""``%sky auto`` in a real kernel: plain cells run on the pool, and the others where they ran before.

All tests share a kernel; each leaves it with auto on, for a pool of two nodes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from sky_jupyter.magics.auto import goes_to_nodes
from tests.conftest import MARK, marked_processes
from tests.magics.notebook import Notebook, OwnKernelSpecs, notebook

RANK = "import sky_jupyter; rank = sky_jupyter.instance_info().rank"


@pytest.fixture(scope="module")
def book(tmp_path_factory) -> Iterator[Notebook]:
    with notebook(tmp_path_factory.mktemp("book")) as opened:
        assert opened.run("%load_ext sky_jupyter").status == "ok"
        assert opened.run("here = 'here'").status == "ok"
        yield opened
    end = time.monotonic() + 60
    while marked_processes(os.environ[MARK]):
        assert time.monotonic() < end, "the notebook's pools outlive it"
        time.sleep(0.05)


@pytest.fixture
def on(book) -> Notebook:
    """The notebook with auto on."""
    assert book.run("%sky up --name default --nodes 2").status == "ok"
    told = book.run("%sky auto")
    assert "cells run on pool default until `%sky auto off`" in told.stream()
    return book


def state(book: Notebook, **content: Any) -> dict[str, Any]:
    """Ask for the state, as a page does."""
    message = book.client.session.msg("sky_auto_request", content)
    book.client.control_channel.send(message)
    while True:
        reply = book.client.control_channel.get_msg(timeout=60)
        if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
            return dict(reply["content"])


def test_plain_cells_run_on_the_pool_and_local_ones_here(on):
    assert on.run(f"{RANK}; (here, rank)").body == ["[0] Out: ('here', 0)", "[1] Out: ('here', 1)"]
    assert on.run("%%local\n'rank' in globals()").outputs[0].data["text/plain"] == "False"
    assert on.run("rank").body == ["[0] Out: 0", "[1] Out: 1"]


def test_a_failing_cell_ends_as_with_sky_above_it_with_the_lines_of_the_notebook(on):
    cell = on.run("# first\n\n1 / 0")
    assert cell.status == "error"
    assert cell.error_name == "CellError"
    assert f"Cell In[{cell.number}], line 3" in cell.error
    assert "----> 3 1 / 0" in cell.error
    assert "ranks 0-1" in cell.error
    assert "invalid syntax" in on.run("def f(:").error


def test_lines_of_sky_stay_and_the_lines_around_them_go_to_the_nodes_in_turn(on):
    cell = on.run("mine = 7\n%sky pull mine --as brought\nbrought, 1 / 0")
    assert "brought: list of 2 from ranks 0-1" in cell.stream()
    assert "----> 3 brought, 1 / 0" in cell.error
    assert on.run("%%local\nbrought").outputs[0].data["text/plain"] == "[7, 7]"


def test_cell_magics_stay_but_for_those_that_measure(on):
    assert on.run("%%html\n<b>bold</b>").displays[0].data["text/html"].strip() == "<b>bold</b>"
    assert "Wall time" in on.run("%%time\nmeasured = 1").run
    assert on.run("%%capture caught\nmeasured").outputs == []
    assert on.run("%%local\nlen(caught.outputs)").outputs[0].data["text/plain"] == "1"
    # What a local cell has IPython run stays with it.
    assert on.run("%%local\n%time print(here)").stream().startswith("here")
    assert on.run("%%local\n%%capture\ncaught = 5").outputs == []
    assert on.run("%%local\ncaught").outputs[0].data["text/plain"] == "5"


def test_history_has_the_cell_as_it_was_written(on):
    on.run("written = 'so'")
    assert on.run("%%local\nget_ipython().history_manager.input_hist_raw[-2]").outputs[0].data["text/plain"] == (
        "\"written = 'so'\""
    )


def test_what_a_page_runs_behind_the_persons_back_stays_here(on):
    reply = on.client.execute_interactive("behind = 1", store_history=False, timeout=60)
    assert reply["content"]["status"] == "ok"
    assert on.run("%%local\nbehind").outputs[0].data["text/plain"] == "1"


def test_options_hold_for_each_cell(on):
    assert on.run("%sky auto --on 1").status == "ok"
    assert on.run(f"{RANK}; rank").body == ["Out: 1"]
    # One cell may have others.
    assert on.run(f"%%sky --on head\n{RANK}; rank").body == ["Out: 0"]


def test_wrong_options_are_refused_at_once_and_change_nothing(on):
    assert "ranks 0 to 1, not 5" in on.run("%sky auto --on 5").stream("stderr")
    assert "takes options, or off, not 'of'" in on.run("%sky auto of").stream("stderr")
    assert "takes no options" in on.run("%sky auto off --on 0").stream("stderr")
    assert "%%local takes no options, not '--now'" in on.run("%%local --now\n1").stream("stderr")
    assert state(on)["on"]


def test_pages_see_and_change_it(on):
    assert state(on) == {"status": "ok", "on": True, "pool": "default", "live": True, "options": ""}
    assert state(on, on=False)["on"] is False
    assert on.run("here").outputs[0].data["text/plain"] == "'here'"
    assert state(on, on=True)["on"] is True
    assert len(on.run("here").body) == 1
    assert "'on' is true or false" in state(on, on="yes")["message"]


def test_a_pool_that_has_ended_is_named_with_the_ways_out(on):
    assert on.run("%sky down").status == "ok"
    cell = on.run("here")
    assert cell.error_name == "PoolError"
    for words in ("pool 'default' has ended", "`%sky auto off`", "`%%local`", "`%sky up --name default`"):
        assert words in cell.error
    assert state(on)["live"] is False
    assert on.run("%sky auto off").status == "ok"
    assert "there is no pool" in state(on, on=True)["message"]
    assert on.run("here").outputs[0].data["text/plain"] == "'here'"


def test_lines_below_the_extensions_end_run_in_the_notebook_with_their_own_errors(on):
    cell = on.run("there = 'there'\n%unload_ext sky_jupyter\nhere = 'still here'\nthere")
    assert cell.error_name == "NameError"
    assert "name 'there' is not defined" in cell.error
    assert cell.stream("stderr") == ""
    assert on.value("here") == "still here"
    assert on.run("%load_ext sky_jupyter\nhere = 'here'").status == "ok"


def test_run_all_stops_at_the_first_error_and_a_new_kernel_has_it_off(tmp_path):
    cells = ["1 + 1", "%load_ext sky_jupyter\n%sky auto --nodes 2", RANK, "assert rank == 0", "print('not reached')"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    for _ in range(2):
        client = NotebookClient(book, timeout=240, resources={"metadata": {"path": str(tmp_path)}})
        client.create_kernel_manager().kernel_spec_manager = OwnKernelSpecs()
        with pytest.raises(CellExecutionError, match="AssertionError"):
            client.execute()
        assert book.cells[0].outputs[0].data["text/plain"] == "2"
        assert book.cells[4].outputs == []
        assert "sky" not in str(book.metadata)


@pytest.mark.parametrize(
    ("cell", "goes"),
    [
        ("x = 1", True),
        ("!ls", True),
        ("%matplotlib inline", True),
        ("%%timeit\nx", True),
        ("text = '''\n%sky down\n'''", True),
        ("%sky up\nx = 1", True),
        ("%sky put a(1 b\nx = 1", True),
        ("%sky up \\\n  --nodes 2", False),
        ("%sky?", False),
        ("%load_ext sky_jupyter", False),
        ("%%bash\nls", False),
        ("%%sky --on 0\nx", False),
        ("# nothing", False),
        ("\n", False),
        ("quit()", False),
    ],
)
def test_what_goes_to_the_nodes(cell, goes):
    assert goes_to_nodes(cell.splitlines(keepends=True)) is goes
