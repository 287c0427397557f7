"""Bare Jupyter kernels over unix sockets, and the shortest loop that runs a cell on several of them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import ended

QUIET = 2.0
"""Seconds without a message after which what is missing of a cell is taken as lost."""


class Kernels:
    """Kernels that are started together and run the same cells; made and ended by an engine.

    Parameters
    ----------
    count : int
        How many.
    argv : sequence of str, optional
        What to start instead of an ipykernel.
    env : mapping, optional
        The kernels' environment; this process's own unless given.
    """

    def __init__(self, count: int, argv: Sequence[str] = (), env: Mapping[str, str] | None = None) -> None:
        self._folder = ended.temporary_folder()
        self.managers: list[Any] = []
        self.clients: list[Any] = []
        try:
            self._begin(count, argv, env)
            self._meet()
        except BaseException:
            # Left open, the channels would hold up this process's end.
            self.close()
            raise

    def _begin(self, count: int, argv: Sequence[str], env: Mapping[str, str] | None) -> None:
        """Start the kernels, and listen to them."""
        import zmq
        from jupyter_client import KernelManager

        for number in range(count):
            manager = KernelManager(
                transport="ipc",
                ip=str(Path(self._folder.name, f"k{number}")),
                connection_file=str(Path(self._folder.name, f"k{number}.json")),
            )
            if argv:
                manager.kernel_spec.argv = list(argv)
            # What a kernel says outside of cells is for a log, and nobody reads one here.
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            manager.start_kernel(**quiet, **({} if env is None else {"env": dict(env)}))
            self.managers.append(manager)
        self._poller = zmq.Poller()
        self._channels: dict[Any, tuple[int, str]] = {}
        for number, manager in enumerate(self.managers):
            client = manager.blocking_client()
            self.clients.append(client)
            client.start_channels(stdin=False, hb=False, control=False)
            for name in ("shell", "iopub"):
                socket = getattr(client, f"{name}_channel").socket
                self._poller.register(socket, zmq.POLLIN)
                self._channels[socket] = (number, name)

    def _meet(self) -> None:
        """Ask until each kernel has answered on both channels: a subscription takes a moment to be heard."""
        met: set[tuple[int, str]] = set()
        while len(met) < 2 * len(self.clients):
            for number, client in enumerate(self.clients):
                if not {(number, "shell"), (number, "iopub")} <= met:
                    client.kernel_info()
                if not self.managers[number].is_alive():
                    raise RuntimeError("a bare kernel ended while it started")
            end = time.perf_counter() + 0.2
            while len(met) < 2 * len(self.clients) and (left := end - time.perf_counter()) > 0:
                met.update((number, channel) for number, channel, _ in self._messages(left))
        self.lost = False

    def _messages(self, timeout: float) -> list[tuple[int, str, dict[str, Any]]]:
        """What has come, at most one from each channel."""
        found = []
        for socket, _ in self._poller.poll(timeout * 1000):
            number, channel = self._channels[socket]
            _, message = self.clients[number].session.recv(socket, content=True)
            found.append((number, channel, message))
        return found

    def run(self, code: str) -> list[str]:
        """Run a cell on all; what each printed or showed as text, to the last byte that came.

        Raises
        ------
        RuntimeError
            When it failed on one.
        """
        sent = {client.execute(code): number for number, client in enumerate(self.clients)}
        said: list[list[str]] = [[] for _ in self.clients]
        # From each its reply, and "idle", after which it has nothing more to say.
        awaited = {(number, kind) for number in sent.values() for kind in ("execute_reply", "idle")}
        self.lost, self.last = False, time.perf_counter()
        while awaited:
            messages = self._messages(QUIET)
            if not messages and all(kind == "idle" for _, kind in awaited):
                self.lost = True
                break
            for number, _, message in messages:
                if message["parent_header"].get("msg_id") not in sent:
                    continue
                self.last = time.perf_counter()
                kind, content = message["msg_type"], message["content"]
                if kind == "stream":
                    said[number].append(content["text"])
                elif kind in ("display_data", "execute_result"):
                    said[number].append(content["data"].get("text/plain", ""))
                elif kind == "error":
                    raise RuntimeError("\n".join(content["traceback"]))
                elif kind == "execute_reply":
                    awaited.discard((number, kind))
                elif kind == "status" and content["execution_state"] == "idle":
                    awaited.discard((number, "idle"))
        return ["".join(parts) for parts in said]

    def close(self) -> None:
        """End them, and remove their sockets."""
        for client in self.clients:
            client.stop_channels()
        for manager in self.managers:
            manager.shutdown_kernel(now=True)
        self._folder.cleanup()
