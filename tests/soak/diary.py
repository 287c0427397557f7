"""What a soak did and what failed in it: every action in a file, and the last ones with each failure."""

from __future__ import annotations

import collections
import time
from pathlib import Path

MOST_FAILURES = 25
_LAST = 30
_LONGEST = 2000


class Diary:
    """One a soak.

    Parameters
    ----------
    folder : Path
        Where ``actions.log`` is written.
    aloud : bool
        Whether each line is printed too.
    """

    def __init__(self, folder: Path, *, aloud: bool) -> None:
        self.path = folder / "actions.log"
        self.aloud = aloud
        self.failures: list[str] = []
        self._last: collections.deque[str] = collections.deque(maxlen=_LAST)
        self._began = time.monotonic()

    def note(self, text: str) -> None:
        """Write down what is done or seen."""
        line = f"{time.monotonic() - self._began:7.1f} s  {text}"
        self._last.append(line)
        with self.path.open("a") as file:
            file.write(line + "\n")
        if self.aloud:
            print(line, flush=True)

    def fail(self, text: str) -> None:
        """Write down what is not as it must be."""
        before = "\n  ".join(self._last)
        self.note(f"FAILURE {text[:_LONGEST]}")
        if not self.full:
            self.failures.append(f"{text}\nthe last actions:\n  {before}")

    @property
    def full(self) -> bool:
        """Whether so much has failed that no more need be found."""
        return len(self.failures) >= MOST_FAILURES

    @property
    def text(self) -> str:
        """All failures, numbered."""
        return "\n\n".join(f"{i}. {text}" for i, text in enumerate(self.failures, 1)) or "nothing failed"
