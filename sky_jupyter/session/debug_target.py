"""The page's debugger on a rank: the choice of the rank, and the messages.

A page talks to the notebook's kernel, in the Debug Adapter Protocol. While a rank is chosen, its requests go to the
debugger in that rank's kernel. A page knows a cell by a hash of its text, and a rank by the code that it runs: both
names and lines are translated here.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ipykernel.compiler import get_file_name, get_tmp_directory, get_tmp_hash_seed

from ..errors import PoolError
from ..node.protocol import rpc
from ..node.protocol.debug_messages import TOPIC, Message, failure, response
from ..pool.base.event_loop import loop
from ..util import control_channel
from ..util.background_tasks import BackgroundTasks

if TYPE_CHECKING:
    from ..pool.pool import Pool

T = TypeVar("T")
REQUEST = "debug_request"
_EVENT = "debug_event"
_INITIALIZE = {
    "clientID": "sky_jupyter",
    "adapterID": "",
    "pathFormat": "path",
    "linesStartAt1": True,
    "columnsStartAt1": True,
}
# Requests of our own are numbered apart from the page's.
_FIRST = 1 << 24
_PATIENCE = 20.0
# The timeout of the last request: a rank whose code holds the GIL does not answer.
_FAREWELL = 10.0
_LINES = ("line", "endLine")


@dataclass(frozen=True)
class NodeCode:
    """Code that the nodes run for a cell.

    Parameters
    ----------
    code : str
        The code.
    offset : int
        The number of the cell's lines above its first line.
    """

    code: str
    offset: int = 0


@dataclass(frozen=True)
class _File:
    """A cell's file on the rank; "" if the cell does not run there."""

    path: str
    offset: int


class DebugTarget:
    """Debug target of the page: the notebook's kernel or a rank; see `install`.

    Requests and state are used only on the control thread.

    Parameters
    ----------
    kernel : Any
        The notebook's kernel.
    node_code : callable
        Returns what the nodes run for a cell's text; None if it runs in the notebook.
    """

    def __init__(self, kernel: Any, node_code: Callable[[str], NodeCode | None]) -> None:
        self._kernel, self._node_code = kernel, node_code
        self._pool: Pool | None = None
        self._rank = 0
        self._turn = asyncio.Lock()
        self._tasks = BackgroundTasks()
        self._numbers = itertools.count(_FIRST)
        # Of the page: whether its debugger is on, what it began with, the cells' texts, its breakpoints.
        self._is_on = False
        self._began = _INITIALIZE
        self._texts: dict[str, str] = {}
        self._breakpoints: dict[str, list[Message]] = {}
        # Of the rank.
        self._files: dict[str, _File] = {}
        self._stopped: set[int] = set()
        # Set while the notebook's own debugger is being turned on: the page's requests wait for it.
        self._back: asyncio.Event | None = None
        self.changed: Callable[[], None] = lambda: None

    @property
    def rank(self) -> int | None:
        """The rank that is debugged; None for the notebook's own kernel."""
        return None if self._pool is None else self._rank

    @property
    def pool(self) -> Pool | None:
        """The pool of that rank."""
        return self._pool

    # -- which rank --------------------------------------------------------------------------------

    def choose(self, pool: Pool, rank: int) -> None:
        """Debug a rank from now on; do not call it on the control thread.

        Raises PoolError if the rank cannot be debugged.
        """
        self._on_control(self.turn_to(pool, rank))

    def leave(self) -> None:
        """Debug the notebook's own kernel again; not callable on the control thread."""
        self._on_control(self.turn_back())

    async def turn_to(self, pool: Pool, rank: int) -> None:
        """Debug a rank from now on; call it on the control thread.

        Raises PoolError if the rank cannot be debugged.
        """
        pool.supervisor.extend(TOPIC, _Events(self, pool))
        try:
            await self._choose(pool, rank)
        finally:
            self.changed()

    async def turn_back(self) -> None:
        """Debug the notebook's own kernel again, once no cell runs; control thread."""
        if await self._choose(None, 0):
            self._turn_on_later()
        self.changed()

    def _turn_on_later(self) -> None:
        """Turn the debugger of what is debugged on, once no cell runs.

        The kernel starts its debugger on the main thread, and this thread would wait for that. It could answer nobody
        until a running cell has ended.
        """
        self._kernel.io_loop.add_callback(self._control.call_soon_threadsafe, lambda: self._tasks.start(self._again()))

    def _on_control(self, work: Coroutine[Any, Any, T]) -> T:
        doing = asyncio.run_coroutine_threadsafe(work, self._control)
        try:
            return doing.result(_PATIENCE)
        except FutureTimeout:
            raise PoolError(
                f"the debugger has not answered in {_PATIENCE:g} s: what is debugged stays as it is"
            ) from None
        finally:
            # It must not go on once the caller was told that it failed, or has interrupted it.
            doing.cancel()

    @property
    def _control(self) -> asyncio.AbstractEventLoop:
        found: asyncio.AbstractEventLoop = self._kernel.control_thread.io_loop.asyncio_loop
        return found

    async def _choose(self, pool: Pool | None, rank: int) -> bool:
        """Debug another rank or the kernel; return whether to turn its debugger on."""
        async with self._turn:
            if (pool, rank) == (self._pool, self._rank) and self._is_on:
                return False
            connected = self._is_on or (self._pool is None and self._own_is_on)
            was_on = connected or self._back is not None
            if pool is None and self._pool is None:
                return False
            if connected:
                await self._send("disconnect", {"restart": False, "terminateDebuggee": False})
            self._lose()
            self._let_go()
            before = self._pool, self._rank
            self._pool, self._rank = pool, rank
            if pool is None:
                self._back = asyncio.Event() if was_on else None
                return was_on
            try:
                # Says whether the rank can be debugged, also while the page's debugger is off.
                found = await self._send("debugInfo" if not was_on else "initialize", self._began)
                if not found["success"]:
                    raise PoolError(f"rank {rank} cannot be debugged: {found.get('message')}")
                if was_on:
                    await self._begin()
            except BaseException:
                self._lose()
                self._pool, self._rank = before if before[0] is not pool else (None, 0)
                if was_on:
                    # The page has turned it on, and was told of no end.
                    self._back = asyncio.Event()
                    self._turn_on_later()
                raise
            return False

    async def _again(self) -> None:
        """Turn the debugger on again, with the page's breakpoints."""
        async with self._turn:
            if self._back is not None:
                try:
                    await self._send("initialize", self._began)
                    await self._begin()
                finally:
                    self._let_go()

    def _let_go(self) -> None:
        """Release the page's requests that wait until the debugger is on again."""
        if self._back is not None:
            self._back.set()
            self._back = None

    async def _begin(self) -> None:
        """Attach to what is debugged, and set the page's breakpoints there."""
        self._is_on = True
        await self._send("attach", {})
        for path, breakpoints in list(self._breakpoints.items()):
            await self._pass_on(self._message("setBreakpoints", _breakpoints(path, breakpoints)))
        await self._send("configurationDone", {})

    def _lose(self) -> None:
        """Forget the state of what was debugged; the page's debugger stays on."""
        self._files.clear()
        self._is_on = False
        for thread in sorted(self._stopped):
            self._publish({"type": "event", "event": "continued", "body": {"threadId": thread}})
        self._stopped.clear()

    # -- requests of the page ----------------------------------------------------------------------

    async def answer(self, request: Message) -> Message:
        """Answer a request of the page."""
        if self._back is not None:
            await self._back.wait()
        async with self._turn:
            self._note(request)
            try:
                reply = await self._pass_on(request)
            except Exception as error:
                reply = failure(request, f"{type(error).__name__}: {error}")
            if request.get("command") == "initialize":
                self._is_on = self._pool is not None and bool(reply.get("success"))
            elif request.get("command") == "disconnect":
                self._lose()
                self._breakpoints.clear()
            return reply

    def _note(self, request: Message) -> None:
        """Keep what a rank that is chosen later must be told."""
        command, arguments = request.get("command"), request.get("arguments") or {}
        if command == "initialize":
            self._began = arguments
        elif command == "dumpCell":
            self._texts[get_file_name(arguments["code"])] = arguments["code"]
        elif command == "setBreakpoints":
            self._breakpoints[arguments["source"]["path"]] = arguments.get("breakpoints", [])

    async def _pass_on(self, request: Message) -> Message:
        """Let the notebook's kernel or the rank answer a request."""
        if self._pool is None:
            found: Message = await self._kernel.do_debug_request(request)
            return found
        arguments = request.get("arguments") or {}
        command = request.get("command")
        if command == "debugInfo":
            return self._info(request)
        if command == "dumpCell":
            path = get_file_name(arguments["code"])
            await self._file(path)
            return response(request, {"sourcePath": path})
        if command == "source" and arguments["source"].get("path") in self._texts:
            return response(request, {"content": self._texts[arguments["source"]["path"]]})
        if command == "setBreakpoints":
            return await self._set_breakpoints(request)
        return self._to_page(await self._ask(request))

    def _info(self, request: Message) -> Message:
        facts = {
            "isStarted": self._is_on,
            "hashMethod": "Murmur2",
            "hashSeed": get_tmp_hash_seed(),
            "tmpFilePrefix": f"{get_tmp_directory()}/",
            "tmpFileSuffix": ".py",
            "breakpoints": [{"source": path, "breakpoints": found} for path, found in self._breakpoints.items()],
            "stoppedThreads": sorted(self._stopped),
            "richRendering": True,
            "exceptionPaths": ["Python Exceptions"],
            "copyToGlobals": True,
        }
        return response(request, facts)

    async def _set_breakpoints(self, request: Message) -> Message:
        arguments = request["arguments"]
        path, breakpoints = arguments["source"]["path"], arguments.get("breakpoints", [])
        file = await self._file(path) if path in self._texts else _File(path, 0)
        if not file.path:
            # The cell runs in the notebook, which is not debugged now.
            found = [{"verified": False, "line": one["line"], "source": {"path": path}} for one in breakpoints]
            return response(request, {"breakpoints": found})
        told = [{**one, "line": max(1, one["line"] - file.offset)} for one in breakpoints]
        return self._to_page(await self._ask({**request, "arguments": _breakpoints(file.path, told)}))

    async def _file(self, path: str) -> _File:
        """Return the file that the rank has for a cell."""
        file = self._files.get(path)
        code = self._node_code(self._texts[path]) if file is None else None
        if file is None:
            file = _File("", 0)
            if code is not None:
                reply = await self._ask(self._message("dumpCell", {"code": code.code}))
                if not reply.get("success"):
                    return file
                file = _File(str(reply["body"]["sourcePath"]), code.offset)
                self._files[path] = file
        return file

    async def _send(self, command: str, arguments: Message) -> Message:
        """Send a request of our own to what is debugged."""
        return await self._ask(self._message(command, arguments))

    def _message(self, command: str, arguments: Message) -> Message:
        return {"type": "request", "seq": next(self._numbers), "command": command, "arguments": arguments}

    async def _ask(self, request: Message) -> Message:
        pool, rank = self._pool, self._rank
        if pool is None:
            return await self._kernel.do_debug_request(request) or failure(request, "it is off")
        node = rank // pool.spec.ranks_per_node
        asking = pool.supervisor.ask(rpc.DEBUG_RANK, [node], rank=rank, request=request)
        try:
            limit = _FAREWELL if request.get("command") == "disconnect" else None
            found = (await asyncio.wait_for(asyncio.wrap_future(loop().submit(asking)), limit))[node]
        except Exception as error:
            return failure(request, f"{type(error).__name__}: {error}")
        # Ranks run the user's code: their answers may be anything. ipykernel's list of modules lacks `success`.
        return {"success": True, **found} if isinstance(found, dict) else failure(request, "the rank's answer is none")

    @property
    def _own_is_on(self) -> bool:
        return bool(getattr(getattr(self._kernel, "debugger", None), "is_started", False))

    # -- events of the rank ------------------------------------------------------------------------

    def hear(self, pool: Pool, rank: Any, event: Any) -> None:
        """Take an event of a rank's debugger; thread-safe."""
        self._control.call_soon_threadsafe(self._hear, pool, rank, event)

    def _hear(self, pool: Pool, rank: Any, event: Any) -> None:
        if pool is not self._pool or rank != self._rank or not isinstance(event, dict):
            return
        kind, body = event.get("event"), event.get("body") or {}
        if kind == "exited":
            # Its kernel has ended. The page's debugger is on, and must be turned on again.
            self._lose()
            return
        if kind == "stopped" and isinstance(body.get("threadId"), int):
            self._stopped.add(body["threadId"])
        elif kind == "continued":
            self._stopped.clear()
        self._publish(self._to_page(event))

    def lose_pool(self, pool: Pool) -> None:
        """Note that a pool has ended; thread-safe."""

        def lose() -> None:
            if pool is self._pool:
                self._lose()
                self._pool = None
                self.changed()

        self._control.call_soon_threadsafe(lose)

    def _publish(self, event: Message) -> None:
        kernel = self._kernel
        kernel.session.send(kernel.iopub_socket, _EVENT, event, parent={}, ident=_EVENT.encode())

    def _to_page(self, message: Message) -> Message:
        """Return a rank's message with the page's names of cells and their lines."""
        pages = {file.path: (path, file.offset) for path, file in self._files.items()}

        def translated(value: Any) -> Any:
            if isinstance(value, (list, tuple)):
                return [translated(one) for one in value]
            if not isinstance(value, dict):
                return value
            found = {key: translated(one) for key, one in value.items()}
            source = found.get("source")
            if isinstance(source, dict) and source.get("path") in pages:
                path, offset = pages[source["path"]]
                found["source"] = {**source, "path": path}
                found.update({key: found[key] + offset for key in _LINES if isinstance(found.get(key), int)})
            return found

        return dict(translated(message))


class _Events:
    """Part of a pool that hears its ranks' debuggers."""

    def __init__(self, target: DebugTarget, pool: Pool) -> None:
        self._target, self._pool = target, pool

    def suit(self, spec: Any) -> None:
        """Do nothing: the rank's kernel ends as others do."""

    def on_batch(self, batch: Message) -> None:
        """Take an event of an agent's."""
        self._target.hear(self._pool, batch.get("rank"), batch.get(TOPIC))

    def look(self, node: int) -> None:
        """Do nothing: the run has shown what was missed."""

    def lose(self, node: int) -> None:
        """Note that a node is given up."""
        per_node = self._pool.spec.ranks_per_node
        for rank in range(node * per_node, (node + 1) * per_node):
            self._target.hear(self._pool, rank, {"event": "exited"})

    def close(self) -> None:
        """Note that the pool has ended."""
        self._target.lose_pool(self._pool)


def _breakpoints(path: str, breakpoints: list[Message]) -> Message:
    return {"source": {"path": path}, "breakpoints": breakpoints, "sourceModified": False}


def install(shell: Any, node_code: Callable[[str], NodeCode | None]) -> DebugTarget | None:
    """Let pages debug ranks; None if this process has no pages that debug."""
    kernel = getattr(shell, "kernel", None)
    handlers = getattr(kernel, "control_handlers", None)
    if not isinstance(handlers, dict) or REQUEST not in handlers or not hasattr(kernel, "do_debug_request"):
        return None
    target = DebugTarget(kernel, node_code)

    async def answer(content: Message) -> control_channel.Reply:
        from jupyter_client.jsonutil import json_clean

        return json_clean(await target.answer(content)), ()

    control_channel.register(kernel, REQUEST, lambda content, request: answer(content))
    return target


def remove(shell: Any, target: DebugTarget | None) -> None:
    """Undo `install`."""
    kernel = getattr(shell, "kernel", None)
    if target is not None and kernel is not None:
        kernel.control_handlers[REQUEST] = kernel.debug_request


__all__ = ["DebugTarget", "NodeCode", "install", "remove"]
