"""Model of a run for its views: fed on the event loop, read on the main thread."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ...pool.base.events import Event, NoticeEvent, OutputEvent, PhaseEvent, ProgressEvent, TroubleEvent
from ...util import pool_cost
from ...util.pool_cost import PoolCost, TimeLeft
from ...util.text import cleaned
from . import ansi
from .outliving import Outliving
from .run_html import RankView, RunViewModel, State
from .transcript import OutputPart, RankOutput, Rich
from .troubles import Troubles

# Limit of recorded changes from one rank to another in the order of lines.
_KEPT_TURNS = 20_000
# With more ranks than this, each gets a part of the lines of so many ranks.
_WHOLE_OUTPUTS, _LEAST_LINES = 64, 400
# Marks a rich item in the order, in place of a number of lines.
ITEM = -1
_STATES: dict[str, State] = {
    "ok": "done",
    "error": "failed",
    "interrupted": "interrupted",
    "died": "died",
    "lost": "died",
}

# The duration of a phase is shown from this many seconds on.
_WORTH = 1.5


class StartModel:
    """Model of a pool's start, or of a transfer; `on_event` is its listener."""

    def __init__(self) -> None:
        self.done: list[PhaseEvent] = []
        self._headings: dict[str, str] = {}
        # The current phase, and when it began.
        self._now: tuple[PhaseEvent, float] | None = None
        self._troubles = Troubles()

    def on_event(self, event: Event) -> str:
        """Handle an event and return its text, or an empty one; any thread."""
        if isinstance(event, TroubleEvent):
            self._troubles.take(event)
        if isinstance(event, (NoticeEvent, ProgressEvent)):
            return cleaned(event.text)
        if not isinstance(event, PhaseEvent):
            return ""
        self._now = None if event.done else (event, time.perf_counter() - event.elapsed)
        if event.done:
            self.done.append(event)
            return ""
        # A phase's first text is complete by itself; later output of its commands is not.
        heading, text = self._headings.setdefault(event.phase, event.text), cleaned(event.text)
        return text if event.text == heading else f"{event.phase}: {text}"

    @property
    def troubles(self) -> tuple[str, ...]:
        """Current problems, shown as long as they last."""
        return tuple(cleaned(event.text) for event in self._troubles.events)

    @property
    def pace(self) -> str:
        """Progress of the current phase, such as ``environment 12 s of about 40 s``."""
        event, began = self._now or (None, 0.0)
        if event is None or event.usual is None or event.usual < _WORTH:
            return ""
        taken = time.perf_counter() - began
        return f"{event.phase} {taken:.0f} s{' of about' if taken <= event.usual else ', usually'} {event.usual:.0f} s"


@dataclasses.dataclass(frozen=True)
class RankState:
    """State of one rank for a page that appends further output."""

    view: RankView
    parts: tuple[OutputPart, ...]
    dropped: int
    stream: str
    # The journal's number of the next event.
    next: int


@dataclasses.dataclass(frozen=True)
class RunState:
    """State of a run for a page.

    ``order`` holds pairs of a rank and how many lines came from it, or `ITEM`. ``outliving`` is None if the pool ends
    with the notebook's kernel, however the kernel ends.
    """

    title: str
    pool: str
    run: str
    elapsed: float
    idle: float
    finished: bool
    ranks: tuple[RankState, ...]
    order: tuple[tuple[int, int], ...]
    notices: tuple[str, ...]
    unseen: tuple[RankView, ...] = ()
    cost: dict[str, Any] | None = None
    outliving: Outliving | None = None


class RunModel:
    """Model of a run for one view. `on_event` is its listener; `snapshot` is drawn.

    Parameters
    ----------
    title : str
        Such as the pool's name.
    ranks : sequence of int
        Ranks whose output is shown.
    pool : str
        The name of the pool that runs it.
    unseen : sequence of int
        The other ranks that it runs on.
    """

    def __init__(self, title: str, ranks: Sequence[int], pool: str = "", unseen: Sequence[int] = ()) -> None:
        self.title, self.pool = title, pool
        self.began = time.perf_counter()
        self.notices: list[str] = []
        # How many characters a saved notebook keeps; None for the default.
        self.most_text: int | None = None
        # Returns what the pool costs, or how long it may be used; None if nothing is bought, and the pool has no end.
        self.cost: Callable[[], PoolCost | TimeLeft | None] | None = None
        # How the pool outlives the notebook's kernel; None if it does not.
        self.outliving: Outliving | None = None
        self.version = 0
        # The run's id, once an event of it has come.
        self.run = ""
        self._heard = self.began
        self._next = dict.fromkeys(ranks, 0)
        self._order: deque[tuple[int, int]] = deque(maxlen=_KEPT_TURNS)
        self._lock = threading.Lock()
        self._elapsed: float | None = None
        # Twice a page's window; a notebook can be saved with as much.
        share = max(1, len(ranks) // _WHOLE_OUTPUTS)
        most = {"max_lines": max(_LEAST_LINES, 10_000 // share), "max_chars": 16_000_000 // share}
        self._outputs = {rank: RankOutput(**most) for rank in ranks}
        self._views = {rank: RankView(rank) for rank in ranks}
        self._unseen = {rank: RankView(rank) for rank in unseen}

    def on_event(self, event: Event) -> None:
        """Handle an event of the pool; callable from any thread."""
        with self._lock:
            self.version += 1
            if isinstance(event, NoticeEvent):
                self.notices.append(event.text)
            elif isinstance(event, OutputEvent) and self.shows(event):
                self._take(event)

    def shows(self, event: OutputEvent) -> bool:
        """Tell whether an event is shown.

        Of ranks whose output is shown, all events are. Of the others, only their end, and that they wait for the user.
        """
        return event.rank in self._outputs or (event.rank in self._unseen and event.event["kind"] in ("end", "waits"))

    def _take(self, event: OutputEvent) -> None:
        item = event.event
        kind = item["kind"]
        self.run, self._heard = event.run, time.perf_counter()
        if event.rank in self._unseen:
            fares = ended(item) if kind == "end" else {"note": item["for"]}
            self._unseen[event.rank] = dataclasses.replace(self._unseen[event.rank], **fares)
            return
        output, view = self._outputs[event.rank], self._views[event.rank]
        self._next[event.rank] = item.get("seq", self._next[event.rank] - 1) + 1
        if kind == "stream":
            output.feed(item["text"], item["name"])
            self._note_lines(event.rank, item["text"].count("\n"))
        elif kind == "display":
            self._order.append((event.rank, ITEM))
            output.show(item["data"], item["metadata"], item.get("display_id"))
        elif kind == "update" and item.get("display_id"):
            output.update(item["display_id"], item["data"], item["metadata"])
        elif kind == "clear":
            output.clear(item.get("wait", False))
        elif kind == "result":
            self._views[event.rank] = dataclasses.replace(view, result=Rich(item["data"], item["metadata"]))
        elif kind == "end":
            self._views[event.rank] = dataclasses.replace(view, **ended(item))
        elif kind == "waits":
            self._views[event.rank] = dataclasses.replace(view, note=item["for"])

    def _note_lines(self, rank: int, count: int) -> None:
        if self._order and self._order[-1][0] == rank and self._order[-1][1] != ITEM:
            count += self._order.pop()[1]
        self._order.append((rank, count))

    def finish(self, elapsed: float) -> None:
        """Mark the run as over, with its seconds."""
        with self._lock:
            self._elapsed = elapsed
            # From now on, the header shows the cost at the run's end, although the pool's cost rises.
            last = self._cost()
            self.cost = None if last is None else lambda: last
            self.version += 1

    def snapshot(self, max_lines: int) -> RunViewModel:
        """Return the run as it is now, with at most ``max_lines`` of each rank."""
        with self._lock:
            ranks = []
            for rank, view in self._views.items():
                segments, dropped = self._outputs[rank].segments(max_lines)
                ranks.append(dataclasses.replace(view, segments=segments, dropped=dropped))
            said = self.finished, tuple(self.notices), tuple(self._unseen.values())
            cost = self._cost()
            return RunViewModel(self.title, self._time(), tuple(ranks), *said, "" if cost is None else str(cost))

    def state(self, max_lines: int) -> RunState:
        """Return the run as it is now for a page, which then appends deltas."""
        with self._lock:
            ranks = []
            for rank, view in self._views.items():
                parts, dropped = self._outputs[rank].parts(max_lines)
                ranks.append(RankState(view, tuple(parts), dropped, self._outputs[rank].stream, self._next[rank]))
            idle = 0.0 if self.finished else time.perf_counter() - self._heard
            order, notices = tuple(self._order), tuple(self.notices)
            times = self._time(), idle, self.finished
            unseen = tuple(self._unseen.values())
            about = unseen, self.priced(), self.outliving
            return RunState(self.title, self.pool, self.run, *times, tuple(ranks), order, notices, *about)

    @property
    def finished(self) -> bool:
        """True after the run's end."""
        return self._elapsed is not None

    def priced(self) -> dict[str, Any] | None:
        """Return what the pool costs, for a page; None if nothing is bought."""
        cost = self._cost()
        return None if cost is None else pool_cost.to_json(cost)

    def _cost(self) -> PoolCost | TimeLeft | None:
        return None if self.cost is None else self.cost()

    def _time(self) -> float:
        return time.perf_counter() - self.began if self._elapsed is None else self._elapsed


def ended(end: dict[str, Any]) -> dict[str, Any]:
    """Describe a rank that ended: its state, a note, and what it raised."""
    state = _STATES.get(end["status"], "failed")
    if state == "interrupted" and "timeout" in end:
        state = "timed out"
    note = str(end.get("text", "")) if state == "died" else ""
    lines = "\n".join(end.get("traceback") or ()).splitlines() if state == "failed" else []
    # IPython's rule would come right after the view's own.
    raised = "\n".join(lines[1:] if lines and set(ansi.strip(lines[0])) == {"-"} else lines)
    return {"state": state, "note": note, "traceback": raised}
