"""What a pool's start has come through: its phases, how long each took, and the lines that it said."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

_LINES = 100
_MOST = 100
_LINE = 500


class Phase:
    """One phase; `PhaseLog` makes and changes it.

    Attributes
    ----------
    state : str
        ``"on"``, ``"done"`` or ``"failed"``.
    usual : float or None
        How many seconds it took in earlier starts like this one; None where there was none.
    """

    def __init__(self, name: str, text: str, usual: float | None) -> None:
        self.name, self.text, self.usual = name, text, usual
        self.state = "on"
        self.at = time.time()
        self.lines: deque[str] = deque(maxlen=_LINES)
        self._began = time.perf_counter()
        self._elapsed: float | None = None

    @property
    def elapsed(self) -> float:
        """Seconds that it took, or has taken so far."""
        return time.perf_counter() - self._began if self._elapsed is None else self._elapsed

    def end(self, state: str) -> None:
        """It is over."""
        self._elapsed, self.state = self.elapsed, state


class PhaseLog:
    """One a pool; any thread may write and read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._phases: list[Phase] = []
        self.usual: Mapping[str, float] = {}

    def clear(self, usual: Mapping[str, float]) -> None:
        """A start begins; ``usual`` is how long each phase took in those before."""
        with self._lock:
            self._phases, self.usual = [], usual

    def begin(self, name: str, text: str) -> Phase:
        """A phase begins."""
        phase = Phase(name, text, self.usual.get(name))
        with self._lock:
            self._phases = [*self._phases[-_MOST:], phase]
        return phase

    def say(self, phase: Phase, line: str) -> None:
        """What a phase is at."""
        with self._lock:
            phase.lines.append(line[:_LINE])

    def took(self) -> dict[str, float]:
        """How long each phase took that is done."""
        with self._lock:
            return {phase.name: phase.elapsed for phase in self._phases if phase.state == "done"}

    def facts(self, lines: int = _LINES) -> list[dict[str, Any]]:
        """All of it, as JSON, with so many of the last lines of each phase."""
        with self._lock:
            return [
                {
                    "phase": phase.name,
                    "text": phase.text,
                    "state": phase.state,
                    "at": phase.at,
                    "elapsed": round(phase.elapsed, 3),
                    "usual": phase.usual,
                    "lines": list(phase.lines)[-lines:],
                }
                for phase in self._phases
            ]
