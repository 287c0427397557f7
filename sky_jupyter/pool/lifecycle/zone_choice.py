"""Choice of zones for machines that join others of their pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...providers.provisioning_types import MachineRecord, Offer

if TYPE_CHECKING:
    from ...spec.pool_spec import PoolSpec


def needs_one_zone(spec: PoolSpec) -> bool:
    """Return whether all machines must be in one zone, as ranks wait for each other."""
    return spec.nodes > 1 and any(plugin.collective for plugin in spec.plugins)


def nearest(
    places: Sequence[tuple[Offer, str]], had: Sequence[MachineRecord], spec: PoolSpec
) -> list[tuple[Offer, str]]:
    """Return the usable places, those in the zone of the pool's machines first.

    Parameters
    ----------
    places : sequence of tuple
        Offers and zones, the best first; the order is kept otherwise.
    had : sequence of MachineRecord
        The machines that the pool keeps.
    spec : PoolSpec
        Its spec.

    Returns
    -------
    list of tuple
        The places; only those in the same zone if all must be in one. No place is in another region, as the machines
        reach each other by their private addresses.
    """
    zones, regions = {one.zone for one in had}, {one.region for one in had}

    def distance(place: tuple[Offer, str]) -> int:
        offer, zone = place
        return 0 if zone in zones else 1 if offer.region in regions else 2

    if not had:
        return list(places)
    most = 0 if needs_one_zone(spec) else 1
    chosen = [place for place in places if distance(place) <= most]
    return sorted(chosen, key=distance)
