"""The run view as an anywidget, for front ends without our extension.

Used in marimo, VS Code and Colab, and elsewhere with ``SKY_VIEW=widget``.

It is not JupyterLab's default: there, the request for a widget's state waits behind the running cell, so that a
reloaded page shows nothing until the cell has ended. At the run's end, the usual bundle replaces the widget.
"""

from __future__ import annotations

import base64
import functools
import importlib.util
import time
import uuid
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

from ...pool.base.events import Event
from ..base import frontends
from ..base.frontends import Slot
from ..model import run_html, saved_output
from ..model.run_model import RunModel
from .deltas import Feed
from .run_view import Sender

_PATIENCE = 0.15
_VIEW = "application/vnd.jupyter.widget-view+json"
# Seconds between two updates of the snapshot, which pages get that are opened later.
_RENEWED = 10.0
_BUNDLE = "run.js"


def available() -> bool:
    """Tell whether anywidget, and the module that it loads, are installed."""
    return importlib.util.find_spec("anywidget") is not None and _module().is_file()


def _module() -> Any:
    return resources.files("sky_jupyter") / "static" / _BUNDLE


@functools.cache
def _widget_class() -> Any:
    # Imported late, as they take half a second.
    import anywidget
    import traitlets

    class RunWidget(anywidget.AnyWidget):
        _esm = _module().read_text(encoding="utf-8")
        snapshot = traitlets.Dict().tag(sync=True)

    return RunWidget


class WidgetRunView:
    """View of one run; made by `display.run_view`, ends with the run."""

    def __init__(
        self, kernel: Any, title: str, ranks: Sequence[int], pool: str = "", unseen: Sequence[int] = ()
    ) -> None:
        self.model = RunModel(title, ranks, pool, unseen)
        self.id = uuid.uuid4().hex
        self._kernel = kernel
        self._binary = frontends.takes_buffers()
        self._send: Callable[..., None] | None = None
        self._feed = Feed(self.model, self.id, len(ranks), self._to_pages)
        self._widget: Any = None
        self._slot = Slot()
        self._next = time.perf_counter() + _PATIENCE

    def on_event(self, event: Event) -> None:
        """Handle an event of the run; callable from any thread."""
        self._feed.on_event(event)

    def refresh(self) -> None:
        """Show the widget, and update its state now and then; main thread only.

        The state is for pages that are opened later.
        """
        now = time.perf_counter()
        if now < self._next:
            return
        self._next = now + _RENEWED
        if self._widget is not None:
            self._widget.snapshot = self._feed.open()
        else:
            self._mount()

    def appear(self) -> None:
        """Create the output at once: none can be created after the cell has ended."""
        self._next = 0.0
        self.refresh()

    def _mount(self) -> None:
        self._widget = _widget_class()(snapshot=self._feed.open())
        self._widget.on_msg(self._on_message)
        # The kernel's own way to send works only on the cell's thread.
        self._send = Sender(self._kernel, self._widget.model_id) if self._kernel is not None else self._widget.send
        # Events since the first snapshot are in no snapshot, and were not sent.
        self._widget.snapshot = self._feed.open()
        self._show()

    def _show(self) -> None:
        frontends.allow_widgets()
        view = {"version_major": 2, "version_minor": 0, "model_id": self._widget.model_id}
        shown = self.model.snapshot(0)
        self._slot.show({_VIEW: view, "text/plain": run_html.to_text(shown, 0, colours=False)})

    def finish(self, elapsed: float) -> None:
        """Replace the widget by the static bundle, and close it."""
        self.model.finish(elapsed)
        self._feed.finish()
        self._slot.show(saved_output.bundle(self.model, self.id))
        if self._widget is not None:
            self._widget.close()
            self._widget = self._send = None

    def _last(self) -> dict[str, Any]:
        """Return the final state, with the number of the last delta."""
        return {**saved_output.last(self.model, self.id), "number": self._feed.open()["number"]}

    def _to_pages(self, content: dict[str, Any], buffers: list[bytes]) -> None:
        if self._send is None:
            return
        if not self._binary:
            # Where buffers may get lost, the text is part of the message.
            content, buffers = {**content, "data": base64.b64encode(b"".join(buffers)).decode()}, []
        self._send(content, buffers)

    def _on_message(self, widget: Any, content: Any, buffers: Any) -> None:
        """Send a page the delta that it misses; waits for a busy kernel's cell."""
        if isinstance(content, dict) and content.get("sky") == "open" and self._widget is not None:
            self._widget.snapshot = self._last() if self.model.finished else self._feed.open()
