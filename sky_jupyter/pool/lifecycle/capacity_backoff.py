"""Places that had no machines: tried last, or not at all, for three minutes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import NoCapacity
from ...providers.provisioning_types import Offer
from ...util.text import first_line
from ..base.timeouts import TIMEOUTS

_REMEMBERED = TIMEOUTS.machines.refusal
Place = tuple[Offer, str]
"""Offer and zone; an empty zone if the provider chooses."""


@dataclass(frozen=True)
class _Refusal:
    """Refusal of one place, and what it says of others."""

    offer: Offer
    zone: str
    scope: str
    better: tuple[str, ...]
    text: str
    at: float

    def is_of(self, place: Place) -> bool:
        """Return whether it is this place that refused."""
        offer, zone = place
        here = (offer.name, offer.market, zone or offer.region)
        return here == (self.offer.name, self.offer.market, self.zone or self.offer.region)

    def rules_out(self, place: Place) -> bool:
        """Return whether this refusal rules another place out."""
        offer, mine = place[0], self.offer
        if self.scope == "zone" or offer.region != mine.region:
            return False
        if self.scope == "region":
            return True
        # A quota that is too small for this machine may be enough for a smaller one.
        smaller = offer.vcpus is not None and mine.vcpus is not None and offer.vcpus < mine.vcpus
        return offer.market == mine.market and not smaller

    def prefers(self, place: Place) -> bool:
        """Return whether the refusal named the place's zone as having such machines."""
        offer, zone = place
        return zone in self.better and (offer.name, offer.market) == (self.offer.name, self.offer.market)


class Refusals:
    """Refusals of one pool's places."""

    def __init__(self) -> None:
        self._recent: list[_Refusal] = []

    def note(self, place: Place, error: NoCapacity) -> None:
        """Remember that a place has refused."""
        recent = [one for one in self._known() if not one.is_of(place)]
        text, now = first_line(error), time.monotonic()
        self._recent = [*recent, _Refusal(*place, error.scope, error.better, text, now)]

    def following(self, places: Sequence[Place]) -> Place | None:
        """Return the next place: recent refusers last, places that a refusal named first."""
        known = self._known()
        left = [place for place in places if not any(one.rules_out(place) for one in known)]

        def rank(place: Place) -> tuple[float, bool]:
            refused = max((one.at for one in known if one.is_of(place)), default=0.0)
            return refused, not any(one.prefers(place) for one in known)

        return min(left, key=rank, default=None)

    def reasons(self, places: Sequence[Place]) -> list[str]:
        """Return why places that are ruled out cannot help."""
        found = [one.text for place in places for one in self._known() if one.rules_out(place)]
        return list(dict.fromkeys(found))

    def _known(self) -> list[_Refusal]:
        return [one for one in self._recent if time.monotonic() - one.at < _REMEMBERED]


__all__ = ["Place", "Refusals"]
