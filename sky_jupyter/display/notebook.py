"""The view of a pool's start in a notebook's front end: one output, updated in place, that reads well when saved.

It is HTML with a text form, under a display id: JupyterLab, Notebook 7, VS Code and nbclient all
update it, and a saved notebook keeps the last state, without a kernel and without a widget.
"""

from __future__ import annotations

import time
from typing import Any

from ..pool.events import Event
from . import fronts, render
from .model import StartModel

_PATIENCE = 0.15
_INTERVAL = 0.1
# Phases that took less are not worth a word.
_SLOW = 0.5


class Slot:
    """One output of the cell, made when there is something to show and then updated."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, bundle: dict[str, Any]) -> None:
        """Show a bundle of what each front end can draw; main thread only."""
        from IPython.display import display

        if self._handle is None:
            self._handle = display(fronts.drawable(bundle), raw=True, display_id=True)
        else:
            self._handle.update(fronts.drawable(bundle), raw=True)


class NotebookStartView:
    """The view of a pool's start: a line that says what it is at, and at the end how long it took."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.began = time.perf_counter()
        self._slot = Slot()
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
        page = render.html_start(text, state=state, aside=more)
        self._slot.show({"text/html": page, "text/plain": text + more})
