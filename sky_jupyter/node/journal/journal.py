"""Journal: a run's events on the node's disk, numbered from 0.

It has one JSON object per line. Its size is bounded: the first quarter of the limit and the newest output are kept,
and a gap event says how much is missing between them. While the disk is full, events are still numbered and forwarded,
and a gap event stands for them in the journal. The begin of a run and the ends of its ranks are always kept.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...util import json_codec
from ...util.text import format_size
from ..protocol.journal_events import Gap, Tally, is_count, parse
from .segment_files import MAX_LINE, JournalPart, Line, Segment, filled, merged
from .spare_files import FileRecycler

LIMIT = 256 << 20
MAX_READ = 4 << 20
# Fraction of the limit for the first part, which is always kept, and for a single event.
_QUARTER = 4
_SEGMENTS = 16
# A disk that fills up repeatedly leaves many small files.
_MOST_SEGMENTS = 4 * _SEGMENTS
_MOST_ENDS = 512
_MOST_HELD = 3 * _MOST_ENDS
_FULL = {errno.ENOSPC, errno.EDQUOT}
_FILE = re.compile(r"(?P<base>.+)\.(?:[0-9]{12,}|held|mark)\Z")


class _Entry(NamedTuple):
    line: bytes
    stream: tuple[int, str] | None
    held: bool


class Journal:
    """Journal of one run; made by the agent, kept until the run is forgotten.

    Parameters
    ----------
    path : Path
        Prefix of its files' names. If such files exist, use `reopen`.
    limit : int
        Approximate limit of bytes on disk.
    spares : FileRecycler, optional
        Recycler of its files; without it they are created and deleted.
    """

    # Seconds after which a full disk is tried again.
    patience = 1.0

    def __init__(self, path: Path, limit: int = LIMIT, spares: FileRecycler | None = None) -> None:
        self.path = path
        self.limit = limit
        self._spares = spares
        self.next = 0
        """The number of the next event."""
        self.begin: dict[str, Any] | None = None
        """Event 0, if it is the begin of the run."""
        self.ended: set[int] = set()
        """The ranks that have an end event."""
        self._parts: list[JournalPart] = []
        self._current: Segment | None = None
        # When the last write failed, and why; None after a success.
        self._failed: float | None = None
        self._why = ""
        self._said = False
        self._marked = False
        self._closed = False
        self._saved = False
        # Whether there may be files that this object has not created.
        self._inherited = False

    # -- writing -----------------------------------------------------------------------------------

    def append(self, events: Sequence[dict[str, Any]]) -> bytes:
        """Assign numbers to events and return their lines; never raise.

        Lines are returned whether they could be stored or not. At the first write error a notice event follows them.
        """
        first = self.next
        entries = [self._entry(event) for event in events]
        self._keep(first, entries)
        if self._failed is not None and not self._said:
            self._said = True
            text = f"{self._why}: output is shown, but not kept"
            entries.append(self._entry({"kind": "notice", "text": text, "t": time.time()}))
            self._pass_over(self.next - 1, entries[-1:], self._why)
        if entries and not isinstance(self._parts[-1], Segment) and (self._failed is not None or not self._save()):
            self._mark(self.next)
        return b"".join(entry.line for entry in entries)

    def _entry(self, event: dict[str, Any]) -> _Entry:
        event["seq"] = self.next
        try:
            line = json_codec.dumps(event) + b"\n"
        except (TypeError, ValueError, RecursionError):
            event = _unwritable(event)
            line = json_codec.dumps(event) + b"\n"
        self.next += 1
        return _Entry(line, _stream(event), self._learn(event))

    def _learn(self, event: dict[str, Any]) -> bool:
        """Register a begin or a rank's first end; return True for these.

        Such events are never dropped.
        """
        kind, rank = event.get("kind"), event.get("rank")
        if kind == "begin" and event["seq"] == 0:
            self.begin = event
            return True
        if kind == "end" and is_count(rank) and rank not in self.ended and len(self.ended) < _MOST_ENDS:
            self.ended.add(rank)
            return True
        return False

    def _keep(self, first: int, entries: Sequence[_Entry]) -> None:
        """Write entries to segments; gaps stand for entries that fail."""
        if self._closed:
            return self._pass_over(first, entries, "the run was forgotten")
        if self._failed is not None and time.monotonic() - self._failed < self.patience:
            return self._pass_over(first, entries, self._why)
        at = 0
        while at < len(entries):
            if self._too_large(entries[at]):
                self._pass_over(first + at, entries[at : at + 1], f"journal limit {format_size(self.limit)}")
                at += 1
                continue
            segment = self._segment(first + at, len(entries[at].line))
            chunk = self._chunk(entries[at:], segment.size)
            fresh = not segment.size
            kept, error = segment.write([entry.line for entry in chunk])
            self._register(segment, chunk[:kept])
            at += kept
            # At a file size limit, another file may still have room.
            if error is not None and (error.errno != errno.EFBIG or (fresh and not kept)):
                self._fail(error)
                return self._pass_over(first + at, entries[at:], self._why)
            if error is not None:
                self._current = None
        return None

    def _too_large(self, entry: _Entry) -> bool:
        return len(entry.line) > self.limit // _QUARTER and not entry.held

    def _segment(self, number: int, size: int) -> Segment:
        """Return the segment for event ``number``; drop old ones to make room."""
        span = self.limit // _SEGMENTS
        segment = self._current
        if segment is not None and (segment.next != number or segment.size + size > span):
            segment = None
        segments = [part for part in self._parts if isinstance(part, Segment)]
        total = sum(part.size for part in segments)
        for part in segments:
            # The span includes the room for the rest of the segment.
            if total + max(size, span) <= self.limit and len(segments) < _MOST_SEGMENTS:
                break
            if not part.head and part is not segment:
                self._drop(part)
                segments = [other for other in segments if other is not part]
                total -= part.size
        if segment is None:
            head = len(segments) < _SEGMENTS and all(part.head for part in segments)
            segment = Segment(self.path, number, head=head and total + max(size, span) <= self.limit // _QUARTER)
            self._use_spare(segment.path)
        self._current = segment
        return segment

    def _chunk(self, entries: Sequence[_Entry], size: int) -> Sequence[_Entry]:
        """Return the entries that one write puts into a segment; at least one."""
        for index, entry in enumerate(entries):
            size += len(entry.line)
            if index and (size > self.limit // _SEGMENTS or self._too_large(entry)):
                return entries[:index]
        return entries

    def _register(self, segment: Segment, entries: Sequence[_Entry]) -> None:
        """Add written entries to a segment's index, and a new segment to the list."""
        if not entries:
            if not segment.size:
                segment.remove()
                self._current = None
            return
        number = segment.next - len(entries)
        for index, entry in enumerate(entries):
            _count(segment, number + index, entry.stream, len(entry.line), entry.held)
        self._failed = None
        if number > segment.first:
            return
        self._parts.append(segment)
        if not self._marked:
            self._mark(segment.first)
        if len(self._parts) > 1 and not isinstance(self._parts[-2], Segment):
            self._save()

    def _fail(self, error: OSError) -> None:
        self._failed = time.monotonic()
        what = "is full" if error.errno in _FULL else f"cannot be written ({error.strerror or error})"
        self._why = f"the disk of this node {what}"

    def _pass_over(self, first: int, entries: Sequence[_Entry], why: str) -> None:
        """Add gaps for events that are not on disk; keep vital ones in memory."""
        for number, entry in enumerate(entries, first):
            if entry.held:
                self._parts.append(Line(number, entry.line))
                continue
            tally: Tally = {} if entry.stream is None else {entry.stream: len(entry.line)}
            self._parts.append(Gap(number, number + 1, len(entry.line), why, tally))
            self._parts[-2:] = merged(self._parts[-2:])

    def _drop(self, segment: Segment) -> None:
        """Replace a segment by a gap, and keep its vital events in memory."""
        whole = Gap(
            segment.first, segment.next, segment.size, f"journal limit {format_size(self.limit)}", segment.tally
        )
        lines = [Line(number, segment.read(number, 1)[0]) for number in segment.held]
        # User code may have changed the file.
        lines = [line for line in lines if (parse(line.data) or {}).get("kind") in ("begin", "end")]
        place = self._parts.index(segment)
        self._parts[place : place + 1] = filled(segment.first, segment.next, [*lines, whole])
        self._parts = merged(self._parts)
        # In this order, a crash leaves an extra file but loses no event.
        saved = self._save()
        segment.remove()
        if not saved:
            self._save()

    # -- reading -----------------------------------------------------------------------------------

    def read(self, start: int, most: int = MAX_READ) -> tuple[bytes, int]:
        """Return lines from event ``start`` on, and the number after the last.

        They have about ``most`` bytes, at most 4 MiB.

        Missing events are returned as a gap event, which stands for ``count`` events from ``seq`` on.
        """
        at, data, left = max(0, start), [], max(1, min(most, MAX_READ))
        place = bisect_right(self._parts, at, key=lambda part: part.first) - 1
        while left > 0 and at < self.next:
            lines, at = self._parts[place].read(at, left)
            data.append(lines)
            left -= len(lines)
            if at >= self._parts[place].next:
                place += 1
        return b"".join(data), min(at, self.next)

    # -- files -------------------------------------------------------------------------------------

    def _file(self, name: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{name}")

    def _files(self) -> list[Path]:
        with contextlib.suppress(OSError):
            start = f"{self.path.name}."
            return sorted(path for path in self.path.parent.iterdir() if path.name.startswith(start))
        return []

    def _use_spare(self, path: Path) -> None:
        if self._spares is not None:
            self._spares.use(path)

    def _save(self) -> bool:
        """Write all parts but segments to a file, atomically; return True on success."""
        self._saved = True
        held = self._file("held")
        fresh = self._file("held.new")
        lines = [part.read(part.first, 1)[0] for part in self._parts if not isinstance(part, Segment)]
        try:
            fresh.write_bytes(b"".join(lines))
            fresh.replace(held)
        except OSError:
            with contextlib.suppress(OSError):
                fresh.unlink()
            return False
        return True

    def _mark(self, number: int) -> None:
        """Store the next number in a file that survives the agent.

        It is written in place, in a block that was allocated with the first segment: this works on a full disk.
        """
        if not self._marked:
            self._use_spare(self._file("mark"))
        self._marked = True
        with contextlib.suppress(OSError):
            file = os.open(self._file("mark"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(file, b"%020d" % number, 0)
            finally:
                os.close(file)

    @classmethod
    def reopen(cls, path: Path, limit: int = LIMIT) -> Journal:
        """Open the journal of a dead agent; drop broken lines.

        Numbers continue after the last that an event had, stored or not.
        """
        self = cls(path, limit)
        self._inherited = True
        segments, highest = self._segments()
        held = self._held()
        self.next = max([highest, self._marked_number(), *(part.next for part in held)])
        at = 0
        for segment in segments:
            self._parts += [*filled(at, segment.first, held), segment]
            at = segment.next
        self._parts = merged([*self._parts, *filled(at, self.next, held)])
        return self

    def _segments(self) -> tuple[list[Segment], int]:
        """Return the segments in order, and the number after the highest in them."""
        found: list[Segment] = []
        at = highest = size = 0
        for path in self._files():
            digits = path.name[len(self.path.name) + 1 :]
            if not digits.isdecimal() or not is_count(first := int(digits[:20])) or first < at:
                continue
            segment = Segment(self.path, first, head=False)
            if segment.path != path:
                continue
            highest = max(highest, segment.scan(self._on_scanned(segment)))
            at, size = segment.next, size + segment.size
            segment.head = size <= self.limit // _QUARTER and len(found) < _SEGMENTS
            if segment.size:
                found.append(segment)
        return found, highest

    def _on_scanned(self, segment: Segment) -> Callable[[dict[str, Any], int], None]:
        return lambda event, size: _count(segment, event["seq"], _stream(event), size, self._learn(event))

    def _held(self) -> list[Gap | Line]:
        """Return the saved parts that are not segments."""
        found: list[Gap | Line] = []
        with contextlib.suppress(OSError), self._file("held").open("rb") as file:
            for line in itertools.islice(iter(functools.partial(file.readline, MAX_LINE), b""), _MOST_HELD):
                event = parse(line)
                if event is None or not line.endswith(b"\n") or not is_count(event.get("seq")):
                    continue
                if event.get("kind") == "gap":
                    gap = Gap.from_json(event)
                    found += [gap] if gap is not None else []
                elif self._learn(event):
                    found.append(Line(event["seq"], line))
        return sorted(found, key=lambda part: part.first)

    def _marked_number(self) -> int:
        try:
            digits = self._file("mark").read_bytes()[:20]
        except OSError:
            return 0
        number = int(digits) if digits.isdigit() else 0
        return number if is_count(number) else 0

    @staticmethod
    def found(folder: Path) -> list[Path]:
        """Return the paths of the journals in a folder."""
        try:
            names = [path.name for path in folder.iterdir()]
        except OSError:
            return []
        matches = filter(None, map(_FILE.match, names))
        return [folder / name for name in sorted({match["base"] for match in matches})]

    def close(self) -> None:
        """Stop writing; the written events stay readable."""
        self._closed = True

    def remove(self) -> None:
        """Delete all of its files."""
        self._closed = True
        if self._inherited:
            paths = self._files()
        else:
            # Avoids listing a folder of hundreds of journals.
            segments = {part.path for part in (*self._parts, self._current) if isinstance(part, Segment)}
            names = ("mark", "held", "held.new") if self._saved else ("mark",)
            paths = [*segments, *map(self._file, names)]
        for path in paths:
            if self._spares is None or not self._spares.keep(path):
                with contextlib.suppress(OSError):
                    path.unlink()


def _stream(event: dict[str, Any]) -> tuple[int, str] | None:
    """Return the rank and stream of an output event; None for other events."""
    rank, name = event.get("rank"), event.get("name")
    if not is_count(rank) or event.get("kind") == "end":
        return None
    return rank, name if name in ("stdout", "stderr") else ""


def _count(segment: Segment, number: int, stream: tuple[int, str] | None, size: int, held: bool) -> None:
    """Add an event to a segment's counts, which a gap would report."""
    if stream is not None and (stream in segment.tally or len(segment.tally) < _MOST_ENDS):
        segment.tally[stream] = segment.tally.get(stream, 0) + size
    if held:
        segment.held.append(number)


def _unwritable(event: dict[str, Any]) -> dict[str, Any]:
    """Return a replacement for an event that JSON cannot represent."""
    kind, rank = event.get("kind"), event.get("rank")
    where = {"rank": rank} if is_count(rank) else {}
    if kind == "end":
        why = {"status": "error", "ename": "ValueError", "evalue": "how it ended could not be written down"}
        return {"kind": "end", **where, **why, "seq": event["seq"]}
    return {"kind": "notice", **where, "text": "an event could not be written down", "seq": event["seq"]}


def lines_of(data: bytes) -> list[dict[str, Any]]:
    """Parse a batch's lines; raise ValueError for one that is no JSON object."""
    events = []
    for line in data.split(b"\n"):
        if not line:
            continue
        event = parse(line)
        if event is None:
            raise ValueError(f"an event must be an object, not {line[:80]!r}")
        events.append(event)
    return events
