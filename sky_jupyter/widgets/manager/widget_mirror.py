"""Widgets of ranks in the notebook's pages.

Their comms are open in the notebook's kernel too, which relays messages both ways.

So a page shows them like the notebook's own, in the same widget manager, also after a reload. A thread sends the ranks'
messages, also while a cell runs. A page's messages come in a subshell if front end and kernel support that, else when
the kernel is free.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from ...node.protocol.comm_messages import WIDGET, CommMessage, CommQueue, read
from ...util import control_channel
from ...util.control_channel import Reply
from ..open_comms import OpenComms

REQUEST = "sky_widgets_request"
CONTROL = "jupyter.widget.control"
_log = logging.getLogger(__name__)
# Seconds between two batches to the pages, and messages in each: a server passes on 1,000 messages a second and drops
# the others.
_INTERVAL = 0.05
_AT_A_TIME = 20
# Most headers of pages' messages that are kept, to be the parents of the ranks' answers.
_KEPT_HEADERS = 500
_MOST_ASKED = 1000
Send = Callable[[CommMessage], None]
Key = tuple[str, int]


class Mirrored:
    """Proxy of a rank's comm in a kernel's list, which gets pages' messages."""

    def __init__(self, widgets: Widgets, key: Key, id: str, target: str) -> None:
        self.comm_id, self.target_name = id, target
        self._widgets, self._key = widgets, key
        self._closed = False

    def handle_msg(self, message: dict[str, Any]) -> None:
        """Relay a page's message, in any thread."""
        self._widgets.on_page(self._key, self.comm_id, message)

    def handle_close(self, message: dict[str, Any]) -> None:
        """Relay a page's closing of the comm."""
        self._widgets.on_page(self._key, self.comm_id, message)


class _Listed(dict[str, Any]):
    """Kernel's comms by id, safe to add to while the kernel iterates."""

    def items(self) -> Any:
        return list(super().items())


class WidgetMirror:
    """Receiver of the ranks' messages of a pool; made by `Widgets.mirror`."""

    def __init__(self, widgets: Widgets, pool: str) -> None:
        self._widgets, self._pool = widgets, pool

    def take(self, messages: Sequence[CommMessage]) -> None:
        """Handle messages of ranks; callable from any thread."""
        self._widgets.take(self._pool, messages)

    def reset(self, ranks: Sequence[int], messages: Sequence[CommMessage]) -> None:
        """Replace the list of these ranks' open comms; callable from any thread."""
        self._widgets.reset(self._pool, ranks, messages)


class Widgets:
    """Widgets of ranks in a kernel's pages; one instance per kernel, see `of`.

    Parameters
    ----------
    kernel : ipykernel.kernelbase.Kernel
        This process's kernel.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self._lock = threading.RLock()
        # Weak references, which do not keep an ended pool alive.
        self._sends: dict[str, weakref.WeakMethod[Send]] = {}
        self._held: dict[Key, OpenComms] = {}
        self._owners: dict[str, Key] = {}
        self._pending = CommQueue(any_keys=True)
        # Comms whose opening was not yet sent to the pages: a page that asks gets them only after that.
        self._untold: set[str] = set()
        self._headers: OrderedDict[str, Any] = OrderedDict()
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        # The handler by which the notebook's own widgets answer a page that asks for all of them.
        self._own_control: Any = None
        manager = kernel.comm_manager
        manager.comms = _Listed(manager.comms)
        kernel.shell.events.register("post_run_cell", lambda result: self._answer_control())
        control_channel.register(kernel, REQUEST, self._on_request)

    def mirror(self, pool: str, send: Send) -> WidgetMirror:
        """Return a pool's receiver; ``send`` sends a page's message to the rank."""
        with self._lock:
            self._sends[pool] = weakref.WeakMethod(send)
        return WidgetMirror(self, pool)

    # -- what the ranks say ------------------------------------------------------------------------

    def take(self, pool: str, messages: Sequence[CommMessage]) -> None:
        """Handle messages of a pool's ranks; callable from any thread."""
        with self._lock:
            for message in messages:
                self._take((pool, message.rank), message)
        self._tell_pages()

    def reset(self, pool: str, ranks: Sequence[int], messages: Sequence[CommMessage]) -> None:
        """Replace the list of a pool's open comms; callable from any thread."""
        there = {message.comm for message in messages}
        with self._lock:
            for key in [(pool, rank) for rank in ranks if (pool, rank) in self._held]:
                self._close([id for id, owner in self._owners.items() if owner == key and id not in there])
            for message in messages:
                key = pool, message.rank
                comm = self._held[key].get(message.comm) if key in self._held else None
                if comm is None:
                    self._take(key, message)
                elif (comm.opening.state, comm.opening.binary) != (message.state, message.binary):
                    change = CommMessage(
                        "update", message.comm, message.rank, state=message.state, binary=message.binary
                    )
                    self._take(key, change)
        self._tell_pages()

    def _take(self, key: Key, message: CommMessage) -> None:
        comms = self._kernel.comm_manager.comms
        if message.kind == "open" and message.comm not in self._owners:
            if message.comm in comms:
                # It is one of the notebook's own, which no rank may replace.
                return
            self._owners[message.comm] = key
        if self._owners.get(message.comm) != key:
            return
        if message.kind == "close":
            self._close([message.comm])
            return
        if key not in self._held:
            self._held[key] = OpenComms(self._close)
        if self._held[key].take(message):
            self._pending.add(message)
            if message.kind == "open":
                self._untold.add(message.comm)
                comms[message.comm] = Mirrored(self, key, message.comm, str(message.head.get("target_name")))
                self._answer_control()

    def _close(self, ids: Sequence[str]) -> None:
        for id in ids:
            key = self._owners.pop(id, None)
            if key is not None:
                message = CommMessage("close", id, key[1])
                self._held[key].take(message)
                self._kernel.comm_manager.comms.pop(id, None)
                self._untold.discard(id)
                self._pending.add(message)

    # -- what pages are told -----------------------------------------------------------------------

    def _tell_pages(self) -> None:
        with self._lock:
            if self._pending and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sky-widgets", daemon=True)
                self._thread.start()
        self._news.set()

    def _run(self) -> None:
        # It ends after a while without news: most pools have no widgets.
        while self._news.wait(10.0):
            self._news.clear()
            while messages := self._next():
                for message in messages:
                    self._publish(message, self._headers.get(message.parent) if message.parent else None)
                    self._untold.discard(message.comm)
                time.sleep(_INTERVAL)
        with self._lock:
            self._thread = None
        if self._pending:
            self._tell_pages()

    def _next(self) -> list[CommMessage]:
        with self._lock:
            return self._pending.take(_AT_A_TIME)

    def _publish(self, message: CommMessage, parent: Any) -> None:
        kernel, topic = self._kernel, f"comm-{message.comm}".encode()
        try:
            kind, content, metadata, buffers = message.jupyter()
            stream = kernel.iopub_socket
            kernel.session.send(
                stream, kind, content, metadata=metadata, parent=parent, ident=topic, buffers=buffers or None
            )
        except Exception:
            # A rank's message that Jupyter refuses must not affect the others.
            _log.warning("a widget's message could not be passed on", exc_info=True)

    # -- what pages say ----------------------------------------------------------------------------

    def on_page(self, key: Key, id: str, message: dict[str, Any]) -> None:
        """Relay a page's message to a rank's comm; callable from any thread."""
        with self._lock:
            comm = self._held[key].get(id)
            send = self._sends[key[0]]()
            header = message.get("header") or {}
            self._headers[str(header.get("msg_id"))] = header
            while len(self._headers) > _KEPT_HEADERS:
                self._headers.popitem(last=False)
        if comm is None or send is None:
            return
        data = message["content"].get("data")
        if comm.widget and isinstance(data, dict) and data.get("method") == "request_state":
            self._publish(
                CommMessage("update", id, key[1], state=comm.opening.state, binary=comm.opening.binary), header
            )
            return
        told = read(message, widget=comm.widget, rank=key[1])
        if told is None:
            return
        told.parent = str(header.get("msg_id"))
        send(told)

    def _answer_control(self) -> None:
        """Add the ranks' widgets to the answer to a page that asks for all widgets."""
        targets = self._kernel.comm_manager.targets
        if self._owners and targets.get(CONTROL) != self._on_control:
            # The notebook's own widgets may be imported at any time, and then set their own handler.
            self._own_control = targets.get(CONTROL)
            targets[CONTROL] = self._on_control

    def _on_control(self, comm: Any, message: dict[str, Any]) -> None:
        send = comm.send

        def answer(data: Any = None, metadata: Any = None, buffers: Sequence[Any] | None = None, **more: Any) -> None:
            if isinstance(data, dict) and data.get("method") == "update_states":
                states, paths, ours = self._states()
                data = {
                    **data,
                    "states": {**data.get("states", {}), **states},
                    "buffer_paths": [*data.get("buffer_paths", []), *paths],
                }
                buffers = [*(buffers or []), *ours]
            send(data, metadata, buffers, **more)

        comm.send = answer
        if self._own_control is not None:
            self._own_control(comm, message)
        else:
            comm.on_msg(lambda asked: answer({"method": "update_states", "states": {}, "buffer_paths": []}))

    def _states(self) -> tuple[dict[str, Any], list[list[str | int]], list[bytes]]:
        """Return the states of all ranks' widgets, and their bytes with the paths."""
        states: dict[str, Any] = {}
        paths: list[list[str | int]] = []
        buffers: list[bytes] = []
        with self._lock:
            openings = [message for held in self._held.values() for message in held.openings()]
            for message in openings:
                if message.head.get("target_name") != WIDGET:
                    continue
                values = message.values()
                names = ("model_name", "model_module", "model_module_version")
                states[message.comm] = {name: values.get(f"_{name}") for name in names} | {"state": values}
                paths += [[message.comm, "state", *path] for path in message.binary]
                buffers += message.binary.values()
        return states, paths, buffers

    def _on_request(self, asked: dict[str, Any], request: dict[str, Any]) -> Reply:
        """Answer, on the control channel, a page that was opened while a cell runs.

        See docs/view.md.
        """
        key = self._owners.get(str(asked.get("comm_id")))
        if key is not None:
            self.on_page(key, str(asked["comm_id"]), {**request, "msg_type": "comm_msg"})
            return {"status": "ok"}, ()
        comms, buffers = self.openings(asked.get("widgets"))
        return {"status": "ok", "comms": comms}, buffers

    def openings(self, asked: Any) -> tuple[list[dict[str, Any]], list[bytes]]:
        """Return messages that open these widgets and all that they refer to.

        Each message has the number of its own buffers.
        """
        ids = [id for id in asked if isinstance(id, str)][:_MOST_ASKED] if isinstance(asked, list) else []
        comms: list[dict[str, Any]] = []
        buffers: list[bytes] = []
        with self._lock:
            for key in dict.fromkeys(self._owners[id] for id in ids if id in self._owners):
                for message in self._held[key].with_references(ids):
                    if message.comm in self._untold:
                        continue
                    _, content, metadata, own = message.jupyter()
                    comms.append({"content": content, "metadata": metadata, "buffers": len(own)})
                    buffers += own
        return comms, buffers


_kernels: dict[int, Widgets] = {}


def of(kernel: Any) -> Widgets:
    """Return a kernel's widgets, made on first use; main thread only."""
    if id(kernel) not in _kernels:
        _kernels[id(kernel)] = Widgets(kernel)
    return _kernels[id(kernel)]
