"""Detection of stopped processes: by a signal, or held by a debugger.

They do not answer, but have not ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

# Poll interval of watchers.
PAUSE = 1.0
_STILL = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
# py-spy pauses a process while it reads C frames: briefly, or for seconds on a busy machine.
_LOOKER = "py-spy"
# An agent's name for its parent process.
HOST = "host process"
# Letters of the proc file system: sleeping, running, waiting for a device, idle.
_GOING_ON, _ZOMBIE = frozenset("SRDI"), "Z"
_MOST = 1024
STILL, ON, GONE = "still", "on", "gone"


class StoppedProcesses:
    """Detector of stopped processes, for one watcher."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._told: dict[int, str] = {}

    def look(self, processes: Mapping[int, str]) -> Iterator[dict[str, Any]]:
        """Yield the processes that were stopped or resumed since the last call.

        ``processes`` maps ids to names. A process is reported once two calls have seen it stopped: py-spy pauses
        processes for a moment.
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
    """Return `STILL`, `ON` or `GONE` for a process."""
    if (letter := _letter(pid)) in _GOING_ON:
        return ON
    if letter == _ZOMBIE:
        return GONE
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        status = process.status()
        if status in _STILL:
            tracer = _tracer(pid)
            # It may have been resumed meanwhile.
            return ON if tracer == _LOOKER or (not tracer and process.status() not in _STILL) else STILL
        return GONE if status == psutil.STATUS_ZOMBIE else ON
    return GONE


def _letter(pid: int) -> str:
    """Return the letter of a process's state in ``/proc``; empty if there is none.

    psutil reads several files for each process, and watchers poll every second.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name before it may contain any characters.
            return file.read(_MOST).rpartition(b") ")[2][:1].decode()
    except OSError:
        return ""


def _tracer(pid: int) -> str:
    """Return the program that traces a process; empty if none or unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text()
        return Path(f"/proc/{int(status.split('TracerPid:', 1)[1].split()[0])}/comm").read_text().strip()
    return ""
