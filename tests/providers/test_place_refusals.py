"""A place that had no machines is tried last for three minutes; what cannot help either is not tried at all."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sky_jupyter.errors import NoCapacity
from sky_jupyter.pool.lifecycle import capacity_backoff
from sky_jupyter.pool.lifecycle.capacity_backoff import Place, Refusals
from sky_jupyter.providers.provisioning_types import Offer


def offer(name: str, vcpus: float, region: str = "east", market: str = "spot") -> Offer:
    return Offer(name, 1.0, vcpus=vcpus, region=region, zones=("a", "b", "c"), market=market)


SMALL, LARGE, BARE = offer("small", 4), offer("large", 8), offer("small", 4, market="on-demand")
FAR = offer("small", 4, "west")


def places(*offers: Offer) -> list[Place]:
    return [(one, f"{one.region}-{zone}") for one in offers for zone in one.zones]


def tried(refusals: Refusals, found: list[Place]) -> list[tuple[str, str, str]]:
    """The places in the order in which they would be tried."""
    left, order = list(found), []
    while (place := refusals.following(left)) is not None:
        left.remove(place)
        order.append((place[0].name, place[0].market, place[1]))
    return order


def named(found: list[Place]) -> list[tuple[str, str, str]]:
    return [(one.name, one.market, zone) for one, zone in found]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that goes by hand."""
    now = SimpleNamespace(at=1000.0)
    monkeypatch.setattr(capacity_backoff, "time", SimpleNamespace(monotonic=lambda: now.at))
    return now


def test_a_place_that_refused_is_tried_last_for_three_minutes(clock: SimpleNamespace) -> None:
    found, known = places(SMALL, BARE), Refusals()
    known.note(found[0], NoCapacity("none"))
    clock.at += 1
    known.note(found[1], NoCapacity("none"))
    assert tried(known, found) == named([*found[2:], found[0], found[1]])
    clock.at += 178.5
    assert tried(known, found) == named([*found[2:], found[0], found[1]])
    clock.at += 1
    assert tried(known, found) == named([found[0], *found[2:], found[1]])
    clock.at += 1
    assert tried(known, found) == named(found)


def test_zones_that_a_refusal_names_come_next(clock: SimpleNamespace) -> None:
    found, known = places(SMALL, BARE), Refusals()
    known.note(found[0], NoCapacity("none", better=("east-c",)))
    assert tried(known, found)[:2] == named([found[2], found[1]])


def test_a_quota_leaves_other_markets_other_regions_and_smaller_machines(clock: SimpleNamespace) -> None:
    found, known = places(LARGE, SMALL, BARE, FAR), Refusals()
    known.note(found[0], NoCapacity("quota", scope="market"))
    assert tried(known, found) == named(places(SMALL, BARE, FAR))
    known.note(places(SMALL)[0], NoCapacity("smaller quota", scope="market"))
    assert tried(known, found) == named(places(BARE, FAR))
    assert known.reasons(found) == ["quota", "smaller quota"]


def test_a_closed_region_leaves_the_others(clock: SimpleNamespace) -> None:
    found, known = places(SMALL, BARE, FAR), Refusals()
    known.note(found[0], NoCapacity("closed", scope="region"))
    assert tried(known, found) == named(places(FAR))
    clock.at += 181
    assert tried(known, found) == named(found)
