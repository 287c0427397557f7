"""Destruction of a provider's machines: at a pool's end, and by sweeps.

A request to destroy a machine proves nothing: the provider is polled until it lists the machine as gone or going.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...errors import PoolError, SkyError
from ...util.pool_cost import PoolCost
from ...util.text import first_line
from ..base.timeouts import TIMEOUTS
from . import (
    folder_removal,
    lease_expiry,
    machine_orders,
    orphaned_machines,
    provider_accounts,
    remote_leftovers,
    stopped_pools,
)
from .machine_orders import OrderRow
from .orphaned_machines import destroy
from .pool_bill import PoolBill

if TYPE_CHECKING:
    from ...providers.base import Provisioner
    from .registry import Registry
    from .rows import PoolRow

SWEEP_LIMIT = TIMEOUTS.machines.sweep
_FIRST_PAUSE, _LONGEST_PAUSE = TIMEOUTS.machines.sweep_pause, TIMEOUTS.machines.longest_sweep_pause
_STRAYS = TIMEOUTS.machines.strays
_BESIDE = 8


@dataclass
class Swept:
    """Result of a sweep.

    Attributes
    ----------
    pools : list of str
        Names of pools whose machines are all gone now; the id of a pool without a row.
    machines : int
        Number of machines that were told to end.
    failed : dict of str to str
        Pool -> machines that could not be confirmed to end, or the reason.
    costs : dict of str to PoolCost
        Pool -> what its machines have cost.
    """

    pools: list[str] = field(default_factory=list)
    machines: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    costs: dict[str, PoolCost] = field(default_factory=dict)


def end_machines(
    provider: Provisioner,
    pool: str,
    rows: Sequence[OrderRow],
    limit: float,
    told: Callable[[Sequence[str]], None] = lambda ids: None,
    bill: PoolBill | None = None,
) -> list[str]:
    """Destroy all machines of a pool, and wait until each is gone or going.

    Parameters
    ----------
    provider : Provisioner
        Provider of the machines.
    pool : str
        The pool's id.
    rows : sequence of OrderRow
        The pool's orders: the regions of machines, and since when `list` must show them.
    limit : float
        Timeout in seconds.
    told : callable
        Called with the ids of machines that are told to end.
    bill : PoolBill, optional
        Notes the machines, and their end.

    Returns
    -------
    list of str
        What is not known to be gone, or why it is not known; empty when all machines are gone.
    """
    from ...providers.base import account_of

    regions = list(dict.fromkeys(row.region for row in rows if row.region))
    began, now = time.monotonic(), time.time()
    visible = provider.visible_within
    # An order without an answer may have created machines just now.
    waits = [visible if row.state == machine_orders.SENT else visible - max(0.0, now - row.touched) for row in rows]
    complete = began + max([0.0, *waits])
    asked: set[str] = set()
    checked = False
    pause = _FIRST_PAUSE
    while True:
        looked, why = time.monotonic(), ""
        left: list[str] = []
        try:
            if not checked:
                if any(row.account for row in rows):
                    check_account(account_of(provider), rows)
                checked = True
            records = provider.list(pool, regions)
            left = [record.id for record in records if record.must_go]
            if bill is not None:
                bill.seen("", provider, records)
            if not left and looked >= complete:
                if bill is not None:
                    _settle_bill(bill, provider)
                with contextlib.suppress(Exception):
                    provider.forget(pool)
                return []
            if fresh := [id for id in left if id not in asked]:
                asked.update(fresh)
                told(fresh)
            destroy(provider, left)
        except Exception as error:
            why = first_line(error)
        if time.monotonic() - began >= limit:
            return left or [why or "what was ordered may still come"]
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def check_account(account: str, rows: Sequence[OrderRow]) -> None:
    """Raise PoolError if the credentials are of another account than the machines.

    Such an account lists none of them.
    """
    paying = {row.account for row in rows if row.account}
    if paying and account not in paying:
        raise PoolError(
            f"the machines are of the account {', '.join(sorted(paying))}, and the credentials here of {account}: "
            "nothing can be made or ended with them"
        )


def _settle_bill(bill: PoolBill, provider: Provisioner) -> None:
    """Note the end of all machines, and what they cost."""
    bill.close()
    # Without an answer, the last known prices hold.
    with contextlib.suppress(Exception):
        bill.price(provider)


def left_over(registry: Registry) -> list[str]:
    """Return the names of pools whose machines a sweep would end."""
    names = []
    for pool, rows in _by_pool(registry).items():
        row = _row(registry, pool)
        left = _is_left(registry, row, rows) if row is not None else not _is_unlisted(registry, pool)
        if left and any(one.token for one in rows):
            names.append(pool if row is None else row.name)
    return names


def end_pool_machines(registry: Registry, pool: str, limit: float = SWEEP_LIMIT) -> list[str]:
    """Destroy the machines of a pool of ours; record its end.

    Returns what could not be confirmed to end; the pool is still ending then. Raises SpecError if its provider is
    unknown.
    """
    rows, row = machine_orders.of(registry, pool), _row(registry, pool)
    left = _end_all(registry, pool, rows, limit, Swept())
    if not left:
        _settle(registry, pool, row, rows)
    return left


def sweep_machines(registry: Registry, limit: float = SWEEP_LIMIT) -> Swept:
    """Destroy machines of abandoned pools, and of no pool; record the pools' end.

    A pool is abandoned if its owner died during its start or end, its lease has expired, its row is gone, or its
    deadline (`OrderRow.until`) has passed. Pools that are recorded on another machine are left to that machine.
    Machines of no pool are those of `orphaned_machines`; their providers are asked only every few minutes.

    Parameters
    ----------
    registry : Registry
        The registry.
    limit : float
        Timeout per pool in seconds.

    Returns
    -------
    Swept
        The pools and machines that were ended.

    Raises
    ------
    PoolError
        If the registry cannot be used.
    """
    swept = sweep_pools(registry, limit)
    _sweep_strays(registry, swept)
    return swept


def sweep_pools(registry: Registry, limit: float = SWEEP_LIMIT) -> Swept:
    """Destroy the machines of abandoned pools only; see `sweep_machines`."""
    swept = Swept()
    pools = _by_pool(registry)
    if pools:
        with ThreadPoolExecutor(min(_BESIDE, len(pools)), thread_name_prefix="sky-sweep") as several:
            list(several.map(lambda pool: _sweep_pool(registry, pool, pools[pool], limit, swept), pools))
    return swept


def _sweep_pool(registry: Registry, pool: str, rows: Sequence[OrderRow], limit: float, swept: Swept) -> None:
    try:
        row = _row(registry, pool)
        name = pool if row is None else row.name
        if row is not None and not _is_left(registry, row, rows):
            if row.is_here and _stays_stopped(row):
                _stop_again(registry, row, rows, swept)
            return
        if row is None and _is_unlisted(registry, pool):
            return
        if row is not None and not (row.owner_lives and not row.is_mine):
            registry.own(pool)
        try:
            left = _end_all(registry, pool, rows, limit, swept)
        except SkyError as error:
            left = [first_line(error)]
        if left:
            swept.failed[name] = ", ".join(left)
            registry.release(pool)
            return
        if row is None or not row.owner_lives:
            _settle(registry, pool, row, rows)
        if any(one.token for one in rows):
            swept.pools.append(name)
            swept.costs[name] = PoolBill(registry, pool).now(name)
    except PoolError as error:
        # Another process has attached to it, or is ending it.
        swept.failed[pool] = first_line(error)


def _is_left(registry: Registry, row: PoolRow, rows: Sequence[OrderRow]) -> bool:
    """Return whether a pool's machines are abandoned."""
    if not row.is_here:
        return False
    ends = [one.until for one in rows if one.until is not None]
    if ends and max(ends) < time.time():
        return True
    if row.owner_lives or row.state == stopped_pools.STOPPED:
        return False
    if row.unfinished:
        return True
    return lease_expiry.has_ended(row, running=bool(registry.running_runs(row.id, 1)))


def _is_unlisted(registry: Registry, pool: str) -> bool:
    """Return whether a pool without a listed row may live elsewhere."""
    return pool in registry.unended()


def _stays_stopped(row: PoolRow | None) -> bool:
    return row is not None and row.state == stopped_pools.STOPPED and not row.owner_lives


def _stop_again(registry: Registry, row: PoolRow, rows: Sequence[OrderRow], swept: Swept) -> None:
    """Stop running machines of a stopped pool, whose stop was refused or cut short."""
    from ...providers import provider_registry
    from ...providers.base import can_stop

    try:
        for kind, recipe in dict.fromkeys((one.provider, one.recipe) for one in rows if one.token):
            provider = provider_registry.restore(kind, recipe)
            regions = list(dict.fromkeys(one.region for one in rows if one.recipe == recipe and one.region))
            running = [record.id for record in provider.list(row.id, regions) if record.is_usable]
            # A notebook may be starting the pool just now.
            if running and can_stop(provider) and _stays_stopped(_row(registry, row.id)):
                provider.stop(running)
    except (SkyError, OSError, TimeoutError) as error:
        swept.failed[row.name] = f"its machines are to be stopped: {first_line(error)}"


def _end_all(registry: Registry, pool: str, rows: Sequence[OrderRow], limit: float, swept: Swept) -> list[str]:
    """Destroy a pool's machines, at each of its providers."""
    from ...providers import provider_registry

    left: list[str] = []
    bill = PoolBill(registry, pool)

    def told(ids: Sequence[str]) -> None:
        swept.machines += len(ids)

    for kind, recipe in dict.fromkeys((row.provider, row.recipe) for row in rows):
        there = [
            row for row in rows if (row.provider, row.recipe) == (kind, recipe) and row.state != machine_orders.PLANNED
        ]
        if there:
            left += end_machines(provider_registry.restore(kind, recipe), pool, there, limit, told, bill)
    return left


def _by_pool(registry: Registry) -> dict[str, list[OrderRow]]:
    pools: dict[str, list[OrderRow]] = {}
    for row in machine_orders.every(registry):
        pools.setdefault(row.pool, []).append(row)
    return pools


def _row(registry: Registry, pool: str) -> PoolRow | None:
    return next((row for row in registry.pools() if row.id == pool), None)


def _settle(registry: Registry, pool: str, row: PoolRow | None, rows: Sequence[OrderRow]) -> None:
    """Record a pool's end, and forget its orders, remote parts and folders."""
    machine_orders.forget(registry, rows)
    for part in remote_leftovers.of(registry, pool):
        remote_leftovers.forget(registry, pool, part.folder)
    folder_removal.remove(pool, () if row is None else row.folders)
    stopped_pools.remove(pool)
    if row is not None:
        registry.update(pool, "ended")


def _sweep_strays(registry: Registry, swept: Swept) -> None:
    """Destroy machines of no pool at known providers, each asked every few minutes."""
    from ...providers import provider_registry

    for purchase in provider_accounts.of(registry, _STRAYS):
        with contextlib.suppress(Exception):
            provider = provider_registry.restore(purchase.provider, purchase.recipe)
            found = [stray for stray in orphaned_machines.look(registry, provider, purchase.regions) if stray.ends]
            swept.machines += len(found)
            destroy(provider, [stray.record.id for stray in found])
        provider_accounts.asked(registry, purchase)


__all__ = [
    "SWEEP_LIMIT",
    "Swept",
    "check_account",
    "end_machines",
    "end_pool_machines",
    "left_over",
    "sweep_machines",
    "sweep_pools",
]
