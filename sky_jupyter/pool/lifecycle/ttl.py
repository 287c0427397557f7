"""The end of a pool by its ``ttl``, as its manager sees to it; the nodes see to it themselves as well."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..base.timeouts import TIMEOUTS

# The nodes' clocks began a moment before or after ours.
_MARGIN = TIMEOUTS.end.ttl_margin


class Expiry:
    """Made with a pool; told when its nodes begin, and when it has ended.

    Parameters
    ----------
    ttl : float or None
        Seconds from the beginning; None for never.
    end : callable
        Ends the pool; called in a thread.
    """

    def __init__(self, ttl: float | None, end: Callable[[], None]) -> None:
        self.ttl = ttl
        self._end = end
        self._at: float | None = None
        self._timer: threading.Timer | None = None

    @property
    def left(self) -> float | None:
        """Seconds until the pool is to end; None for never."""
        if self.ttl is None:
            return None
        return self.ttl if self._at is None else max(0.0, self._at - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether its time is over, or as good as."""
        left = self.left
        return self._at is not None and left is not None and left <= _MARGIN

    @property
    def text(self) -> str:
        """Why the pool has ended, for a message."""
        return f"its ttl of {self.ttl:g} s is over"

    def begin(self, left: float | None = None) -> None:
        """The nodes begin; a pool that is taken up has less ``left``. One that has begun goes on."""
        if self.ttl is None or self._at is not None:
            return
        wait = self.ttl if left is None else max(0.0, left)
        self._at = time.monotonic() + wait
        self._timer = threading.Timer(min(wait, threading.TIMEOUT_MAX), self._end)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        """The pool has ended, or is somebody else's."""
        if self._timer is not None:
            self._timer.cancel()
