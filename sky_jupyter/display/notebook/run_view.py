"""The run view in a notebook: drawn by the labextension, else as HTML.

Both are one output: it holds our JSON, HTML and text. A page that draws the JSON says so by the
control channel, and is told deltas from then on; as long as none has, the HTML follows the run. The
last state is a static bundle that needs no kernel and no widget.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from ...pool.base.events import Event
from ..base.frontends import Slot
from ..model import html, saved_output
from ..model.run_model import RunModel
from . import view_requests
from .deltas import Feed

_LIVE_LINES = 100
_PATIENCE = 0.15
_INTERVAL = 0.1
# How often the output is brought up to date for a notebook that is saved while pages draw the run themselves.
_FOR_SAVING = 20.0


class Sender:
    """Sends contents to all pages of a kernel, from any thread.

    Under the id of a comm that need not be open.
    """

    def __init__(self, kernel: Any, comm: str) -> None:
        self._kernel, self._comm = kernel, comm
        # That of the cell: in other threads it would be whatever the kernel does just then.
        self._parent = kernel.get_parent("shell")
        self.cell = str((self._parent.get("metadata") or {}).get("cellId") or "")

    def __call__(self, content: dict[str, Any], buffers: list[bytes]) -> None:
        message = {"comm_id": self._comm, "data": {"method": "custom", "content": content}}
        topic = f"comm-{self._comm}".encode()
        kernel = self._kernel
        kernel.session.send(
            kernel.iopub_socket, "comm_msg", message, parent=self._parent, ident=topic, buffers=buffers or None
        )


class LiveRunView:
    """View of one run; made by `display.run_view`, ends with the run."""

    def __init__(
        self, kernel: Any, title: str, ranks: Sequence[int], pool: str = "", unseen: Sequence[int] = ()
    ) -> None:
        self.id = uuid.uuid4().hex
        self._kernel = kernel
        self.model = RunModel(title, ranks, pool, unseen)
        send = Sender(kernel, self.id)
        self.cell = send.cell
        self._feed = Feed(self.model, self.id, len(ranks), send)
        self._slot = Slot()
        self._drawn = -1
        self._next = time.perf_counter() + _PATIENCE
        self._for_saving = 0.0
        view_requests.install(kernel)

    def on_event(self, event: Event) -> None:
        """Handle an event of the run; callable from any thread."""
        self._feed.on_event(event)

    def open(self) -> dict[str, Any]:
        """Return the run as it is, for a page that draws it; callable from any thread."""
        return self._feed.open()

    def refresh(self) -> None:
        """Draw what is new unless a page does; main thread only, until it is let go."""
        now = time.perf_counter()
        if self._feed.watched.is_set():
            self._for_saving = self._for_saving or now + _FOR_SAVING
            if now >= self._for_saving and self.model.version != self._drawn:
                self._drawn, self._for_saving = self.model.version, now + _FOR_SAVING
                self._slot.show(saved_output.bundle(self.model, self.id, saved_output.MOST_TEXT // 4))
            return
        if now < self._next:
            return
        # Without news, only the clock goes on.
        if self.model.version == self._drawn and now < self._next - _INTERVAL + 1.0:
            return
        if self._drawn < 0:
            view_requests.views.add(self)
        self._drawn = self.model.version
        shown = self.model.snapshot(_LIVE_LINES)
        self._slot.show(
            {
                # Where no answer to a page arrives, as behind some proxies, this is all that it draws.
                saved_output.MIME: saved_output.to_json(self.model.state(_LIVE_LINES), self.id),
                "text/html": html.to_html(shown, _LIVE_LINES),
                "text/plain": html.to_text(shown, _LIVE_LINES, colours=False),
            }
        )
        # A large view takes its time to draw and to send: never more than a fifth of it.
        self._next = time.perf_counter() + max(_INTERVAL, 4 * (time.perf_counter() - now))

    def appear(self) -> None:
        """Create the output at once: none can be created after the cell has ended."""
        self._next = 0.0
        self.refresh()

    def let_go(self) -> None:
        """Create the output, which another thread may draw from now on; main thread only."""
        self.appear()
        self._slot.let_go(self._kernel)

    def finish(self, elapsed: float) -> None:
        """Draw the last state, which is what a saved notebook keeps."""
        self.model.finish(elapsed)
        last = saved_output.bundle(self.model, self.id)
        view_requests.views.end(self, last)
        self._feed.finish()
        self._slot.show(last)
