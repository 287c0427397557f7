"""Views for scripts, logs and plain terminals: lines marked with their ranks."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ...pool.base.events import Event, NoticeEvent, OutputEvent, ProgressEvent
from ...util.text import cleaned, format_ranks, visible
from ..model import ansi
from ..model.run_html import duration
from ..model.run_model import StartModel
from ..model.transcript import CONTROL, Streams, Transcript
from .bottom_rows import is_terminal, writable

_PATIENCE = 0.25
# Most lines that are printed at once: an interrupt waits for them.
_AT_ONCE = 5000
_STEP = 0.5


class _Line(NamedTuple):
    text: str
    came: float
    stderr: bool = False


class _Lines:
    """Finished lines of a rank, carriage returns applied, and the unfinished one."""

    def __init__(self) -> None:
        self.queue: deque[_Line] = deque()
        self.running = True
        # The last finished line that is not blank.
        self.last = ""
        self._open = ""
        self._open_stderr = False
        self._streams = Streams()

    @property
    def open(self) -> str:
        """Unfinished line as it looks now."""
        return _carried_out(self._open)

    def feed(self, text: str, name: str = "stdout") -> None:
        if name != self._streams.last and not self.open.strip():
            # Drop the blanks that are left of a removed bar.
            self._open = ""
        fresh, text = self._streams.next(name, text, open=bool(self._open))
        if fresh:
            text = "\n" + text
        was_open, stderr = self._open_stderr if self._open else None, name == "stderr"
        *whole, self._open = (self._open + text).split("\n")
        self._open_stderr = stderr if whole or was_open is None else was_open
        now = time.monotonic()
        whole = [_carried_out(line) for line in whole]
        # The first of them may have begun on the other stream.
        of = itertools.chain([stderr if was_open is None else was_open], itertools.repeat(stderr))
        self.queue.extend(_Line(line, now, one) for line, one in zip(whole, of, strict=False))
        self.last = next((line for line in reversed(whole) if line.strip()), self.last)
        if self._open.count("\r") > 1:
            # A bar returns to the start of its line thousands of times.
            before, _, last = self._open.rpartition("\r")
            self._open = f"{_carried_out(before)}\r{last}"

    def close(self) -> None:
        self.running = False
        # A removed bar leaves blanks.
        if self.open.strip():
            self.last = self.open
            self.queue.append(_Line(self.last, time.monotonic(), self._open_stderr))
        self._open = ""


def _carried_out(line: str) -> str:
    if not CONTROL.search(line):
        return visible(line)
    row = Transcript(max_lines=1)
    row.feed(line)
    return visible(row.text())


class TerminalRunView:
    """View that prints a run's lines; equal lines of ranks once, marked ``[0-3]``."""

    def __init__(self, ranks: Sequence[int], *, results: bool) -> None:
        self._ranks = {rank: _Lines() for rank in ranks}
        self._several = len(ranks) > 1
        self._italics = is_terminal(sys.stdout)
        self._results = results
        self._notices: deque[str] = deque()
        self._lock = threading.Lock()

    def on_event(self, event: Event) -> None:
        """Handle an event of the run; callable from any thread."""
        with self._lock:
            if isinstance(event, NoticeEvent):
                self._notices.append(cleaned(event.text))
            elif isinstance(event, OutputEvent) and event.rank in self._ranks:
                self._take(self._ranks[event.rank], event)

    def _take(self, lines: _Lines, event: OutputEvent) -> None:
        item = event.event
        if item["kind"] == "stream":
            lines.feed(item["text"], item["name"])
        elif item["kind"] == "display":
            lines.feed(str(item["data"].get("text/plain", "")) + "\n", "display")
        elif item["kind"] == "result" and self._results:
            lines.feed(f"Out: {item['data'].get('text/plain', '')}\n".replace("\n", "\n     ").rstrip(" "), "result")
        elif item["kind"] == "end":
            lines.close()

    def refresh(self) -> None:
        """Print what is new; a line waits a moment for equal ones of other ranks."""
        self._print(finished=False)

    def _print(self, *, finished: bool) -> None:
        lines, notices = self._take_due(finished=finished)
        if lines:
            sys.stdout.write(writable(lines, sys.stdout))
            sys.stdout.flush()
        for text in notices:
            print(text, file=sys.stderr)

    def _take_due(self, *, finished: bool) -> tuple[str, list[str]]:
        """Return the lines that are due, and the notices."""
        with self._lock:
            rows = [self._marked(*row) for row in self._due(finished)]
            notices, self._notices = list(self._notices), deque()
        lines = "".join(f"{row}\n" for row in rows)
        return ansi.strip(lines) if os.environ.get("NO_COLOR") else lines, notices

    def _marked(self, ranks: Iterable[int], line: _Line) -> str:
        text = ansi.italic(line.text) if line.stderr and self._italics else line.text
        return f"[{format_ranks(ranks)}] {text}" if self._several else text

    def finish(self, elapsed: float) -> None:
        """Print what is left."""
        with self._lock:
            for lines in self._ranks.values():
                lines.close()
        while any(lines.queue for lines in self._ranks.values()):
            self._print(finished=True)
        self._print(finished=True)

    def _due(self, finished: bool) -> list[tuple[list[int], _Line]]:
        rows: list[tuple[list[int], _Line]] = []
        heads = {rank: lines.queue[0] for rank, lines in self._ranks.items() if lines.queue}
        waited = any(lines.running and not lines.queue for lines in self._ranks.values())
        late = time.monotonic() - _PATIENCE
        while heads and len(rows) < _AT_ONCE:
            _, oldest = min(heads.items(), key=lambda item: (item[1].came, item[0]))
            if waited and not finished and oldest.came >= late:
                break
            equal = [rank for rank, line in heads.items() if (line.text, line.stderr) == (oldest.text, oldest.stderr)]
            for rank in equal:
                lines = self._ranks[rank]
                lines.queue.popleft()
                if lines.queue:
                    heads[rank] = lines.queue[0]
                else:
                    del heads[rank]
                    waited = waited or lines.running
            rows.append((equal, oldest))
        return rows


class _Steps:
    """Throttle of progress in small steps: new tenths only, and not too often."""

    def __init__(self) -> None:
        self._tenths: dict[str, int] = {}
        self._next = time.monotonic() + _STEP

    def rises(self, event: ProgressEvent) -> bool:
        """Tell whether a line is due."""
        tenth, now = 10 * event.there // max(event.total, 1), time.monotonic()
        if now < self._next or tenth <= self._tenths.get(event.what, -1):
            return False
        self._tenths[event.what], self._next = tenth, now + _STEP
        return True


class TerminalStartView:
    """View that prints the phases of a start or transfer on standard error."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.began = time.perf_counter()
        self._model = StartModel()
        self._lines: deque[str] = deque()
        self._last = ""
        self._steps = _Steps()

    def on_event(self, event: Event) -> None:
        """Handle an event of the pool; callable from any thread."""
        text = self._model.on_event(event)
        if isinstance(event, ProgressEvent) and not self._steps.rises(event):
            return
        if text and text != self._last:
            self._last = text
            self._lines.append(text)

    def refresh(self) -> None:
        """Print what is new."""
        while self._lines:
            print(f"{self.title} · {self._lines.popleft()}", file=sys.stderr)

    def finish(self, ready: str, *, ok: bool = True) -> None:
        """Print that the pool is ready, or why not."""
        self.refresh()
        print(f"{self.title} · {ready} · {duration(time.perf_counter() - self.began)}", file=sys.stderr)
