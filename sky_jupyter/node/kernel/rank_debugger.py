"""Debugger of a rank: ipykernel's, on a socket pair to pydevd in this process.

In a notebook's kernel, ipykernel starts debugpy's adapter instead. That listens on TCP ports of the loopback interface,
and accepts any connection: every user of the machine could run code here. Here nothing listens.

The agent's requests come on the control channel, so that they are answered while a cell runs or is stopped.

Kernels start without debugpy, whose import would take most of their start (`kernel`): the first request imports it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib
import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ipykernel import debugger as ipykernel_debugger
from ipykernel.debugger import DebugpyClient, DebugpyMessageQueue
from tornado.locks import Event

from ...util.background_tasks import BackgroundTasks
from ..protocol.debug_messages import TOPIC, Message, failure, response
from ..shared.agent_channel import AgentChannel

# Events that no page shows; output comes as that of any cell.
_UNSEEN = ("output", "module", "process")
_READ = 1 << 16
# Seconds that pydevd has for its answer to the disconnect request.
_FAREWELL = 5.0
_MISSING = (
    "the debugger needs debugpy in the node's environment, and there it cannot be imported: `pip install debugpy` there"
)


class SocketPairClient(DebugpyClient):
    """Client of the pydevd in this process; used on the control thread."""

    def __init__(self, log: Any, on_event: Callable[[Message], None]) -> None:
        super().__init__(log, None, on_event)
        self._socket: socket.socket | None = None

    def get_host_port(self) -> tuple[str, int]:
        """Return the address that pages get: there is no such port."""
        return "127.0.0.1", 0

    def connect_tcp_socket(self) -> None:
        """Start pydevd, connected to this client."""
        self._socket, other = socket.socketpair()
        asyncio.get_running_loop().add_reader(self._socket, self._read, self._socket)
        _trace(other)

    def disconnect_tcp_socket(self) -> None:
        """Close the connection; pydevd then ends its threads."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
        self._socket, self.wait_for_attach = None, True
        self.init_event, self.init_event_seq = Event(), -1
        self.message_queue = DebugpyMessageQueue(self._forward_event, self.log)

    def _read(self, ours: socket.socket) -> None:
        data = ours.recv(_READ)
        if data:
            # pydevd escapes all characters that are not ASCII.
            self.receive_dap_frame(data.decode("ascii", "replace"))
        else:
            asyncio.get_running_loop().remove_reader(ours)

    def _send_request(self, msg: Message) -> None:
        if self._socket is None:
            raise ConnectionError("the debugger has been stopped")
        data = json.dumps(msg).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(data), data))


class RankDebugger(ipykernel_debugger.Debugger):
    """Debugger of this rank; made with its kernel's first request of a debugger.

    Parameters
    ----------
    kernel : SkyKernel
        This process's kernel.
    channel : AgentChannel
        The channel to the agent.
    files : str
        Prefix of the files in which pydevd finds the cells' source.
    """

    def __init__(self, kernel: Any, channel: AgentChannel, files: str) -> None:
        self._channel, self._files = channel, files
        self._turn = asyncio.Lock()
        self._tasks = BackgroundTasks()
        self._answering: set[asyncio.Task[None]] = set()
        super().__init__(kernel.log, None, self._tell, None, kernel.session, kernel_files(kernel))
        self.debugpy_client = SocketPairClient(kernel.log, self._handle_event)
        self._tasks.start(self._tell_stops())

    def on_request(self, content: Message) -> None:
        """Answer a request of the agent."""
        if content.get("request", {}).get("command") == "disconnect":
            # pydevd may never answer a request, such as an expression that does not return.
            for task in self._answering:
                task.cancel()
        task = self._tasks.start(self._answer(content))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, content: Message) -> None:
        request = content.get("request", {})
        try:
            # pydevd's answers are matched by the order of the requests.
            async with self._turn:
                reply = await self.process_request(request)
        except Exception as error:
            reply = failure(request, f"{type(error).__name__}: {error}")
        self._channel.tell({"to": TOPIC, "id": content.get("id"), "reply": reply or failure(request, "it is off")})

    def _tell(self, event: Message) -> None:
        if event.get("event") not in _UNSEEN:
            self._channel.tell({"to": TOPIC, "event": event})

    async def _tell_stops(self) -> None:
        while True:
            await self.handle_stopped_event()

    async def handle_stopped_event(self) -> None:
        """Report the next stop, without ipykernel's request for all threads.

        ipykernel would take the answers to other requests for the answer to its own.
        """
        event = await self.stopped_queue.get()
        self.stopped_threads.add(event.get("body", {}).get("threadId"))
        self._tell(event)

    async def _forward_message(self, msg: Message) -> Any:
        if msg.get("command") != "disconnect":
            return await super()._forward_message(msg)
        with contextlib.suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(super()._forward_message(msg), _FAREWELL)
        return response(msg)

    def start(self) -> bool:
        """Connect pydevd to this thread; return whether it is connected."""
        self.debugpy_initialized = True
        return bool(super().start())

    def stop(self) -> None:
        """Stop tracing; see `of_next_request` for the main thread."""
        super().stop()
        import pydevd

        pydevd.stoptrace()

    async def attach(self, message: Message) -> Message:
        """Handle an attach request, which pydevd does not answer in order."""
        await super().attach(message)
        return response(message)

    async def dumpCell(self, message: Message) -> Message:
        """Write a cell's source to its file, and return the file's name."""
        return response(message, {"sourcePath": self.file(message["arguments"]["code"])})

    def file(self, code: str) -> str:
        """Return the file of a cell's code, which pydevd requires.

        It does not depend on the cell's number: breakpoints are set before the cell runs.
        """
        check = hashlib.blake2b(code.rstrip().encode(errors="surrogatepass"), digest_size=8).hexdigest()
        path = Path(f"{self._files}{check}.py")
        if not path.exists():
            path.write_text(code, encoding="utf-8", errors="replace")
        return str(path)

    def name(self, code: str) -> str | None:
        """Return the file name of a cell about to run; None while the debugger is off."""
        if self.is_started:
            with contextlib.suppress(OSError):
                return self.file(code)
        return None

    def of_next_request(self) -> None:
        """Start or stop tracing the main thread, before a request.

        Before Python 3.12, an interrupt at a breakpoint ends the tracing of its thread; an interrupt just before a stop
        leaves the thread marked to stop.
        """
        if self.is_started:
            from _pydevd_bundle.pydevd_constants import get_global_debugger

            if (debugger := get_global_debugger()) is not None:
                _run_on(threading.current_thread())
                debugger.enable_tracing()
        elif type(sys.gettrace()).__module__.startswith("_pydevd"):
            sys.settrace(None)


def make(kernel: Any, channel: AgentChannel, files: str) -> RankDebugger | None:
    """Return this rank's debugger; None without debugpy."""
    if not ipykernel_debugger._is_debugpy_available:
        # ipykernel's module was imported without debugpy; reloaded, it finds debugpy if that is installed.
        importlib.reload(ipykernel_debugger)
    return RankDebugger(kernel, channel, files) if ipykernel_debugger._is_debugpy_available else None


def refuse(channel: AgentChannel, content: Message) -> None:
    """Answer a request on a rank without debugpy."""
    channel.tell({"to": TOPIC, "id": content.get("id"), "reply": failure(content.get("request", {}), _MISSING)})


def kernel_files(kernel: Any) -> list[str]:
    """Return files in which no cell stops: those that ran before the first cell."""
    return list(getattr(kernel, "_kernel_modules", ()))


def _trace(connection: socket.socket) -> None:
    """Let pydevd trace this process's threads, and read its commands from a socket."""
    import pydevd

    connects, pydevd.start_client = pydevd.start_client, lambda host, port: connection
    try:
        pydevd.settrace(
            host="127.0.0.1",
            port=0,
            suspend=False,
            wait_for_ready_to_run=False,
            block_until_connected=True,
            notify_stdin=False,
            patch_multiprocessing=False,
            protocol="dap",
        )
    finally:
        pydevd.start_client = connects
    _let_go_of_interrupted(pydevd.get_global_debugger())
    global _forks_clean  # noqa: PLW0603 - such a function cannot be removed again
    if not _forks_clean:
        _forks_clean = True
        os.register_at_fork(after_in_child=_forget_in_child)


_forks_clean = False


def _let_go_of_interrupted(debugger: Any) -> None:
    """Let a thread that was interrupted at a breakpoint continue.

    pydevd leaves it marked as stopped. From Python 3.12 on it is still traced, and would stop again in the code that
    handles the interrupt.
    """
    waits = debugger.do_wait_suspend

    def do_wait_suspend(thread: threading.Thread, *arguments: Any, **options: Any) -> Any:
        try:
            return waits(thread, *arguments, **options)
        except BaseException:
            _run_on(thread)
            raise

    debugger.do_wait_suspend = do_wait_suspend


def _run_on(thread: threading.Thread) -> None:
    """Make pydevd treat a thread as running."""
    from _pydevd_bundle.pydevd_additional_thread_info import set_additional_thread_info
    from _pydevd_bundle.pydevd_thread_lifecycle import internal_run_thread

    internal_run_thread(thread, set_additional_thread_info)


def _forget_in_child() -> None:
    """Stop tracing in a forked process: no pydevd thread would resume a breakpoint."""
    from _pydevd_bundle.pydevd_constants import get_global_debugger, set_global_debugger

    debugger = get_global_debugger()
    if debugger is None:
        return
    debugger.pydb_disposed = True
    set_global_debugger(None)
    if sys.version_info >= (3, 12):
        # pydevd may be configured not to use it.
        with contextlib.suppress(ValueError):
            sys.monitoring.set_events(sys.monitoring.DEBUGGER_ID, 0)
    sys.settrace(None)
