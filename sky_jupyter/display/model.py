"""What is known of a run for those who draw it: fed on the manager's loop, read on the main thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from ..pool.events import Event, NoticeEvent, OutputEvent, PhaseEvent, ProgressEvent
from .render import RankView, RunViewModel, State
from .transcript import RankOutput, Rich

_STATES: dict[str, State] = {
    "ok": "done",
    "error": "failed",
    "interrupted": "interrupted",
    "died": "died",
    "lost": "died",
}

# Of a phase that is over sooner nobody wants to know how long it takes.
_WORTH = 1.5


class StartModel:
    """What a pool's start, or a transfer, is at; one a start view. `on_event` is its listener."""

    def __init__(self) -> None:
        self.done: list[PhaseEvent] = []
        self._headings: dict[str, str] = {}
        # The phase that is on, and when it began.
        self._now: tuple[PhaseEvent, float] | None = None

    def on_event(self, event: Event) -> str:
        """What to say of an event, empty where there is nothing; callable from any thread."""
        if isinstance(event, (NoticeEvent, ProgressEvent)):
            return event.text
        if not isinstance(event, PhaseEvent):
            return ""
        self._now = None if event.done else (event, time.perf_counter() - event.elapsed)
        if event.done:
            self.done.append(event)
            return ""
        # What a phase says of itself first can stand alone; what its commands print later cannot.
        heading = self._headings.setdefault(event.phase, event.text)
        return event.text if event.text == heading else f"{event.phase}: {event.text}"

    @property
    def pace(self) -> str:
        """How far the phase that is on should be, such as ``environment 12 s of about 40 s``; empty where unknown."""
        event, began = self._now or (None, 0.0)
        if event is None or event.usual is None or event.usual < _WORTH:
            return ""
        return f"{event.phase} {time.perf_counter() - began:.0f} s of about {event.usual:.0f} s"


class RunModel:
    """One a run view. `on_event` is its listener; `snapshot` is what to draw.

    Parameters
    ----------
    title : str
        Such as the pool's name.
    ranks : sequence of int
        Those whose output is shown.
    """

    def __init__(self, title: str, ranks: Sequence[int]) -> None:
        self.title = title
        self.began = time.perf_counter()
        self.notices: list[str] = []
        self.version = 0
        self._lock = threading.Lock()
        self._elapsed: float | None = None
        self._outputs = {rank: RankOutput() for rank in ranks}
        self._views = {rank: RankView(rank) for rank in ranks}

    def on_event(self, event: Event) -> None:
        """Take in what the pool tells; callable from any thread."""
        with self._lock:
            self.version += 1
            if isinstance(event, NoticeEvent):
                self.notices.append(event.text)
            elif isinstance(event, OutputEvent) and event.rank in self._outputs:
                self._take(event)

    def _take(self, event: OutputEvent) -> None:
        output, item, view = self._outputs[event.rank], event.event, self._views[event.rank]
        kind = item["kind"]
        if kind == "stream":
            output.feed(item["text"], item["name"])
        elif kind == "display":
            output.show(item["data"], item["metadata"], item.get("display_id"))
        elif kind == "update" and item.get("display_id"):
            output.update(item["display_id"], item["data"], item["metadata"])
        elif kind == "clear":
            output.clear(item.get("wait", False))
        elif kind == "result":
            result = Rich(item["data"], item["metadata"])
            self._views[event.rank] = RankView(event.rank, state=view.state, result=result)
        elif kind == "end":
            state = _STATES.get(item["status"], "failed")
            note = str(item.get("text", "")) if state == "died" else ""
            self._views[event.rank] = RankView(event.rank, state=state, note=note, result=view.result)

    def finish(self, elapsed: float) -> None:
        """Nothing more will come; the run took this many seconds."""
        with self._lock:
            self._elapsed = elapsed
            self.version += 1

    def snapshot(self, max_lines: int) -> RunViewModel:
        """The run as it is now, with at most ``max_lines`` of each rank's last lines."""
        with self._lock:
            ranks = []
            for rank, view in self._views.items():
                segments, dropped = self._outputs[rank].segments(max_lines)
                ranks.append(RankView(rank, segments, dropped, view.state, view.note, view.result))
            elapsed = time.perf_counter() - self.began if self._elapsed is None else self._elapsed
            return RunViewModel(self.title, elapsed, tuple(ranks), self._elapsed is not None, tuple(self.notices))
