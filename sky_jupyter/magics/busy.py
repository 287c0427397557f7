"""The kernel's status: busy for as long as a cell works, whatever pages ask meanwhile on the control channel.

ipykernel says `idle` after each request, also after one on the control channel that a cell does not keep waiting.
Jupyter Server takes that for the kernel's state: it is shown as idle, and is ended for want of activity.
"""

from __future__ import annotations

import threading
from typing import Any


class Status:
    """What a kernel publishes its status with; made by `install`, held by the kernel. Called from any thread.

    Parameters
    ----------
    kernel
        The ipykernel that this process is.
    """

    def __init__(self, kernel: Any) -> None:
        self._kernel, self._publish = kernel, kernel._publish_status
        self._lock = threading.Lock()
        # What the main thread works on: as this is made, the cell that loads the extension, or nothing yet.
        self._parent: Any = kernel.get_parent("shell") or None

    def __call__(self, status: str, channel: str, parent: Any = None) -> None:
        """Publish a status; behind an `idle` of another request, that the main thread is busy still."""
        with self._lock:
            self._publish(status, channel, parent)
            if channel == "shell" and parent is None and threading.current_thread() is threading.main_thread():
                self._parent = None if status == "idle" else self._kernel.get_parent("shell")
            elif status == "idle" and self._parent is not None:
                # With the cell's own header: a page knows by the header above which request is over.
                self._publish("busy", "shell", self._parent)


def install(shell: Any) -> None:
    """Have a kernel keep its status from now on; for a cell that runs in the main thread."""
    kernel: Any = getattr(shell, "kernel", None)
    known = getattr(kernel, "_publish_status", None)
    if kernel is not None and callable(known) and not isinstance(known, Status) and hasattr(kernel, "get_parent"):
        kernel._publish_status = Status(kernel)


def remove(shell: Any) -> None:
    """Undo `install`."""
    kernel: Any = getattr(shell, "kernel", None)
    if kernel is not None and isinstance(vars(kernel).get("_publish_status"), Status):
        del kernel._publish_status
