"""Lifetime of the link: as long as its owner, or until an idle timeout."""

from __future__ import annotations

import threading
import time

from ...util import process_identity


class IdleTimeout:
    """Client counter that decides when the link ends.

    Parameters
    ----------
    owner : process_identity.ProcessIdentity, optional
        Process that the link ends with, unless it has a lease.
    lease : float, optional
        Idle timeout: seconds without a client after which the link ends. With one, the owner is ignored.

    Attributes
    ----------
    pool : bool, optional
        True if the pool was alive at the last poll; None if that is unknown.
    """

    def __init__(self, owner: process_identity.ProcessIdentity | None, lease: float | None) -> None:
        self.owner, self.lease = owner, lease
        self.pool: bool | None = None
        self._clients = 0
        self._since = time.monotonic()
        self._lock = threading.Lock()

    def enter(self) -> None:
        """Count a new client."""
        with self._lock:
            self._clients += 1
            # From now on the client checks whether the pool is alive.
            self.pool = None

    def leave(self) -> None:
        """Count a client that has left."""
        with self._lock:
            self._clients -= 1
            self._since = time.monotonic()

    def keep(self, lease: float | None) -> None:
        """Set another lease, or none: then the link ends with its owner."""
        with self._lock:
            self.lease = lease
            self._since = time.monotonic()

    @property
    def idle(self) -> float | None:
        """Seconds without a client; None while there is one."""
        with self._lock:
            return None if self._clients else time.monotonic() - self._since

    def over(self) -> str:
        """Return why the link ends; empty while it is not."""
        with self._lock:
            if self.lease is None:
                gone = self.owner is not None and not process_identity.lives(*self.owner)
                return "its owner has ended" if gone else ""
            if self._clients or self.pool:
                return ""
            if self.pool is False:
                return "its pool has ended"
            idle = time.monotonic() - self._since
            return f"no client was connected for {self.lease:g} s" if idle >= self.lease else ""
