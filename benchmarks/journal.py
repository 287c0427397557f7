"""A flood of 8 x 100,000 lines into a run's journal, beside the same events in a table of SQLite.

Both number the events, return them as lines and write them in the same batches. Neither waits for the
disk: the journal never does, and SQLite has `synchronous=OFF`, and `NORMAL` beside it.

This is why the journal is not kept in SQLite. On two cores that had other work too (2026-11-23, three turns, processor
time, SQLite's to the journal's): with a line an event 0.98 where all is kept and 1.01 where most is evicted, since
both spend it on JSON; with 100 lines an event, which is nearer to what kernels send, 1.5 and 1.3. Elapsed, the latter
took 1.4 and 1.6 times as long. The table does less than the journal: it looks at no event and tallies no gap.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sky_jupyter.node.journal.journal import LIMIT, Journal

from .measure import Figures, Options, Row, by_turns, clock, rows

OURS = "journal"
PEERS = {"SQLite": "OFF", "SQLite, synchronous": "NORMAL"}
RANKS = 8
LINES, QUICK_LINES = 100_000, 10_000
# What an agent gathers before it writes, as `RunRecord` counts it.
BATCH, EVENT = 2 << 20, 100
Batch = list[dict[str, Any]]


def measure(options: Options) -> list[Row]:
    """Elapsed and processor time, with room for all and with eviction of what is oldest."""
    lines = QUICK_LINES if options.quick else LINES
    found: list[Row] = []
    for together, what in ((1, "a line an event"), (100, "100 lines an event")):
        for limit, kept in ((LIMIT, "all kept"), (lines * RANKS * 12, "most evicted")):
            jobs = {OURS: job(_journal(limit), lines, together)}
            jobs |= {name: job(_table(limit, sync), lines, together) for name, sync in PEERS.items()}
            samples = by_turns(jobs, options.times(5, quick=1))
            title = f"{RANKS} x {lines:,} lines, {what}, {kept}"
            found += rows(title, samples, "s", ours=OURS)
            found += rows(f"{title}: processor time", samples, "cpu", ours=OURS)
    return found


def job(opened: Callable[[Path], contextlib.AbstractContextManager[Any]], lines: int, together: int) -> Any:
    """Write the flood once, into what `opened` makes in a fresh folder."""

    def run() -> Figures:
        figures: Figures = {}
        batches = list(flood(lines, together))
        with tempfile.TemporaryDirectory(prefix="bench-journal-") as folder, opened(Path(folder)) as append:
            cpu = time.process_time()
            with clock(figures, "s"):
                for batch in batches:
                    append(batch)
            figures["cpu"] = time.process_time() - cpu
        return figures

    return run


def flood(lines: int, together: int) -> Iterator[Batch]:
    """What eight ranks print at once, in the batches that an agent writes."""
    batch: Batch = []
    size = 0
    for start in range(0, lines, together):
        text = "".join(f"line {number}\n" for number in range(start, min(lines, start + together)))
        for rank in range(RANKS):
            batch.append({"rank": rank, "kind": "stream", "name": "stdout", "text": text})
            size += len(text) + EVENT
        if size > BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _journal(limit: int) -> Callable[[Path], contextlib.AbstractContextManager[Any]]:
    @contextlib.contextmanager
    def opened(folder: Path) -> Iterator[Any]:
        yield Journal(folder / "run", limit).append

    return opened


def _table(limit: int, synchronous: str) -> Callable[[Path], contextlib.AbstractContextManager[Any]]:
    @contextlib.contextmanager
    def opened(folder: Path) -> Iterator[Any]:
        table = Table(folder / "events.sqlite", limit, synchronous)
        with contextlib.closing(table):
            yield table.append

    return opened


class Table:
    """A journal in SQLite, in WAL mode: a transaction a batch, the oldest of what is not the beginning deleted.

    It does less than `Journal`: events are not looked at, and a gap says only how many they were.

    Parameters
    ----------
    path : Path
        Its file.
    limit : int
        About how many bytes of lines are kept at most.
    synchronous : str
        SQLite's setting of that name.
    """

    def __init__(self, path: Path, limit: int, synchronous: str) -> None:
        self.limit, self.next, self.size = limit, 0, 0
        # First number, the number that follows, and bytes of what can be deleted at a time.
        self.spans: deque[tuple[int, int, int]] = deque()
        self.begun, self.begun_at, self.head = 0, 0, 0
        self.base = sqlite3.connect(path, isolation_level=None)
        self.base.execute("PRAGMA journal_mode=WAL")
        self.base.execute(f"PRAGMA synchronous={synchronous}")
        columns = "seq INTEGER PRIMARY KEY, run TEXT, rank INTEGER, stream TEXT, bytes INTEGER, data BLOB"
        self.base.execute(f"CREATE TABLE events({columns})")

    def append(self, events: Batch) -> bytes:
        """Number events, write them, and return their lines."""
        lines, found = [], []
        for event in events:
            event["seq"] = self.next
            line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
            found.append((self.next, "run", event["rank"], event["name"], len(line), line))
            lines.append(line)
            self.next += 1
            self._count(len(line))
        self.base.execute("BEGIN")
        self.base.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", found)
        while self.size > self.limit and self.spans:
            first, last, size = self.spans.popleft()
            self.size -= size
            self.base.execute("DELETE FROM events WHERE seq >= ? AND seq < ?", (first, last))
            gap = json.dumps({"kind": "gap", "count": last - self.head}).encode()
            self.base.execute("INSERT OR REPLACE INTO events VALUES (?, 'run', NULL, '', 0, ?)", (self.head, gap))
        self.base.execute("COMMIT")
        return b"".join(lines)

    def _count(self, size: int) -> None:
        """Note how many bytes there are, in spans of a sixteenth of the limit; the first quarter is in none."""
        self.size += size
        if not self.head:
            if self.size > self.limit // 4:
                self.head = self.begun = self.next
                self.begun_at = 0
            return
        self.begun_at += size
        if self.begun_at > self.limit // 16:
            self.spans.append((self.begun, self.next, self.begun_at))
            self.begun, self.begun_at = self.next, 0

    def close(self) -> None:
        """Close the file."""
        self.base.close()
