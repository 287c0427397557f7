"""Views for a notebook's front end: one output a run, updated in place, that reads well when saved.

It is HTML with a text form, under a display id: JupyterLab, Notebook 7, VS Code and nbclient all
update it, and a saved notebook keeps the last state, without a kernel and without a widget.
"""

from __future__ import annotations

import time
from typing import Any

from ..pool.events import Event
from . import render
from .model import RunModel, StartModel

_LIVE_LINES = 100
_FINAL_LINES = 1000
_PATIENCE = 0.15
_INTERVAL = 0.1
# Phases that took less are not worth a word.
_SLOW = 0.5


class _Slot:
    """One output of the cell, made when there is something to show and then updated."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, page: str, text: str) -> None:
        from IPython.display import display

        bundle = {"text/html": page, "text/plain": text}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


class NotebookRunView:
    """The view of one run; made by `display.run_view`, ends with the run."""

    def __init__(self, model: RunModel) -> None:
        self.model = model
        self._slot = _Slot()
        self._drawn = -1
        self._next = time.perf_counter() + _PATIENCE

    def on_event(self, event: Event) -> None:
        """The run's listener; callable from any thread."""
        self.model.on_event(event)

    def refresh(self) -> None:
        """Draw what is new, at most ten times a second; main thread only."""
        now = time.perf_counter()
        if now < self._next:
            return
        # Without news, only the clock goes on.
        pause = _INTERVAL if self.model.version != self._drawn else 1.0
        if now < self._next - _INTERVAL + pause:
            return
        began = now
        self._draw(_LIVE_LINES)
        # A large view takes its time to draw and to send: never more than a fifth of it.
        self._next = time.perf_counter() + max(_INTERVAL, 4 * (time.perf_counter() - began))

    def finish(self, elapsed: float) -> None:
        """Draw the last state, which is what a saved notebook keeps."""
        self.model.finish(elapsed)
        self._draw(_FINAL_LINES)

    def _draw(self, lines: int) -> None:
        self._drawn = self.model.version
        shown = self.model.snapshot(lines)
        self._slot.show(render.to_html(shown, lines), render.to_text(shown, lines, colours=False))


class NotebookStartView:
    """The view of a pool's start: a line that says what it is at, and at the end how long it took."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.began = time.perf_counter()
        self._slot = _Slot()
        self._model = StartModel()
        self._now = ""
        self._next = time.perf_counter() + _PATIENCE

    def on_event(self, event: Event) -> None:
        """The pool's listener; callable from any thread."""
        self._now = self._model.on_event(event) or self._now

    def refresh(self) -> None:
        """Draw what is new; main thread only."""
        now = time.perf_counter()
        if now >= self._next and self._now:
            self._next = now + _INTERVAL
            pace = self._model.pace
            self._say(self._now, "running", f" ({pace})" if pace else "")

    def finish(self, ready: str, *, ok: bool = True) -> None:
        """Say that the pool is ready, or why not."""
        slow = [event for event in self._model.done if event.elapsed >= _SLOW]
        phases = ", ".join(f"{event.phase} {render.duration(event.elapsed)}" for event in slow)
        self._say(ready, "done" if ok else "failed", f" ({phases})" if len(slow) > 1 else "")

    def _say(self, what: str, state: render.State, more: str = "") -> None:
        text = f"{self.title} · {what} · {render.duration(time.perf_counter() - self.began)}"
        self._slot.show(render.html_start(text, state=state, aside=more), text + more)
