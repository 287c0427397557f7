"""Client side of a machine that the link is connected to."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Protocol

from ...errors import MachineError, PoolError
from ..base import Done, Forward, Machine, Moved, ProcessId, Progress
from ..process_handle import ProcessHandle
from .encoding import checked, from_target
from .framing import Broken, Wire
from .target_kinds import AnyTarget


class LinkClient(Protocol):
    """Interface of a link's client that a machine needs; `client.Link` has it."""

    def ask(self, call: str, name: str = "link", /, **facts: Any) -> dict[str, Any]:
        """Send a call and return its one reply."""

    def call(
        self, call: str, facts: Mapping[str, Any], host: str = "link", *, last: bool = False
    ) -> contextlib.AbstractContextManager[Wire]:
        """Send a call and yield its wire, from which the whole reply must be read."""

    def state(self, *, after: int = 0) -> dict[str, Any]:
        """Return what the link holds; of the machines, the next ones after a number."""

    def release(self, wire: Wire) -> None:
        """Hand a wire over to its user, who closes it."""

    def forget(self, wire: Wire) -> None:
        """Close a wire that is not needed any more."""

    def tunnel(self, machine: LinkMachine, host: str, port: int, *, wish: int = 0, probe: bool = False) -> Forward:
        """Return a local port to an address of a machine."""

    def relay(self, machine: LinkMachine, through: LinkMachine, host: str, port: int, *, wish: int = 0) -> int:
        """Return a machine's loopback port that leads to an address of another."""


class LinkProcess(ProcessHandle):
    """Command that was started on the machine earlier, without its output.

    Parameters
    ----------
    machine : LinkMachine
        Its machine.
    pid : int
        Process id.
    started : float
        Start time, as in `LinkCommand.identity`.
    """

    def __init__(self, machine: LinkMachine, pid: int, started: float) -> None:
        super().__init__(pid, started)
        self.machine = machine
        # For a pool's host process, its folder on that machine.
        self.folder = ""

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return bool(self._ask("alive")["alive"])

    @property
    def place(self) -> str:
        """The machine, as an error message names it."""
        return f" on {self.machine.target}"

    def terminate(self) -> None:
        """Send SIGTERM to its process group."""
        self._ask("signal", how="terminate")

    def kill(self) -> None:
        """Send SIGKILL to its process group."""
        self._ask("signal", how="kill")

    def _ask(self, call: str, **facts: Any) -> dict[str, Any]:
        pid, started = self.identity
        return self.machine.ask(call, pid=pid, started=started, **facts)


class LinkCommand:
    """Command on a machine, made by `LinkMachine.exec`."""

    def __init__(self, machine: LinkMachine, wire: Wire, number: int, identity: tuple[int, float]) -> None:
        self._machine, self._wire, self._number = machine, wire, number
        self._process = LinkProcess(machine, *identity)
        self._lock = threading.Lock()
        self._rest = b""
        self._over = False
        self._status: int | None = None

    @property
    def identity(self) -> ProcessId:
        """Process id, and start time in seconds since the machine's boot."""
        return self._process.identity

    def lines(self) -> Iterator[str]:
        """Yield lines of standard output until the command or the connection ends."""
        while True:
            with self._lock:
                line = self._line()
            if line is None:
                return
            yield line.decode("utf-8", "replace")

    def _line(self) -> bytes | None:
        while True:
            line, found, rest = self._rest.partition(b"\n")
            if found:
                self._rest = rest
                return line
            if self._over:
                self._rest = b""
                return line or None
            try:
                message = self._wire.receive()
                self._over = bool(message.facts.get("end"))
                self._rest += message.body
            except Broken:
                self._over = True
            if self._over:
                self._machine.link.forget(self._wire)

    def __del__(self) -> None:
        # It has ended, and its output is not needed. A running command keeps its wire: closing that may end it.
        if self._status is not None and not self._over:
            self._machine.link.forget(self._wire)

    def terminate(self) -> None:
        """Send SIGTERM to its process group."""
        if self._status is None:
            self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL to its process group."""
        if self._status is None:
            self._process.kill()

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, or minus the signal; see `base.Command.wait`."""
        if self._status is None:
            self._status = int(self._machine.ask("wait", command=self._number, timeout=timeout)["status"])
        return self._status


class LinkMachine:
    """Machine over a connection that the link keeps open; implements `base.Machine`.

    Parameters
    ----------
    link : LinkClient
        The client of the link, whose `connect` makes this object.
    number : int
        Number of the machine in the link.
    target : Target or PodTarget
        The machine.
    key : str
        See `base.Machine.key`.
    address : str
        See `base.Machine.address`.
    """

    is_this_machine = False

    def __init__(self, link: LinkClient, number: int, target: AnyTarget, *, key: str, address: str) -> None:
        self.link, self.number, self.target = link, number, target
        self.key, self.address = key, address

    def __eq__(self, other: object) -> bool:
        """Return True for the same connection of the link."""
        return isinstance(other, LinkMachine) and (self.link, self.number) == (other.link, other.number)

    __hash__ = None  # type: ignore[assignment] # a link that is started anew gives it another number

    @property
    def name(self) -> str:
        """Name in messages, as the user gave it."""
        return self.target.name

    def facts(self) -> Mapping[str, Any]:
        """Return the data that its provider needs to connect again."""
        target: dict[str, Any] = json.loads(json.dumps(from_target(self.target)))
        return {"target": target, "address": self.address}

    @property
    def up(self) -> bool:
        """Whether it is connected, as far as is known."""
        machines = self.link.state(after=self.number - 1)["machines"]
        found = [facts for facts in machines if facts["machine"] == self.number]
        return bool(found and found[0]["up"])

    def retry(self) -> None:
        """Reconnect now if it is not connected, without waiting for the back-off."""
        self.ask("retry")

    def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        log: PurePath,
        survive: bool = True,
        make: bool = False,
    ) -> LinkCommand:
        """Start a command in a session of its own; see `base.Machine.exec`."""
        facts = {"machine": self.number, "argv": list(argv), "env": dict(env), "cwd": cwd, "log": str(log)}
        with self.link.call("exec", {**facts, "survive": survive, "make": make}, self.name, last=True) as wire:
            reply = checked(wire.receive().facts)
        pid, started = reply["identity"]
        return LinkCommand(self, wire, reply["command"], (int(pid), float(started)))

    def process(self, identity: ProcessId) -> LinkProcess:
        """Return a command that was started here earlier, by its identity."""
        return LinkProcess(self, *identity)

    def run(self, script: str, *, stdin: Iterable[bytes] | None = None, timeout: float | None = None) -> Done:
        """Run a script in a shell of the link, concurrently; see `base.Machine.run`."""
        facts = {"machine": self.number, "data": stdin is not None, "script": script, "timeout": timeout}
        with self.link.call("run", facts, self.name) as wire:
            if stdin is not None:
                wire.send_data(stdin)
            reply = wire.receive().facts
            out = b"" if "error" in reply else b"".join(wire.receive_data())
        return Done(int(checked(reply)["status"]), out)

    def put(self, files: Mapping[PurePath, bytes]) -> None:
        """Write several files with one command; see `base.Machine.put`."""
        sizes = [[str(path), len(data)] for path, data in files.items()]
        with self.link.call("put", {"machine": self.number, "files": sizes, "data": True}, self.name) as wire:
            wire.send_data(files.values())
            reply = wire.receive().facts
        checked(reply)

    def upload(
        self,
        source: Path,
        target: PurePath | str,
        *,
        names: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Moved:
        """Send a file or folder of this machine; see `base.Machine.upload`."""
        chosen = None if names is None else [list(pair) for pair in names.items()]
        return self._move("upload", os.path.abspath(source), str(target), progress, names=chosen)

    def download(self, source: PurePath | str, target: Path, *, progress: Progress | None = None) -> Moved:
        """Fetch a file or folder to this machine; see `base.Machine.download`."""
        return self._move("download", str(source), os.path.abspath(target), progress)

    def forward(self, host: str, port: int, *, local_port: int = 0) -> Forward:
        """Return the link's tunnel to an address; see `base.Machine.forward`.

        It is the same for the same address, and survives breaks of the connection.
        """
        return self.link.tunnel(self, host, port, wish=local_port, probe=not local_port)

    def relay(self, through: Machine, host: str, port: int, *, there_port: int = 0) -> int:
        """Return a port of the link's relay; see `base.Machine.relay`."""
        if not isinstance(through, LinkMachine):
            raise MachineError(self.name, "relay", f"{through.name} is not reached through the same link")
        return self.link.relay(self, through, host, port, wish=there_port)

    def open_stream(self, host: str, port: int) -> socket.socket:
        """Connect from the machine to an address; return a socket of this process."""
        facts = {"machine": self.number, "host": host, "port": port}
        with self.link.call("stream", facts, self.name, last=True) as wire:
            checked(wire.receive().facts)
        self.link.release(wire)
        return wire.socket

    def close(self) -> None:
        """Close the link's connection and its tunnels, for all clients."""
        with contextlib.suppress(PoolError):
            self.ask("let_go")

    def ask(self, call: str, **facts: Any) -> dict[str, Any]:
        """Send a call about this machine and return its one reply."""
        return self.link.ask(call, self.name, machine=self.number, **facts)

    def _move(self, call: str, source: str, target: str, progress: Progress | None, **more: Any) -> Moved:
        facts = {"machine": self.number, "source": source, "target": target, **more}
        with self.link.call(call, facts, self.name) as wire:
            while "progress" in (reply := wire.receive().facts):
                if progress is not None:
                    progress(int(reply["progress"][0]), int(reply["progress"][1]))
        checked(reply)
        return Moved(int(reply["sent"]), int(reply["there"]))

    def __enter__(self) -> LinkMachine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
