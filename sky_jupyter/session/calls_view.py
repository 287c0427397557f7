"""One run view for all calls that run at the same time.

It marks what each call prints with the call's rank.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..display import views as display
from ..display.base.frontends import front_end, in_notebook
from ..display.model.troubles import Troubles
from ..plugins.joblib.shared_values import outlets
from ..pool.base.events import Event, NoticeEvent, OutputEvent, TroubleEvent

if TYPE_CHECKING:
    from ..pool.pool import Pool

_INTERVAL = 0.1
_ORDER = {"ok": 0, "interrupted": 1, "error": 2, "lost": 3, "died": 4}


class SharedRunView:
    """View of calls; `joined` makes it, and it ends with the last of its calls.

    Parameters
    ----------
    pool : Pool
        The pool whose ranks are shown.
    title : str
        The heading of the view.
    waited : bool
        Whether a thread waits for the calls and calls `refresh`; else a thread of the view does.
    """

    def __init__(self, pool: Pool, title: str, *, waited: bool) -> None:
        self.pool, self.cell = pool, cell_id()
        self.view = self._make_view(title, waited)
        self.count = 0
        self.over = False
        self._began = time.perf_counter()
        # The run of the last event: if it is the only one, its log is available later.
        self._run = ""
        # Ranks whose last line has no end yet, with its stream; the worst end of each rank's calls.
        self._open: dict[int, str] = {}
        self._ends: dict[int, dict[str, Any]] = {}
        self._troubles = Troubles()
        self._lock = threading.RLock()
        self._beside: threading.Thread | None = None
        # What is shown from other threads belongs to the cell that sent the calls.
        self._context = contextvars.copy_context()

    def _make_view(self, title: str, waited: bool) -> display.RunView:
        ranks = range(self.pool.spec.world_size)
        if waited or front_end() != "none":
            about: dict[str, Any] = {"results": False, "pool": self.pool.spec.name, "cost": self.pool.pricing}
            return display.run_view(title, ranks, **about)
        # Rows at the bottom of a terminal would disturb a user who goes on working there.
        from ..display.terminal.line_view import TerminalRunView

        return TerminalRunView(ranks, results=False)

    def on_event(self, event: Event) -> None:
        """Show an event of one of the calls; show the pool's troubles only once."""
        if isinstance(event, OutputEvent):
            kind, rank, self._run = event.event["kind"], event.rank, event.run
            if kind == "end":
                self._on_end(event)
                return
            if kind == "stream":
                self._note_line(rank, event.event["name"], event.event["text"])
        elif isinstance(event, TroubleEvent) and not self._troubles.take(event):
            return
        self.view.on_event(event)

    def _note_line(self, rank: int, name: str, text: str) -> None:
        if text.endswith("\n"):
            self._open.pop(rank, None)
        elif text:
            self._open[rank] = name

    def _on_end(self, event: OutputEvent) -> None:
        """Begin a new line after a call's end: its rank goes on with other calls."""
        rank = event.rank
        name = self._open.pop(rank, None)
        if name is not None:
            line = {"kind": "stream", "rank": rank, "name": name, "text": "\n"}
            self.view.on_event(OutputEvent(event.run, rank, line))
        before = self._ends.get(rank)
        if before is None or _ORDER.get(event.event["status"], 2) > _ORDER.get(before["status"], 2):
            self._ends[rank] = event.event

    def refresh(self) -> None:
        """Draw what is new."""
        with self._lock:
            if not self.over:
                self.view.refresh()

    def go_on_alone(self) -> None:
        """Draw what is new from a thread of the view, as nobody waits for the calls.

        The output begins in the cell that is running now.
        """
        with self._lock:
            if self._beside is not None or self.over:
                return
            appear: Callable[[], None] | None = getattr(self.view, "appear", None)
            if appear is not None:
                appear()
            context = self._context.copy()
            self._beside = threading.Thread(target=context.run, args=(self._draw,), name="sky-view", daemon=True)
            self._beside.start()

    def _draw(self) -> None:
        while not self.over:
            time.sleep(_INTERVAL)
            self.refresh()

    def leave(self, count: int = 1) -> None:
        """Note that calls have ended; the last one ends the view."""
        with _lock:
            self.count -= count
            last = self.count <= 0
            if last and _open_views.get(self.pool.id) is self:
                del _open_views[self.pool.id]
        if last:
            with self._lock:
                if not self.over:
                    self._context.run(self._finish)

    def _finish(self) -> None:
        self.over = True
        for rank in range(self.pool.spec.world_size):
            event = self._ends.get(rank) or {"kind": "end", "rank": rank, "status": "ok"}
            self.view.on_event(OutputEvent(self._run, rank, event))
        self.view.finish(time.perf_counter() - self._began)


_lock = threading.Lock()
# The view that is open for each pool, by the pool's id.
_open_views: dict[str, SharedRunView] = {}


def joined(pool: Pool, title: str, *, waited: bool, count: int = 1) -> SharedRunView:
    """Return the view for ``count`` more calls: the open one, or a new one."""
    with _lock:
        run_view = _open_views.get(pool.id)
        if run_view is None or run_view.over or run_view.cell != cell_id():
            run_view = _open_views[pool.id] = SharedRunView(pool, title, waited=waited)
        run_view.count += count
    if not waited:
        run_view.go_on_alone()
    return run_view


class HeldView:
    """Place in a cell for the later output of calls that nobody waits for.

    Front ends drop a view that begins after its cell has ended. So this one begins as the cell ends, if the calls have
    not ended by then.

    Parameters
    ----------
    pool : Pool
        The pool of the calls.
    title : str
        The heading of the view.
    """

    def __init__(self, pool: Pool, title: str) -> None:
        self._pool, self._title, self._context = pool, title, contextvars.copy_context()
        self._run_view: SharedRunView | None = None
        self._lock = threading.Lock()
        if in_notebook():
            from IPython import get_ipython

            with _lock:
                first = not _held
                _held.add(self)
            if first:
                get_ipython().events.register("post_run_cell", _begin_held)

    def begin(self) -> None:
        """Begin the view, unless the calls have ended."""
        with self._lock:
            if self in _held:
                self._run_view = self._context.copy().run(joined, self._pool, self._title, waited=False)

    def end(self) -> None:
        """Note that the calls have ended."""
        with self._lock:
            _held.discard(self)
            run_view, self._run_view = self._run_view, None
        if run_view is not None:
            run_view.leave()


# Places in the cell that is running.
_held: set[HeldView] = set()


def _begin_held(*_: object) -> None:
    """Begin the views of calls that go on after their cell."""
    from IPython import get_ipython

    with _lock:
        held = list(_held)
    for one in held:
        one.begin()
    with _lock:
        _held.difference_update(held)
        if not _held:
            get_ipython().events.unregister("post_run_cell", _begin_held)


class Outlet:
    """View of what the calls of a parallel loop print; the first output begins it.

    It is made when the loop begins, in the loop's cell, and ends with the loop.

    Parameters
    ----------
    pool : Pool
        The pool whose ranks execute the loop.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool, self._context = pool, contextvars.copy_context()
        self._run_view: SharedRunView | None = None
        self._left = False
        self._lock = threading.Lock()

    def on_event(self, event: Event) -> None:
        """Show what a call prints, or that it has ended; callable in any thread."""
        if not isinstance(event, OutputEvent):
            return
        with self._lock:
            if self._run_view is None and not self._left and event.event["kind"] in ("stream", "display"):
                title = f"loop · {self._pool.spec.name}"
                self._run_view = self._context.copy().run(joined, self._pool, title, waited=False)
            run_view = self._run_view
        if run_view is not None:
            run_view.on_event(event)

    def leave(self) -> None:
        """End the view with the loop."""
        with self._lock:
            self._left, run_view, self._run_view = True, self._run_view, None
        if run_view is not None:
            run_view.leave()


outlets.append(Outlet)


def cell_id() -> str:
    """Return the id of the cell that is running; empty if there are no cells."""
    if not in_notebook():
        return ""
    from IPython import get_ipython

    return str(get_ipython().kernel.get_parent("shell").get("header", {}).get("msg_id", ""))


def say(run_view: SharedRunView, text: str) -> None:
    """Show a line that belongs to no rank."""
    run_view.view.on_event(NoticeEvent(text))


__all__ = ["Outlet", "SharedRunView", "cell_id", "joined", "say"]
