"""Parts of a journal: segments (files of whole lines), gaps and held lines.

Each part covers the events from ``first`` to before ``next``. A journal's parts have no holes between them.
"""

from __future__ import annotations

import contextlib
import errno
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from ..protocol.journal_events import Gap, Tally, is_count, parse

# Distance in bytes between indexed lines of a segment.
_STRIDE = 32 << 10
# Limit of a line's length; anything beyond is corrupt.
MAX_LINE = 1 << 30


class JournalPart(Protocol):
    """Interface of a journal's parts."""

    @property
    def first(self) -> int:
        """Number of its first event."""

    @property
    def next(self) -> int:
        """Number after its last event."""

    def read(self, start: int, most: int) -> tuple[bytes, int]:
        """Return about ``most`` bytes of lines from ``start`` on, and the next number."""


@dataclass(frozen=True)
class Line:
    """Event that is kept in memory, as it is never dropped."""

    first: int
    data: bytes

    @property
    def next(self) -> int:
        """Number after it."""
        return self.first + 1

    def read(self, start: int, most: int) -> tuple[bytes, int]:
        """Return the line."""
        return self.data, self.next


class Segment:
    """File of lines, one per event, with consecutive numbers.

    It is named by the first number.

    Parameters
    ----------
    base : Path
        The journal's path, the prefix of its files.
    first : int
        Number of its first event.
    head : bool
        Whether it belongs to the first segments, which are never dropped.
    """

    def __init__(self, base: Path, first: int, *, head: bool) -> None:
        self.path = base.with_name(f"{base.name}.{first:012d}")
        self.first = self.next = first
        self.head = head
        self.size = 0
        self.tally: Tally = {}
        # Its vital events, which are never dropped.
        self.held: list[int] = []
        # Sparse index: numbers and offsets of some lines.
        self._numbers, self._offsets = array("q"), array("q")

    def write(self, lines: Sequence[bytes]) -> tuple[int, OSError | None]:
        """Append lines; return how many are complete, and the error for the others."""
        data = memoryview(b"".join(lines))
        done, error = 0, None
        try:
            done = self._put(data)
        except _Stopped as caught:
            done, error = caught.done, caught.error
        kept = 0
        for line in lines:
            if len(line) > done:
                break
            done -= len(line)
            kept += 1
            self._count(len(line))
        if error is not None:
            with contextlib.suppress(OSError):
                os.truncate(self.path, self.size)
        return kept, error

    def _put(self, data: memoryview) -> int:
        """Write at the end; the file is opened each time to save descriptors."""
        done, file = 0, -1
        try:
            new = os.O_CREAT | os.O_TRUNC if not self.size else 0
            file = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | new, 0o600)
            while done < len(data):
                written = os.pwrite(file, data[done:], self.size + done)
                if not written:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                done += written
            return done
        except OSError as error:
            raise _Stopped(done, error) from None
        finally:
            if file >= 0:
                with contextlib.suppress(OSError):
                    os.close(file)

    def _count(self, size: int) -> None:
        if not self._offsets or self.size - self._offsets[-1] >= _STRIDE:
            self._offsets.append(self.size)
            self._numbers.append(self.next)
        self.size += size
        self.next += 1

    def read(self, start: int, most: int) -> tuple[bytes, int]:
        """Return lines from event ``start`` on; a gap if they cannot be read."""
        try:
            with self.path.open("rb") as file:
                data = self._lines(file, start, most)
        except OSError:
            data = b""
        # User code can change the file: it may have more or fewer lines than were written.
        following = min(self.next, start + data.count(b"\n"))
        if following == start:
            return Gap(start, self.next, 0, "the journal's file cannot be read any more").read(start, most)
        return data, following

    def _lines(self, file: BinaryIO, start: int, most: int) -> bytes:
        place = bisect_right(self._numbers, start) - 1
        file.seek(self._offsets[place])
        for _ in range(start - self._numbers[place]):
            file.readline()
        left = self.size - file.tell()
        data = file.read(min(most, left))
        if not data.endswith(b"\n"):
            data += file.readline(max(0, left - len(data)))
        return data[: data.rfind(b"\n") + 1]

    def scan(self, on_event: Callable[[dict[str, Any], int], None]) -> int:
        """Index the file of a dead agent, up to its first broken line.

        ``on_event`` is called with each event and its line's length. Returns the number after the highest one seen,
        even behind the broken line.
        """
        highest = self.next
        sound = True
        with contextlib.suppress(OSError), self.path.open("rb") as file:
            while line := file.readline(MAX_LINE):
                event = parse(line)
                number = None if event is None or not line.endswith(b"\n") else event.get("seq")
                if number != self.next or not is_count(number):
                    sound = False
                if sound and event is not None:
                    on_event(event, len(line))
                    self._count(len(line))
                if is_count(number):
                    highest = max(highest, number + 1)
        return highest

    def remove(self) -> None:
        """Delete the file."""
        with contextlib.suppress(OSError):
            self.path.unlink()


class _Stopped(Exception):
    """Raised when a write fails after some bytes."""

    def __init__(self, done: int, error: OSError) -> None:
        super().__init__(str(error))
        self.done, self.error = done, error


def merged(parts: Sequence[JournalPart]) -> list[JournalPart]:
    """Return the parts with consecutive gaps merged."""
    done: list[JournalPart] = []
    for part in parts:
        last = done[-1] if done else None
        if isinstance(part, Gap) and isinstance(last, Gap):
            last.add(part)
        else:
            done.append(part)
    return done


def filled(first: int, next: int, known: Iterable[Gap | Line]) -> list[JournalPart]:
    """Return parts for a range without a segment; unknown events are lost."""
    known = list(known)
    lines = {part.first: part for part in known if isinstance(part, Line) and first <= part.first < next}
    gaps = sorted((part for part in known if isinstance(part, Gap)), key=lambda part: part.first)
    done: list[JournalPart] = []
    at = first
    for end in [*sorted(lines), next]:
        done += _gaps(at, end, gaps)
        if end < next:
            done.append(lines[end])
        at = end + 1
    return merged(done)


def _gaps(first: int, next: int, known: Iterable[Gap]) -> list[Gap]:
    done: list[Gap] = []
    at = first
    for gap in [*known, Gap(next, next + 1, 0, "")]:
        start, end = max(at, gap.first), min(next, gap.next)
        if at < min(start, next):
            done.append(Gap(at, min(start, next), 0, "it was lost with the agent that had it"))
            at = min(start, next)
        if start < end:
            done.append(gap.clipped(start, end))
            at = end
    return done
