"""Requests of pages to views, on the control channel, which no cell blocks.

A comm's message to a busy kernel waits until the cell ends, and so does a widget's state after a
reload. The handler runs on the kernel's control thread: it touches only what views guard themselves.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, Protocol

from ...util import control_channel

REQUEST = "sky_view_request"
# Ended views that are kept for pages that were closed meanwhile: their number and total size in characters.
_KEPT = 50
_KEPT_CHARS = 20_000_000


class LiveView(Protocol):
    """View that a page can open."""

    id: str
    cell: str

    def open(self) -> dict[str, Any]:
        """Return the run as it is now."""


class Ended:
    """Rest of a view that has ended: the bundle that the notebook keeps."""

    def __init__(self, cell: str, bundle: dict[str, Any]) -> None:
        self.cell, self.bundle = cell, bundle
        self.size = sum(len(str(value)) for value in bundle.values())


class Views:
    """Views of this kernel by id; `answer` handles the requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: dict[str, LiveView] = {}
        self._ended: OrderedDict[str, Ended] = OrderedDict()

    def add(self, view: LiveView) -> None:
        """Register the view of a run that goes on."""
        with self._lock:
            self._live[view.id] = view

    def end(self, view: LiveView, bundle: dict[str, Any]) -> None:
        """Replace a view by what stays in the notebook."""
        with self._lock:
            self._live.pop(view.id, None)
            self._ended[view.id] = Ended(view.cell, bundle)
            while len(self._ended) > _KEPT or sum(one.size for one in self._ended.values()) > _KEPT_CHARS:
                if len(self._ended) == 1:
                    break
                self._ended.popitem(last=False)

    def forget(self, cell: str) -> None:
        """Forget the views of a cell that runs anew."""
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
    """Install the handler of pages' requests in a kernel, if it can have one."""
    if REQUEST in getattr(kernel, "control_handlers", ()):
        return
    if not control_channel.register(kernel, REQUEST, lambda content, request: (views.answer(content), ())):
        return

    def on_cell(info: Any = None) -> None:
        if cell := (kernel.get_parent("shell").get("metadata") or {}).get("cellId"):
            views.forget(str(cell))

    kernel.shell.events.register("pre_run_cell", on_cell)
