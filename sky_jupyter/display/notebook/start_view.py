"""The view of a pool's start in a notebook: one output, updated in place.

It is HTML and text under a display id: JupyterLab, Notebook 7, VS Code and nbclient all update it, and a saved notebook
keeps the last state, without a kernel and without a widget. During a longer start, the labextension shows the pool's
panel below the line.
"""

from __future__ import annotations

import time
from typing import Any

from ...pool.base.events import Event, TroubleEvent
from ..base.frontends import Slot
from ..model import run_html
from ..model.run_model import StartModel
from . import pool_panel

_PATIENCE = 0.15
_INTERVAL = 0.1
# Seconds from which on a start shows a panel.
_LASTS = 2.0
# Seconds from which on a phase is mentioned.
_SLOW = 0.5


class NotebookStartView:
    """View of a pool's start: a line with its phase, at the end with its duration.

    Current problems are shown below the line.

    Parameters
    ----------
    title : str
        The beginning of the line.
    pool : str
        The name of the pool that is being started; empty for other operations, such as a transfer.
    """

    def __init__(self, title: str, pool: str = "") -> None:
        self.title, self.pool = title, pool
        self.began = time.perf_counter()
        self._slot = Slot()
        self._model = StartModel()
        self._now = ""
        self._next = time.perf_counter() + _PATIENCE

    def on_event(self, event: Event) -> None:
        """Handle an event of the pool; callable from any thread."""
        text = self._model.on_event(event)
        if not isinstance(event, TroubleEvent) or event.over:
            self._now = text or self._now

    def refresh(self) -> None:
        """Draw what is new; main thread only."""
        now = time.perf_counter()
        if now >= self._next and (self._now or self._model.troubles):
            self._next = now + _INTERVAL
            pace = self._model.pace
            self._say(self._now, "running", f" ({pace})" if pace else "")

    def finish(self, ready: str, *, ok: bool = True) -> None:
        """Show that the pool is ready, or why not."""
        slow = [event for event in self._model.done if event.elapsed >= _SLOW]
        phases = ", ".join(f"{event.phase} {run_html.duration(event.elapsed)}" for event in slow)
        self._say(ready, "done" if ok else "failed", f" ({phases})" if len(slow) > 1 else "")

    def _say(self, what: str, state: run_html.State, more: str = "") -> None:
        text = " · ".join(filter(None, [self.title, what, run_html.duration(time.perf_counter() - self.began)]))
        troubles = () if state == "done" else self._model.troubles
        page = run_html.html_start(text, state=state, aside=more, below=troubles)
        plain = "\n".join([text + more, *troubles])
        bundle: dict[str, Any] = {"text/html": page, "text/plain": plain}
        if self.pool and state == "running" and time.perf_counter() - self.began >= _LASTS:
            # A panel without pools, except the one that is being started.
            start = {"pool": self.pool, "text": plain}
            bundle[pool_panel.MIME] = {
                "version": pool_panel.VERSION,
                "at": round(time.time()),
                "pools": [],
                "start": start,
            }
        self._slot.show(bundle)
