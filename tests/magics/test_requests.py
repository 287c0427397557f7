"""What is asked over a real kernel's control channel while a cell runs in it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import MARK, marked_processes
from tests.magics.notebook import Notebook, notebook

PATIENCE = 60.0
# A cell that lasts longer than any test: what is answered meanwhile was not waited for.
BLOCKS = "%%sky\nimport time\nprint('begun', flush=True)\ntime.sleep(600)"


@pytest.fixture(scope="module")
def book(tmp_path_factory) -> Iterator[Notebook]:
    with notebook(tmp_path_factory.mktemp("book")) as opened:
        assert opened.run("%load_ext sky_jupyter").status == "ok"
        yield opened
    end = time.monotonic() + 60
    while marked_processes(os.environ[MARK]):
        assert time.monotonic() < end, "the notebook's pools outlive it"
        time.sleep(0.05)


@pytest.fixture
def two(book) -> Notebook:
    """The notebook with a pool of two nodes that nothing runs on."""
    assert book.run("%sky up --name default --nodes 2").status == "ok"
    return book


def send(book: Notebook, content: Any, kind: str = "sky_request") -> str:
    message = book.client.session.msg(kind, content)
    book.client.control_channel.send(message)
    return str(message["header"]["msg_id"])


def answer_to(book: Notebook, id: str) -> dict[str, Any]:
    while True:
        reply = book.client.control_channel.get_msg(timeout=PATIENCE)
        if reply["parent_header"].get("msg_id") == id:
            assert reply["msg_type"] == "sky_reply"
            return dict(reply["content"])


def ask(book: Notebook, action: Any, **more: Any) -> dict[str, Any]:
    return answer_to(book, send(book, {"action": action, **more}))


def done(book: Notebook, action: str, **more: Any) -> dict[str, Any]:
    reply = ask(book, action, **more)
    assert reply["status"] == "ok", reply
    return reply


def wait_for(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.05)
    return found


def nodes(book: Notebook) -> list[dict[str, Any]]:
    (pool,) = done(book, "status")["pools"]
    return list(pool["nodes"])


def begin(book: Notebook, source: str) -> str:
    # Otherwise the kernel gives up what is sent in the moment after this one has failed.
    return str(book.client.execute(source, stop_on_error=False))


def begin_blocking(book: Notebook) -> tuple[str, str]:
    """A cell that works on both ranks: its message and its run."""
    cell = begin(book, BLOCKS)

    def working() -> str:
        (pool,) = done(book, "status")["pools"]
        runs = [run["id"] for run in pool["runs"] if run["left"] == [0, 1]]
        # Nodes may not know a run yet that has only just begun.
        reply = ask(book, "log", run=runs[0]) if runs else {}
        return runs[0] if sum(len(node["events"]) for node in reply.get("nodes", ())) == 2 else ""

    return cell, wait_for(working)


def end_of(book: Notebook, cell: str) -> dict[str, Any]:
    """How a cell ended that was begun before."""
    while True:
        reply = book.client.get_shell_msg(timeout=PATIENCE)
        if reply["parent_header"].get("msg_id") == cell:
            return dict(reply["content"])


def test_requests_are_answered_while_a_cell_runs_on_the_pool_and_it_can_be_interrupted(two):
    cell, run = begin_blocking(two)
    (pool,) = done(two, "status")["pools"]
    assert (pool["name"], pool["state"], pool["current"]) == ("default", "ready", True)
    # Whoever looks twice within half a second sees the same.
    busy = 2 * [("busy", [run])]
    wait_for(lambda: [(node["state"], [rank["run"] for rank in node["ranks"]]) for node in nodes(two)] == busy)
    assert "time.sleep(600)" in done(two, "where", pool="default")["text"]
    assert done(two, "runs")["runs"][0]["state"] == "running"
    both = done(two, "log", run=run)["nodes"]
    assert [[event["text"] for event in node["events"]] for node in both] == [["begun\n"], ["begun\n"]]
    # (A pool whose nodes have changed asks all of them, as a test before this one may have done.)
    texts = {node["node"]: node["text"] for node in done(two, "log", run=run, rank=1, **{"as": "text"})["nodes"]}
    assert {node: text for node, text in texts.items() if text} == {1: "begun\n"}
    assert done(two, "interrupt", pool="default")["runs"] == [run]
    assert end_of(two, cell)["ename"] == "KeyboardInterrupt"
    assert two.run("%%sky\n1").body == ["[0-1] Out: 1"]


def test_requests_are_answered_while_the_notebook_itself_is_busy(two):
    cell = begin(two, "import time\nfor _ in range(6000): time.sleep(0.1)")
    for _ in range(20):
        assert done(two, "interrupt")["message"] == "pool default: nothing runs"
    # They came while the cell went on: had they waited for its end, there would be nothing to interrupt.
    two.manager.interrupt_kernel()
    assert end_of(two, cell)["ename"] == "KeyboardInterrupt"


def test_a_long_answer_does_not_hold_up_the_next_request(two):
    def first_of_two() -> bool:
        cell, _ = begin_blocking(two)
        where = send(two, {"action": "where"})
        interrupt = send(two, {"action": "interrupt"})
        replies: list[str] = []
        while len(replies) < 2:
            reply = two.client.control_channel.get_msg(timeout=PATIENCE)
            replies.append(reply["parent_header"]["msg_id"])
        assert {*replies} == {where, interrupt}
        end_of(two, cell)
        return replies[0] == interrupt

    # Which of the two is done first is chance on a busy machine; held up, the interrupt would never be the first.
    assert any(first_of_two() for _ in range(5))


def test_a_restart_ends_the_cell_with_an_error_that_says_so_and_the_next_one_runs(two):
    cell, _ = begin_blocking(two)
    # On a busy machine it goes on after the answer.
    assert done(two, "restart")["message"].startswith("pool default: new kernels on all ranks")
    end = end_of(two, cell)
    assert end["ename"] == "CellError"
    assert "its kernel was replaced by `%sky restart`" in "\n".join(end["traceback"])
    again = two.run("%%sky\n2")
    assert again.body == ["[0-1] Out: 2"]


def test_a_rank_can_be_restarted_alone(two):
    two.run("%%sky\nkept = 7")
    assert done(two, "restart", ranks=[1])["message"].startswith("pool default: new kernels on rank 1")
    after = two.run("%%sky\n'kept' in globals()")
    assert after.body == ["[0] Out: True", "[1] Out: False"]
    assert "new kernels: rank 1" in after.stream()
    assert "has ranks 0 to 1, not 9" in ask(two, "restart", ranks=[9])["message"]


@pytest.mark.slow
def test_nodes_are_added_and_removed_while_a_cell_runs_which_ends_with_an_error_that_says_so(two):
    cell, _ = begin_blocking(two)
    assert done(two, "resize", nodes=3)["message"].startswith("pool default: 2 nodes -> 3")
    end = end_of(two, cell)
    assert end["ename"] == "CellError"
    assert "its kernel was replaced by `%sky resize`" in "\n".join(end["traceback"])
    wait_for(lambda: [pool["state"] for pool in done(two, "status")["pools"]] == ["ready"] and len(nodes(two)) == 3)
    after = two.run("%%sky\nmine = 4")
    assert "all kernels are new" in after.stream()
    assert done(two, "resize", nodes=3) == {
        "status": "ok",
        "done": True,
        "message": "pool default: 3 nodes -> 3, as it is already",
    }
    # Typed, it asks before what only the nodes have is lost; where nobody can be asked, it does nothing.
    assert "these names are lost, as only the nodes have them: mine" in two.run("%sky resize --remove 1").error
    asked = two.run("%sky resize --remove 1", answers=["no"])
    assert "Go on? (yes or no)" in asked.asked[0][0]
    assert "pool default stays as it was" in asked.stream()
    assert two.run("%%sky\nmine").body == ["[0-2] Out: 4"]
    there = two.run("%sky resize --remove 1", answers=["yes"])
    assert "lost, as only the nodes had them: mine" in there.stream()
    assert two.run("%%sky\n1").body == ["[0-1] Out: 1"]
    two.run("%%sky\nmine = 4")
    assert two.run("%sky resize 1 --yes").status == "ok"
    assert "`%sky resize 2 --name default`" in two.run("%%sky --nodes 2\n1").error
    two.run("%%sky\nprint('alone')")
    assert two.run("%sky resize 2").status == "ok"
    # A run is shown with the ranks that it had.
    shown = "\n".join(str(output.get("data", {}).get("text/plain")) for output in two.run("%sky wait").outputs)
    assert "1 rank ·" in shown
    assert "alone" in shown


def test_what_a_run_that_was_let_go_had_been_sent_is_sent_again_to_new_kernels(two):
    two.run("sent = 5")
    for verb in ("restart", "resize 1 --yes"):
        two.run("%%sky --detach\nmade = sent")
        wait_for(lambda: not done(two, "status")["pools"][0]["runs"])
        # (Tests before this one may have left names there, too.)
        assert re.search("lost, as only the nodes had them: (.*, )?made\n", two.run(f"%sky {verb}").stream())
        assert two.run("%%sky --on 0\nsent").body[0].endswith("Out: 5")
    two.run("%sky resize 2")


def test_ending_the_pool_ends_the_cell_with_an_error_that_says_so(two):
    cell, _ = begin_blocking(two)
    assert done(two, "down", pool="default")["message"].startswith("pool default: ended")
    end = end_of(two, cell)
    assert end["ename"] == "CellError"
    assert "the pool was ended" in "\n".join(end["traceback"])
    assert wait_for(lambda: done(two, "status")["pools"] == [])
    assert two.run("1 + 1").status == "ok"
    assert two.run("%%sky --nodes 2\n3").body == ["[0-1] Out: 3"]


def test_a_pool_that_is_being_started_is_seen_and_can_be_interrupted(two):
    cell = begin(two, "%sky up --name other --nodes 2")
    started = wait_for(lambda: [pool for pool in done(two, "status")["pools"] if pool["name"] == "other"])
    if started[0]["state"] == "starting":
        assert done(two, "interrupt", pool="other")["message"] == "the start of pool other is interrupted"
        assert end_of(two, cell)["ename"] == "KeyboardInterrupt"
    else:
        end_of(two, cell)
        done(two, "down", pool="other")
    assert [pool["name"] for pool in done(two, "status")["pools"]] == ["default"]


def test_what_is_wrong_with_a_request_is_said(two):
    wrong = {
        "no action 'stauts'": {"action": "stauts"},
        "no action list": {"action": []},
        "there is no pool 'nosuch'": {"action": "down", "pool": "nosuch"},
        "'ranks' must be a list of": {"action": "restart", "ranks": "all"},
        "'remove' must be a list of nodes' numbers": {"action": "resize", "remove": 1},
        "'add' must be a list of hosts": {"action": "resize", "add": [""]},
        "node 0 is the head": {"action": "resize", "remove": [0]},
        "a pool is resized to a number of nodes": {"action": "resize"},
        "'from' must be an event's number": {"action": "log", "from": 1.5},
        "no node that answers knows run": {"action": "log", "run": "ffffffff"},
        "has ranks 0 to 1, not 7": {"action": "log", "rank": 7},
    }
    two.run("%%sky\n1")
    for text, content in wrong.items():
        reply = answer_to(two, send(two, content))
        assert reply["status"] == "error"
        assert text in reply["message"]


@pytest.mark.slow
def test_without_the_extension_nobody_answers(book):
    assert book.run("%unload_ext sky_jupyter").status == "ok"
    request, other = send(book, {"action": "status"}), send(book, {}, "kernel_info_request")
    reply = book.client.control_channel.get_msg(timeout=PATIENCE)
    assert (reply["parent_header"]["msg_id"], reply["msg_type"]) == (other, "kernel_info_reply")
    assert book.run("%load_ext sky_jupyter").status == "ok"
    assert done(book, "status")["pools"] == []
    assert request != other


def test_an_interrupt_between_a_cells_end_and_its_reply_does_not_lose_the_reply(book):
    # What ipykernel calls on its way from the one to the other.
    late = "import os, signal\nkernel = get_ipython().kernel\nfinish = kernel.finish_metadata\n"
    late += "def pressed(*args):\n    os.kill(os.getpid(), signal.SIGINT)\n    return finish(*args)\n"
    late += "kernel.finish_metadata = pressed; raise KeyboardInterrupt"
    assert book.run(late).error_name == "KeyboardInterrupt"
    assert book.run("kernel.finish_metadata = finish; 1 / 0").error_name == "ZeroDivisionError"
    # Cells are interrupted as before.
    slow = book.run("print('on')\nimport time\ntime.sleep(600)", until=lambda cell: "on" in cell.stream())
    assert slow.error_name == "KeyboardInterrupt"
