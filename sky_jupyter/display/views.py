"""Views for notebooks and terminals; they listen to a pool's events.

A view has ``on_event`` (any thread), ``refresh`` (main thread, several times a second) and
``finish``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..pool.base.events import Event, NullView, ProgressEvent, TroubleEvent
from ..util.pool_cost import PoolCost, TimeLeft
from .base.frontends import front_end, in_notebook
from .model.troubles import Troubles
from .terminal.bottom_rows import can_draw

if TYPE_CHECKING:
    from .model.outliving import Outliving

_LATE = 0.5
# The names of pools whose functions run without a view.
_muted: set[str] = set()
# Transfers from this size on are shown sooner.
_LARGE, _LATE_LARGE = 50_000_000, 0.1


class RunView(Protocol):
    """View of one run."""

    def on_event(self, event: Event) -> None:
        """Handle an event of the pool; any thread."""

    def refresh(self) -> None:
        """Draw what is new; main thread."""

    def finish(self, elapsed: float) -> None:
        """Draw the last state."""


class StartView(Protocol):
    """View of a pool's start, or of a transfer."""

    def on_event(self, event: Event) -> None:
        """Handle an event of the pool; any thread."""

    def refresh(self) -> None:
        """Draw what is new; main thread."""

    def finish(self, ready: str, *, ok: bool = True) -> None:
        """Show how it ended, and whether it succeeded."""


class DelayedView:
    """View that appears only if the operation takes longer than a moment.

    It is a context manager, and reports failure if the block raises.

    Parameters
    ----------
    title : str
        Title of the view.
    done : str
        Word for success.
    failed : str
        Word for failure.
    pool : str
        Name of the pool; nothing is shown if it is muted.
    """

    def __init__(self, title: str, done: str = "there", failed: str = "not sent", *, pool: str = "") -> None:
        self._title, self._done, self._failed, self._pool = title, done, failed, pool
        self._view: StartView | None = None
        self._last: Event | None = None
        # Current problems, for the view when it appears.
        self._troubles = Troubles()
        self._due = 0.0

    def on_event(self, event: Event) -> None:
        """Handle an event of the pool; any thread."""
        if self._pool in _muted:
            return
        self._due = self._due or time.monotonic() + _LATE
        if isinstance(event, ProgressEvent) and event.total >= _LARGE:
            self._due = min(self._due, time.monotonic() + _LATE_LARGE)
        if isinstance(event, TroubleEvent):
            self._troubles.take(event)
        if not isinstance(event, TroubleEvent) or event.over:
            self._last = event
        if self._view is not None:
            self._view.on_event(event)

    def refresh(self) -> None:
        """Draw what is new; main thread."""
        if self._view is None and (self._last or self._troubles.events) and time.monotonic() >= self._due:
            self._view = start_view(self._title)
            for event in (*self._troubles.events, self._last):
                if event is not None:
                    self._view.on_event(event)
        if self._view is not None:
            self._view.refresh()

    def __enter__(self) -> DelayedView:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._view is not None:
            self._view.finish(self._done if kind is None else self._failed, ok=kind is None)


def run_view(
    title: str,
    ranks: Sequence[int],
    *,
    results: bool = True,
    pool: str = "",
    unseen: Sequence[int] = (),
    cost: Callable[[], PoolCost | TimeLeft | None] | None = None,
    elapsed: float = 0.0,
    outliving: Outliving | None = None,
) -> RunView:
    """Return the view of a run for this process's front end.

    Parameters
    ----------
    title : str
        Title of the view.
    ranks : sequence of int
        Ranks whose output is shown.
    results : bool
        Show their values.
    pool : str
        Name of the pool that runs it.
    unseen : sequence of int
        Other ranks of the run: only their state is shown.
    cost : callable, optional
        Returns what the pool costs, or how long it may be used, for the header; None for neither.
    elapsed : float
        Seconds for which the run has been running already.
    outliving : Outliving, optional
        How the pool outlives this process; None if it does not.

    Returns
    -------
    RunView
        The view.
    """
    view = _run_view(title, ranks, results=results, pool=pool, unseen=unseen)
    shown: Any = getattr(view, "model", view)
    if cost is not None and hasattr(shown, "cost"):
        shown.cost = cost
    if hasattr(shown, "began"):
        shown.began -= elapsed
    if hasattr(shown, "outliving"):
        shown.outliving = outliving
    return view


def _run_view(title: str, ranks: Sequence[int], *, results: bool, pool: str, unseen: Sequence[int]) -> RunView:
    if pool in _muted and not results:
        return NullView()
    front = front_end()
    if front == "marimo":
        from .notebook import anywidget_view

        if anywidget_view.available():
            from .notebook.marimo_view import MarimoRunView

            return MarimoRunView(title, ranks, pool, unseen)
    elif front != "none":
        from IPython import get_ipython

        kernel = get_ipython().kernel
        # Our extension does not draw in VS Code and Colab.
        usual = "widget" if front in ("vscode", "colab") else "html"
        if os.environ.get("SKY_VIEW", usual) == "widget":
            from .base import prompts
            from .notebook import anywidget_view

            # Headless executors have no stdin. They get no widget, so that they do not save its state in the notebook.
            if prompts.can_ask() and anywidget_view.available():
                return anywidget_view.WidgetRunView(kernel, title, ranks, pool, unseen)
        from .notebook.run_view import LiveRunView

        return LiveRunView(kernel, title, ranks, pool, unseen)
    if can_draw(sys.stdout):
        from .terminal.live_view import ConsoleRunView

        return ConsoleRunView(title, ranks, results=results, unseen=unseen)
    from .terminal.line_view import TerminalRunView

    return TerminalRunView(ranks, results=results)


def can_be_let_go(view: RunView) -> bool:
    """Tell whether another thread may draw a view after ``view.let_go()``.

    Other views need a waiting cell.
    """
    return hasattr(view, "let_go")


def mute(pool: str, *, off: bool = False) -> None:
    """Show no view of a pool's function calls; ``off`` shows them again.

    It is for a notebook's cell, which has its own view.
    """
    (_muted.discard if off else _muted.add)(pool)


def aside(text: str) -> None:
    """Print a line at once below the cell that runs or ran last; any thread."""
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    kernel = getattr(shell, "kernel", None)
    if not in_notebook() or kernel is None:
        print(text, file=sys.stderr)
        return
    content = {"name": "stderr", "text": f"{text}\n"}
    kernel.session.send(kernel.iopub_socket, "stream", content, kernel.get_parent("shell"), ident=b"stream.stderr")


def keep(view: RunView, most_text: int) -> None:
    """Set how much of a run's text the saved notebook keeps."""
    model = getattr(view, "model", None)
    if model is not None:
        model.most_text = most_text


def start_view(
    title: str, *, pool: str = "", phases: Callable[[], Sequence[Mapping[str, Any]]] | None = None
) -> StartView:
    """Return the view of a start or transfer for this process's front end.

    Parameters
    ----------
    title : str
        Title of the view.
    pool : str
        Name of the pool that is started or changed; empty if there is none.
    phases : callable, optional
        Returns the phases of the start, as `PhaseLog.facts` does.

    Returns
    -------
    StartView
        The view.
    """
    front = front_end()
    if front == "marimo":
        from .notebook.marimo_view import MarimoStartView

        return MarimoStartView(title)
    if front != "none":
        from .notebook.start_view import NotebookStartView

        return NotebookStartView(title, pool)
    if can_draw(sys.stderr):
        from .terminal.live_view import ConsoleStartView

        return ConsoleStartView(title, phases)
    from .terminal.line_view import TerminalStartView

    return TerminalStartView(title)


__all__ = ["DelayedView", "NullView", "RunView", "StartView", "run_view", "start_view"]
