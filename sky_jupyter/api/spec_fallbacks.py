"""`Spec`: several ways to get a pool's machines, tried in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..errors import BootstrapError, MachineError, ProvisionError
from ..providers.base import provider_of
from ..spec.pool_spec import Accelerator, PoolSpec

# Errors that say that machines are not available, and not that something else is wrong.
REFUSED = (ProvisionError, BootstrapError, MachineError)
T = TypeVar("T")


@dataclass(frozen=True)
class Spec:
    """One way to get a pool's machines.

    `Compute` takes several and uses the first that is available. What a spec leaves out is as given to `Compute`.

    Parameters
    ----------
    provider : Provider
        The provider of the machines.
    accelerator : str or Accelerator, optional
        The accelerators that each node must have, such as ``"A100:8"``.
    nodes : int, optional
        The number of nodes.
    region : str, optional
        The region of the machines; see `Compute` for this and the next five.
    allocation : str, optional
        The market that they come from.
    max_hourly_cost : float, optional
        The maximum price of a node, in dollars per hour.
    vcpus : float, optional
        The minimum number of processors of a node.
    memory_gb : float, optional
        The minimum memory of a node, in GB.
    disk_gb : float, optional
        The minimum disk of a node, in GB.
    ttl : float or str, optional
        The time after which the pool ends, whatever runs on it.
    """

    provider: Any
    accelerator: str | Accelerator | None = None
    nodes: int | None = None
    region: str | None = field(default=None, kw_only=True)
    allocation: str | None = field(default=None, kw_only=True)
    max_hourly_cost: float | None = field(default=None, kw_only=True)
    vcpus: float | None = field(default=None, kw_only=True)
    memory_gb: float | None = field(default=None, kw_only=True)
    disk_gb: float | None = field(default=None, kw_only=True)
    ttl: float | str | None = field(default=None, kw_only=True)


def first_of(specs: Sequence[PoolSpec], make: Callable[[PoolSpec], T], tell: Callable[[str], None]) -> T:
    """Make the first pool that is available, by price or in the given order.

    Parameters
    ----------
    specs : sequence of PoolSpec
        The ways to make it.
    make : callable
        Makes one.
    tell : callable
        Called with a line for each one that is not available, before the next is tried.

    Returns
    -------
    object
        What ``make`` returned.

    Raises
    ------
    ProvisionError
        When none is available; the message names each, and why.
    """
    if len(specs) == 1:
        return make(specs[0])
    prices: dict[int, float] = {}
    refused: list[tuple[int, Exception]] = []
    for number, spec in enumerate(specs):
        try:
            prices[number] = price(spec)
        except REFUSED as error:
            refused.append((number, error))
    order = sorted(prices, key=lambda number: prices[number] if specs[0].options.selection == "cheapest" else 0)
    if order:
        for number, why in refused:
            tell(_refusal(number, specs, why, order[0]))
    for place, number in enumerate(order):
        try:
            return make(specs[number])
        except REFUSED as error:
            refused.append((number, error))
            if place + 1 < len(order):
                tell(_refusal(number, specs, error, order[place + 1]))
    lines = [f"  {_named(number, specs)}: {error}" for number, error in sorted(refused, key=lambda item: item[0])]
    raise ProvisionError(
        "\n".join([f"none of the {len(specs)} specs of pool {specs[0].name!r} is available", *lines])
    ) from refused[-1][1]


def price(spec: PoolSpec) -> float:
    """Return what the pool would cost per hour.

    Parameters
    ----------
    spec : PoolSpec
        The pool's description.

    Returns
    -------
    float
        Dollars; infinite if the provider does not know.

    Raises
    ------
    ProvisionError
        When the provider has no such machine, or none within ``max_hourly_cost``.
    """
    offers = provider_of(spec).offers(spec)
    if not offers:
        raise ProvisionError(f"{spec.provider} has no machine that would do")
    known = [offer.hourly for offer in offers if offer.hourly is not None]
    if not known:
        return math.inf
    least, most = min(known), spec.max_hourly_cost
    if most is not None and least > most:
        raise ProvisionError(f"the cheapest of {spec.provider} is ${least:g} an hour, and max_hourly_cost is ${most:g}")
    return least * spec.nodes


def _named(number: int, specs: Sequence[PoolSpec]) -> str:
    return f"spec {number + 1} of {len(specs)} ({specs[number].provider})"


def _refusal(number: int, specs: Sequence[PoolSpec], error: Exception, following: int) -> str:
    return f"{_named(number, specs)} is not available: {_first_line(error)}; trying {specs[following].provider}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
