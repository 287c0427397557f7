"""What a pool tells those who listen: the steps of its start, what happens in its runs, and how far transfers are.

Listeners are called on the manager's loop thread and must return at once; what they keep they
guard themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PhaseEvent:
    """A step of a pool's start: ``text`` is what it is at, ``done`` says that it is over.

    ``usual`` is how many seconds it took in earlier starts like this one, where there were any.
    """

    phase: str
    text: str
    elapsed: float
    done: bool = False
    usual: float | None = None


@dataclass(frozen=True)
class OutputEvent:
    """Something a rank printed, showed or ended with; ``event`` is the journal's."""

    run: str
    rank: int
    event: dict[str, Any]


@dataclass(frozen=True)
class NoticeEvent:
    """Something that the manager did or saw, in words, such as a restart of kernels."""

    text: str
    run: str = ""


@dataclass(frozen=True)
class ProgressEvent:
    """How far a part of a transfer is: ``there`` of ``total`` bytes; ``text`` says it all in words."""

    what: str
    text: str
    there: int
    total: int


Event = PhaseEvent | OutputEvent | NoticeEvent | ProgressEvent
Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The listener of those who do not listen."""


class Tape:
    """The listener of a run that nobody watches yet: it keeps what it hears, and plays it to who comes."""

    def __init__(self) -> None:
        self._kept: list[Event] = []
        self._to: Listener | None = None
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Take an event in, or hand it on."""
        with self._lock:
            if self._to is None:
                self._kept.append(event)
            else:
                self._to(event)

    def play(self, listener: Listener) -> None:
        """Tell a listener all that was kept, and from now on each event as it comes."""
        with self._lock:
            for event in self._kept:
                listener(event)
            self._kept, self._to = [], listener
