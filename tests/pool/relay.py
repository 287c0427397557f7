"""A relay between a manager and its pool's scheduler, in a process of its own, to be cut and restored."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sky_jupyter.machines.local_machine import LocalMachine
from sky_jupyter.node.system import processes
from sky_jupyter.pool.control.control_client import Control
from sky_jupyter.providers import Local
from sky_jupyter.providers.base import ConnectionSession


class FarMachine(LocalMachine):
    """This machine, reached as another one is: through its scheduler's port only."""

    key = "far"


@dataclass(frozen=True)
class Far(Local):
    """Nodes on this machine that the manager reaches through one port."""

    def connect(self, ids: Sequence[str], session: ConnectionSession) -> list[FarMachine]:
        return [FarMachine() for _ in ids]


class Relay:
    """One port that leads to the scheduler's; made by `relay`."""

    def __init__(self) -> None:
        self.port = 0
        self.target = 0
        self.process: subprocess.Popen[str] | None = None

    def lead_to(self, target: int) -> int:
        """Begin to relay; the port to connect to, which stays the same after a break."""
        self.target = self.target or target
        command = [sys.executable, "-m", "tests.pool.relay", str(self.port), str(self.target)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        return self.port

    def freeze(self) -> None:
        """Nothing goes through any more, and nobody is told."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on, with what has gathered meanwhile."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def cut(self) -> None:
        """All connections are reset, and new ones refused."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()

    def restore(self) -> None:
        """Connections can be made again."""
        self.lead_to(self.target)


@contextmanager
def relay(monkeypatch: object) -> Iterator[Relay]:
    """A relay that every pool made meanwhile is reached through."""
    made = Relay()
    connect = Control.connect

    async def through(self: Control, address: str, *arguments: object) -> None:
        port = made.lead_to(int(address.rpartition(":")[2]))
        await connect(self, f"{address.rpartition(':')[0]}:{port}", *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Control, "connect", through)  # type: ignore[attr-defined]
    try:
        yield made
    finally:
        made.cut()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def _serve(port: int, target: int) -> None:
    async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            onward = await asyncio.open_connection("127.0.0.1", target)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pump(reader, onward[1]), _pump(onward[0], writer))

    server = await asyncio.start_server(on_client, "127.0.0.1", port)
    processes.die_with_parent(os.getppid())
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2])))
