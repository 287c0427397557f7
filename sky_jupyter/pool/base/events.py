"""What a pool tells those who listen: the steps of its start, what happens in its runs, and how far transfers are.

Listeners are called on the manager's loop thread and must return at once; what they keep they
guard themselves.
"""

from __future__ import annotations

import threading
from collections import deque
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
class TroubleEvent(NoticeEvent):
    """A notice of what lasts: it stands until another ``about`` the same takes its place, or says that it is over."""

    about: str = ""
    over: bool = False


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
    """The listener of a run that was let go: it keeps what it hears, and plays it to who comes, also a second time.

    Parameters
    ----------
    most : int
        About how many bytes of what is printed and shown are kept: the newest of it. The journals have the rest.
    """

    def __init__(self, most: int = 64 << 20) -> None:
        self._kept: deque[tuple[Event, int]] = deque()
        # What came before that and is no output.
        self._held: list[Event] = []
        self._most = most
        self._size = self._dropped = 0
        self._to: Listener | None = None
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Take an event in, or hand it on."""
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
        """Tell a listener all that was kept, and from now on each event as it comes."""
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
        """Tell the listener nothing more; who comes next is played all that is kept."""
        with self._lock:
            self._to = None


def _size(event: Event) -> int:
    """About how many bytes an output takes; 0 of what is none, or how a rank ended."""
    if not isinstance(event, OutputEvent) or event.event.get("kind") == "end":
        return 0
    data = event.event.get("data")
    texts = [event.event.get("text"), *(data.values() if isinstance(data, dict) else ())]
    return 200 + sum(len(text) for text in texts if isinstance(text, str))
