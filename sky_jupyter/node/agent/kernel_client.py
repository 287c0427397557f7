"""Agent's client of one rank: kernel process, sockets, current request."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import os
import re
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import zmq
from jupyter_client.connect import write_connection_file
from jupyter_client.session import Session

from ..protocol.comm_messages import COMM_TYPES
from ..protocol.journal_events import end_of, event_of, parts_of
from ..shared.agent_channel import ANSWER, ASK
from .iopub_reader import IOPubReader
from .kernel_provisioner import ForkProvisioner, Forkserver

_LOG_TAIL = 30
_LOG_BYTES = 1 << 16
_CRASH = "Fatal Python error"
_CRASH_LINES = 12
# Beginning of one line with the names of a hundred modules.
_CRASH_NOISE = "Extension modules:"
# The form of glog and absl: "F1123 04:27:35.578633 13960 client.h:80] ".
_NATIVE_REASON = re.compile(r"F\d{4} \d\d:\d\d:\d\d\.\d+ ")
# Length of the receive queue for a kernel's output. The kernel queues a few more messages; then its code blocks.
_MOST_WAITING = 32
# Bytes of disk reserved for the files of a rank's next kernel.
_ROOM = 1 << 16
_FAREWELL = 2.0
# Seconds that an interrupt waits for its request's begin; that a sent one waits for a late begin, to be sent again
# then; and that its sender waits: less than the manager waits for the agent's reply.
_BEGIN, _LATE_BEGIN, _SENDER = 2.0, 60.0, 0.5
OnEvent = Callable[[str, dict[str, Any]], None]


class RankKernel:
    """Client of one rank's kernel.

    The agent makes one for each of its ranks. It outlives the kernel processes that it starts.

    Parameters
    ----------
    number : int
        The rank.
    folder : Path
        The node's folder; the kernel's sockets, connection file and log lie in it.
    cwd : str
        The kernel's working folder.
    env : dict
        Environment variables of the kernel, besides the host's.
    on_event : callable
        Called as ``on_event(run_id, event)`` for each output of a request and for its end.
    """

    def __init__(self, number: int, folder: Path, cwd: str, env: dict[str, str], on_event: OnEvent) -> None:
        self.number = number
        self.folder = folder
        self.cwd = cwd
        self.env = env
        self.on_event = on_event
        self.generation = 0
        self.busy_with: str | None = None
        # Set while interrupts reach the current request: before it has begun, the kernel ignores them.
        self.begun = asyncio.Event()
        self.begun.set()
        # The time at which the request began, by the machine's monotonic clock.
        self._begun_since = 0.0
        # Requests that wait for their turn, and whether each was interrupted meanwhile.
        self._waiting: dict[str, bool] = {}
        self._interrupts: set[asyncio.Task[None]] = set()
        # Number of requests that run or are queued.
        self.waiting = 0
        # The order of requests and short calls: numbers of the requests that wait for their turn.
        self._numbers = itertools.count(1)
        self.queued: collections.deque[int] = collections.deque()
        # Called with the end of a short call that came as a message, by its run.
        self.short_ends: dict[str, Callable[[dict[str, Any]], None]] = {}
        self.entered = False
        self.ready: asyncio.Event = asyncio.Event()
        self.turn = asyncio.Lock()
        self.ended: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self.preload_failed: dict[str, str] = {}
        # How the last kernel ended, in words; `surprise` only if it ended by itself while it was idle.
        self.how_ended = self.surprise = ""
        # Whether the kernel was asked to end, and whether it was killed. After a kill, the kernel's own messages about
        # its requests' ends do not count: the requests end with it, and whoever waits for them has it replaced.
        self.leaving = self.killed = False
        # Called with each comm message and its run; called when the kernel ends.
        self.on_comm: Callable[[dict[str, Any], str], None] = lambda message, run: None
        self.on_end: Callable[[], None] = lambda: None
        # Called with each request of the kernel's code to the agent; see `agent_channel`.
        self.on_ask: Callable[[dict[str, Any], list[bytes]], None] = lambda content, data: None
        # Lines of native code that are noise to people; set when plugins are entered.
        self.noise: re.Pattern[str] | None = None
        self._log_start = 0
        self._provisioner: ForkProvisioner | None = None
        self._reader: IOPubReader | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._making = asyncio.Lock()
        self._context = zmq.Context.instance()

    @property
    def pid(self) -> int:
        """The kernel's process id; 0 if none runs."""
        return self._provisioner.pid if self._provisioner is not None and self._provisioner.has_process else 0

    @property
    def log(self) -> Path:
        """File for output that belongs to no run."""
        return self.folder / f"rank{self.number}.log"

    @property
    def connection_file(self) -> Path:
        """Connection file of the current kernel; its sockets and stacks lie beside it."""
        return Path(f"{self._prefix}.json")

    @property
    def _room(self) -> Path:
        """File that reserves disk space for the files of the next kernel."""
        return self.folder / f"room{self.number}"

    @property
    def _prefix(self) -> Path:
        """Common prefix of this kernel's files, unique across agents of this node."""
        return self.folder / f"k{self.number}-{os.getpid()}.{self.generation}"

    async def start(self, forkserver: Forkserver) -> None:
        """Fork a kernel, replacing any earlier one, and wait until it answers."""
        # Starts are serialized: two at once would use the same sockets, and nobody would own one of the kernels.
        async with self._making:
            await self.kill()
            if self._watcher is not None:
                # The watcher must see the end of the old process before a new one replaces it.
                await asyncio.wait([self._watcher], timeout=_FAREWELL)
            await self._start(forkserver)

    async def _start(self, forkserver: Forkserver) -> None:
        self.generation += 1
        with contextlib.suppress(OSError):
            self._log_start = self.log.stat().st_size
        self.entered = self.leaving = self.killed = False
        self.surprise = ""
        self.ready.clear()
        self._room.unlink(missing_ok=True)
        prefix = self._prefix
        ports = {f"{name}_port": index for index, name in enumerate(("shell", "iopub", "stdin", "control", "hb"), 1)}
        file, info = write_connection_file(
            f"{prefix}.json", transport="ipc", ip=str(prefix), key=secrets.token_hex(32).encode(), **ports
        )
        # No digest history: nobody else writes to these sockets, and it would take 10 MB for a rank with much output.
        key = info["key"].encode()
        self._session = Session(key=key, signature_scheme="hmac-sha256", username="sky", digest_history_size=0)
        # Plain zmq, which is faster than zmq.asyncio.
        self._shell = self._socket(self._context, zmq.DEALER, f"ipc://{prefix}-{ports['shell_port']}")
        self._control = self._socket(self._context, zmq.DEALER, f"ipc://{prefix}-{ports['control_port']}")
        self._iopub = self._socket(self._context, zmq.SUB, f"ipc://{prefix}-{ports['iopub_port']}")
        self._iopub.subscribe(b"")
        self._provisioner = ForkProvisioner(forkserver)
        await self._provisioner.launch_kernel([file], env=self.env, cwd=self.cwd, log=str(self.log))
        self.preload_failed = self._provisioner.preload_failed
        self._reader = IOPubReader(self._iopub, self._session, self._on_message, self._on_refused)
        self._watcher = asyncio.create_task(self._watch(self._provisioner))
        waits = [asyncio.ensure_future(self.ready.wait()), asyncio.ensure_future(self._provisioner.wait())]
        _, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        if not self.ready.is_set():
            raise RuntimeError(f"the kernel of rank {self.number} ended before it answered\n" + "\n".join(self.tail()))
        with contextlib.suppress(OSError):
            self._room.write_bytes(bytes(_ROOM))

    def _socket(self, context: Any, kind: int, address: str) -> Any:
        socket = context.socket(kind)
        socket.linger = 0
        # The kernel's own queue is bounded, and never drops messages.
        socket.set_hwm(0)
        if kind == zmq.SUB:
            socket.rcvhwm = _MOST_WAITING
        socket.connect(address)
        return socket

    async def request(
        self, run: str, content: dict[str, Any], on_turn: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        """Run one request on the kernel and return its end.

        Requests are queued. If the kernel dies, the end has the status ``died``.
        """
        self.waiting += 1
        number = self.next_number()
        self.queued.append(number)
        interrupted = False
        self.note_waiting(run)
        try:
            try:
                await self.turn.acquire()
            finally:
                self.queued.remove(number)
                interrupted = self.take_waiting(run)
            try:
                on_turn()
                return await self._request(run, content, interrupted=interrupted)
            finally:
                self.turn.release()
        finally:
            self.waiting -= 1

    def next_number(self) -> int:
        """Return the number of a request or short call in their order."""
        return next(self._numbers)

    def note_waiting(self, run: str) -> None:
        """Note that a request or short call waits for its turn."""
        self._waiting[run] = False

    def take_waiting(self, run: str) -> bool:
        """Note that it no longer waits; return whether it was interrupted meanwhile."""
        return self._waiting.pop(run, False)

    async def _request(self, run: str, content: dict[str, Any], *, interrupted: bool) -> dict[str, Any]:
        if not self.pid:
            text = self.how_ended or "it had not been started"
            return self._finish(run, {"kind": "end", "status": "died", "text": text, "tail": self.tail()})
        future = self.ended[run] = asyncio.get_running_loop().create_future()
        self.busy_with = run
        self.begun.clear()
        message = self._session.msg("sky_request", {**content, "run": run})
        message["header"]["msg_id"] = message["msg_id"] = run
        self._session.send(self._shell, message)
        if interrupted:
            self.begin_interrupt()
        try:
            return await future
        finally:
            self.busy_with = None
            self.begun.set()
            self.ended.pop(run, None)

    def tell(self, told: dict[str, Any], buffers: list[bytes]) -> None:
        """Send a page's comm message to the kernel's main thread."""
        if self.pid:
            message = self._session.msg(told["msg_type"], told["content"], metadata=told["metadata"])
            if told["id"]:
                # A page matches the answer by this id.
                message["header"]["msg_id"] = message["msg_id"] = told["id"]
            self._session.send(self._shell, message, buffers=buffers or None)

    def answer(self, content: dict[str, Any], data: Sequence[bytes] = ()) -> None:
        """Answer a request of the kernel's code on the control channel.

        The control thread takes it even while the main thread is busy.
        """
        if self.pid:
            self._session.send(self._control, self._session.msg(ANSWER, content), buffers=list(data) or None)

    async def signal(self, number: int, run: str | None = None) -> bool:
        """Signal the kernel and its subprocesses; with ``run``, only during that run.

        An interrupt is sent once the request has begun, even if the request still waits for its turn. This call waits
        for that, but not for long.
        """
        if run is not None and self.busy_with != run:
            if number == signal.SIGINT and run in self._waiting:
                self._waiting[run] = True
                return True
            return False
        if number == signal.SIGINT:
            await asyncio.wait([self.begin_interrupt()], timeout=_SENDER)
        elif self._provisioner is not None and number == signal.SIGKILL:
            self.leaving = self.killed = True
            await self._provisioner.kill()
        elif self._provisioner is not None:
            await self._provisioner.send_signal(number)
        return True

    def begin_interrupt(self) -> asyncio.Task[None]:
        """Start a task that interrupts the current request once it has begun."""
        interrupt = asyncio.ensure_future(self._interrupt())
        self._interrupts.add(interrupt)
        interrupt.add_done_callback(self._interrupts.discard)
        return interrupt

    async def _interrupt(self) -> None:
        run, sent = self.busy_with, 0.0
        if not self.begun.is_set() and self.pid:
            self._session.send(self._control, "sky_tell_begin", {"run": run})
        for patience in (_BEGIN, _LATE_BEGIN):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.begun.wait(), patience)
            # If it has ended meanwhile, its successor must not be interrupted.
            if self.busy_with != run or self._provisioner is None:
                return
            has_begun = self.begun.is_set()
            if sent and not (has_begun and self._begun_since > sent):
                # Either the request had begun when the interrupt was sent, or its state is unknown: native code may
                # keep the kernel from answering.
                return
            sent = time.monotonic()
            await self._provisioner.send_signal(signal.SIGINT)
            if has_begun:
                return

    def abort(self) -> None:
        """Ask the kernel to break the collective that blocks it; no-op if it has ended."""
        if self.pid:
            self._session.send(self._control, "sky_abort", {})

    async def kill(self) -> None:
        """Kill the kernel process and wait for its end."""
        if self._provisioner is not None and self._provisioner.has_process:
            self.leaving = self.killed = True
            await self._provisioner.kill()
            await self._provisioner.wait()

    async def end(self, patience: float) -> bool:
        """End the kernel in order, or kill it on timeout; return True if in time.

        A running request is interrupted. Then exit handlers run and files are closed.
        """
        provisioner = self._provisioner
        if provisioner is None or not provisioner.has_process:
            return True
        assert provisioner.end is not None
        self.leaving = True
        await provisioner.finish()
        interrupt = asyncio.ensure_future(self.signal(signal.SIGINT)) if self.busy_with else None
        # A concurrent kill() ends this wait too.
        done, _ = await asyncio.wait([provisioner.end], timeout=patience)
        if interrupt is not None:
            interrupt.cancel()
        await self.kill()
        return bool(done)

    def tail(self) -> list[str]:
        """Return the last lines of this kernel process's log, without noise."""
        with contextlib.suppress(OSError), self.log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            # The log may have been truncated, as after endless native output.
            file.seek(max(self._log_start if self._log_start <= end else 0, end - _LOG_BYTES))
            text = file.read().decode(errors="replace")
            lines = (self.noise.sub("", text) if self.noise else text).splitlines()
            # A crash report begins with the error and its place; the frames of the kernel's own loop follow.
            crashes = [index for index, line in enumerate(lines) if line.startswith(_CRASH)]
            if not crashes:
                return lines[-_LOG_TAIL:]
            # Native code that aborts the process writes its reason first.
            reasons = [index for index in range(crashes[-1]) if _NATIVE_REASON.match(lines[index])]
            crash = [line for line in lines[crashes[-1] :] if line and not line.startswith(_CRASH_NOISE)]
            return (lines[reasons[-1] : crashes[-1]] if reasons else [])[:_CRASH_LINES] + crash[:_CRASH_LINES]
        return []

    async def _watch(self, provisioner: ForkProvisioner) -> None:
        """Wait for the kernel process to end, clean up, and end its requests."""
        assert provisioner.end is not None
        try:
            text = (await asyncio.shield(provisioner.end))["text"]
        except ConnectionError as error:
            text = str(error)
        if provisioner is not self._provisioner:
            return
        # Its last messages may still be in the socket.
        await asyncio.sleep(0.02)
        if self._reader is not None:
            self._reader.close()
        for socket in (self._shell, self._control, self._iopub):
            socket.close()
        for path in self.folder.glob(f"{self._prefix.name}[.-]*"):
            path.unlink(missing_ok=True)
        self.how_ended = text
        is_idle = not self.ended and not self.short_ends
        self.surprise = text if self.entered and is_idle and not self.leaving else ""
        self.entered = False
        self.on_end()
        for run in [*self.ended, *self.short_ends]:
            self._finish(run, {"kind": "end", "status": "died", "text": text, "tail": self.tail()})

    def _on_refused(self, error: Exception) -> None:
        self.note(f"a message of the kernel was refused: {error!r}\n")

    def _on_message(self, message: dict[str, Any]) -> None:
        kind, run, content = parts_of(message)
        if kind == "iopub_welcome":
            self.ready.set()
            return
        if kind == "sky_begin":
            if content.get("run") == self.busy_with:
                self._begun_since = float(content.get("since") or 0.0)
                self.begun.set()
            return
        if kind == "sky_end":
            if not self.killed:
                self._finish(run, end_of(content))
            return
        if kind in COMM_TYPES:
            self.on_comm(message, run)
            return
        if kind == ASK:
            if isinstance(content, dict):
                self.on_ask(content, [bytes(one) for one in message.get("buffers") or ()])
            return
        event = event_of(kind, content)
        if event is not None:
            event["t"] = time.time()
            self.on_event(run, event)

    def _finish(self, run: str, event: dict[str, Any]) -> dict[str, Any]:
        event["t"] = time.time()
        self.on_event(run, event)
        future = self.ended.get(run)
        if future is not None and not future.done():
            future.set_result(event)
        if (on_end := self.short_ends.pop(run, None)) is not None:
            on_end(event)
        return event

    def note(self, text: str) -> None:
        """Append text to the rank's log."""
        with contextlib.suppress(OSError), self.log.open("a", errors="replace") as file:
            file.write(text)
