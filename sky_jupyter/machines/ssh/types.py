"""Types of the SSH layer; no paramiko, as the link's client uses them too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...errors import MachineError
from .known_hosts import Unknown

Passphrase = Callable[[str, int], "str | None"]
"""Returns a key file's passphrase, or None; called with path and earlier attempts."""


@dataclass
class Prompts:
    """Callbacks that ask a person while connecting; without one, nothing is asked.

    Parameters
    ----------
    passphrase : callable, optional
        (path, earlier attempts) -> the key's passphrase, or None.
    accept : callable, optional
        (`known_hosts.Unknown`) -> True if a new host's key is right.
    """

    passphrase: Passphrase | None = None
    accept: Callable[[Unknown], bool] | None = None


@dataclass(frozen=True)
class Ran:
    """Exit status and outputs of a session's command."""

    status: int
    out: bytes
    err: bytes


def shown(said: str, limit: int = 300) -> str:
    """Return a host's output as one printable line of its last ``limit`` letters."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in said).split())
    return line if len(line) <= limit else f"…{line[-limit:]}"


class NoShell(MachineError):
    """Raised for a host that runs no ``/bin/sh`` for this user."""
