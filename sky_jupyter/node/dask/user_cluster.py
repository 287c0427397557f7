"""Processes of the user's Dask cluster (`pool.dask`), started on demand."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from ..protocol.host_config import HostConfig

_START = 60.0


class UserDaskProcesses:
    """Dask processes of one node; they end with the agent's process.

    Parameters
    ----------
    folder : Path
        The pool's folder on this machine.
    config : HostConfig
        Configuration with the node's address and the tasks' working folder.
    node : int
        The node's number.
    """

    def __init__(self, folder: Path, config: HostConfig, node: int) -> None:
        self.folder, self.config, self.node = folder, config, node
        # Process and address, by the scheduler that the worker is for; "" for the scheduler itself.
        self._there: dict[str, tuple[Process, str]] = {}
        self._turn = asyncio.Lock()

    async def sky_start_dask(self, scheduler: str = "") -> str:
        """Return the address of this node's worker, starting it if needed.

        Without a ``scheduler``, return the scheduler's address.
        """
        async with self._turn:
            for of, (process, _) in list(self._there.items()):
                # Workers of an earlier scheduler are useless.
                if process.returncode is not None or (scheduler and of not in ("", scheduler)):
                    self._end(of)
            if scheduler not in self._there:
                self._there[scheduler] = await self._start(scheduler)
            return self._there[scheduler][1]

    def _end(self, of: str) -> None:
        process, _ = self._there.pop(of)
        with contextlib.suppress(ProcessLookupError):
            process.kill()

    async def _start(self, scheduler: str) -> tuple[Process, str]:
        config = self.config
        nodes = config.addresses.count(config.addresses[self.node])
        threads = max(1, (os.cpu_count() or 1) // nodes)
        worker = [scheduler, f"node-{self.node}", str(threads)] if scheduler else []
        place = [str(self.folder), str(os.getpid()), config.addresses[self.node], config.cwd]
        with open(self.folder / f"n{self.node}" / "dask.log", "ab") as log:  # noqa: ASYNC230 - as quick as it gets
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "sky_jupyter.node.dask.user_cluster_process", *place, *worker),
                stdin=PIPE,
                stdout=PIPE,
                stderr=log,
                # Not the notebook's folder: a `random.py` in it would shadow the standard library's.
                cwd=self.folder,
            )
        assert process.stdout is not None
        try:
            line = await asyncio.wait_for(process.stdout.readline(), _START)
        except asyncio.TimeoutError:
            line = b""
        if not line.strip():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            what = "worker" if scheduler else "scheduler"
            raise RuntimeError(f"node {self.node}'s plain Dask {what} did not start: {self._last_words()}")
        return process, line.decode().strip()

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            text = (self.folder / f"n{self.node}" / "dask.log").read_text(errors="replace")
            return " | ".join(text.splitlines()[-5:])
        return "it said nothing"
