"""Which processes stand still: stopped by a signal or held by a debugger. They answer nobody, and have not ended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

# How often whoever watches looks.
PAUSE = 1.0
_STILL = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
# It halts a process while it names its C code: for a moment, or on a busy machine for seconds.
_LOOKER = "py-spy"
# What an agent calls the process that it is a child of.
HOST = "host process"
STILL, ON, GONE = "still", "on", "gone"


class Standstill:
    """Made by whoever watches over processes; `look` tells what changed since the last look."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._told: dict[int, str] = {}

    def look(self, processes: Mapping[int, str]) -> Iterator[dict[str, Any]]:
        """Tell of each process, given by its id and name, that stands still now, or does not any more.

        A process is told of once it was seen twice: who looks at its C code halts it for a moment.
        """
        states = {pid: state_of(pid) for pid in {*processes, *self._told}}
        still = {pid for pid, state in states.items() if state == STILL}
        for pid in (still & self._seen) - self._told.keys():
            self._told[pid] = processes[pid]
            yield {"who": processes[pid], "pid": pid, "state": STILL}
        for pid in self._told.keys() - still:
            yield {"who": self._told.pop(pid), "pid": pid, "state": states[pid]}
        self._seen = still


def state_of(pid: int) -> str:
    """`STILL`, `ON` or `GONE`."""
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        status = process.status()
        if status in _STILL:
            tracer = _tracer(pid)
            # It may have been let go meanwhile.
            return ON if tracer == _LOOKER or (not tracer and process.status() not in _STILL) else STILL
        return GONE if status == psutil.STATUS_ZOMBIE else ON
    return GONE


def _tracer(pid: int) -> str:
    """The program that holds a process; empty where none does, or the system does not tell."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text()
        return Path(f"/proc/{int(status.split('TracerPid:', 1)[1].split()[0])}/comm").read_text().strip()
    return ""
