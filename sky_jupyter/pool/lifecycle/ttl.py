"""The manager's timer of a pool's ``ttl``; nodes have timers of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..base.timeouts import TIMEOUTS

# The nodes' clocks began a moment before or after ours.
_MARGIN = TIMEOUTS.end.ttl_margin


class Expiry:
    """Timer of a pool's ``ttl``; made with the pool.

    Parameters
    ----------
    ttl : float or None
        Seconds from the nodes' start; None for no limit.
    end : callable
        Ends the pool; called in a thread.
    given : bool
        Whether the user gave it; else it is the default for machines that a provider creates.
    """

    def __init__(self, ttl: float | None, end: Callable[[], None], *, given: bool = True) -> None:
        self.ttl = ttl
        self._end, self._given = end, given
        self._at: float | None = None
        self._timer: threading.Timer | None = None

    @property
    def left(self) -> float | None:
        """The seconds until the pool ends; None for no limit."""
        if self.ttl is None:
            return None
        return self.ttl if self._at is None else max(0.0, self._at - time.monotonic())

    @property
    def over(self) -> bool:
        """Whether the ``ttl`` is over, or nearly."""
        left = self.left
        return self._at is not None and left is not None and left <= _MARGIN

    @property
    def text(self) -> str:
        """The reason of the pool's end, for messages."""
        if not self._given and self.ttl is not None:
            return f"the {self.ttl / 3600:g} h of machines that are made for a pool are over (`--ttl` gives them more)"
        return f"its ttl of {self.ttl:g} s is over"

    def begin(self, left: float | None = None) -> None:
        """Start the timer, unless it runs; ``left`` shortens the time."""
        if self.ttl is None or self._at is not None:
            return
        wait = self.ttl if left is None else min(self.ttl, max(0.0, left))
        self._at = time.monotonic() + wait
        self._timer = threading.Timer(min(wait, threading.TIMEOUT_MAX), self._end)
        self._timer.daemon = True
        self._timer.start()

    def stop(self) -> None:
        """Cancel the timer: the pool has ended, or changed its manager."""
        if self._timer is not None:
            self._timer.cancel()
