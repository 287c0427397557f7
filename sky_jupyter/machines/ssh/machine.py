"""Machine behind an SSH connection."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from ...errors import MachineError
from ..base import Done, Machine, Moved, Progress
from . import scripts
from .persistent_shell import Shell
from .session import Access, Session, connect
from .shell_machine import ShellMachine, who
from .target import Target

_SIGNAL_PATIENCE = 30.0


class SSHMachine(ShellMachine):
    """Machine over one SSH connection, thread-safe; implements `base.Machine`.

    Parameters
    ----------
    session : Session
        The connection; `close` ends it.
    address : str, optional
        Address for the pool's other machines; by default, the one at which it answered us.
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
        """Name, with user, host and port."""
        return str(self.target)

    @property
    def up(self) -> bool:
        """True while the connection is alive."""
        return self.session.alive

    @classmethod
    def connect(cls, target: Target, access: Access | None = None) -> SSHMachine:
        """Connect to a host; see `session.connect` for the errors."""
        return cls(connect(target, access))

    def open_shell(self, command: str) -> Any:
        """Return a channel in which the user's shell runs a command."""
        return self.session.channel(command)

    def status(self, pipes: Any) -> int:
        """Return a command's exit status; see `ShellMachine.status`."""
        return self.session.status(pipes)

    def run(self, script: str, *, stdin: Iterable[bytes] | None = None, timeout: float | None = None) -> Done:
        """Run a script in the connection's shell, one at a time; see `base.Machine.run`."""
        return self._shell.run(script, stdin, timeout=timeout)

    def interrupt(self) -> None:
        """End the running script; the caller of `run` gets an error."""
        self._shell.close()

    def server(self) -> tuple[int, int]:
        """Return process id and start time, in ticks, of this connection's sshd process."""
        return who(self.run(scripts.server(), timeout=_SIGNAL_PATIENCE).out.decode("utf-8", "replace"))

    def end_server(self, pid: int, ticks: int) -> None:
        """Kill the sshd process of an earlier connection."""
        self.run(scripts.end_server(pid, ticks), timeout=_SIGNAL_PATIENCE)

    def upload(
        self,
        source: Path,
        target: PurePath | str,
        *,
        names: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Moved:
        """Send a file or folder beside scripts; see `base.Machine.upload`."""
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
        """Yield the connection with a second shell: scripts do not wait for it."""
        lane = SSHMachine(self.session, self.address)
        try:
            yield lane
        finally:
            lane.interrupt()

    def relay(self, through: Machine, host: str, port: int, *, there_port: int = 0) -> int:
        """Raise MachineError: only the link has relays, over connections of its own."""
        raise MachineError(self.name, "relay", "only a connection of the pool's link has relays")

    def open_stream(self, host: str, port: int) -> Any:
        """Connect from the machine to an address; return a channel used like a socket."""
        return self.session.open_stream(host, port)

    def close(self) -> None:
        """Close the connection and its forwards."""
        super().close()
        self.session.close()

    def __enter__(self) -> SSHMachine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
