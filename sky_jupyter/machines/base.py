"""The contract of a machine: what bootstrap and the pool ask of one, however it is reached.

A provider's `connect` makes machines. `tests/providers/conformance.py` is a suite that every kind of machine passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Protocol

ProcessId = tuple[int, float]
"""A process id on a machine, and when the process began: together, no other process of that machine has both."""

Progress = Callable[[int, int], None]
"""Told how many bytes of how many are there."""


@dataclass(frozen=True)
class Done:
    """A script that has ended.

    Attributes
    ----------
    status : int
        Its exit status.
    out : bytes
        What it wrote to standard output and standard error, in that order of writing.
    """

    status: int
    out: bytes


@dataclass(frozen=True)
class Moved:
    """What a transfer has done.

    Attributes
    ----------
    sent : int
        Bytes of files that were copied.
    there : int
        Bytes that an earlier transfer had left, and that were found to be right.
    """

    sent: int
    there: int = 0


class Process(Protocol):
    """A process of a machine, whoever started it; made by `Machine.process`.

    It can be asked to end and waited for. Its output went to whoever started it.
    """

    @property
    def identity(self) -> ProcessId:
        """Which process it is."""

    @property
    def alive(self) -> bool:
        """Whether it runs; False too where another process has its process id by now."""

    def lines(self) -> Iterator[str]:
        """No line; a machine may return at once, or when the process has ended."""

    def terminate(self) -> None:
        """Ask it to end (SIGTERM), with its process group where the machine can; nothing where it has ended.

        A process that was stopped (SIGSTOP) is continued.
        """

    def kill(self) -> None:
        """End it (SIGKILL), with its process group where the machine can; nothing where it has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; 0, as its status is not known.

        Raises
        ------
        TimeoutError
            When it has not ended after ``timeout`` seconds.
        """


class Command(Protocol):
    """A command that runs on a machine; made by `Machine.exec`, ended by whoever asked for it."""

    @property
    def identity(self) -> ProcessId:
        """Which process it is."""

    def lines(self) -> Iterator[str]:
        """Its standard output, a line at a time, as it comes; ends with the command, or with the connection."""

    def terminate(self) -> None:
        """Ask it to end (SIGTERM); nothing where it has ended. A stopped process is continued."""

    def kill(self) -> None:
        """End it (SIGKILL); nothing where it has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; its exit status, or minus the number of the signal that ended it.

        Raises
        ------
        TimeoutError
            When it has not ended after ``timeout`` seconds.
        LinkLost
            When the connection ended first: how the command ends is not known.
        """


class Forward(Protocol):
    """A port of this machine that leads to an address as another machine sees it; made by `Machine.forward`."""

    @property
    def port(self) -> int:
        """The port, on 127.0.0.1. Any user of this machine can connect to it: only TLS should pass there."""

    def close(self) -> None:
        """Close the port, and all connections through it."""


class Machine(Protocol):
    """One machine of a pool, made by a provider's ``connect``; any number of threads may use it.

    Two are equal where they are the same connection. A method raises `LinkLost` when the connection to the machine
    breaks, and another `MachineError` when the machine refuses. A path that begins with ``~/`` is below the home of
    the machine's user.
    """

    @property
    def name(self) -> str:
        """What the user calls it, in messages."""

    @property
    def key(self) -> str:
        """Which machine it is: machines with equal keys share processes and folders."""

    @property
    def address(self) -> str:
        """The name or IP address at which the pool's other machines reach it."""

    @property
    def is_this_machine(self) -> bool:
        """Whether its processes, files and loopback are those of this process."""

    @property
    def up(self) -> bool:
        """Whether it is connected, as far as is known."""

    def retry(self) -> None:
        """Where it is not connected, try again at once, in the background."""

    def close(self) -> None:
        """Let go of it; commands that survive a connection run on."""

    def facts(self) -> Mapping[str, Any]:
        """What its provider needs to connect to it again later; of JSON's types, without secrets."""

    def run(self, script: str, *, stdin: Iterable[bytes] | None = None, timeout: float | None = None) -> Done:
        """Run a script in ``/bin/sh`` to its end.

        Parameters
        ----------
        script : str
            One line, without line breaks. It runs in a shell of its own: what it sets or changes into is not kept.
        stdin : iterable of bytes, optional
            Its standard input; a script that ends with status 0 must have read all of it. Empty unless given.
        timeout : float, optional
            Seconds that it may take.

        Raises
        ------
        TimeoutError
            When it has not ended after ``timeout`` seconds; it may go on there.
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
        env : mapping of str to str
            Its variables. Another machine's command also has those that a login has there. No argument of any
            process shows them.
        cwd : str
            Its working folder.
        log : PurePath
            The file that its standard error is appended to; made for its user only.
        survive : bool
            Whether it goes on when the connection breaks or this process ends.
        make : bool
            Whether ``cwd`` is made first, for its user only.

        Raises
        ------
        MachineError
            When it cannot be started: no such folder, program or log.
        """

    def process(self, identity: ProcessId) -> Process:
        """The process of a command that was started on this machine before, by its `Command.identity`."""

    def put(self, files: Mapping[PurePath, bytes]) -> None:
        """Write files, each whole or not at all, that only their user can read; folders above them are made.

        Raises
        ------
        MachineError
            When one cannot be written: reason ``"full"`` where there is no room, ``"denied"`` without permission.
        """

    def upload(
        self,
        source: Path,
        target: PurePath | str,
        *,
        names: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> Moved:
        """Send a file to its place, or files to a staging folder. Called again after a break, it resumes.

        Parameters
        ----------
        source : Path
            A file, or a folder.
        target : PurePath or str
            The file's place there; the staging folder where a folder or ``names`` are given. No other user may
            write to a staging folder: only files go there, and each is whole or not at all.
        names : mapping of str to str, optional
            Which files below the source are sent, and what they are called there; the empty name is the source
            itself. All files of a folder unless given.

        Raises
        ------
        MachineError
            When it cannot be written there.
        OSError
            When the source cannot be read, or holds something that is no file.
        """

    def download(self, source: PurePath | str, target: Path, *, progress: Progress | None = None) -> Moved:
        """Fetch a file or folder to ``target``. Called again after a break, it resumes.

        What is in a target folder already stays. Symbolic links in the source are made as links.

        Raises
        ------
        MachineError
            When it is not there or cannot be read.
        OSError
            When it cannot be written here.
        """

    def forward(self, host: str, port: int, *, local_port: int = 0) -> Forward:
        """Open a local port that leads to an address as the machine sees it, until it is closed.

        Parameters
        ----------
        local_port : int
            The local port, where it is free. Any free port otherwise.

        Raises
        ------
        MachineError
            When the machine lets nobody connect to that address; only known now where no ``local_port`` is given.
        """

    def relay(self, through: Machine, host: str, port: int, *, there_port: int = 0) -> int:
        """Open a port on this machine's loopback that leads, through here, to an address as another machine sees it.

        Parameters
        ----------
        through : Machine
            The other machine; of the same provider.
        there_port : int
            The port on this machine; any free port where it is 0.

        Returns
        -------
        int
            The port. It is the same for the same address, and stays open until the machine is closed.

        Raises
        ------
        MachineError
            When no such port can be had, as on machines that connections only lead to.
        """
