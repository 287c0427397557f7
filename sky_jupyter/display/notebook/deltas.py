"""A snapshot of a run for each page that opens, and numbered deltas for all.

A thread sends deltas twenty times a second while there is news, so that pages stay live while the notebook's main
thread waits for the cell. If a rank printed more than a page can show, the middle is left out, and the delta says how
much; the run's journal has it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...pool.base.events import Event, NoticeEvent, OutputEvent
from ..model import saved_output
from ..model.run_model import RunModel, ended

# content, buffers
Send = Callable[[dict[str, Any], list[bytes]], None]
INTERVAL = 0.05
# A page's window: the number of last lines of each rank.
WINDOW = 5000
# With more ranks than this, each gets a part of the window of so many. labextension/src/run/rank-output.ts has the
# same.
_WHOLE_WINDOWS, _LEAST_WINDOW = 64, 200
# Most characters of all ranks that wait for the next delta, and the least share of a rank.
_MOST_CHARS, _LEAST_CHARS = 2_000_000, 10_000


def window(ranks: int) -> int:
    """Return how many last lines of each rank pages keep."""
    return max(_LEAST_WINDOW, min(WINDOW, WINDOW * _WHOLE_WINDOWS // max(1, ranks)))


@dataclass
class _Piece:
    """Entry of a delta: text of a stream, or a list with anything else."""

    rank: int
    name: str = ""
    texts: list[str] = field(default_factory=list)
    # Lines of the rank that were left out before it, and the journal's number of its first event.
    skipped: int = 0
    seq: int = -1
    entry: list[Any] = field(default_factory=list)

    @property
    def text(self) -> str:
        if len(self.texts) > 1:
            self.texts = ["".join(self.texts)]
        return self.texts[0] if self.texts else ""


class Pending:
    """Queue of what goes into the next delta, in order."""

    def __init__(self, ranks: int) -> None:
        self._most_lines = window(ranks)
        self._most_chars = max(_LEAST_CHARS, _MOST_CHARS // max(1, ranks))
        self._pieces: list[_Piece] = []
        self._of_rank: dict[int, deque[_Piece]] = {}
        self._sizes: dict[int, list[int]] = {}
        self._next: dict[int, int] = {}
        # By rank and display id, the update that waits.
        self._updates: dict[tuple[int, str], _Piece] = {}

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add_text(self, rank: int, name: str, text: str, seq: int = -1) -> None:
        """Queue what a rank printed, in the journal's event `seq`."""
        last = self._pieces[-1] if self._pieces else None
        if last is not None and last.rank == rank and last.name == name:
            last.texts.append(text)
        else:
            self._pieces.append(_Piece(rank, name, [text], seq=seq))
            self._of_rank.setdefault(rank, deque()).append(self._pieces[-1])
        size = self._sizes.setdefault(rank, [0, 0])
        size[0] += text.count("\n")
        size[1] += len(text)
        if size[0] > self._most_lines or size[1] > self._most_chars:
            self._pass_over(rank, size)

    def note(self, rank: int, seq: int) -> None:
        """Note that a rank's event `seq` is in the queue."""
        self._next[rank] = seq + 1

    def take_next(self) -> list[list[int]]:
        """Return by rank the journal's number of the next event after the queued ones."""
        found, self._next = sorted(map(list, self._next.items())), {}
        return found

    def add(self, entry: list[Any], rank: int = -1) -> None:
        """Queue anything else: a list of its kind, and the rank if it has one."""
        piece = _Piece(rank, entry=entry)
        self._pieces.append(piece)
        if entry[0] == "u":
            # Of several updates of one display, only the last is worth sending.
            before = self._updates.get((rank, entry[2]))
            if before is not None:
                before.entry = []
            self._updates[rank, entry[2]] = piece

    def _pass_over(self, rank: int, size: list[int]) -> None:
        """Drop a rank's oldest text, to a line's end, until half of the room is free."""
        pieces = self._of_rank[rank]
        gone = 0
        most_lines = self._most_lines // 2
        while size[0] > most_lines or size[1] > self._most_chars // 2:
            piece = pieces[0]
            lines = piece.text.count("\n")
            if len(pieces) == 1 or (size[0] - lines <= most_lines and size[1] - len(piece.text) < 1000):
                start = _tail_start(piece.text, most_lines, self._most_chars // 2)
                cut, piece.texts = piece.text[:start], [piece.text[start:]]
                # It now begins within an event, so its sequence number is unknown.
                piece.seq = -1
            else:
                cut, piece.texts = piece.text, []
            count = cut.count("\n")
            gone += count + piece.skipped
            piece.skipped = 0
            size[0] -= count
            size[1] -= len(cut)
            if piece.text or len(pieces) == 1:
                # The last piece stays though it is empty: it says how much was left out.
                break
            pieces.popleft()
        pieces[0].skipped += gone

    def take(self) -> tuple[list[list[Any]], bytes]:
        """Return the entries and the bytes of their texts, and empty the queue."""
        entries: list[list[Any]] = []
        texts: list[bytes] = []
        for piece in self._pieces:
            if piece.entry:
                entries.append(piece.entry)
            elif piece.text or piece.skipped:
                data = piece.text.encode(errors="replace")
                entries.append(["s", piece.rank, int(piece.name == "stderr"), len(data), piece.skipped, piece.seq])
                texts.append(data)
        self._pieces, self._of_rank, self._sizes, self._updates = [], {}, {}, {}
        return entries, b"".join(texts)


def _tail_start(text: str, lines: int, chars: int) -> int:
    """Return where the last lines of a text begin.

    A last line that is too long is cut where a progress bar is redrawn.
    """
    start = max(0, len(text) - chars)
    if start:
        line, bar = text.find("\n", start), text.find("\r", start)
        start = line + 1 if line >= 0 else bar if bar >= 0 else start
    for _ in range(max(0, text.count("\n", start) - lines)):
        start = text.find("\n", start) + 1
    return start


class Feed:
    """Deltas of one run.

    Parameters
    ----------
    model : RunModel
        The state of the run, to which events are passed from here.
    view : str
        The id by which pages know the view.
    ranks : int
        The number of ranks.
    send : callable
        Sends a content and its buffers to all pages; callable from any thread.
    """

    def __init__(self, model: RunModel, view: str, ranks: int, send: Send) -> None:
        self.model, self.view, self._send = model, view, send
        self.watched = threading.Event()
        self._window = window(ranks)
        self._pending = Pending(ranks)
        self._number = 0
        # The price per hour that pages know.
        self._hourly: float | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._news = threading.Event()
        self._thread: threading.Thread | None = None

    def on_event(self, event: Event) -> None:
        """Handle an event of the pool; callable from any thread."""
        with self._lock:
            self.model.on_event(event)
            if self.watched.is_set():
                self._take(event)
                self._news.set()

    def open(self) -> dict[str, Any]:
        """Return a snapshot for a page that opens, and send deltas from now on."""
        with self._lock:
            self._flush()
            state = self.model.state(self._window)
            self._hourly = None if state.cost is None else state.cost["hourly"]
            if not state.finished and not self.watched.is_set():
                self.watched.set()
                self._thread = threading.Thread(target=self._run, name=f"sky-view-{self.view[:8]}", daemon=True)
                self._thread.start()
            return {**saved_output.to_json(state, self.view), "number": self._number}

    def finish(self) -> None:
        """Send the rest, and that the run is over; the model has been told."""
        self._over.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join(5)
        with self._lock:
            if self.watched.is_set():
                state = self.model.state(0)
                self._pending.add(["over", round(state.elapsed, 3), *([state.cost] if state.cost else [])])
                self._flush()
                self.watched.clear()

    def _run(self) -> None:
        while not self._over.is_set():
            self._news.wait()
            self._news.clear()
            began = time.monotonic()
            with self._lock, contextlib.suppress(Exception):
                # An unreachable page does not disturb the run: it notices the missing number, and asks for a snapshot.
                self._flush()
            self._over.wait(max(0.0, began + INTERVAL - time.monotonic()))

    def _flush(self) -> None:
        if not self._pending:
            return
        entries, data = self._pending.take()
        self._number += 1
        content: dict[str, Any] = {"sky": "delta", "view": self.view, "run": self.model.run, "number": self._number}
        content["next"] = self._pending.take_next()
        content |= self._changed_price()
        self._send({**content, "entries": entries}, [data] if data else [])

    def _changed_price(self) -> dict[str, Any]:
        """Return the cost if the hourly price has changed: pages extrapolate it."""
        cost = self.model.priced()
        if cost is None or cost["hourly"] == self._hourly:
            return {}
        self._hourly = cost["hourly"]
        return {"cost": cost}

    def _take(self, event: Event) -> None:
        if isinstance(event, NoticeEvent):
            self._pending.add(["n", event.text])
        elif isinstance(event, OutputEvent) and self.model.shows(event):
            item, rank = event.event, event.rank
            kind = item["kind"]
            if "seq" in item:
                self._pending.note(rank, item["seq"])
            if kind == "stream":
                self._pending.add_text(rank, item["name"], item["text"], item.get("seq", -1))
            elif kind == "display":
                self._pending.add(["d", rank, item.get("display_id"), item["data"], item["metadata"]], rank)
            elif kind == "update" and item.get("display_id"):
                self._pending.add(["u", rank, item["display_id"], item["data"], item["metadata"]], rank)
            elif kind == "clear":
                self._pending.add(["c", rank, item.get("wait", False)], rank)
            elif kind == "result":
                self._pending.add(["r", rank, item["data"], item["metadata"]], rank)
            elif kind == "end":
                self._pending.add(["e", rank, ended(item)], rank)
            elif kind == "waits":
                self._pending.add(["e", rank, {"state": "running", "note": item["for"], "traceback": ""}], rank)
