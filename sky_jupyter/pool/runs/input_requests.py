"""Questions of a run's code to the user, and the time spent waiting for answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

# The limit for one run: code that asks in more threads gets no answer.
_MOST = 1000


class AskUser(Protocol):
    """Callback that asks the user while something runs; thread-safe.

    The answer is None if nobody is there. Cancelling the future withdraws the question.
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
    # Whether a debugger has stopped the rank, which then asks nothing.
    stopped: bool = False

    @property
    def text(self) -> str:
        """The prompt, with the rank that asks."""
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
        """Whether any of them waits for an answer."""
        return bool(self._open)

    @property
    def seconds(self) -> float:
        """The seconds that ranks have waited for answers."""
        return self._seconds + (time.monotonic() - self._since if self._open else 0.0)

    def add(self, question: Question) -> None:
        """Note a question and ask it; if nobody can be asked, time limits keep running."""
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
        """Close a question: it has been answered, or its rank waits no longer."""
        question = self._open.get(id)
        if question is not None:
            self._seconds = self.seconds
            self._since = time.monotonic()
            del self._open[id]
            question.answer.cancel()

    def waits_for(self, rank: int) -> str:
        """Return what a rank waits for: ``"asks"``, ``"stopped"`` or an empty text."""
        found = [question.stopped for question in self._open.values() if question.rank == rank]
        return "" if not found else "stopped" if any(found) else "asks"

    def close_rank(self, rank: int) -> None:
        """Close the questions of a rank that has ended."""
        for question in [question for question in self._open.values() if question.rank == rank]:
            self.close(question.id)
