"""``%sky cost``: what pools cost, machine by machine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from concurrent.futures import TimeoutError as FutureTimeout

from ..errors import PoolError
from ..pool.base.event_loop import in_thread, loop
from ..pool.base.timeouts import TIMEOUTS
from ..pool.open_pools import pools
from ..pool.registry import cost_rows, pool_bill
from ..pool.registry.registry import Registry
from ..util.pool_cost import ENDED, UNKNOWN, MachineCost, PoolCost, dollars, rate, text

# Number of pools that are shown, the newest last.
_SHOWN = 20
_HEADS = ("pool", "machine", "type", "market", "zone", "$/h", "since", "so far")
_RIGHT = (5, 7)
_NONE = "no machine was ever bought for a pool"


def table(name: str | None) -> str:
    """Return the cost of pools as a table, the newest last.

    Parameters
    ----------
    name : str, optional
        The pools of this name; by default the newest of all.

    Returns
    -------
    str
        A row per machine, and a line per pool.

    Raises
    ------
    PoolError
        When no pool has this name.
    """
    for pool in pools.all():
        # If a provider does not answer, what is known already is shown.
        with contextlib.suppress(Exception, FutureTimeout):
            loop().call(in_thread(pool.lifecycle.meter.look), timeout=TIMEOUTS.answers.request)
    found = _costs(name)
    if name is not None and not found:
        if pools.get(name) is not None:
            return f"pool {name}: nothing was bought for it"
        raise PoolError(f"no machine was ever bought for a pool {name!r}")
    if not found:
        return _NONE
    rows = [_row(cost.name, one) for cost in found for one in cost.machines]
    return "\n".join([*_aligned([_HEADS, *rows]), *(f"pool {cost.name}: {text(cost)}" for cost in found)])


def _costs(name: str | None) -> list[PoolCost]:
    registry = Registry()
    try:
        rows = cost_rows.every(registry)
    finally:
        registry.close()
    by_pool: dict[str, list[cost_rows.CostRow]] = {}
    for row in rows:
        if name in (None, row.name, row.pool):
            by_pool.setdefault(row.pool, []).append(row)
    return [pool_bill.account(several) for several in by_pool.values()][-_SHOWN:]


def _row(pool: str, one: MachineCost) -> tuple[str, ...]:
    hourly = ENDED if one.state == ENDED else UNKNOWN if one.hourly is None else rate(one.hourly)
    state = f" ({one.state})" if one.state == cost_rows.STOPPED else ""
    since = time.strftime("%d %b %H:%M", time.localtime(one.since))
    place = one.zone or one.region
    so_far = UNKNOWN if one.total is None else dollars(one.total)
    return pool, f"{one.id}{state}", one.kind, one.market, place, hourly, since, so_far


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines, with numbers to the right and without empty columns."""
    kept = [index for index in range(len(_HEADS)) if any(row[index] for row in rows[1:])]
    widths = {index: max(len(row[index]) for row in rows) for index in kept}
    return [
        "  ".join(
            row[index].rjust(widths[index]) if index in _RIGHT else row[index].ljust(widths[index]) for index in kept
        ).rstrip()
        for row in rows
    ]
