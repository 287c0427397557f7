"""What the notebook's process keeps of what ranks print: the newest of a run. The nodes' journals have the rest."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator

MOST = 64 * 10**6
"""About how many bytes of memory are kept of a run, all ranks together."""
# Where there are more, so much of it stays: not each text makes all ranks be looked at.
_STAYS = 7 / 8
# So much of one rank's goes before it is seen again who has most.
_STEP = 1 << 20


class Printed:
    """What a rank wrote to one of its outputs; held by its `Outcome`, filled by its `Run`.

    Attributes
    ----------
    dropped : int
        How many characters are not kept: all that the journal has before event `first`.
    """

    def __init__(self) -> None:
        self._texts: deque[tuple[int, str]] = deque()
        self.size = 0
        self.dropped = 0

    @property
    def first(self) -> int:
        """The number of the event that the oldest text is of; only where something was dropped."""
        return self._texts[0][0]

    def add(self, number: int, text: str) -> int:
        """Take in the text of an event; the bytes that it takes."""
        self._texts.append((number, text))
        size = sys.getsizeof(text)
        self.size += size
        return size

    def drop(self, size: int) -> int:
        """Let go of the oldest texts, until so many bytes are free; how many are. The newest text stays."""
        freed = 0
        while freed < size and len(self._texts) > 1:
            _, text = self._texts.popleft()
            freed += sys.getsizeof(text)
            self.dropped += len(text)
        self.size -= freed
        return freed

    @property
    def line_is_open(self) -> bool:
        """Whether what came last did not end its line."""
        return bool(self._texts) and not self._texts[-1][1].endswith("\n")

    def __iter__(self) -> Iterator[str]:
        return (text for _, text in self._texts)

    def __len__(self) -> int:
        return len(self._texts)


class Bound:
    """How much of a run is kept. Who printed most loses its oldest text first, so that others keep theirs."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._size = 0

    def note(self, size: int, kept: Iterable[Printed]) -> None:
        """So many bytes have come; ``kept`` is all that there is."""
        self._size += size
        if self._size <= self._most:
            return
        everything = list(kept)
        while (excess := self._size - int(self._most * _STAYS)) > 0:
            freed = max(everything, key=lambda one: one.size).drop(min(excess, _STEP))
            if not freed:
                return
            self._size -= freed
