"""What a machine can do: run a command, take a file, open a stream. The contract of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Protocol


class Command(Protocol):
    """A command that runs on a machine; made by `Machine.exec`, ended by whoever asked for it."""

    @property
    def identity(self) -> tuple[int, float]:
        """Its process id there, and when it was started: together, no other process has both."""

    def lines(self) -> Iterator[str]:
        """Its standard output, a line at a time, as it comes."""

    def terminate(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it."""

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status; TimeoutError when it has none after ``timeout`` seconds."""


class Machine(Protocol):
    """One machine of a pool, made by a provider's ``connect``.

    Attributes
    ----------
    key : str
        Machines with equal keys are one place: they share processes and folders.
    address : str
        How the pool's other machines reach it.
    """

    key: str
    address: str

    def exec(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, log: PurePath) -> Command:
        """Start a command in a session of its own; its standard error goes to ``log``."""

    def put(self, data: bytes, path: PurePath) -> None:
        """Write a file that only its user can read."""
