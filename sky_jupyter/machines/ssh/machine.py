"""A machine behind an SSH connection: commands run there, files go there, streams lead on from there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from ...errors import MachineError
from ..base import Done, Machine, Moved, Progress
from . import scripts
from .remote_shell import Shell
from .session import Access, Session, connect
from .shell_machine import ShellMachine, who
from .target import Target

_SIGNAL_PATIENCE = 30.0


class SSHMachine(ShellMachine):
    """Another machine, through one connection that any number of threads may use. It implements `base.Machine`.

    Parameters
    ----------
    session : Session
        The connection; it ends with the machine's `close`.
    address : str, optional
        How the pool's other machines reach it; the address at which it answered us unless given.
    """

    def __init__(self, session: Session, address: str | None = None) -> None:
        self.session = session
        self.target = session.target
        self.name = session.target.name
        self.key = f"ssh {self.target.user}@{self.target.host}:{self.target.port}"
        self.address = address or session.address
        self._shell = Shell(session)

    @property
    def label(self) -> str:
        """What the user calls it, with who logs in where."""
        return str(self.target)

    @property
    def up(self) -> bool:
        """Whether its connection stands."""
        return self.session.alive

    @classmethod
    def connect(cls, target: Target, access: Access | None = None) -> SSHMachine:
        """Connect to a host; see `session.connect` for what can go wrong."""
        return cls(connect(target, access))

    def open_shell(self, command: str) -> Any:
        """A channel in which the user's shell runs a command."""
        return self.session.channel(command)

    def status(self, pipes: Any) -> int:
        """How a channel's command ended; see `ShellMachine.status`."""
        return self.session.status(pipes)

    def run(self, script: str, *, stdin: Iterable[bytes] | None = None, timeout: float | None = None) -> Done:
        """Run a script in the connection's shell, one after another; see `base.Machine.run`."""
        return self._shell.run(script, stdin, timeout=timeout)

    def interrupt(self) -> None:
        """End the script that runs; whoever called `run` gets an error."""
        self._shell.close()

    def server(self) -> tuple[int, int]:
        """Who serves this connection there: a process, and its beginning in ticks."""
        return who(self.run(scripts.server(), timeout=_SIGNAL_PATIENCE).out.decode("utf-8", "replace"))

    def end_server(self, pid: int, ticks: int) -> None:
        """End who served an earlier connection of ours, and may not know yet that it is gone."""
        self.run(scripts.end_server(pid, ticks), timeout=_SIGNAL_PATIENCE)

    def upload(
        self,
        source: Path,
        target: PurePath | str,
        *,
        names: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Moved:
        """Send a file or folder, resumed after a break, while scripts go on; see `base.Machine.upload`."""
        from . import file_transfer

        with self._lane() as lane:
            return file_transfer.upload(lane, source, target, names=names, progress=progress)

    def download(self, source: PurePath | str, target: Path, *, progress: Progress | None = None) -> Moved:
        """Fetch a file or folder; see `base.Machine.download`."""
        from . import file_transfer

        with self._lane() as lane:
            return file_transfer.download(lane, source, target, progress=progress)

    @contextlib.contextmanager
    def _lane(self) -> Iterator[SSHMachine]:
        """The same connection with a shell of its own: a script in the other one does not wait for a transfer."""
        lane = SSHMachine(self.session, self.address)
        try:
            yield lane
        finally:
            lane.interrupt()

    def relay(self, through: Machine, host: str, port: int, *, there_port: int = 0) -> int:
        """Not possible: the link keeps relays, over connections of its own."""
        raise MachineError(self.name, "relay", "only a connection of the pool's link has relays")

    def open_stream(self, host: str, port: int) -> Any:
        """A connection from there to an address there, used as a socket is (``recv``, ``sendall``, ``close``)."""
        return self.session.open_stream(host, port)

    def close(self) -> None:
        """End the connection, and the forwards over it."""
        super().close()
        self.session.close()

    def __enter__(self) -> SSHMachine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
