"""Where machines are made that join others of their pool."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import sky_jupyter as sky
from sky_jupyter.errors import NoCapacity
from sky_jupyter.pool.lifecycle.provisioning import Provisioning
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.providers.cloud import Cloud

ZONES = ("here-a", "here-b", "there-a")


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return Cloud(str(tmp_path / "cloud.sqlite"), zones=ZONES)


@pytest.fixture
def provisioning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provisioning]:
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))
    registry = Registry()
    yield Provisioning(registry, "0123abcd")
    registry.close()


def spec_of(cloud: Cloud, *, collective: bool) -> PoolSpec:
    return PoolSpec(provider=cloud, nodes=3, plugins=(sky.plugins.jax(),) if collective else ())


def zones(cloud: Cloud, ids: list[str]) -> list[str]:
    known = {one.id: one.zone for one in cloud.machines()}
    return [known[id] for id in ids]


@pytest.mark.parametrize("collective", [False, True])
def test_a_replacement_is_made_in_the_zone_of_the_others(
    cloud: Cloud, provisioning: Provisioning, *, collective: bool
) -> None:
    spec = spec_of(cloud, collective=collective)
    cloud.plan("create", "refused")
    first = provisioning.acquire(spec, 3)
    assert zones(cloud, first) == ["here-b"] * 3
    # The first zone has machines again, and another process knows of no refusal.
    later = Provisioning(provisioning._registry, "0123abcd")
    cloud.vanish(first[1:2])
    second = later.acquire(spec, 3, first)
    assert [second[0], second[2]] == [first[0], first[2]]
    assert zones(cloud, second) == ["here-b"] * 3


def test_other_zones_of_the_region_come_next_where_nodes_work_apart(cloud: Cloud, provisioning: Provisioning) -> None:
    spec = spec_of(cloud, collective=False)
    first = provisioning.acquire(spec, 3)
    cloud.vanish(first[2:])
    cloud.plan("create", "refused")
    assert zones(cloud, provisioning.acquire(spec, 3, first)) == ["here-a", "here-a", "here-b"]


def test_no_machine_joins_others_from_another_region(cloud: Cloud, provisioning: Provisioning) -> None:
    spec = spec_of(cloud, collective=False)
    first = provisioning.acquire(spec, 3)
    cloud.vanish(first[2:])
    for _ in range(2):
        cloud.plan("create", "refused")
    with pytest.raises(NoCapacity, match="1 machine could not be obtained"):
        provisioning.acquire(spec, 3, first)
    assert sorted(cloud.alive()) == sorted(first[:2])


def test_all_are_made_elsewhere_where_collectives_need_one_zone(cloud: Cloud, provisioning: Provisioning) -> None:
    spec = spec_of(cloud, collective=True)
    told: list[str] = []
    first = provisioning.acquire(spec, 3)
    cloud.vanish(first[2:])
    cloud.plan("create", "refused")
    second = provisioning.acquire(spec, 3, first, told.append)
    assert zones(cloud, second) == ["here-b"] * 3
    assert sorted(cloud.alive()) == sorted(second)
    assert any("all 3 are made elsewhere, as they must be in one zone" in line for line in told)


def test_the_others_stay_where_only_one_is_to_be_replaced(cloud: Cloud, provisioning: Provisioning) -> None:
    spec = spec_of(cloud, collective=True)
    first = provisioning.acquire(spec, 3)
    cloud.vanish(first[2:])
    cloud.plan("create", "refused")
    with pytest.raises(NoCapacity, match="1 machine could not be obtained"):
        provisioning.acquire(spec, 3, first, move=False)
    assert sorted(cloud.alive()) == sorted(first[:2])


def test_a_machine_that_is_about_to_go_is_replaced_before_it_goes(cloud: Cloud, provisioning: Provisioning) -> None:
    spec = spec_of(cloud, collective=True)
    first = provisioning.acquire(spec, 3)
    second = provisioning.acquire(spec, 3, first, without=first[1:2], move=False)
    assert [second[0], second[2]] == [first[0], first[2]]
    assert sorted(cloud.alive()) == sorted({*first, *second})
    assert len(cloud.alive()) == 4
