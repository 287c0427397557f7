"""Cost of a pool, or the time left to it, as values and as texts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

ENDED = "ended"
UNKNOWN = "price unknown"


@dataclass(frozen=True)
class MachineCost:
    """Cost of one machine, from its creation to its end.

    Attributes
    ----------
    id : str
        The provider's id.
    kind : str
        Kind of machine, as `Offer.name`.
    market, region, zone : str
        Its market and place; empty if the provider has none.
    state : str
        ``"running"``, ``"stopped"`` or ``"ended"``.
    since : float
        Unix time of its creation.
    ended : float or None
        Unix time of its end.
    hourly : float or None
        Dollars per hour now, 0 after its end; None if unknown.
    total : float or None
        Dollars so far; None if unknown.
    """

    id: str
    kind: str
    market: str
    region: str
    zone: str
    state: str
    since: float
    ended: float | None
    hourly: float | None
    total: float | None


@dataclass(frozen=True)
class PoolCost:
    """Cost of a pool, with all machines that it ever had.

    Attributes
    ----------
    name : str
        The pool's name.
    machines : tuple of MachineCost
        Its machines, the oldest first; empty if nothing was created for it.
    at : float
        Unix time of this account.
    budget : float or None
        ``max_cost`` of the pool.
    """

    name: str
    machines: tuple[MachineCost, ...] = ()
    at: float = 0.0
    budget: float | None = None

    @property
    def hourly(self) -> float | None:
        """Dollars per hour now, of the machines whose price is known; None if none is."""
        return _sum(one.hourly for one in self.machines if one.state != ENDED)

    @property
    def total(self) -> float | None:
        """Dollars so far, of the machines whose price is known; None if none is."""
        return _sum(one.total for one in self.machines)

    @property
    def unknown(self) -> int:
        """Number of machines whose price is unknown."""
        return sum(one.total is None or one.hourly is None for one in self.machines)

    def __str__(self) -> str:
        return text(self)


@dataclass(frozen=True)
class TimeLeft:
    """Time left of a pool's allocation; views show it in place of a cost.

    Attributes
    ----------
    ends : float
        Unix time of the allocation's end.
    at : float
        Unix time of this account.
    """

    ends: float
    at: float

    def __str__(self) -> str:
        hours, minutes = divmod(max(0, round((self.ends - self.at) / 60)), 60)
        return f"{f'{hours} h {minutes:02d}' if hours else minutes} min of the allocation left"


def _sum(values: Iterable[float | None]) -> float | None:
    values = list(values)
    known = [value for value in values if value is not None]
    return sum(known) if known or not values else None


def text(cost: PoolCost) -> str:
    """Return a cost in a few words: ``"$1.23 so far, $13.20 an hour"``."""
    if not cost.machines:
        return "nothing was bought"
    if cost.total is None:
        return UNKNOWN
    parts = [f"{dollars(cost.total)} so far"]
    if cost.hourly is None:
        parts.append(UNKNOWN)
    elif cost.hourly:
        parts.append(f"{rate(cost.hourly)} an hour")
    if cost.unknown and cost.hourly is not None:
        parts.append(f"price of {cost.unknown} machine{'s' if cost.unknown > 1 else ''} unknown")
    return ", ".join(parts)


def dollars(amount: float) -> str:
    """Return an amount for a person: ``"$1.23"``."""
    return "under $0.01" if 0 < amount < 0.01 else f"${amount:,.2f}"


def rate(hourly: float) -> str:
    """Return a price per hour in its significant digits: ``"$13.20"``, ``"$0.0416"``."""
    if hourly >= 1:
        return f"${hourly:,.2f}"
    whole, _, digits = f"{hourly:.4f}".partition(".")
    return f"${whole}.{digits.rstrip('0').ljust(2, '0')}"


def purchase(count: int, kind: str, market: str, place: str, hourly: float | None) -> str:
    """Return an order's text with its cost, which is omitted if it is 0.

    For example ``"2 × p4d.24xlarge spot in us-east-1a: $13.20 an hour"``.
    """
    words = " ".join(filter(None, [f"{count} × {kind}", market, f"in {place}" if place else ""]))
    if hourly == 0:
        return words
    return f"{words}: {UNKNOWN if hourly is None else f'{rate(count * hourly)} an hour'}"


def to_json(cost: PoolCost | TimeLeft | None) -> dict[str, Any] | None:
    """Return the numbers that views show; None if there are none."""
    if isinstance(cost, TimeLeft):
        times = {"at": round(cost.at, 1), "ends": round(cost.ends, 1)}
        return {"total": None, "hourly": None, "unknown": 0, **times, "text": str(cost)}
    if cost is None or not cost.machines:
        return None
    numbers = {"total": cost.total, "hourly": cost.hourly, "unknown": cost.unknown}
    return {**numbers, "at": round(cost.at, 1), "text": text(cost)}


__all__ = [
    "ENDED",
    "UNKNOWN",
    "MachineCost",
    "PoolCost",
    "TimeLeft",
    "dollars",
    "purchase",
    "rate",
    "text",
    "to_json",
]
