"""Budget of a pool (``max_cost``): warns at 80%, ends the pool when used up.

Nodes are told when it will be used up at the present price. If they have no manager then, they end by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from ...util.background_tasks import BackgroundTasks
from ...util.pool_cost import PoolCost, dollars, rate
from ...util.validate import is_number
from ..base.event_loop import in_thread
from ..base.log import PoolLog
from ..base.timeouts import TIMEOUTS

if TYPE_CHECKING:
    from ...spec.pool_spec import PoolSpec
    from ..hosts.launch import Host
    from ..runs.input_requests import AskUser

# The pool warns when this part of the budget is used up.
_WARN = 4 / 5
_HOUR = 3600
# How long a question waits for its answer, and how often it is looked at.
_PATIENCE, _LOOK = TIMEOUTS.end.budget, TIMEOUTS.polls.answer
# Nodes end that much later, so that the manager can ask before.
_MARGIN = TIMEOUTS.end.budget_margin
# Nodes are told again if their time has changed by more.
_DIFFERENCE = TIMEOUTS.polls.costs / 2
_MOST = 10**9


class BudgetContext(Protocol):
    """The pool as its budget sees it."""

    hosts: list[Host]
    ask: AskUser | None

    @property
    def spec(self) -> PoolSpec: ...

    @property
    def logger(self) -> PoolLog: ...

    def change_spec(self, spec: PoolSpec) -> None:
        """Replace the spec, for later managers as well."""
        ...

    def say(self, text: str) -> None:
        """Send a message to the runs' views, else below the last cell."""
        ...


class Budget:
    """Budget of one pool; used on the loop's thread.

    Parameters
    ----------
    pool : BudgetContext
        The pool.
    expire : callable
        Called in a thread with the reason to end the pool.
    """

    def __init__(self, pool: BudgetContext, expire: Callable[[str], None]) -> None:
        self._pool, self._expire = pool, expire
        # The budget of which it has warned, and whether it has said that no price is known.
        self._warned = 0.0
        self._said_unknown = False
        # By its id, each host, and the monotonic time until which its node was told to live.
        self._told: dict[int, tuple[Host, float]] = {}
        # Ends the pool.
        self._ending: threading.Thread | None = None
        # The ids of hosts that are being told: one may hang.
        self._being_told: set[int] = set()
        self._tasks = BackgroundTasks()

    def is_used_up(self, cost: PoolCost | None) -> bool:
        """Return whether the pool has cost its budget."""
        most = self._pool.spec.max_cost
        return most is not None and cost is not None and cost.total is not None and cost.total >= most

    def text(self) -> str:
        """Return the reason of the pool's end, for a message."""
        most = self._pool.spec.max_cost or 0.0
        return f"its budget of {dollars(most)} is used up (`--max-cost` gives it more)"

    def next(self, cost: PoolCost) -> float:
        """Return the seconds until it warns or ends the pool, at the present price."""
        most = self._pool.spec.max_cost
        if most is None or not cost.hourly or cost.total is None:
            return math.inf
        goal = most if self._warned == most else _WARN * most
        return max(0.0, (goal - cost.total) / cost.hourly * _HOUR)

    async def check(self, look: Callable[[], PoolCost | None]) -> None:
        """Warn, ask or end the pool, as its cost demands; tell the nodes.

        Parameters
        ----------
        look : callable
            Returns the cost as of now.
        """
        most, cost = self._pool.spec.max_cost, look()
        if most is None or cost is None or (self._ending is not None and self._ending.is_alive()):
            return
        if cost.unknown:
            self._say_unknown(cost)
        if cost.total is None or cost.hourly is None:
            return
        if self.is_used_up(cost) and not await self._is_raised(look):
            end = threading.Thread(target=self._expire, args=(self.text(),), name="sky-budget", daemon=True)
            self._ending = end
            end.start()
            return
        cost, most = look() or cost, self._pool.spec.max_cost or most
        if (cost.total or 0.0) >= _WARN * most and self._warned != most:
            self._warned = most
            self._pool.say(self._warning(cost, most))
        await self._tell_nodes(cost, most)

    def _warning(self, cost: PoolCost, most: float) -> str:
        name, total, hourly = self._pool.spec.name, cost.total or 0.0, cost.hourly or 0.0
        left = f": at {rate(hourly)} an hour it ends in {_duration((most - total) / hourly * _HOUR)}" if hourly else ""
        return f"pool {name!r} has cost {dollars(total)} of its budget of {dollars(most)}{left} ({self._more(most)})"

    def _more(self, most: float) -> str:
        return f"`%sky up --name {self._pool.spec.name} --max-cost {2 * most:g}` gives it more"

    def _say_unknown(self, cost: PoolCost) -> None:
        if not self._said_unknown:
            self._said_unknown = True
            name = f"pool {self._pool.spec.name!r}"
            if cost.total is None or cost.hourly is None:
                self._pool.say(f"the price of {name} is unknown: its budget cannot be kept")
            else:
                machines = f"{cost.unknown} machine{'s' if cost.unknown > 1 else ''}"
                self._pool.say(f"the price of {machines} of {name} is unknown: its budget is kept without them")

    async def _is_raised(self, look: Callable[[], PoolCost | None]) -> bool:
        """Ask the user; return whether the budget is raised in time."""
        ask, most = self._pool.ask, self._pool.spec.max_cost or 0.0
        text = f"pool {self._pool.spec.name!r} has used up its budget of {dollars(most)}"
        if ask is None:
            return False
        question = ask(f"{text[0].upper()}{text[1:]}. How many dollars may it cost in all? (nothing: it ends) ")
        if question.done() and question.result() is None:
            return False
        self._pool.say(f"{text}: it ends in {_PATIENCE:g} s ({self._more(most)})")
        end = time.monotonic() + _PATIENCE
        while time.monotonic() < end and not question.done():
            if not self.is_used_up(look()):
                question.cancel()
                return True
            await asyncio.sleep(_LOOK)
        if not question.done():
            question.cancel()
            return False
        self._take(question.result())
        return not self.is_used_up(look())

    def _take(self, answer: str | None) -> None:
        """Take an answer as the new budget, if it is an amount."""
        with contextlib.suppress(ValueError):
            amount = float((answer or "").strip().lstrip("$"))
            if is_number(amount, 0, _MOST) and amount:
                self.raise_to(amount)

    def raise_to(self, amount: float) -> None:
        """Replace the budget; any thread."""
        self._pool.logger.write(logging.INFO, f"its budget is {dollars(amount)} now")
        self._pool.change_spec(replace(self._pool.spec, max_cost=amount))

    async def _tell_nodes(self, cost: PoolCost, most: float) -> None:
        """Tell each host when the budget is used up, unless it knows."""
        if not cost.hourly:
            return
        left = max(0.0, (most - (cost.total or 0.0)) / cost.hourly * _HOUR) + _MARGIN
        end = time.monotonic() + left
        hosts = list(self._pool.hosts)
        self._told = {id(host): self._told[id(host)] for host in hosts if id(host) in self._told}
        news = [host for host in hosts if abs(self._told.get(id(host), (host, -math.inf))[1] - end) > _DIFFERENCE]
        tasks = [self._tasks.start(self._tell(host, left, end)) for host in news if id(host) not in self._being_told]
        if tasks:
            await asyncio.wait(tasks, timeout=_DIFFERENCE)

    async def _tell(self, host: Host, left: float, end: float) -> None:
        self._being_told.add(id(host))
        try:
            # Unreachable ones are told when they are back.
            with contextlib.suppress(Exception):
                await in_thread(host.say_budget, left)
                self._told[id(host)] = host, end
        finally:
            self._being_told.discard(id(host))


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


__all__ = ["Budget"]
