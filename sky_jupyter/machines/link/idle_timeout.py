"""How long the link lives: with its owner, or until nobody has used it for so long."""

from __future__ import annotations

import threading
import time

from ...util import process_identity


class Lifetime:
    """Counts clients, and knows the owner.

    Parameters
    ----------
    owner : identity.Process, optional
        The process that the link ends with, unless it has a lease.
    lease : float, optional
        Seconds that it lives on after its last client is gone; then the owner does not matter.

    Attributes
    ----------
    pool : bool, optional
        Whether the pool that it serves was there when it was last looked at; None where that is not known.
    """

    def __init__(self, owner: process_identity.Process | None, lease: float | None) -> None:
        self.owner, self.lease = owner, lease
        self.pool: bool | None = None
        self._clients = 0
        self._since = time.monotonic()
        self._lock = threading.Lock()

    def enter(self) -> None:
        """A client is there."""
        with self._lock:
            self._clients += 1
            # What is there is the client's to find out from now on.
            self.pool = None

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

    @property
    def idle(self) -> float | None:
        """For how many seconds nobody has been there; None while somebody is."""
        with self._lock:
            return None if self._clients else time.monotonic() - self._since

    def over(self) -> str:
        """Why it is over; empty while it is not."""
        with self._lock:
            if self.lease is None:
                gone = self.owner is not None and not process_identity.lives(*self.owner)
                return "its owner has ended" if gone else ""
            if self._clients or self.pool:
                return ""
            if self.pool is False:
                return "its pool has ended"
            idle = time.monotonic() - self._since
            return f"nobody was there for {self.lease:g} s" if idle >= self.lease else ""
