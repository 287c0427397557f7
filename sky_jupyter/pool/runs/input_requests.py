"""Questions of a run's code to the user, and how long it has waited for answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

# Of one run; code that asks in many threads is not answered any more.
_MOST = 1000


class AskUser(Protocol):
    """What asks the user beside what runs; thread-safe.

    The answer is None if nobody is there. Cancelling it withdraws the question.
    """

    def __call__(self, text: str, *, password: bool = False, verbatim: bool = False) -> Future[str | None]: ...


@dataclass
class Question:
    """Question of a rank that waits for an answer.

    Attributes
    ----------
    answer : Future of str or None
        Cancelled when the rank waits no longer; None if nobody answers.
    """

    id: str
    rank: int
    prompt: str
    password: bool = False
    answer: Future[str | None] = field(default_factory=Future)
    # A debugger has stopped the rank, which asks nothing.
    stopped: bool = False

    @property
    def text(self) -> str:
        """The prompt, with who asks."""
        return f"rank {self.rank} asks: {self.prompt}"


class Questions:
    """Questions of one run; changed on the loop."""

    def __init__(self) -> None:
        self._open: dict[str, Question] = {}
        self._since = self._seconds = 0.0
        # Called with each question; None for a run that nobody attends, as nobody can answer.
        self.on_ask: Callable[[Question], None] | None = None

    @property
    def are_open(self) -> bool:
        """Return whether any of them waits for an answer."""
        return bool(self._open)

    @property
    def seconds(self) -> float:
        """Return for how long ranks have waited for answers."""
        return self._seconds + (time.monotonic() - self._since if self._open else 0.0)

    def add(self, question: Question) -> None:
        """Note a question and have it asked; time limits hold where nobody can be asked."""
        if self.on_ask is None or question.id in self._open or len(self._open) >= _MOST:
            return
        self.hold(question)
        self.on_ask(question)

    def hold(self, question: Question) -> None:
        """Note that a rank waits for the user, at a question or stopped by a debugger."""
        if question.id not in self._open and len(self._open) < _MOST:
            if not self._open:
                self._since = time.monotonic()
            self._open[question.id] = question

    def close(self, id: str) -> None:
        """Withdraw a question: it has been answered, or its rank waits no longer."""
        question = self._open.get(id)
        if question is not None:
            self._seconds = self.seconds
            self._since = time.monotonic()
            del self._open[id]
            question.answer.cancel()

    def waits_for(self, rank: int) -> str:
        """Return in a word what a rank waits for: ``"asks"``, ``"stopped"``, or nothing."""
        found = [question.stopped for question in self._open.values() if question.rank == rank]
        return "" if not found else "stopped" if any(found) else "asks"

    def close_rank(self, rank: int) -> None:
        """Withdraw the questions of a rank that has ended."""
        for question in [question for question in self._open.values() if question.rank == rank]:
            self.close(question.id)
