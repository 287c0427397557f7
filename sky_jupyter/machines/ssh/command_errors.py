"""Errors for our own commands that failed on a machine."""

from __future__ import annotations

from ...errors import MachineError

_REASONS = {
    "No space left": ("full", "make room there, or name another folder"),
    "Disk quota": ("full", "make room there, or name another folder"),
    "Read-only file system": ("read-only", "name a folder that can be written"),
    "Permission denied": ("denied", "name a folder that this user may write, or log in as another user"),
}


def failure(name: str, what: str, told: str) -> MachineError:
    """Return the error for a failed command, with its output and advice."""
    for text, (reason, advice) in _REASONS.items():
        if text in told:
            return MachineError(name, reason, f"{what}: {told}; {advice}")
    return MachineError(name, "command", f"{what}: {told}")
