"""How long the link lives: with its owner, or until nobody has used it for so long."""

from __future__ import annotations

import threading
import time

from .. import identity


class Lifetime:
    """Counts clients, and knows the owner.

    Parameters
    ----------
    owner : identity.Process, optional
        The process that the link ends with, unless it has a lease.
    lease : float, optional
        Seconds that it lives on after its last client is gone; then the owner does not matter.
    """

    def __init__(self, owner: identity.Process | None, lease: float | None) -> None:
        self.owner, self.lease = owner, lease
        self._clients = 0
        self._since = time.monotonic()
        self._lock = threading.Lock()

    def enter(self) -> None:
        """A client is there."""
        with self._lock:
            self._clients += 1

    def leave(self) -> None:
        """A client is gone."""
        with self._lock:
            self._clients -= 1
            self._since = time.monotonic()

    def keep(self, lease: float | None) -> None:
        """Have another lease, or none: then it ends with its owner."""
        with self._lock:
            self.lease = lease
            self._since = time.monotonic()

    def over(self) -> str:
        """Why it is over; empty while it is not."""
        with self._lock:
            if self.lease is None:
                gone = self.owner is not None and not identity.lives(*self.owner)
                return "its owner has ended" if gone else ""
            idle = time.monotonic() - self._since
            return f"nobody was there for {self.lease:g} s" if not self._clients and idle >= self.lease else ""
