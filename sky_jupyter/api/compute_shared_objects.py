"""Shared objects from outside of the pool.

``compute.dict(name)`` is what `sky.dict` is on the pool's ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..node.shared.shared_types import SharedBarrier, SharedCounter, SharedDict, SharedLock, SharedQueue, SharedSet
from ..session.pools import live_pool

if TYPE_CHECKING:
    from ..node.shared.agent_channel import SharedStateChannel
    from ..pool.pool import Pool


class SharedNames:
    """Mixin of `Compute` with the pool's shared objects."""

    pool: Pool | None

    def dict(self, name: str) -> SharedDict:
        """Return the pool's shared dict of a name.

        Parameters
        ----------
        name : str
            Any name; the object is made on first use.

        Returns
        -------
        SharedDict
            Its proxy.
        """
        return SharedDict(name, of=self._shares())

    def set(self, name: str) -> SharedSet:
        """Return the pool's shared set of a name.

        Parameters
        ----------
        name : str
            Any name; the object is made on first use.

        Returns
        -------
        SharedSet
            Its proxy.
        """
        return SharedSet(name, of=self._shares())

    def counter(self, name: str) -> SharedCounter:
        """Return the pool's shared counter of a name.

        Parameters
        ----------
        name : str
            Any name; the object is made on first use.

        Returns
        -------
        SharedCounter
            Its proxy.
        """
        return SharedCounter(name, of=self._shares())

    def queue(self, name: str, maxsize: int = 0) -> SharedQueue:
        """Return the pool's shared queue of a name.

        Parameters
        ----------
        name : str
            Any name; the object is made on first use.
        maxsize : int
            The largest number of items that wait in it; 0 for any number.

        Returns
        -------
        SharedQueue
            Its proxy.
        """
        return SharedQueue(name, maxsize, of=self._shares())

    def lock(self, name: str, *, timeout: float | None = None) -> SharedLock:
        """Return the pool's shared lock of a name.

        Parameters
        ----------
        name : str
            Any name; the object is made on first use.
        timeout : float, optional
            Seconds that ``with`` waits for the lock; without limit by default.

        Returns
        -------
        SharedLock
            Its proxy.
        """
        return SharedLock(name, timeout, of=self._shares())

    def barrier(self, name: str, n: int | None = None) -> SharedBarrier:
        """Return the pool's shared barrier of a name.

        Parameters
        ----------
        name : str
            Any name; the object is made on first use.
        n : int, optional
            The number of ranks that wait for each other; by default all of the pool.

        Returns
        -------
        SharedBarrier
            Its proxy.
        """
        shares = self._shares()
        return SharedBarrier(name, shares.world_size() if n is None else n, of=shares)

    def _shares(self) -> SharedStateChannel:
        return live_pool(self).shared.shares
