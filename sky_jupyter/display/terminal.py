"""Views for a terminal and for scripts: lines as they come, marked with the ranks that said them."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from ..pool.events import Event, NoticeEvent, OutputEvent, PhaseEvent
from .folding import rank_numbers
from .transcript import Transcript

_PATIENCE = 0.25


class _Line(NamedTuple):
    text: str
    came: float


class _Lines:
    """A rank's finished lines, with carriage returns carried out."""

    def __init__(self) -> None:
        self.queue: deque[_Line] = deque()
        self.running = True
        self._open = ""

    def feed(self, text: str) -> None:
        *whole, self._open = (self._open + text).split("\n")
        now = time.monotonic()
        self.queue.extend(_Line(_carried_out(line), now) for line in whole)

    def close(self) -> None:
        self.running = False
        if self._open:
            self.feed("\n")


def _carried_out(line: str) -> str:
    if not any(mark in line for mark in "\r\b\x1b"):
        return line
    row = Transcript(max_lines=1)
    row.feed(line)
    return row.text()


class TerminalRunView:
    """Prints the lines of a run. Equal lines of several ranks are printed once, marked ``[0-3]``."""

    def __init__(self, ranks: Sequence[int], *, results: bool) -> None:
        self._ranks = {rank: _Lines() for rank in ranks}
        self._several = len(ranks) > 1
        self._results = results
        self._notices: deque[str] = deque()
        self._lock = threading.Lock()

    def on_event(self, event: Event) -> None:
        """The run's listener; callable from any thread."""
        with self._lock:
            if isinstance(event, NoticeEvent):
                self._notices.append(event.text)
            elif isinstance(event, OutputEvent) and event.rank in self._ranks:
                self._take(self._ranks[event.rank], event)

    def _take(self, lines: _Lines, event: OutputEvent) -> None:
        item = event.event
        if item["kind"] == "stream":
            lines.feed(item["text"])
        elif item["kind"] in ("display", "result") and (item["kind"] == "display" or self._results):
            lines.feed(str(item["data"].get("text/plain", "")) + "\n")
        elif item["kind"] == "end":
            lines.close()

    def refresh(self, *, finished: bool = False) -> None:
        """Print what is new; a line waits a moment for its equals from other ranks."""
        with self._lock:
            rows = list(self._due(finished))
            notices, self._notices = list(self._notices), deque()
        for ranks, text in rows:
            print(f"[{rank_numbers(ranks).replace(' ', '')}] {text}" if self._several else text)
        for text in notices:
            print(text, file=sys.stderr)
        if rows:
            sys.stdout.flush()

    def finish(self, elapsed: float) -> None:
        """Print what is left."""
        with self._lock:
            for lines in self._ranks.values():
                lines.close()
        self.refresh(finished=True)

    def _due(self, finished: bool) -> list[tuple[list[int], str]]:
        rows: list[tuple[list[int], str]] = []
        while True:
            heads = {rank: lines.queue[0] for rank, lines in self._ranks.items() if lines.queue}
            if not heads:
                return rows
            _, oldest = min(heads.items(), key=lambda item: (item[1].came, item[0]))
            equal = [other for other, line in heads.items() if line.text == oldest.text]
            waited = [other for other, lines in self._ranks.items() if lines.running and not lines.queue]
            late = time.monotonic() - oldest.came > _PATIENCE
            if waited and not late and not finished:
                return rows
            for other in equal:
                self._ranks[other].queue.popleft()
            rows.append((equal, oldest.text))


class TerminalStartView:
    """Says on standard error what a pool's start is at."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.began = time.perf_counter()
        self._lines: deque[str] = deque()
        self._last = ""

    def on_event(self, event: Event) -> None:
        """The pool's listener; callable from any thread."""
        text = f"{event.phase}: {event.text}" if isinstance(event, PhaseEvent) else getattr(event, "text", "")
        if text != self._last and not (isinstance(event, PhaseEvent) and event.done):
            self._last = text
            self._lines.append(text)

    def refresh(self) -> None:
        """Print what is new."""
        while self._lines:
            print(f"{self.title}: {self._lines.popleft()}", file=sys.stderr)

    def finish(self, ready: str, *, ok: bool = True) -> None:
        """Say that the pool is ready, or why not."""
        self.refresh()
        print(f"{self.title}: {ready} · {time.perf_counter() - self.began:.1f} s", file=sys.stderr)
