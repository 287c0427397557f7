"""Meter of a pool's cost: looks at the machines in the background, beside the cells."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

from ...util.pool_cost import PoolCost
from ..base.event_loop import in_thread, loop
from ..base.timeouts import TIMEOUTS

if TYPE_CHECKING:
    from ...spec.pool_spec import PoolSpec
    from .provisioning import Provisioning

_EVERY = TIMEOUTS.polls.costs


class MeterContext(Protocol):
    """The pool as its meter sees it."""

    @property
    def spec(self) -> PoolSpec: ...

    @property
    def provisioning(self) -> Provisioning: ...


class CostMeter:
    """Meter of one pool; made with it, does nothing if its machines are not bought.

    Parameters
    ----------
    pool : MeterContext
        The pool.
    """

    def __init__(self, pool: MeterContext) -> None:
        self._pool = pool
        self._task: asyncio.Future[None] | None = None

    @property
    def counts(self) -> bool:
        """Return whether the pool's machines are bought."""
        return self._pool.provisioning.buys(self._pool.spec)

    @property
    def now(self) -> PoolCost | None:
        """Return the cost as of now; None if nothing is bought. Asks nobody."""
        spec, provisioning = self._pool.spec, self._pool.provisioning
        return provisioning.bill.now(spec.name) if self.counts else None

    def begin(self, *, at_once: bool = False) -> None:
        """Start looking; ``at_once`` if other managers may have bought the machines."""
        if self._task is None and self.counts:
            self._task = loop().submit(self._follow(at_once))  # type: ignore[assignment]

    def stop(self) -> None:
        """Stop looking."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    def look(self) -> None:
        """Ask the provider for the machines and their cost; may take a while."""
        self._pool.provisioning.charge(self._pool.spec)

    async def _follow(self, at_once: bool) -> None:
        while True:
            if not at_once:
                await asyncio.sleep(_EVERY)
            at_once = False
            # A provider that does not answer: the last known prices hold.
            with contextlib.suppress(Exception):
                await in_thread(self.look)
