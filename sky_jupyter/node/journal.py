"""The journal: a run's events on the node's disk, numbered from 0; the truth about what was printed.

One file a run and node, a JSON object a line. Lines are written whole and in order, so a reader
that stops at the first broken line has all that was surely written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MAX_READ = 4 << 20


class Journal:
    """Made by the agent for each run; kept until the node ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)
        # Where each event begins, so that a reader may start anywhere.
        self._offsets: list[int] = []
        self._size = 0

    @property
    def next(self) -> int:
        """The number that the next event will have."""
        return len(self._offsets)

    def append(self, events: Sequence[dict[str, Any]]) -> bytes:
        """Number the events, write them, and return their lines as written."""
        lines = []
        for event in events:
            event["seq"] = len(self._offsets)
            line = json.dumps(event, separators=(",", ":")).encode() + b"\n"
            self._offsets.append(self._size)
            self._size += len(line)
            lines.append(line)
        data = b"".join(lines)
        self._file.write(data)
        return data

    def read(self, start: int) -> tuple[bytes, int]:
        """Lines from event ``start`` on, at most about 4 MiB, and the number that follows them."""
        start = max(0, start)
        if start >= len(self._offsets):
            return b"", len(self._offsets)
        stop = start
        while stop < len(self._offsets) and self._offsets[stop] - self._offsets[start] < MAX_READ:
            stop += 1
        end = self._offsets[stop] if stop < len(self._offsets) else self._size
        with self.path.open("rb") as file:
            file.seek(self._offsets[start])
            return file.read(end - self._offsets[start]), stop

    def close(self) -> None:
        """Close the file; what was written stays readable."""
        self._file.close()

    def remove(self) -> None:
        self.close()
        self.path.unlink(missing_ok=True)


def lines_of(data: bytes) -> list[dict[str, Any]]:
    """The events in a batch's bytes; a line that is not a JSON object raises ValueError."""
    events = []
    for line in data.splitlines():
        event = json.loads(line)
        if not isinstance(event, dict):
            raise ValueError(f"an event must be an object, not {line[:80]!r}")
        events.append(event)
    return events
