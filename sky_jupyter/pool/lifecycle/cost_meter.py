"""Meter of a pool's cost: looks at the machines in the background."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ...providers.base import has_prices
from ...util.pool_cost import PoolCost
from ..base.event_loop import in_thread, loop
from ..base.timeouts import TIMEOUTS
from .budget import Budget, BudgetContext

if TYPE_CHECKING:
    from concurrent.futures import Future

    from .provisioning import Provisioning

_log = logging.getLogger(__name__)
_EVERY, _SHORTEST = TIMEOUTS.polls.costs, TIMEOUTS.polls.answer
# The budget does not wait longer for a provider's answer: the last known prices hold.
_PATIENCE = _EVERY / 2


class MeterContext(BudgetContext, Protocol):
    """The pool as its meter sees it."""

    @property
    def provisioning(self) -> Provisioning: ...


class CostMeter:
    """Meter of one pool; made with it, does nothing if its machines are not bought.

    Parameters
    ----------
    pool : MeterContext
        The pool.
    expire : callable
        Called in a thread with the reason to end the pool.
    """

    def __init__(self, pool: MeterContext, expire: Callable[[str], None]) -> None:
        self._pool = pool
        self.budget = Budget(pool, expire)
        self._task: Future[None] | None = None
        # Set when the budget has changed.
        self._news = asyncio.Event()

    @functools.cached_property
    def counts(self) -> bool:
        """Whether the pool's machines are bought, and have prices."""
        return has_prices(self._pool.spec.provider)

    @property
    def now(self) -> PoolCost | None:
        """The cost as of now, by the last known prices; None if nothing is bought."""
        spec, provisioning = self._pool.spec, self._pool.provisioning
        return provisioning.bill.now(spec.name, spec.max_cost) if self.counts else None

    @property
    def used_up(self) -> str:
        """The message that the budget is used up, or ""."""
        return self.budget.text() if self.budget.is_used_up(self.now) else ""

    def begin(self, *, at_once: bool = False) -> None:
        """Start looking; ``at_once`` if other managers may have bought the machines."""
        if self._task is None and self.counts:
            cost = self.now
            # A price may be unknown, for example, of machines that were listed, not bought by this process.
            unknown = cost is not None and cost.unknown > 0
            self._task = loop().submit(self._follow(at_once or unknown))

    def stop(self) -> None:
        """Stop looking."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    def look(self) -> None:
        """Ask the provider for the machines and their cost; may take a while."""
        self._pool.provisioning.charge(self._pool.spec)

    def raise_budget(self, amount: float) -> None:
        """Replace the pool's budget, at once."""
        self.budget.raise_to(amount)
        loop().loop.call_soon_threadsafe(self._news.set)

    async def _follow(self, at_once: bool) -> None:
        looked = time.monotonic() - (_EVERY if at_once else 0.0)
        looking: asyncio.Future[None] | None = None
        while True:
            if time.monotonic() - looked >= _EVERY:
                looked = time.monotonic()
                if looking is None or looking.done():
                    looking = asyncio.ensure_future(self._look())
                await asyncio.wait([looking], timeout=_PATIENCE)
            try:
                await self.budget.check(lambda: self.now)
            except Exception:
                # A message that cannot be shown must not end the meter, which keeps the budget.
                _log.exception("the budget of pool %s was not checked", self._pool.spec.name)
            await self._wait(max(0.0, looked + _EVERY - time.monotonic()))

    async def _look(self) -> None:
        with contextlib.suppress(Exception):
            await in_thread(self.look)

    async def _wait(self, longest: float) -> None:
        """Wait until it is time to look, or the budget matters."""
        cost = self.now
        wait = longest if cost is None else min(longest, max(_SHORTEST, self.budget.next(cost)))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._news.wait(), wait)
        self._news.clear()
