"""Machine protocol: what bootstrap and the pool need of a machine.

A provider's `connect` returns machines. Every kind of machine passes the suite in `tests/providers/conformance.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Protocol

ProcessId = tuple[int, float]
"""A process id and its start time; together they are unique on a machine."""

Progress = Callable[[int, int], None]
"""Called with the bytes transferred so far and the total."""


@dataclass(frozen=True)
class Done:
    """Result of a script that has ended.

    Attributes
    ----------
    status : int
        Its exit status.
    out : bytes
        Standard output and standard error, interleaved as they were written.
    """

    status: int
    out: bytes


@dataclass(frozen=True)
class Moved:
    """Result of a transfer.

    Attributes
    ----------
    sent : int
        Bytes of files that were copied.
    there : int
        Bytes left by an earlier transfer and verified.
    """

    sent: int
    there: int = 0


class Process(Protocol):
    """Process of a machine that an earlier connection started; see `Machine.process`.

    It can be ended and waited for. Its output is not available.
    """

    @property
    def identity(self) -> ProcessId:
        """Process id and start time."""

    @property
    def alive(self) -> bool:
        """True while it runs; False if another process has its process id."""

    def lines(self) -> Iterator[str]:
        """Yield nothing; a machine may return at once or when the process ends."""

    def terminate(self) -> None:
        """Send SIGTERM, to its process group if the machine can.

        A process that has ended is ignored. A process stopped by SIGSTOP is continued.
        """

    def kill(self) -> None:
        """Send SIGKILL, to its process group if the machine can; ignore an ended process."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended. Return 0: its status is unknown.

        Raise TimeoutError if it has not ended after ``timeout`` seconds.
        """


class Command(Protocol):
    """Command that runs on a machine, made by `Machine.exec`; its caller ends it."""

    @property
    def identity(self) -> ProcessId:
        """Process id and start time."""

    def lines(self) -> Iterator[str]:
        """Yield lines of standard output until the command or the connection ends."""

    def terminate(self) -> None:
        """Send SIGTERM; ignore an ended command. A stopped process is continued."""

    def kill(self) -> None:
        """Send SIGKILL; ignore an ended command."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the command has ended and return its exit status.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; forever by default.

        Returns
        -------
        int
            The exit status, or minus the number of the signal that ended it.

        Raises
        ------
        TimeoutError
            When it has not ended after ``timeout`` seconds.
        LinkLost
            When the connection ended first: the exit status is unknown.
        """


class Forward(Protocol):
    """Local port that leads to an address reachable from another machine."""

    @property
    def port(self) -> int:
        """Port on 127.0.0.1. Any local user can connect to it: only TLS should pass."""

    def close(self) -> None:
        """Close the port and all connections through it."""


class Machine(Protocol):
    """Machine of a pool, made by a provider's ``connect``; thread-safe.

    Two machines are equal if they are the same connection. A method raises `LinkLost` when the connection to the
    machine breaks, and another `MachineError` when the machine refuses. A path that begins with ``~/`` is below the
    home folder of the machine's user.
    """

    @property
    def name(self) -> str:
        """Name in messages, as the user gave it."""

    @property
    def key(self) -> str:
        """Identity: machines with equal keys share processes and folders."""

    @property
    def address(self) -> str:
        """Host name or IP address at which the pool's other machines reach it."""

    @property
    def is_this_machine(self) -> bool:
        """True if its processes, files and loopback are those of this process."""

    @property
    def up(self) -> bool:
        """True while it is connected, as far as is known."""

    def retry(self) -> None:
        """Reconnect now, in the background, if it is not connected."""

    def close(self) -> None:
        """Close the connection; commands that survive a connection keep running."""

    def facts(self) -> Mapping[str, Any]:
        """Return what its provider needs to reconnect later: JSON types, no secrets."""

    def run(self, script: str, *, stdin: Iterable[bytes] | None = None, timeout: float | None = None) -> Done:
        """Run a script in ``/bin/sh`` and wait until it has ended.

        Parameters
        ----------
        script : str
            One line. It runs in a shell of its own: variables and the working folder are not kept.
        stdin : iterable of bytes, optional
            Standard input, empty by default. A script that ends with status 0 must have read all of it.
        timeout : float, optional
            Seconds to wait; forever by default.

        Returns
        -------
        Done
            Exit status and output.

        Raises
        ------
        TimeoutError
            If it has not ended after ``timeout`` seconds. The script is then ended, except over SSH, where it may go
            on.
        """

    def exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        log: PurePath,
        survive: bool = True,
        make: bool = False,
    ) -> Command:
        """Start a command in a session of its own, with empty standard input.

        Parameters
        ----------
        argv : sequence of str
            Program and arguments.
        env : mapping of str to str
            Environment variables. On another machine they are added to the login's. They appear in no process's
            arguments.
        cwd : str
            Working folder.
        log : PurePath
            File that standard error is appended to; created with mode 0600.
        survive : bool
            Keep running when the connection breaks or this process ends.
        make : bool
            Create ``cwd`` first, for its user only.

        Returns
        -------
        Command
            The command, which runs.

        Raises
        ------
        MachineError
            When it cannot be started: no such folder, program or log.
        """

    def process(self, identity: ProcessId) -> Process:
        """Return the process of a command started earlier, by its `Command.identity`."""

    def put(self, files: Mapping[PurePath, bytes]) -> None:
        """Write files atomically with mode 0600; create missing folders above them.

        Parameters
        ----------
        files : mapping of PurePath to bytes
            Contents of each file.

        Raises
        ------
        MachineError
            When a file cannot be written: reason ``"full"`` (no space) or ``"denied"`` (no permission).
        """

    def upload(
        self,
        source: Path,
        target: PurePath | str,
        *,
        names: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Moved:
        """Send a file to its place, or files to a staging folder; resume after a break.

        Parameters
        ----------
        source : Path
            File or folder to send.
        target : PurePath or str
            The file's path there; the staging folder if ``source`` is a folder or ``names`` is given. No other user
            may write to a staging folder. Each file there is complete or absent.
        names : mapping of str to str, optional
            Files below the source, with their names there; the empty name is the source itself. By default, all
            files of a folder.
        progress : callable, optional
            Called with the bytes transferred and the total.

        Returns
        -------
        Moved
            Bytes sent, and bytes that were there.

        Raises
        ------
        MachineError
            When it cannot be written there.
        OSError
            When the source cannot be read, or contains something that is not a file.
        """

    def download(self, source: PurePath | str, target: Path, *, progress: Progress | None = None) -> Moved:
        """Fetch a file or folder to ``target``; resume after a break.

        Files already in a target folder stay. Symbolic links in the source become links.

        Parameters
        ----------
        source : PurePath or str
            Path on the machine.
        target : Path
            Local path.
        progress : callable, optional
            Called with the bytes transferred and the total.

        Returns
        -------
        Moved
            Bytes fetched, and bytes that were here.

        Raises
        ------
        MachineError
            When the source does not exist or cannot be read.
        OSError
            When it cannot be written here.
        """

    def forward(self, host: str, port: int, *, local_port: int = 0) -> Forward:
        """Open a local port that leads to an address reachable from the machine.

        Parameters
        ----------
        host : str
            Host, as the machine sees it.
        port : int
            Port of that host.
        local_port : int
            Local port to use if it is free; any free port otherwise.

        Returns
        -------
        Forward
            The open port.

        Raises
        ------
        MachineError
            When the machine refuses connections to that address; checked now only if ``local_port`` is 0.
        """

    def relay(self, through: Machine, host: str, port: int, *, there_port: int = 0) -> int:
        """Open a loopback port on this machine that leads to an address of another.

        Connections pass through the machine that this process runs on.

        Parameters
        ----------
        through : Machine
            The other machine, of the same provider.
        host : str
            Host, as the other machine sees it.
        port : int
            Port of that host.
        there_port : int
            Port on this machine; 0 for any free one.

        Returns
        -------
        int
            The port: the same for the same address, and open until the machine is closed.

        Raises
        ------
        MachineError
            When the machine cannot listen for this process, as where connections can only be made to it.
        """
