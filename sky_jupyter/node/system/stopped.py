"""Which processes stand still: stopped by a signal or held by a debugger. They answer nobody, and have not ended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import psutil

# How often whoever watches looks.
PAUSE = 1.0
_STILL = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
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
        status = psutil.Process(pid).status()
        return STILL if status in _STILL else GONE if status == psutil.STATUS_ZOMBIE else ON
    return GONE
