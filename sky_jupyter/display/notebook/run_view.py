"""The run view in a notebook: drawn by the labextension, else as HTML.

Both are one output with our JSON, HTML and text. A page that draws the JSON sends a request on the control channel, and
gets deltas from then on. As long as no page has done so, the HTML follows the run. The last state is a static bundle
that needs no kernel and no widget.

The control channel is used because no cell blocks it: a comm's message to a busy kernel waits until the cell ends, and
so does a widget's state after a reload. The handler runs on the kernel's control thread: it may touch only what views
guard with locks.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Protocol

from ...util import control_channel
from ..base.frontends import Slot
from ..model import run_html, saved_output
from ..model.run_model import RunModel
from .deltas import Feed

_LIVE_LINES = 100
_PATIENCE = 0.15
_INTERVAL = 0.1
# Seconds between two updates of the output while pages draw the run themselves: the notebook may be saved.
_FOR_SAVING = 20.0
REQUEST = "sky_view_request"
# Most ended views that are kept for pages that were closed during the run, and most characters of all.
_KEPT = 50
_KEPT_CHARS = 20_000_000


class Sender:
    """Sender of contents to all pages of a kernel, from any thread.

    The messages have the id of a comm, which need not be open.
    """

    def __init__(self, kernel: Any, comm: str) -> None:
        self._kernel, self._comm = kernel, comm
        # The cell's parent header: in other threads it would be that of the kernel's current request.
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
        self.on_event = self._feed.on_event
        self._slot = Slot()
        self._drawn = -1
        self._next = time.perf_counter() + _PATIENCE
        self._for_saving = 0.0
        if REQUEST not in getattr(kernel, "control_handlers", ()):
            install(kernel)

    def open(self) -> dict[str, Any]:
        """Return the run as it is, for a page that draws it; callable from any thread."""
        return self._feed.open()

    def refresh(self) -> None:
        """Draw changes unless a page does; main thread only, until `let_go`."""
        now = time.perf_counter()
        if self._feed.watched.is_set():
            self._for_saving = self._for_saving or now + _FOR_SAVING
            if now >= self._for_saving and self.model.version != self._drawn:
                self._drawn, self._for_saving = self.model.version, now + _FOR_SAVING
                self._slot.show(saved_output.bundle(self.model, self.id, saved_output.MOST_TEXT // 4))
            return
        if now < self._next:
            return
        # Without changes, only the clock is updated.
        if self.model.version == self._drawn and now < self._next - _INTERVAL + 1.0:
            return
        if self._drawn < 0:
            views.add(self)
        self._drawn = self.model.version
        shown = self.model.snapshot(_LIVE_LINES)
        self._slot.show(
            {
                # If no reply reaches a page, as behind some proxies, the page draws only this.
                saved_output.MIME: saved_output.to_json(self.model.state(_LIVE_LINES), self.id),
                "text/html": run_html.to_html(shown, _LIVE_LINES),
                "text/plain": run_html.to_text(shown, _LIVE_LINES, colours=False),
            }
        )
        # A large view takes long to draw and to send: use at most a fifth of the time.
        self._next = time.perf_counter() + max(_INTERVAL, 4 * (time.perf_counter() - now))

    def appear(self) -> None:
        """Create the output at once: none can be created after the cell has ended."""
        self._next = 0.0
        self.refresh()

    def let_go(self) -> None:
        """Create the output; another thread may draw it from now on; main thread only."""
        self.appear()
        self._slot.let_go(self._kernel)

    def finish(self, elapsed: float) -> None:
        """Draw the last state, which is what a saved notebook keeps."""
        self.model.finish(elapsed)
        last = saved_output.bundle(self.model, self.id)
        views.end(self, last)
        self._feed.finish()
        self._slot.show(last)


# -- requests of pages -------------------------------------------------------------------------------


class LiveView(Protocol):
    """View that a page can open."""

    id: str
    cell: str

    def open(self) -> dict[str, Any]:
        """Return the run as it is now."""


class Ended:
    """A view that has ended: only the bundle that the notebook keeps."""

    def __init__(self, cell: str, bundle: dict[str, Any]) -> None:
        self.cell, self.bundle = cell, bundle
        self.size = sum(len(str(value)) for value in bundle.values())


class Views:
    """Views of this kernel by id; `answer` handles the pages' requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: dict[str, LiveView] = {}
        self._ended: OrderedDict[str, Ended] = OrderedDict()

    def add(self, view: LiveView) -> None:
        """Register the view of a running run."""
        with self._lock:
            self._live[view.id] = view

    def end(self, view: LiveView, bundle: dict[str, Any]) -> None:
        """Replace a view by the bundle that stays in the notebook."""
        with self._lock:
            self._live.pop(view.id, None)
            self._ended[view.id] = Ended(view.cell, bundle)
            while len(self._ended) > _KEPT or sum(one.size for one in self._ended.values()) > _KEPT_CHARS:
                if len(self._ended) == 1:
                    break
                self._ended.popitem(last=False)

    def forget(self, cell: str) -> None:
        """Forget the views of a cell that is run again."""
        with self._lock:
            for id in [id for id, one in self._ended.items() if one.cell == cell]:
                del self._ended[id]

    def answer(self, content: dict[str, Any]) -> dict[str, Any]:
        """Answer a page: ``open`` a view, or list those of a notebook (``views``)."""
        action, id = content.get("action"), str(content.get("view", ""))
        with self._lock:
            live, ended = self._live.get(id), self._ended.get(id)
            listed = [(one.id, one.cell, True) for one in self._live.values()]
            listed += [(name, one.cell, False) for name, one in self._ended.items()]
        if action == "views":
            return {"status": "ok", "views": [{"view": a, "cell": b, "live": c} for a, b, c in listed if b]}
        if action != "open":
            return {"status": "error", "message": f"no action {action!r}; there are 'open' and 'views'"}
        if live is not None:
            return {"status": "ok", "run": live.open()}
        if ended is not None:
            return {"status": "ok", "bundle": ended.bundle}
        return {"status": "error", "message": "this kernel does not know the view"}


views = Views()


def install(kernel: Any) -> None:
    """Install the handler of pages' requests in a kernel that has none yet."""
    if not control_channel.register(kernel, REQUEST, lambda content, request: (views.answer(content), ())):
        return

    def on_cell(info: Any = None) -> None:
        if cell := (kernel.get_parent("shell").get("metadata") or {}).get("cellId"):
            views.forget(str(cell))

    kernel.shell.events.register("pre_run_cell", on_cell)
