"""Queue for a main thread that gets signals while it waits."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class TimedQueue(Generic[T]):
    """Queue with one reader, whose timeout holds even if signals arrive.

    `queue.SimpleQueue.get` of Python 3.10 to 3.12 waits forever if a signal's handler returns after the timeout, as
    happens on a busy machine. `queue.Queue` has a lock that a finaliser must not wait for, and finalisers read this
    queue.
    """

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[T] = queue.SimpleQueue()
        # Unlocked when there may be an item. An interrupt inside of an Event could leave its lock taken, and `put`
        # waiting.
        self._filled = threading.Lock()

    def put(self, item: T) -> None:
        """Add an item; any thread."""
        self._items.put(item)
        with contextlib.suppress(RuntimeError):  # It is free.
            self._filled.release()

    def get(self, timeout: float) -> T:
        """Return the next item; raise queue.Empty after ``timeout`` seconds."""
        with contextlib.suppress(queue.Empty):
            return self.get_nowait()
        self._filled.acquire(blocking=False)
        # An item that came before `acquire` is returned here; a later one ends the wait.
        with contextlib.suppress(queue.Empty):
            return self.get_nowait()
        self._filled.acquire(timeout=timeout)
        return self.get_nowait()

    def get_nowait(self) -> T:
        """Return the next item; raise queue.Empty if there is none. For finalisers too."""
        return self._items.get_nowait()
