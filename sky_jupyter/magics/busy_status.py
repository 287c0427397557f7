"""The kernel's status: busy while a cell works, whatever pages ask meanwhile.

ipykernel publishes `idle` after each request, also after one on the control channel, which does not wait for a running
cell. Jupyter Server takes that for the kernel's state: it shows the kernel as idle, and ends it for inactivity.

While a run goes on that no cell waits for, the kernel is idle, and the user may go on working. A message every few
seconds, which pages ignore, counts as activity for the server.

A user who presses interrupt twice may do so the second time when the cell has just ended. ipykernel raises there too,
and loses the cell's reply: the page waits for it forever.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from ..pool.base.event_loop import loop
from ..pool.open_pools import pools

ALIVE = "sky_alive"
# Seconds. Servers cull kernels after a minute at the earliest, and usually after an hour.
_EVERY = 2.0


class Status:
    """Publisher of a kernel's status; made by `install`, callable from any thread.

    Parameters
    ----------
    kernel : Any
        The ipykernel of this process.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel, self._publish = kernel, kernel._publish_status
        self._lock = threading.Lock()
        # The request that the main thread works on: at first the cell that loads the extension, or none.
        self._parent: Any = kernel.get_parent("shell") or None

    def __call__(self, status: str, channel: str, parent: Any = None) -> None:
        """Publish a status; after another request's `idle`, publish `busy` again."""
        with self._lock:
            self._publish(status, channel, parent)
            if channel == "shell" and parent is None and threading.current_thread() is threading.main_thread():
                self._parent = None if status == "idle" else self._kernel.get_parent("shell")
            elif status == "idle" and self._parent is not None:
                # With the cell's own header as the parent: by it, a page knows which request a status is about.
                self._publish("busy", "shell", self._parent)


class Pulse:
    """Heartbeat that tells the server that runs go on; held by the magics.

    Parameters
    ----------
    shell : Any
        The notebook's IPython shell.
    """

    def __init__(self, shell: Any) -> None:
        self._kernel: Any = getattr(shell, "kernel", None)
        self._beating: Future[None] | None = None

    def after_cell(self, result: Any = None) -> None:
        """Start the heartbeat if the cell has left a run that goes on."""
        if self._kernel is not None and (self._beating is None or self._beating.done()) and _runs_go_on():
            self._beating = loop().submit(self._beat(_runs_go_on))

    def stop(self) -> None:
        """Stop the heartbeat."""
        if self._beating is not None:
            self._beating.cancel()

    async def _beat(self, go_on: Callable[[], bool]) -> None:
        while go_on():
            kernel = self._kernel
            kernel.session.send(kernel.iopub_socket, ALIVE, {}, parent={}, ident=ALIVE.encode())
            await asyncio.sleep(_EVERY)


def _runs_go_on() -> bool:
    return any(run.left for pool in pools.all() for run in list(pool.supervisor.runs.values()))


def install(shell: Any) -> None:
    """Keep a kernel's status busy while a cell runs in its main thread."""
    kernel: Any = getattr(shell, "kernel", None)
    known = getattr(kernel, "_publish_status", None)
    if kernel is not None and callable(known) and not isinstance(known, Status) and hasattr(kernel, "get_parent"):
        kernel._publish_status = Status(kernel)
    if hasattr(kernel, "post_handler_hook") and hasattr(kernel, "get_parent"):
        late = LateInterrupts(kernel)
        shell.events.register("pre_run_cell", late.before_cell)
        shell.events.register("post_run_cell", late.after_cell)


class LateInterrupts:
    """Ignores interrupts between a cell's failure and its reply; made by `install`.

    Otherwise ipykernel would lose the reply. It restores the handler after each message (``post_handler_hook``).

    Parameters
    ----------
    kernel : Any
        The ipykernel of this process.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        # The request that is handled, and its own cell: code may run others in it, and goes on when one has failed. Of
        # the request that loads the extension, the cell is not known.
        self._request, self._cell = self._current(), None

    def before_cell(self, info: Any) -> None:
        """Note a request's own cell, which is the first."""
        request = self._current()
        if request != self._request and threading.current_thread() is threading.main_thread():
            self._request, self._cell = request, info

    def after_cell(self, result: Any) -> None:
        """Ignore interrupts if a request's own cell has failed."""
        is_own = result.info is self._cell and threading.current_thread() is threading.main_thread()
        if is_own and not result.success:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _current(self) -> Any:
        return (self._kernel.get_parent("shell") or {}).get("header", {}).get("msg_id")


def remove(shell: Any) -> None:
    """Undo `install`."""
    kernel: Any = getattr(shell, "kernel", None)
    if kernel is not None and isinstance(vars(kernel).get("_publish_status"), Status):
        del kernel._publish_status
    for event in ("pre_run_cell", "post_run_cell"):
        for callback in list(shell.events.callbacks[event]):
            if isinstance(getattr(callback, "__self__", None), LateInterrupts):
                shell.events.unregister(event, callback)
