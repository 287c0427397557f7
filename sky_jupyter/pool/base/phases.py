"""Phases of a pool's start: state, duration, lines and the nodes' parts."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .events import Listener, PhaseEvent

_LINES = 100
_MOST = 100
_LINE = 500


class NodePhase:
    """One node's part in a phase; `PhaseLog` makes and changes it.

    Attributes
    ----------
    state : str
        As `Phase.state`.
    line : str
        The node's last message.
    """

    def __init__(self) -> None:
        self.state, self.line = "on", ""
        self.at = time.time()
        self._began = time.perf_counter()
        self._ended = 0.0

    @property
    def elapsed(self) -> float:
        """The seconds that it took, or has taken so far."""
        return (time.perf_counter() if self.state == "on" else self._ended) - self._began

    def turn(self, state: str) -> None:
        """Set the state, and the time at which it was entered."""
        self.state, self._ended = state, time.perf_counter()


class Phase:
    """One phase; `PhaseLog` makes and changes it.

    Its ``state`` is "on", "done" or "failed". ``usual`` is its median duration in earlier starts like this one, None if
    there were none. ``parts`` maps nodes to their parts, in phases that the nodes go through separately.
    """

    def __init__(self, name: str, text: str, usual: float | None) -> None:
        self.name, self.text, self.usual = name, text, usual
        self.state = "on"
        self.at = time.time()
        self.lines: deque[str] = deque(maxlen=_LINES)
        self.parts: dict[int, NodePhase] = {}
        # The steps that it has reached, with their times.
        self.steps: deque[tuple[float, str]] = deque(maxlen=_LINES)
        self._began = time.perf_counter()
        self._elapsed: float | None = None

    @property
    def elapsed(self) -> float:
        """The seconds that it took, or has taken so far."""
        return time.perf_counter() - self._began if self._elapsed is None else self._elapsed

    def end(self, state: str) -> None:
        """Set the final state of the phase and of its open parts."""
        self._elapsed, self.state = self.elapsed, state
        for part in list(self.parts.values()):
            if part.state == "on":
                part.turn(state)


class PhaseLog:
    """Phases of one pool; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._phases: list[Phase] = []
        self.usual: Mapping[str, float] = {}

    def clear(self, usual: Mapping[str, float]) -> None:
        """Begin a new start; ``usual`` holds the phases' usual durations."""
        with self._lock:
            self._phases, self.usual = [], usual

    @contextlib.contextmanager
    def phase(self, name: str, text: str, tell: Listener) -> Iterator[Callable[[str], None]]:
        """Run the block as a phase and report it; yield a function that reports a line."""
        noted = self.begin(name, text)

        def say(line: str) -> None:
            self.say(noted, line)
            tell(PhaseEvent(name, line, noted.elapsed, usual=noted.usual))

        say(text)
        try:
            yield say
        except BaseException:
            noted.end("failed")
            raise
        noted.end("done")
        tell(PhaseEvent(name, text, noted.elapsed, done=True, usual=noted.usual))

    def begin(self, name: str, text: str) -> Phase:
        phase = Phase(name, text, self.usual.get(name))
        with self._lock:
            self._phases = [*self._phases[-_MOST:], phase]
        return phase

    def say(self, phase: Phase, line: str) -> None:
        """Add a line to a phase."""
        with self._lock:
            phase.lines.append(line[:_LINE])
            if line != phase.text:
                phase.steps.append((time.time(), line[:_LINE]))

    def step(self, text: str) -> None:
        """Record a step that the current phase has reached, for `timings`."""
        with self._lock:
            if self._phases and self._phases[-1].state == "on":
                self._phases[-1].steps.append((time.time(), text))

    @property
    def latest(self) -> str:
        """The name of the phase that began last."""
        with self._lock:
            return self._phases[-1].name if self._phases else "start"

    def line_of(self, name: str) -> str:
        """Return the last line of the running phase, if it has this name; else ""."""
        with self._lock:
            phase = self._phases[-1] if self._phases else None
            return phase.lines[-1] if phase and phase.lines and (phase.name, phase.state) == (name, "on") else ""

    def on_node(self, node: int, state: str, line: str = "") -> None:
        """Set a node's state and line in the current phase, if any."""
        with self._lock:
            if not self._phases or self._phases[-1].state != "on":
                return
            part = self._phases[-1].parts.setdefault(node, NodePhase())
            part.line = line[:_LINE] or part.line
            part.turn(state)

    def took(self) -> dict[str, float]:
        """Return the seconds that each finished phase took."""
        with self._lock:
            return {phase.name: phase.elapsed for phase in self._phases if phase.state == "done"}

    def timings(self) -> list[StartTiming]:
        """Return the begin and duration of each phase, its steps and its nodes' parts."""
        with self._lock:
            return [found for phase in self._phases for found in _timings_of(phase)]

    def facts(self, lines: int = _LINES, *, parts: bool = True) -> list[dict[str, Any]]:
        """Return all phases as JSON.

        Parameters
        ----------
        lines : int
            Number of last lines of each phase.
        parts : bool
            Whether to include the nodes' parts of finished phases.

        Returns
        -------
        list of dict
            One per phase, oldest first.
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


@dataclass(frozen=True)
class StartTiming:
    """When one part of a start began (``time.time()``), and how long it took.

    Attributes
    ----------
    phase : str
        Name of its phase.
    text : str
        What it was.
    level : int
        0 for a phase, 1 for a step, 2 for a node's part.
    """

    at: float
    elapsed: float
    phase: str
    text: str
    level: int = 0


def _timings_of(phase: Phase) -> list[StartTiming]:
    """Return a phase's timings: its own, and what lies between its steps."""
    found = [StartTiming(phase.at, phase.elapsed, phase.name, phase.text)]
    began = phase.at
    for at, text in phase.steps:
        found.append(StartTiming(began, at - began, phase.name, f"until {text}", 1))
        began = at
    if phase.steps:
        found.append(StartTiming(began, phase.at + phase.elapsed - began, phase.name, "until its end", 1))
    parts = sorted(phase.parts.items(), key=lambda item: -item[1].elapsed)
    found += [StartTiming(part.at, part.elapsed, phase.name, _told(node, part), 2) for node, part in parts]
    return found


def _told(node: int, part: NodePhase) -> str:
    return f"node {node}{f': {part.line}' if part.line else ''}"


def _part(node: int, part: NodePhase) -> dict[str, Any]:
    return {"node": node, "state": part.state, "elapsed": round(part.elapsed, 3), "line": part.line}
