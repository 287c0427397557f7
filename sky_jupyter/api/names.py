"""What a pool shares by name, from outside of it: ``compute.dict(name)`` is what `sky.dict` is on its ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..node.shared.objects import SharedBarrier, SharedCounter, SharedDict, SharedLock, SharedQueue, SharedSet
from ..session.pools import live_pool

if TYPE_CHECKING:
    from ..node.shared.agent_channel import Shares
    from ..pool.pool import Pool


class SharedNames:
    """What `Compute` has of it."""

    pool: Pool | None

    def dict(self, name: str) -> SharedDict:
        """The pool's dict of this name."""
        return SharedDict(name, of=self._shares())

    def set(self, name: str) -> SharedSet:
        """The pool's set of this name."""
        return SharedSet(name, of=self._shares())

    def counter(self, name: str) -> SharedCounter:
        """The pool's counter of this name."""
        return SharedCounter(name, of=self._shares())

    def queue(self, name: str, maxsize: int = 0) -> SharedQueue:
        """The pool's queue of this name, in which at most ``maxsize`` items wait, or any number."""
        return SharedQueue(name, maxsize, of=self._shares())

    def lock(self, name: str, *, timeout: float | None = None) -> SharedLock:
        """The pool's lock of this name; ``with`` waits for it ``timeout`` seconds, without limit unless given."""
        return SharedLock(name, timeout, of=self._shares())

    def barrier(self, name: str, n: int | None = None) -> SharedBarrier:
        """The pool's barrier of this name, at which ``n`` wait for each other: as many as it has ranks unless given."""
        shares = self._shares()
        return SharedBarrier(name, shares.world_size() if n is None else n, of=shares)

    def _shares(self) -> Shares:
        return live_pool(self).shared.shares
