"""Cost of EC2 instances (list or spot prices), their disks and public addresses."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...errors import SkyError
from ..provisioning_types import STOPPED, Charge, MachineRecord
from . import prices
from .machine_images import FREE_THROUGHPUT, THROUGHPUT

if TYPE_CHECKING:
    from .clients import Clients

_HOUR = 3600.0
# Minimum seconds for which an instance is billed.
_LEAST = 60.0
# Dollars per hour of a GB of a gp3 volume, of the root volume's throughput, and of a public IPv4 address.
_DISK, _THROUGHPUT, _ADDRESS = 0.08 / 730, 0.04 / 730 * (THROUGHPUT - FREE_THROUGHPUT), 0.005
_SPOT, _ON_DEMAND = "spot", "on-demand"
# When a price began to be valid, and dollars per hour.
_History = list[tuple[float, float]]


def charges(clients: Clients, records: Sequence[MachineRecord], at: float) -> list[Charge]:
    """Return what instances cost; see `Provisioner.costs`."""
    groups: dict[tuple[str, str, str], list[MachineRecord]] = {}
    for record in records:
        if record.market == _SPOT and record.state != STOPPED:
            groups.setdefault((record.kind, record.region, record.zone), []).append(record)
    histories = {group: _history(clients, group, several, at) for group, several in groups.items()}
    return [
        _charge(clients, record, at, histories.get((record.kind, record.region, record.zone), [])) for record in records
    ]


def _charge(clients: Clients, record: MachineRecord, at: float, history: _History) -> Charge:
    began = at if record.launched is None else record.launched
    disk = record.disk_gb * _DISK + _THROUGHPUT if record.disk_gb else 0.0
    if record.state == STOPPED:
        return Charge(disk, disk * max(0.0, at - began) / _HOUR)
    end = max(at, began + _LEAST)
    beside = disk + (_ADDRESS if record.public else 0.0)
    more = beside * (end - began) / _HOUR
    if record.market == _SPOT and history:
        return Charge(history[-1][1] + beside, _sum(history, began, end) + more)
    # A capacity block was paid for in advance.
    priced = record.market in (_SPOT, _ON_DEMAND)
    place = (record.kind, record.region, record.zone, record.market)
    price = prices.hourly(clients, *place) if priced else None
    return Charge() if price is None else Charge(price + beside, price * (end - began) / _HOUR + more)


def _history(clients: Clients, group: tuple[str, str, str], records: Sequence[MachineRecord], at: float) -> _History:
    since = min(at if record.launched is None else record.launched for record in records)
    with contextlib.suppress(SkyError):
        return prices.spot_history(clients, *group, since, at)
    return []


def _sum(history: _History, began: float, end: float) -> float:
    """Return the dollars of a period; the first price also holds before its start."""
    starts = [began, *(max(began, at) for at, _ in history[1:])]
    ends = [*(min(end, max(began, at)) for at, _ in history[1:]), end]
    spans = zip(starts, ends, history, strict=True)
    return sum(price * max(0.0, stop - start) for start, stop, (_, price) in spans) / _HOUR


__all__ = ["charges"]
