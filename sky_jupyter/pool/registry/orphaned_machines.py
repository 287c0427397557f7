"""Machines with our tag and no live pool: found at the provider, judged, ended.

A machine is ended if its deadline has passed, or if this registry has bought it and no pool here has it. Machines that
another registry has bought with the same account are left until their deadline.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import PoolError
from ...providers import machine_costs
from ..base.timeouts import TIMEOUTS
from . import machine_orders, provider_accounts
from .rows import clock

if TYPE_CHECKING:
    from ...providers.base import Provisioner
    from ...providers.provisioning_types import MachineRecord
    from .registry import Registry

_PAUSE = TIMEOUTS.machines.sweep_pause


@dataclass(frozen=True)
class Stray:
    """Machine that a sweep found.

    Parameters
    ----------
    record : MachineRecord
        The machine.
    ends : bool
        Whether the sweep ends it.
    why : str
        The reason, for messages.
    dollars : float or None
        Cost so far; None if unknown.
    """

    record: MachineRecord
    ends: bool
    why: str
    dollars: float | None = None


def look(
    registry: Registry, provider: Provisioner, regions: Sequence[str], chosen: Collection[str] = ()
) -> list[Stray]:
    """Return a provider's machines with our tag, each with the decision on it.

    Parameters
    ----------
    registry : Registry
        The registry.
    provider : Provisioner
        The provider.
    regions : sequence of str
        The regions to look in; empty for the provider's own.
    chosen : collection of str
        Ids or names of pools whose machines are to be ended, whoever made them, unless this registry has the pool.

    Returns
    -------
    list of Stray
        The machines.

    Raises
    ------
    PoolError
        If a name in ``chosen`` is that of several pools.
    """
    records = [record for record in provider.list(None, regions) if record.must_go]
    if not records:
        return []
    _refuse_namesakes(records, chosen)
    # Read after the list: whatever was bought by then has its row.
    known = {row.pool for row in machine_orders.every(registry)}
    names, mine = {row.id: row.name for row in registry.pools()}, provider_accounts.owner(registry)
    judged = [(record, *_judged(record, known, names, mine, chosen)) for record in records]
    costs: list[float | None] = [None] * len(records)
    # A price list that does not answer must not stop a sweep.
    with contextlib.suppress(Exception):
        costs = [charge.dollars for charge in machine_costs.of(provider, records, time.time())]
    return [Stray(record, ends, why, dollars) for (record, ends, why), dollars in zip(judged, costs, strict=True)]


def _refuse_namesakes(records: Sequence[MachineRecord], chosen: Collection[str]) -> None:
    """Raise PoolError if several pools of the account have the same chosen name."""
    for name in chosen:
        owners = {record.pool: record.owner for record in records if name == record.name != ""}
        if len(owners) > 1 and name not in owners:
            pools = ", ".join(f"{pool} (by {owner or 'somebody'})" for pool, owner in owners.items())
            raise PoolError(f"several pools are named {name!r}: give the id of one, {pools}")


def _judged(
    record: MachineRecord, known: Collection[str], names: dict[str, str], mine: str, chosen: Collection[str]
) -> tuple[bool, str]:
    if record.until is not None and record.until < time.time():
        return True, f"its time was over at {clock(record.until)}"
    if record.pool in known:
        return False, f"of pool {names.get(record.pool, record.pool)}, which this computer has: `%sky down` ends it"
    if record.pool in chosen or (record.name and record.name in chosen):
        return True, "asked for"
    if provider_accounts.is_mine(record.owner, mine):
        return True, "no pool of this computer has it"
    until = "it has no deadline" if record.until is None else f"until {clock(record.until)}"
    pool = f"{record.name} ({record.pool})" if record.name not in ("", record.pool) else record.pool
    return False, f"made for pool {pool} by {record.owner or 'somebody'}; {until}"


def end(provider: Provisioner, found: Sequence[Stray], limit: float) -> list[str]:
    """End machines, and wait until each is gone or going; return those that stay."""
    left = [stray.record.id for stray in found if stray.ends]
    regions = sorted({stray.record.region for stray in found if stray.ends and stray.record.region})
    began = time.monotonic()
    while left:
        with contextlib.suppress(Exception):
            destroy(provider, left)
        if time.monotonic() - began >= limit:
            break
        with contextlib.suppress(Exception):
            there = {record.id for record in provider.list(None, regions) if record.must_go}
            left = [id for id in left if id in there]
        if left:
            time.sleep(_PAUSE)
    return left


def destroy(provider: Provisioner, ids: Sequence[str]) -> None:
    """Destroy machines; if that fails, one by one."""
    if not ids:
        return
    try:
        provider.destroy(ids)
    except Exception:
        if len(ids) == 1:
            raise
        for id in ids:
            with contextlib.suppress(Exception):
                provider.destroy([id])


__all__ = ["Stray", "destroy", "end", "look"]
