"""Pools of a provider's account, found by tags, also those of other computers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from . import machine_costs
from .provisioning_types import MachineRecord


@dataclass(frozen=True)
class BoughtPool:
    """Pool whose machines exist, as their provider lists them.

    Parameters
    ----------
    id, name : str
        The pool's id, and its name if a machine's tags have it.
    nodes : int
        Number of machines.
    kinds, places, states : tuple of str
        Kinds of machine, zones and states, each once.
    since, until : float or None
        Unix times: when the first machine was created, and from when any sweep may end the machines.
    owner : str
        Host that created them, and the id of its registry. That host has the pool's keys, and can attach to the pool.
    hourly, dollars : float or None
        Dollars per hour now, and dollars so far for the machines that exist; None if unknown.
    """

    id: str
    name: str
    nodes: int
    kinds: tuple[str, ...]
    places: tuple[str, ...]
    states: tuple[str, ...]
    since: float | None
    until: float | None
    owner: str
    hourly: float | None
    dollars: float | None

    def __str__(self) -> str:
        what = f"{self.nodes} × {', '.join(self.kinds)}" if any(self.kinds) else f"{self.nodes} machines"
        facts = [f"{what} in {', '.join(self.places)}" if any(self.places) else what, ", ".join(self.states)]
        facts += [] if self.since is None else [f"since {_clock(self.since)}"]
        facts += [] if self.until is None else [f"until {_clock(self.until)}"]
        facts += [] if self.dollars is None else [f"${self.dollars:.2f} so far"]
        facts += [f"made by {self.owner}"] if self.owner else []
        return f"pool {self.name or self.id} ({self.id}): {'; '.join(facts)}"


def pools(provider: Any, regions: Sequence[str] = ()) -> list[BoughtPool]:
    """Return the pools whose machines exist, the oldest first.

    Parameters
    ----------
    provider : Provisioner
        The provider; `costs` is optional.
    regions : sequence of str
        The regions to look in; empty for the provider's own.

    Returns
    -------
    list of BoughtPool
        The pools.
    """
    by_pool: dict[str, list[MachineRecord]] = {}
    for record in provider.list(None, regions):
        if record.is_there:
            by_pool.setdefault(record.pool, []).append(record)
    found = [_pool(provider, id, records) for id, records in by_pool.items()]
    return sorted(found, key=lambda one: one.since or 0.0)


def _pool(provider: Any, id: str, records: Sequence[MachineRecord]) -> BoughtPool:
    hourly = dollars = None
    with contextlib.suppress(Exception):
        charges = machine_costs.of(provider, records, time.time())
        hourly = _sum([charge.hourly for charge in charges])
        dollars = _sum([charge.dollars for charge in charges])
    return BoughtPool(
        id,
        next((record.name for record in records if record.name), ""),
        len(records),
        _each(record.kind for record in records),
        _each(record.zone or record.region for record in records),
        _each(record.state for record in records),
        min((record.launched for record in records if record.launched is not None), default=None),
        max((record.until for record in records if record.until is not None), default=None),
        next((record.owner for record in records if record.owner), ""),
        hourly,
        dollars,
    )


def _each(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))


def _sum(values: Sequence[float | None]) -> float | None:
    return None if None in values else sum(filter(None, values))


def _clock(moment: float) -> str:
    return time.strftime("%d %b %H:%M", time.localtime(moment))


__all__ = ["BoughtPool", "pools"]
