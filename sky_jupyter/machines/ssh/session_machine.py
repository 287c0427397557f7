"""Machine behind a session, such as an SSH connection or a pod's API."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from ...errors import MachineError
from ..base import Done, Machine, Moved, Progress
from .persistent_shell import Shell
from .shell_machine import ShellMachine

if TYPE_CHECKING:
    from typing_extensions import Self


class SessionMachine(ShellMachine):
    """Machine over one session, thread-safe; implements `base.Machine`.

    Parameters
    ----------
    session : MachineSession
        The connection; `close` ends it.
    address : str, optional
        Address for the pool's other machines; by default, the session's.
    """

    def __init__(self, session: Any, address: str | None = None) -> None:
        self.session = session
        self.target = session.target
        self.name = session.target.name
        self.key = self.key_of(session.target)
        self.address = address or session.address
        self._shell = Shell(session)

    @property
    def label(self) -> str:
        """The name, with the address."""
        return str(self.target)

    @property
    def up(self) -> bool:
        """Whether the connection is alive."""
        return bool(self.session.alive)

    @staticmethod
    @abstractmethod
    def key_of(target: Any) -> str:
        """Return the identity of a target's machine; see `base.Machine.key`."""

    @abstractmethod
    def beside(self, access: Any) -> Self:
        """Return the machine over a connection whose transfers delay nothing on this one."""

    def server(self) -> tuple[int, int] | None:
        """Return pid and start time of the session's server process, or None."""
        return None

    def end_server(self, pid: int, ticks: int) -> None:
        """Kill the process of an earlier session, as `server` returned it."""

    def lane(self) -> Self:
        """Return the machine over the same session with a shell of its own."""
        return type(self)(self.session, self.address)

    def open_shell(self, command: str) -> Any:
        """Return a channel in which a shell runs a command."""
        return self.session.channel(command)

    def status(self, pipes: Any) -> int:
        """Return a command's exit status; see `ShellMachine.status`."""
        return int(self.session.status(pipes))

    def run(self, script: str, *, stdin: Iterable[bytes] | None = None, timeout: float | None = None) -> Done:
        """Run a script in the connection's shell, one at a time; see `base.Machine.run`."""
        return self._shell.run(script, stdin, timeout=timeout)

    def interrupt(self) -> None:
        """End the running script; the caller of `run` gets an error."""
        self._shell.close()

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
    def _lane(self) -> Iterator[Self]:
        """Yield the connection with a second shell: scripts do not wait for it."""
        lane = self.lane()
        try:
            yield lane
        finally:
            lane.interrupt()

    def relay(self, through: Machine, host: str, port: int, *, there_port: int = 0) -> int:
        """Raise MachineError: only the link has relays, over connections of its own."""
        raise MachineError(self.name, "relay", "only a connection of the pool's link has relays")

    def open_stream(self, host: str, port: int) -> Any:
        """Connect from the machine to an address; return a stream used like a socket."""
        return self.session.open_stream(host, port)

    def close(self) -> None:
        """Close the connection and its forwards."""
        super().close()
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SharedSessionMachine(SessionMachine):
    """Machine whose transfers share its session; closing a lane does not end it."""

    def __init__(self, session: Any, address: str | None = None, *, is_lane: bool = False) -> None:
        super().__init__(session, address)
        self._is_lane = is_lane

    def lane(self) -> Self:
        """Return the machine over the same session with a shell of its own."""
        return type(self)(self.session, self.address, is_lane=True)

    def beside(self, access: Any) -> Self:
        """Return the machine with its own shell, as a second connection costs too much."""
        return self.lane()

    def close(self) -> None:
        """Close the connection and its forwards; of a lane, its shell only."""
        if self._is_lane:
            self.interrupt()
        else:
            super().close()
