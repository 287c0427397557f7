"""A kernel provisioner, in jupyter_client's sense, whose kernels are forked by the forkserver."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning import KernelProvisionerBase

from .processes import signal_group


class Forkserver:
    """An agent's line to the forkserver: asks for kernels, hears of their end. One an agent."""

    def __init__(self) -> None:
        self._writer: asyncio.StreamWriter | None = None
        self._asked: dict[int, asyncio.Future[tuple[dict[str, Any], asyncio.Future[dict[str, Any]]]]] = {}
        self._ends: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._listener: asyncio.Task[None] | None = None
        self._next = 0

    async def connect(self, path: Path) -> None:
        """Connect to the socket at ``path`` and begin to listen for ends."""
        reader, self._writer = await asyncio.open_unix_connection(str(path), limit=1 << 20)
        self._listener = asyncio.create_task(self._listen(reader))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            message = json.loads(line)
            if "id" in message:
                end = self._ends[message["pid"]] = asyncio.get_running_loop().create_future()
                # With its end, which may come before anybody looks.
                self._asked.pop(message["id"]).set_result((message, end))
            elif message["pid"] in self._ends:
                self._ends.pop(message["pid"]).set_result(message)
        error = ConnectionError("the forkserver of this node has ended; see forkserver.log")
        waiting: list[asyncio.Future[Any]] = [*self._asked.values(), *self._ends.values()]
        for future in waiting:
            if not future.done():
                future.set_exception(error)

    async def fork(self, request: dict[str, Any]) -> tuple[int, asyncio.Future[dict[str, Any]], dict[str, str]]:
        """Have a kernel forked: its process id, a future of its end, and the preloads that failed."""
        assert self._writer is not None
        self._next += 1
        future = self._asked[self._next] = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps({**request, "id": self._next}).encode() + b"\n")
        answer, end = await future
        return answer["pid"], end, answer["preload_failed"]


class ForkProvisioner(KernelProvisionerBase):
    """One a kernel process. `end` resolves with ``{"ended": wait status, "text": in words}``."""

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
        """Fork a kernel; ``cmd`` is its connection file, ``kwargs`` its ``env``, ``cwd`` and ``log``."""
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
        """To the kernel and what it started in its session's process group."""
        if self.has_process:
            signal_group(self.pid, signum)

    async def kill(self, restart: bool = False) -> None:
        await self.send_signal(signal.SIGKILL)

    async def terminate(self, restart: bool = False) -> None:
        await self.send_signal(signal.SIGTERM)

    async def cleanup(self, restart: bool = False) -> None:
        return None
