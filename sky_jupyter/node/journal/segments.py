"""The parts of a journal: segments, which are files of whole lines, and what stands where none are kept.

Each part covers the events from ``first`` to before ``next``, and reads itself. A journal's parts
follow each other without a hole.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeGuard

# How far apart the places are that a segment knows by number.
_STRIDE = 32 << 10
# No line is longer, and no number higher: what claims to be is broken.
MAX_LINE = 1 << 30
MAX_NUMBER = 1 << 53

Tally = dict[tuple[int, str], int]
"""Bytes of lines by rank and stream; the stream of what is none is ``""``."""


class JournalPart(Protocol):
    """What a journal is made of."""

    @property
    def first(self) -> int:
        """The number of its first event."""

    @property
    def next(self) -> int:
        """The number that follows its last event."""

    def read(self, start: int, most: int) -> tuple[bytes, int]:
        """Lines from event ``start`` on, at most about ``most`` bytes, and the number that follows them."""


@dataclass
class Gap:
    """Events that are not kept, and why."""

    first: int
    next: int
    size: int
    why: str
    tally: Tally = field(default_factory=dict)

    def read(self, start: int, most: int) -> tuple[bytes, int]:
        """One line that stands for all events from ``start`` on."""
        return json.dumps(self.clipped(start, self.next).to_json(), separators=(",", ":")).encode() + b"\n", self.next

    def clipped(self, first: int, next: int) -> Gap:
        """The part of it between two numbers; how many bytes fall on it is an estimate."""
        first, next = max(first, self.first), min(next, self.next)
        share = (next - first) / (self.next - self.first)
        tally = {key: max(1, round(size * share)) for key, size in self.tally.items()}
        return Gap(first, next, round(self.size * share), self.why, tally)

    def add(self, other: Gap) -> None:
        """Take in the gap that follows this one; the larger one says why."""
        self.why = self.why if self.size >= other.size else other.why
        self.next, self.size = other.next, self.size + other.size
        for key, size in other.tally.items():
            self.tally[key] = self.tally.get(key, 0) + size

    def to_json(self) -> dict[str, Any]:
        """The event that a reader gets."""
        streams = [[rank, name, size] for (rank, name), size in sorted(self.tally.items())]
        count = self.next - self.first
        return {
            "kind": "gap", "seq": self.first, "count": count, "bytes": self.size, "why": self.why, "streams": streams
        }  # fmt: skip

    @classmethod
    def from_json(cls, event: Mapping[str, Any]) -> Gap | None:
        """The gap that an event stands for, or None where it is malformed."""
        first, count, size = event.get("seq"), event.get("count"), event.get("bytes", 0)
        if not (is_number(first) and is_number(count) and is_number(size) and count and is_number(first + count)):
            return None
        why = event.get("why")
        return cls(first, first + count, size, why[:200] if isinstance(why, str) else "", _tally(event.get("streams")))


def _tally(streams: Any) -> Tally:
    """What a gap event says of its streams, as far as it can be right."""
    tally: Tally = {}
    for item in streams[:4096] if isinstance(streams, list) else ():
        if isinstance(item, list) and len(item) == 3:
            rank, name, size = item
            if is_number(rank) and name in ("stdout", "stderr", "") and is_number(size):
                tally[rank, name] = size
    return tally


@dataclass(frozen=True)
class Line:
    """One event that is held in memory: it is never dropped, and no segment has it."""

    first: int
    data: bytes

    @property
    def next(self) -> int:
        """The number that follows."""
        return self.first + 1

    def read(self, start: int, most: int) -> tuple[bytes, int]:
        """The line."""
        return self.data, self.next


class Segment:
    """A file of lines, one an event, with numbers without a hole; named by the first of them.

    Parameters
    ----------
    base : Path
        The journal's path, which each of its files begins with.
    first : int
        The number of its first event.
    head : bool
        Whether it is one of the first, which are kept.
    """

    def __init__(self, base: Path, first: int, *, head: bool) -> None:
        self.path = base.with_name(f"{base.name}.{first:012d}")
        self.first = self.next = first
        self.head = head
        self.size = 0
        self.tally: Tally = {}
        # Events in it that are never dropped.
        self.held: list[int] = []
        # Where every so many bytes a line begins, and its number.
        self._numbers, self._offsets = array("q"), array("q")

    def write(self, lines: Sequence[bytes]) -> tuple[int, OSError | None]:
        """Append lines; how many of them are whole in the file now, and why the others are not."""
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
        """Write at the end of what is kept; opened each time, so that many runs need no descriptors."""
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
        """Lines from event ``start`` on; what cannot be read any more is a gap."""
        try:
            with self.path.open("rb") as file:
                data = self._lines(file, start, most)
        except OSError:
            data = b""
        # The file lies in the user's reach: there may be more or fewer lines in it than were written.
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
        """Take in the file that a dead agent left, up to its first broken line.

        ``on_event`` is told each event and how long its line is. Returns the number that follows
        the highest one seen, behind the broken line too.
        """
        highest = self.next
        sound = True
        with contextlib.suppress(OSError), self.path.open("rb") as file:
            while line := file.readline(MAX_LINE):
                event = parse(line)
                number = None if event is None or not line.endswith(b"\n") else event.get("seq")
                if number != self.next or not is_number(number):
                    sound = False
                if sound and event is not None:
                    on_event(event, len(line))
                    self._count(len(line))
                if is_number(number):
                    highest = max(highest, number + 1)
        return highest

    def remove(self) -> None:
        """Delete the file."""
        with contextlib.suppress(OSError):
            self.path.unlink()


class _Stopped(Exception):
    """Writing stopped after some bytes."""

    def __init__(self, done: int, error: OSError) -> None:
        super().__init__(str(error))
        self.done, self.error = done, error


def merged(parts: Sequence[JournalPart]) -> list[JournalPart]:
    """The parts, with gaps that follow each other as one."""
    done: list[JournalPart] = []
    for part in parts:
        last = done[-1] if done else None
        if isinstance(part, Gap) and isinstance(last, Gap):
            last.add(part)
        else:
            done.append(part)
    return done


def filled(first: int, next: int, known: Iterable[Gap | Line]) -> list[JournalPart]:
    """Parts for a range of events that has no segment, from what is known of it; the rest of it is lost."""
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


def parse(line: bytes | str) -> dict[str, Any] | None:
    """The event of a line, or None where it is no JSON object."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def is_number(value: Any) -> TypeGuard[int]:
    """Whether a value can be an event's number, or how many there are."""
    return type(value) is int and 0 <= value < MAX_NUMBER
