"""Kernel provisioner (jupyter_client) that forks kernels with the forkserver.

The forkserver may be stopped (SIGSTOP): requests to it time out, and the end of a kernel is noticed without it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning import KernelProvisionerBase

from ...util.background_tasks import BackgroundTasks
from ..kernel.forkserver import ready_file
from ..system.processes import kill_group, signal_group
from ..system.stopped_processes import GONE, state_of

# A forkserver that has imported everything forks at once; a busy machine takes longer.
_FORK_PATIENCE = 15.0
# The forkserver normally reports a kernel's exit status at once.
_WORD_PATIENCE = 3.0
_LOOK = 0.5
_UNKNOWN = 1 << 8
_REFUSED = "its machine starts no process for it: a limit of processes, memory or open files is reached there"


class Forkserver:
    """Client of the forkserver, one per agent: forks kernels and reports their ends."""

    def __init__(self) -> None:
        self._writer: asyncio.StreamWriter | None = None
        self._asked: dict[int, asyncio.Future[tuple[dict[str, Any], asyncio.Future[dict[str, Any]]]]] = {}
        self._ends: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._listener: asyncio.Task[None] | None = None
        self._next = 0
        self._path = Path()
        self._tasks = BackgroundTasks()

    async def connect(self, path: Path) -> None:
        """Connect to the socket at ``path`` and listen for kernels' ends."""
        self._path = path
        reader, self._writer = await asyncio.open_unix_connection(str(path), limit=1 << 20)
        self._listener = asyncio.create_task(self._listen(reader))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            message = json.loads(line)
            if "id" in message:
                self._on_forked(message)
            elif (end := self._ends.pop(message["pid"], None)) is not None and not end.done():
                end.set_result(message)
        error = ConnectionError("the forkserver of this node has ended; see forkserver.log")
        waiting: list[asyncio.Future[Any]] = [*self._asked.values(), *self._ends.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(error)

    def _on_forked(self, message: dict[str, Any]) -> None:
        asked = self._asked.pop(message["id"], None)
        if "failed" in message:
            if asked is not None and not asked.done():
                asked.set_exception(ConnectionError(f"{_REFUSED} ({message['failed']})"))
            return
        if asked is None or asked.done():
            # The forkserver was stopped, and the request timed out.
            signal_group(message["pid"], signal.SIGKILL)
            return
        end = self._ends[message["pid"]] = asyncio.get_running_loop().create_future()
        # Registered together with its end, which may come first.
        asked.set_result((message, end))
        self._tasks.start(self._see_end(message["pid"], end))

    async def _see_end(self, pid: int, end: asyncio.Future[dict[str, Any]]) -> None:
        """Resolve ``end`` if a kernel is gone, but the forkserver does not report it."""
        await gone(pid, end)
        await asyncio.wait([end], timeout=_WORD_PATIENCE)
        if not end.done():
            self._ends.pop(pid, None)
            end.set_result(
                {"pid": pid, "ended": _UNKNOWN, "text": f"it has ended; {self._silent}, and only it knows how"}
            )

    @property
    def _silent(self) -> str:
        return "the process that forks the kernels (forkserver) does not answer"

    def _last_progress(self) -> int | None:
        """Return the time of the forkserver's last fork or reap; None while it imports."""
        try:
            return ready_file(self._path).stat().st_mtime_ns
        except FileNotFoundError:
            return None

    async def _answered(self, asked: asyncio.Future[Any]) -> None:
        """Wait for the forkserver's answer; raise ConnectionError on timeout.

        Time in which it does its first imports, or works for other requests, does not count: if hundreds of kernels
        start or end on a few processors, it gets little of them.
        """
        waited, seen = 0.0, self._last_progress()
        while waited < _FORK_PATIENCE:
            await asyncio.wait([asked], timeout=_LOOK)
            if asked.done():
                return
            before, seen = seen, self._last_progress()
            waited = waited + _LOOK if seen == before and seen is not None else 0.0
        raise ConnectionError(f"{self._silent}, for {_FORK_PATIENCE:g} s")

    async def fork(self, request: dict[str, Any]) -> tuple[int, asyncio.Future[dict[str, Any]], dict[str, str]]:
        """Fork a kernel; return its pid, a future of its end, and failed preloads.

        Raises ConnectionError if the forkserver does not answer, or cannot fork.
        """
        assert self._writer is not None
        self._next += 1
        number = self._next
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps({**request, "id": number}).encode() + b"\n")
        try:
            await self._answered(future)
        finally:
            if not future.done():
                future.cancel()
                self._asked.pop(number, None)
        answer, end = future.result()
        return answer["pid"], end, answer["preload_failed"]

    def finish(self, pid: int) -> None:
        """Ask a kernel to exit in order once it is idle."""
        assert self._writer is not None
        self._writer.write(json.dumps({"finish": pid}).encode() + b"\n")


async def gone(pid: int, end: asyncio.Future[Any]) -> None:
    """Wait until a process is gone, or ``end`` is done."""
    try:
        handle = os.pidfd_open(pid)
    except (AttributeError, OSError):
        # This system has no pidfds.
        while not end.done() and state_of(pid) != GONE:
            await asyncio.wait([end], timeout=_LOOK)
        return
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(handle, gone.set)
    end.add_done_callback(lambda _: gone.set())
    try:
        await gone.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


class ForkProvisioner(KernelProvisionerBase):
    """Provisioner of one kernel process.

    `end` resolves to ``{"ended": wait status, "text": in words}``.
    """

    def __init__(self, forkserver: Forkserver, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.forkserver = forkserver
        self.pid = 0
        self.end: asyncio.Future[dict[str, Any]] | None = None
        self.preload_failed: dict[str, str] = {}

    @property
    def has_process(self) -> bool:
        return self.end is not None and not self.end.done()

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Fork a kernel for the connection file in ``cmd``.

        ``kwargs`` are its ``env``, ``cwd`` and ``log``.
        """
        request = {"connection_file": cmd[0], "env": kwargs["env"], "cwd": kwargs["cwd"], "log": kwargs["log"]}
        self.pid, self.end, self.preload_failed = await self.forkserver.fork(request)
        return self.connection_info

    async def poll(self) -> int | None:
        if self.end is None or not self.end.done():
            return None
        return os.waitstatus_to_exitcode(self.end.result()["ended"])

    async def wait(self) -> int | None:
        if self.end is None:
            return None
        return os.waitstatus_to_exitcode((await asyncio.shield(self.end))["ended"])

    async def send_signal(self, signum: int) -> None:
        """Send a signal to the kernel's process group."""
        if self.has_process:
            signal_group(self.pid, signum)

    async def kill(self, restart: bool = False) -> None:
        if self.has_process:
            kill_group(self.pid)

    async def finish(self) -> None:
        """Ask the kernel to exit in order once it is idle."""
        if self.has_process:
            self.forkserver.finish(self.pid)

    async def terminate(self, restart: bool = False) -> None:
        await self.send_signal(signal.SIGTERM)

    async def cleanup(self, restart: bool = False) -> None:
        return None
