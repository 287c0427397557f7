"""Account of what a pool's machines cost in their lifetime; kept in the registry."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...errors import PoolError
from ...providers import machine_costs
from ...providers import provisioning_types as machine_states
from ...providers.base import has_prices
from ...providers.provisioning_types import MachineRecord
from ...util.pool_cost import ENDED, MachineCost, PoolCost
from . import cost_rows
from .cost_rows import RUNNING, STOPPED, CostRow

if TYPE_CHECKING:
    from ...providers.base import Provisioner
    from ...providers.provisioning_types import Order
    from .registry import Registry


class PoolBill:
    """Costs of one pool's machines; thread-safe.

    If the registry cannot be written, the costs are not recorded, but the pool goes on.

    Parameters
    ----------
    registry : Registry
        Keeps the rows.
    pool : str
        The pool's id.
    """

    def __init__(self, registry: Registry, pool: str) -> None:
        self._registry, self._pool = registry, pool
        self._lock = threading.Lock()
        # The rows, in case the registry fails; None until they are read.
        self._rows: dict[tuple[str, int], CostRow] | None = None

    def bought(self, name: str, kind: str, ids: Sequence[str], order: Order) -> None:
        """Note the machines of an order, at the price that was offered.

        ``name`` is the pool's, and ``kind`` the provider's.
        """
        now, offer = time.time(), order.offer
        about = ("", "", "", None) if offer is None else (offer.name, offer.market, offer.region, offer.hourly)
        type_, market, region, hourly = about
        with self._changing() as rows:
            for id in ids:
                place = (name, kind, type_, market, region, order.zone)
                rows.setdefault((id, 0), CostRow(self._pool, id, 0, *place, RUNNING, now, None, hourly, None, now))

    def seen(self, name: str, provider: Provisioner, records: Iterable[MachineRecord]) -> None:
        """Note the states of all machines that the provider lists now.

        ``name`` is the pool's; empty for the one that is known.
        """
        if not has_prices(provider):
            return
        now, there = time.time(), {record.id: record for record in records if record.is_there}
        with self._changing() as rows:
            name = name or next((row.name for row in rows.values()), self._pool)
            for record in there.values():
                self._note(rows, name, provider.kind, record, now)
            for key, row in list(rows.items()):
                if row.ended is None and row.machine not in there and now - row.began > provider.visible_within:
                    rows[key] = replace(row, ended=now)

    def _note(
        self, rows: dict[tuple[str, int], CostRow], name: str, kind: str, record: MachineRecord, now: float
    ) -> None:
        state = STOPPED if record.state == machine_states.STOPPED else RUNNING
        before = max((row for row in rows.values() if row.machine == record.id), key=_number, default=None)
        if before is not None and before.ended is None and before.state == state:
            rows[record.id, before.number] = _updated(before, record, now)
            return
        began = min(now, now if record.launched is None else record.launched)
        number = 0
        if before is not None:
            number = before.number + 1
            if before.state == state:
                # This stay was believed to have ended.
                began = before.ended or before.began
            elif state == STOPPED or began < before.began:
                began = now
            if before.ended is None:
                rows[record.id, before.number] = replace(before, ended=began)
        place = (name, kind, record.kind, record.market, record.region, record.zone)
        price = (record.hourly, None, began, record.disk_gb, record.public)
        fresh = CostRow(self._pool, record.id, number, *place, state, began, None, *price)
        rows[record.id, number] = fresh

    def price(self, provider: Provisioner) -> None:
        """Ask the provider what the machines have cost so far; may take a while."""
        now = time.time()
        rows = [row for row in self._read() if row.at != row.ended]
        if not rows:
            return
        ends = sorted({now if row.ended is None else row.ended for row in rows})
        found: list[CostRow] = []
        for end in ends:
            same = [row for row in rows if (row.ended or now) == end]
            charges = machine_costs.of(provider, [_record(row) for row in same], end)
            for row, charge in zip(same, charges, strict=True):
                if charge.dollars is not None:
                    hourly = row.hourly if charge.hourly is None else charge.hourly
                    found.append(replace(row, hourly=hourly, dollars=charge.dollars, at=end))
        with self._changing() as known:
            for row in found:
                if (row.machine, row.number) in known:
                    ended = known[row.machine, row.number].ended
                    known[row.machine, row.number] = replace(row, ended=ended)

    def close(self, ids: Iterable[str] | None = None, at: float | None = None) -> None:
        """Note the end of machines, by default of all."""
        at = time.time() if at is None else at
        gone = None if ids is None else set(ids)
        with self._changing() as rows:
            for key, row in list(rows.items()):
                if row.ended is None and (gone is None or row.machine in gone):
                    rows[key] = replace(row, ended=max(at, row.began))

    def now(self, name: str = "", budget: float | None = None) -> PoolCost:
        """Return the account as of now, without asking the provider."""
        return account(self._read(), name, budget)

    # -- rows --------------------------------------------------------------------------------------

    def _read(self) -> list[CostRow]:
        with self._lock:
            return list(self._known().values())

    def _known(self) -> dict[tuple[str, int], CostRow]:
        if self._rows is None:
            found: list[CostRow] = []
            with contextlib.suppress(PoolError):
                found = cost_rows.of(self._registry, self._pool)
            self._rows = {(row.machine, row.number): row for row in found}
        return self._rows

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[tuple[str, int], CostRow]]:
        with self._lock:
            before = dict(self._known())
            rows = dict(before)
            yield rows
            self._rows = rows
            changed = [row for key, row in rows.items() if before.get(key) != row]
            if changed:
                with contextlib.suppress(PoolError):
                    cost_rows.write(self._registry, changed)


def account(rows: Sequence[CostRow], name: str = "", budget: float | None = None, at: float | None = None) -> PoolCost:
    """Return the cost of a pool from its rows, by default as of now."""
    now = time.time() if at is None else at
    stays: dict[str, list[CostRow]] = {}
    for row in sorted(rows, key=lambda row: (row.began, row.number)):
        stays.setdefault(row.machine, []).append(row)
    machines = tuple(_machine(several, now) for several in stays.values())
    return PoolCost(name or next((row.name for row in rows), ""), machines, now, budget)


def _machine(stays: Sequence[CostRow], now: float) -> MachineCost:
    first, last = stays[0], stays[-1]
    sums = [row.so_far(now) for row in stays]
    total = None if None in sums else sum(filter(None, sums))
    over = last.ended is not None
    return MachineCost(
        *(last.machine, last.kind, last.market, last.region, last.zone, ENDED if over else last.state),
        first.began,
        last.ended,
        0.0 if over else last.hourly,
        total,
    )


def _updated(row: CostRow, record: MachineRecord, now: float) -> CostRow:
    """Return a row with the facts that a record adds or corrects."""
    row = replace(
        row,
        kind=record.kind or row.kind,
        market=record.market or row.market,
        region=record.region or row.region,
        zone=record.zone or row.zone,
        hourly=row.hourly if record.hourly is None else record.hourly,
        disk_gb=row.disk_gb if record.disk_gb is None else record.disk_gb,
        public=record.public,
    )
    if row.number == 0 and row.dollars is None and record.launched is not None:
        began = min(record.launched, now)
        return replace(row, began=began, at=began)
    return row


def _record(row: CostRow) -> MachineRecord:
    """Return a machine in one state, as `Provisioner.costs` takes it."""
    state = machine_states.STOPPED if row.state == STOPPED else machine_states.RUNNING
    return MachineRecord(
        *(row.machine, state, row.pool),
        region=row.region,
        zone=row.zone,
        kind=row.kind,
        market=row.market,
        launched=row.began,
        hourly=row.hourly,
        disk_gb=row.disk_gb,
        public=bool(row.public),
    )


def _number(row: CostRow) -> int:
    return row.number


__all__ = ["PoolBill", "account"]
