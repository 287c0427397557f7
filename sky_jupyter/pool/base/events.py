"""Events that a pool sends to listeners: phases, output, notices and progress.

Listeners run on the manager's loop thread and must return at once; their state needs a lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PhaseEvent:
    """Progress of a phase; ``done`` marks its end.

    ``usual`` is the phase's median duration in earlier starts like this one, if there were any.
    """

    phase: str
    text: str
    elapsed: float
    done: bool = False
    usual: float | None = None


@dataclass(frozen=True)
class OutputEvent:
    """Output, display or end of a rank; ``event`` is the journal's."""

    run: str
    rank: int
    event: dict[str, Any]


@dataclass(frozen=True)
class NoticeEvent:
    """Message about what the manager did or saw, such as a restart of kernels."""

    text: str
    run: str = ""


@dataclass(frozen=True)
class TroubleEvent(NoticeEvent):
    """Notice that stays until another one with the same ``about`` replaces it."""

    about: str = ""
    over: bool = False


@dataclass(frozen=True)
class ProgressEvent:
    """Progress of a transfer: ``there`` of ``total`` bytes."""

    what: str
    text: str
    there: int
    total: int


Event = PhaseEvent | OutputEvent | NoticeEvent | ProgressEvent
Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Discard an event: the listener of callers that want none."""


class Tape:
    """Listener of a detached run: records events and replays them on request.

    Parameters
    ----------
    most : int
        Limit of recorded output in bytes, approximately; the oldest is dropped first. The journals have all of it.
    """

    def __init__(self, most: int = 64 << 20) -> None:
        self._kept: deque[tuple[Event, int]] = deque()
        # Events older than these that are no output: they are never dropped.
        self._held: list[Event] = []
        self._most = most
        self._size = self._dropped = 0
        self._to: Listener | None = None
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Record an event, and forward it to the listener if there is one."""
        with self._lock:
            self._keep(event)
            if self._to is not None:
                self._to(event)

    def _keep(self, event: Event) -> None:
        size = _size(event)
        self._kept.append((event, size))
        self._size += size
        while self._size > self._most and len(self._kept) > 1:
            oldest, freed = self._kept.popleft()
            self._size -= freed
            self._dropped += freed
            if not freed:
                self._held.append(oldest)

    def play(self, listener: Listener) -> None:
        """Replay all recorded events to a listener, then forward new ones."""
        with self._lock:
            for event in self._held:
                listener(event)
            if self._dropped:
                text = f"about {self._dropped / 1e6:.0f} MB of earlier output is not shown; `%sky logs` has it"
                listener(NoticeEvent(text))
            for event, _ in self._kept:
                listener(event)
            self._to = listener

    def stop(self) -> None:
        """Stop forwarding; the next listener gets all recorded events."""
        with self._lock:
            self._to = None


class NullView:
    """Null view, for fetched values and runs with ``--quiet``.

    Parameters
    ----------
    tick : callable, optional
        Called at each refresh.
    """

    def __init__(self, tick: Callable[[], None] = lambda: None) -> None:
        self._tick = tick

    def on_event(self, event: Event) -> None:
        """Do nothing."""

    def refresh(self) -> None:
        """Call only the poll callback."""
        self._tick()

    def finish(self, ready: object, *, ok: bool = True) -> None:
        """Do nothing."""


def _size(event: Event) -> int:
    """Return the approximate size of an output; 0 for other events."""
    if not isinstance(event, OutputEvent) or event.event.get("kind") == "end":
        return 0
    data = event.event.get("data")
    texts = [event.event.get("text"), *(data.values() if isinstance(data, dict) else ())]
    return 200 + sum(len(text) for text in texts if isinstance(text, str))
