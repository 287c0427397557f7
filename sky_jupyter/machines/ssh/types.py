"""What the SSH layer takes and gives. No paramiko here: the notebook's side of the link uses these too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...errors import MachineError
from .known_hosts import Unknown

Passphrase = Callable[[str, int], "str | None"]
"""Asked for a key file's passphrase: the path, and how often it was asked before. None gives the key up."""


@dataclass
class Prompts:
    """Whom to ask while connecting; each may be None, and then nothing is asked.

    Parameters
    ----------
    passphrase : callable, optional
        (path, attempts before) -> a key's passphrase, or None.
    accept : callable, optional
        (`hostkeys.Unknown`) -> whether a new host's key is right.
    """

    passphrase: Passphrase | None = None
    accept: Callable[[Unknown], bool] | None = None


@dataclass(frozen=True)
class Ran:
    """What a command of a session said on either output, and how it ended."""

    status: int
    out: bytes
    err: bytes


def shown(said: str, limit: int = 300) -> str:
    """Return what a host said as one printable line: the last ``limit`` letters of it."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in said).split())
    return line if len(line) <= limit else f"…{line[-limit:]}"


class NoShell(MachineError):
    """The host runs no ``/bin/sh`` for this user."""
