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


class Part:
    """One node's part in a phase; `PhaseLog` makes and changes it.

    Attributes
    ----------
    state : str
        As a phase's.
    line : str
        What the node has said last.
    """

    def __init__(self) -> None:
        self.state, self.line = "on", ""
        self._began = time.perf_counter()
        self._ended = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds that it took, or has taken so far."""
        return (time.perf_counter() if self.state == "on" else self._ended) - self._began

    def turn(self, state: str) -> None:
        """It is over, or goes on."""
        self.state, self._ended = state, time.perf_counter()


class Phase:
    """One phase; `PhaseLog` makes and changes it.

    Attributes
    ----------
    state : str
        ``"on"``, ``"done"`` or ``"failed"``.
    usual : float or None
        How many seconds it took in earlier starts like this one; None where there was none.
    parts : dict
        Node -> its part, where the nodes go through the phase by themselves.
    """

    def __init__(self, name: str, text: str, usual: float | None) -> None:
        self.name, self.text, self.usual = name, text, usual
        self.state = "on"
        self.at = time.time()
        self.lines: deque[str] = deque(maxlen=_LINES)
        self.parts: dict[int, Part] = {}
        self._began = time.perf_counter()
        self._elapsed: float | None = None

    @property
    def elapsed(self) -> float:
        """Seconds that it took, or has taken so far."""
        return time.perf_counter() - self._began if self._elapsed is None else self._elapsed

    def end(self, state: str) -> None:
        """It is over."""
        self._elapsed, self.state = self.elapsed, state
        for part in list(self.parts.values()):
            if part.state == "on":
                part.turn(state)


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

    @property
    def latest(self) -> str:
        """The name of the phase that began last."""
        with self._lock:
            return self._phases[-1].name if self._phases else "start"

    def on_node(self, node: int, state: str, line: str = "") -> None:
        """What a node's part in the phase that is on is at."""
        with self._lock:
            if not self._phases or self._phases[-1].state != "on":
                return
            part = self._phases[-1].parts.setdefault(node, Part())
            part.line = line[:_LINE] or part.line
            part.turn(state)

    def took(self) -> dict[str, float]:
        """How long each phase took that is done."""
        with self._lock:
            return {phase.name: phase.elapsed for phase in self._phases if phase.state == "done"}

    def facts(self, lines: int = _LINES, *, parts: bool = True) -> list[dict[str, Any]]:
        """All of it, as JSON.

        Parameters
        ----------
        lines : int
            So many of the last lines of each phase.
        parts : bool
            Whether of phases that are over the nodes' parts are told too.
        """
        with self._lock:
            return [
                {
                    "phase": phase.name,
                    "text": phase.text,
                    "state": phase.state,
                    "at": phase.at,
                    "elapsed": round(phase.elapsed, 3),
                    "usual": phase.usual,
                    "lines": list(phase.lines)[-lines:] if lines else [],
                    "nodes": [_part(*item) for item in phase.parts.items()] if parts or phase.state == "on" else [],
                }
                for phase in self._phases
            ]


def _part(node: int, part: Part) -> dict[str, Any]:
    return {"node": node, "state": part.state, "elapsed": round(part.elapsed, 3), "line": part.line}
