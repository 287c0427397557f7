"""The notebook's cache of ranks' printed output; the journals have all of it."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator

MOST = 64 * 10**6
"""Limit per run in bytes of memory, for all ranks together."""
# Evict down to this fraction, so that not every text causes an eviction.
_STAYS = 7 / 8
# Evict this many bytes of the largest rank at a time.
_STEP = 1 << 20


class Printed:
    """Cached output of a rank to one stream; part of its `Outcome`.

    Attributes
    ----------
    dropped : int
        Number of evicted characters: the journal has them, before event `first`.
    """

    def __init__(self) -> None:
        self._texts: deque[tuple[int, str]] = deque()
        self.size = 0
        self.dropped = 0

    @property
    def first(self) -> int:
        """The number of the oldest cached event, after evictions."""
        return self._texts[0][0]

    def add(self, number: int, text: str) -> int:
        """Append an event's text; return its size in memory."""
        self._texts.append((number, text))
        size = sys.getsizeof(text)
        self.size += size
        return size

    def drop(self, size: int) -> int:
        """Evict the oldest texts to free ``size`` bytes; return the sum."""
        freed = 0
        while freed < size and len(self._texts) > 1:
            _, text = self._texts.popleft()
            freed += sys.getsizeof(text)
            self.dropped += len(text)
        self.size -= freed
        return freed

    @property
    def line_is_open(self) -> bool:
        """Whether the last text did not end its line."""
        return bool(self._texts) and not self._texts[-1][1].endswith("\n")

    def __iter__(self) -> Iterator[str]:
        return (text for _, text in self._texts)

    def __len__(self) -> int:
        return len(self._texts)


class Bound:
    """Memory limit of a run's output; the largest rank's is evicted first."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._size = 0

    def add(self, number: int, text: str, printed: Printed, kept: Iterable[Printed]) -> None:
        """Append an event's text to a rank's output; evict from all ``kept`` if needed."""
        self._size += printed.add(number, text)
        if self._size <= self._most:
            return
        everything = list(kept)
        while (excess := self._size - int(self._most * _STAYS)) > 0:
            freed = max(everything, key=lambda one: one.size).drop(min(excess, _STEP))
            if not freed:
                return
            self._size -= freed
