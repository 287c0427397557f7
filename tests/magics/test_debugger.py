"""The page's debugger on a rank: a client speaks its protocol to a notebook's kernel, as JupyterLab does."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from sky_jupyter.errors import PoolError
from sky_jupyter.session.debug_target import DebugTarget
from tests.magics.notebook import Cell, Notebook, notebook

CELL = """%%sky
def above(number):
    more = number + 1

    return more

import sky_jupyter as sky
x = above(sky.instance_info().rank)
print(f"x is {x}")
"""
STOP = 3


class Page:
    """What a page's debugger says to the kernel of a notebook, and hears."""

    def __init__(self, kernel: Notebook) -> None:
        self.kernel = kernel
        self.events: list[dict[str, Any]] = []
        self._numbers = itertools.count(1)
        # A session of its own: that of the notebook's client takes no message twice.
        self.client = BlockingKernelClient(connection_file=kernel.manager.connection_file)
        self.client.load_connection_file()
        self.client.start_channels(shell=False, stdin=False, hb=False)

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a request and return its response."""
        return self._send(
            "debug_request", type="request", seq=next(self._numbers), command=command, arguments=arguments
        )

    def select(self, **content: Any) -> dict[str, Any]:
        """Ask which rank is debugged, and change it, as the selector in the toolbar does."""
        return self._send("sky_debugger_request", **content)

    def _send(self, kind: str, **content: Any) -> dict[str, Any]:
        message = self.client.session.msg(kind, content)
        self.client.control_channel.send(message)
        while True:
            reply = self.client.get_control_msg(timeout=60)
            if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                return dict(reply["content"])

    def body(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a request that is to succeed, and return what it is answered."""
        reply = self.ask(command, **arguments)
        assert reply["success"], reply
        return dict(reply.get("body") or {})

    def hear(self, event: str) -> dict[str, Any]:
        """Wait for the next event of a kind."""
        while True:
            message = self.client.get_iopub_msg(timeout=60)
            if message["msg_type"] == "debug_event" and message["content"]["event"] == event:
                return dict(message["content"].get("body") or {})

    def begin(self) -> None:
        """Turn the debugger on."""
        self.body("initialize", clientID="test", adapterID="", pathFormat="path", linesStartAt1=True)
        self.body("attach")

    def stop_at(self, code: str, *lines: int) -> str:
        """Set a cell's breakpoints; return the path of the cell."""
        path = str(self.body("dumpCell", code=code)["sourcePath"])
        set_ = self.body("setBreakpoints", source={"path": path}, breakpoints=[{"line": line} for line in lines])
        assert [(one["verified"], one["line"]) for one in set_["breakpoints"]] == [(True, line) for line in lines]
        self.body("configurationDone")
        return path

    def place(self, thread: int) -> tuple[str, int, str]:
        """Return path, line and function of where a thread is stopped."""
        top = self.body("stackTrace", threadId=thread)["stackFrames"][0]
        return top["source"]["path"], top["line"], top["name"]

    def locals(self, thread: int) -> dict[str, str]:
        """Return the variables of the function that a thread is stopped in."""
        frame = self.body("stackTrace", threadId=thread)["stackFrames"][0]["id"]
        scope = self.body("scopes", frameId=frame)["scopes"][0]
        found = self.body("variables", variablesReference=scope["variablesReference"])["variables"]
        return {one["name"]: one["value"] for one in found}


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with notebook(tmp_path_factory.mktemp("debugger")) as made:
        made.run("%load_ext sky_jupyter")
        made.run("%sky up --nodes 2")
        yield made


@pytest.fixture
def page(kernel: Notebook) -> Iterator[Page]:
    made = Page(kernel)
    yield made
    made.ask("disconnect", restart=False, terminateDebuggee=False)
    kernel.run("%sky debugger off")
    made.client.stop_channels()


def running(kernel: Notebook, code: str) -> tuple[threading.Thread, list[Cell]]:
    """Begin a cell; return the thread that waits for it, and where it puts the cell."""
    cells: list[Cell] = []
    thread = threading.Thread(target=lambda: cells.append(kernel.run(code)))
    thread.start()
    return thread, cells


def test_a_page_stops_a_rank_steps_and_sees_its_variables(page: Page) -> None:
    assert "rank 1 of pool default" in page.kernel.run("%sky debugger 1").stream()
    page.begin()
    assert page.body("modules")["modules"]
    path = page.stop_at(CELL, STOP)
    assert page.body("debugInfo")["breakpoints"] == [{"source": path, "breakpoints": [{"line": STOP}]}]
    thread, cells = running(page.kernel, CELL)
    stopped = page.hear("stopped")["threadId"]
    assert page.place(stopped) == (path, STOP, "above")
    assert page.locals(stopped) == {"number": "1"}
    page.body("next", threadId=stopped)
    page.hear("stopped")
    assert page.place(stopped) == (path, 5, "above")
    assert page.locals(stopped) == {"number": "1", "more": "2"}
    assert page.body("debugInfo")["stoppedThreads"]
    page.body("continue", threadId=stopped)
    thread.join()
    assert [line for line in cells[0].body if "x is" in line] == ["[0] x is 1", "[1] x is 2"]
    assert not [output for output in cells[0].outputs if output.output_type == "error"]


def test_an_interrupt_ends_a_stopped_cell_and_the_next_cell_stops_again(page: Page) -> None:
    page.kernel.run("%sky debugger 1")
    page.begin()
    page.stop_at(CELL, STOP)
    thread, cells = running(page.kernel, CELL)
    page.hear("stopped")
    page.kernel.manager.interrupt_kernel()
    thread.join()
    assert cells[0].error_name == "KeyboardInterrupt"
    assert "rank 1 interrupted" in cells[0].run
    assert "pydevd" not in cells[0].run
    thread, cells = running(page.kernel, CELL)
    stopped = page.hear("stopped")["threadId"]
    page.body("continue", threadId=stopped)
    thread.join()
    assert "x is 2" in cells[0].run


@pytest.mark.long
def test_an_expression_that_does_not_return_keeps_no_rank_at_its_breakpoint(page: Page) -> None:
    page.kernel.run("%sky debugger 1")
    page.begin()
    page.stop_at(CELL, STOP)
    thread, _ = running(page.kernel, CELL)
    stopped = page.hear("stopped")["threadId"]
    frame = page.body("stackTrace", threadId=stopped)["stackFrames"][0]["id"]
    endless = page.ask("evaluate", expression="__import__('threading').Event().wait()", frameId=frame, context="repl")
    assert not endless["success"]
    page.body("disconnect", restart=False, terminateDebuggee=False)
    page.kernel.manager.interrupt_kernel()
    thread.join()
    assert page.kernel.run("%%sky\nprint('on')").body == ["[0-1] on"]


@pytest.mark.slow
def test_another_rank_and_the_notebook_itself_get_the_breakpoints(page: Page) -> None:
    plain = "def plain():\n    y = 1\n    return y\nplain()"
    page.kernel.run("%sky debugger 1")
    page.begin()
    path = page.stop_at(CELL, STOP)
    page.kernel.run("%sky debugger 0")
    thread, cells = running(page.kernel, CELL)
    stopped = page.hear("stopped")["threadId"]
    assert (page.place(stopped)[:2], page.locals(stopped)) == ((path, STOP), {"number": "0"})
    page.body("continue", threadId=stopped)
    thread.join()
    assert [line for line in cells[0].body if "x is" in line] == ["[0] x is 1", "[1] x is 2"]
    page.kernel.run("%sky debugger off")
    here = page.stop_at(plain, 2)
    thread, cells = running(page.kernel, plain)
    stopped = page.hear("stopped")["threadId"]
    assert page.place(stopped) == (here, 2, "plain")
    page.body("continue", threadId=stopped)
    thread.join()


def test_the_selector_changes_the_rank_while_a_cell_runs(page: Page, tmp_path: Path) -> None:
    plain = "def plain():\n    y = 1\n    return y\nplain()"
    assert page.select() == {"status": "ok", "pool": "default", "ranks": 2, "rank": None}
    page.select(rank=0)
    assert "rank 0 of pool default" in page.kernel.run("%sky debugger").stream()
    page.begin()
    path = page.stop_at(CELL, STOP)
    thread, cells = running(page.kernel, CELL)
    assert page.place(page.hear("stopped")["threadId"])[0] == path
    # The rank goes on, as the other one does.
    assert page.select(rank=1)["rank"] == 1
    thread.join()
    assert "x is 1" in cells[0].run
    go = tmp_path / "go"
    waits = f"{CELL}import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)"
    page.stop_at(waits, STOP)
    thread, cells = running(page.kernel, waits)
    stopped = page.hear("stopped")["threadId"]
    assert page.locals(stopped) == {"number": "1"}
    # The notebook's own debugger is turned on once the cell has ended, and the control channel answers until then.
    assert page.select(rank=None)["rank"] is None
    assert page.select()["rank"] is None
    go.touch()
    thread.join()
    assert "x is 2" in cells[0].run
    here = page.stop_at(plain, 2)
    thread, cells = running(page.kernel, plain)
    stopped = page.hear("stopped")["threadId"]
    assert page.place(stopped) == (here, 2, "plain")
    page.body("continue", threadId=stopped)
    thread.join()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"rank": 7}, "pool 'default' has ranks 0 to 1, not 7"),
        ({"rank": "head"}, "'rank' is a rank's number, or null, not 'head'"),
        ({"rank": 0, "pool": "night"}, "there is no pool 'night'"),
    ],
)
def test_the_selector_is_told_what_cannot_be_debugged(page: Page, content: dict[str, Any], message: str) -> None:
    reply = page.select(**content)
    assert reply["status"] == "error"
    assert message in reply["message"]


@pytest.mark.slow
def test_a_rank_that_dies_while_it_is_stopped_leaves_pool_and_debugger_usable(page: Page) -> None:
    page.kernel.run("%sky debugger 1")
    page.kernel.run("%%sky\nimport os\npid = os.getpid()")
    page.kernel.run("%sky pull pid --on 1")
    pid = page.kernel.value("pid")
    page.begin()
    page.stop_at(CELL, STOP)
    thread, cells = running(page.kernel, CELL)
    page.hear("stopped")
    os.kill(pid, signal.SIGKILL)
    page.hear("continued")
    thread.join()
    assert cells[0].error_name == "CellError"
    assert not page.body("debugInfo")["isStarted"]
    # Its new kernel.
    assert "x is 2" in page.kernel.run(CELL).run
    page.begin()
    page.stop_at(CELL, STOP)
    thread, cells = running(page.kernel, CELL)
    stopped = page.hear("stopped")["threadId"]
    page.body("continue", threadId=stopped)
    thread.join()
    assert "x is 2" in cells[0].run


class Debugged:
    """As much of a kernel and of a pool as a choice of what is debugged needs; some of its ranks refuse."""

    def __init__(self, refuses: set[int]) -> None:
        self.refuses, self.asked = refuses, []  # type: set[int], list[tuple[str, str]]
        self.debugger = self.session = self.supervisor = self.control_thread = self
        self.io_loop, self.iopub_socket, self.ranks_per_node, self.spec = self, None, 1, self
        self.asyncio_loop, self.is_started = asyncio.get_running_loop(), False

    def add_callback(self, callback: Callable[..., object], *args: Any) -> None:
        callback(*args)

    def send(self, *_: Any, **__: Any) -> None: ...

    def extend(self, *_: Any) -> None: ...

    async def do_debug_request(self, request: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(("notebook", request["command"]))
        self.is_started = {"disconnect": False, "initialize": True}.get(request["command"], self.is_started)
        return {"success": True, "body": {}}

    async def ask(self, call: str, nodes: list[int], rank: int, request: dict[str, Any]) -> dict[int, dict[str, Any]]:
        self.asked.append((f"rank {rank}", request["command"]))
        return {nodes[0]: {"success": rank not in self.refuses, "message": "debugpy is not installed", "body": {}}}


async def choose_rank_that_refuses() -> list[tuple[str, str]]:
    kernel: Any = Debugged({1})
    target = DebugTarget(kernel, lambda text: None)
    await target.answer({"type": "request", "seq": 1, "command": "initialize", "arguments": {}})
    place = {"source": {"path": "cell.py"}, "breakpoints": [{"line": 2}]}
    await target.answer({"type": "request", "seq": 2, "command": "setBreakpoints", "arguments": place})
    kernel.asked.clear()
    with pytest.raises(PoolError, match="rank 1 cannot be debugged: debugpy is not installed"):
        await target.turn_to(kernel, 1)
    # It waits until the debugger is on again.
    await target.answer({"type": "request", "seq": 3, "command": "threads", "arguments": {}})
    assert kernel.is_started
    return list(kernel.asked)


def test_the_debugger_stays_on_when_a_rank_refuses_it() -> None:
    told = asyncio.run(choose_rank_that_refuses())
    assert told == [
        ("notebook", "disconnect"),
        ("rank 1", "initialize"),
        *[("notebook", command) for command in ("initialize", "attach", "setBreakpoints", "configurationDone")],
        ("notebook", "threads"),
    ]
