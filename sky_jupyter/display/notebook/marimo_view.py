"""Views in marimo: the run view as an anywidget, and a spinner for starts.

marimo delivers a widget's messages to the page at once, from any thread, also while the cell runs, but none from the
page meanwhile. marimo's own stop button interrupts the cell, and so the ranks.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from ...pool.base.events import Event, TroubleEvent
from ..model import run_html
from ..model.run_model import StartModel
from .anywidget_view import WidgetRunView

_PATIENCE = 0.15
_INTERVAL = 0.2
_LINES = 1000
# Most widgets that are kept: a widget's state must live as long as its cell shows it, and nothing reports the end of
# that.
_KEPT = 30
_kept: deque[Any] = deque()


class MarimoRunView(WidgetRunView):
    """View of one run, whose widget stays with the last state.

    Made by `display.run_view`.
    """

    def __init__(self, title: str, ranks: Sequence[int], pool: str = "", unseen: Sequence[int] = ()) -> None:
        super().__init__(None, title, ranks, pool, unseen)

    def _show(self) -> None:
        import marimo

        shown = marimo.ui.anywidget(self._widget)
        marimo.output.append(shown)
        _kept.append((self._widget, shown))
        while len(_kept) > _KEPT:
            widget, _ = _kept.popleft()
            widget.close()

    def finish(self, elapsed: float) -> None:
        """Give the widget the last state; without one, show plain HTML if needed."""
        self.model.finish(elapsed)
        self._feed.finish()
        if self._widget is not None:
            self._widget.snapshot = self._last()
            return
        import marimo

        last = self.model.snapshot(_LINES)
        if last.notices or any(view.segments or view.state != "done" for view in last.ranks):
            marimo.output.append(marimo.Html(run_html.to_html(last, _LINES)))


class MarimoStartView:
    """View of a start or transfer: a spinner with its phase, then a line that stays."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.began = time.perf_counter()
        self._model = StartModel()
        self._now = ""
        self._next = self.began + _PATIENCE
        self._shown = contextlib.ExitStack()
        self._spinner: Any = None

    def on_event(self, event: Event) -> None:
        """Handle an event of the pool; callable from any thread."""
        text = self._model.on_event(event)
        if not isinstance(event, TroubleEvent) or event.over:
            self._now = text or self._now

    def refresh(self) -> None:
        """Draw what is new; on the cell's thread only."""
        import marimo

        now = time.perf_counter()
        troubles = self._model.troubles
        if now < self._next or not (self._now or troubles):
            return
        self._next = now + _INTERVAL
        what = self._now + (f" ({self._model.pace})" if self._model.pace else "")
        about = " · ".join(filter(None, [run_html.duration(now - self.began), what, *troubles]))
        if self._spinner is None:
            spinner = marimo.status.spinner(title=self.title, subtitle=about, remove_on_exit=True)
            self._spinner = self._shown.enter_context(spinner)
        else:
            self._spinner.update(subtitle=about)

    def finish(self, ready: str, *, ok: bool = True) -> None:
        """Show that the pool is ready, or why not."""
        import marimo

        self._shown.close()
        text = f"{self.title} · {ready} · {run_html.duration(time.perf_counter() - self.began)}"
        troubles = () if ok else self._model.troubles
        marimo.output.append(marimo.Html(run_html.html_start(text, state="done" if ok else "failed", below=troubles)))
