"""Instances that are stopped and started, and pools that are found by their tags alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sky_jupyter.errors import NoCapacity, PoolError
from sky_jupyter.machines import power_watchdog
from sky_jupyter.magics import sweep
from sky_jupyter.pool.lifecycle import stop_start
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.registry import provider_accounts
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.providers import AWS
from sky_jupyter.providers.base import can_stop
from sky_jupyter.providers.provisioning_types import Order
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.providers import aws_world
from tests.providers.aws_world import AwsWorld
from tests.providers.test_aws_launch import UNTIL, config, known_types, order  # noqa: F401 - a fixture

pytestmark = pytest.mark.slow


@pytest.fixture
def world(known_types: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsWorld]:  # noqa: F811
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))
    with aws_world.light() as made:
        monkeypatch.setenv("SKY_AWS_CACHE", known_types)
        yield made


def launched(made: Order, count: int = 1) -> list[str]:
    aws = AWS()
    return list(aws.create(PoolSpec(provider=aws, nodes=count), count, made))


def states(ids: list[str]) -> set[str]:
    return {record.state for record in AWS().describe(ids)}


def test_instances_stop_and_start_and_keep_their_tags(world: AwsWorld) -> None:
    aws = AWS()
    assert can_stop(aws)
    ids = launched(order(), 2)
    aws.stop(ids)
    assert states(ids) == {"stopped"}
    aws.stop(ids)
    assert {record.until for record in aws.list(None)} == {UNTIL}
    aws.start(ids)
    assert states(ids) <= {"pending", "running"}
    aws.destroy(ids)


def test_an_instance_that_has_no_place_now_stays_stopped(world: AwsWorld) -> None:
    ids = launched(order())
    AWS().stop(ids)
    world.plan("StartInstances", code="InsufficientInstanceCapacity", status=500)
    with pytest.raises(NoCapacity):
        AWS().start(ids)
    assert states(ids) == {"stopped"}
    AWS().destroy(ids)


def test_spot_instances_are_not_stopped(world: AwsWorld) -> None:
    aws = AWS()
    pool = Pool(PoolSpec(provider=aws))
    pool.lifecycle.ids = launched(order(market="spot"))
    with pytest.raises(PoolError, match="spot machines cannot be stopped"):
        stop_start.stop(pool.lifecycle, print)
    aws.destroy(pool.ids)


def test_instances_boot_with_the_watchdog_of_their_deadline(world: AwsWorld) -> None:
    ids = launched(order())
    assert config(world)["bootcmd"][0] == ["sh", "-c", power_watchdog.command(UNTIL)]
    assert AWS().power_file == power_watchdog.POWER_FILE
    AWS().destroy(ids)


def test_pools_are_listed_by_their_tags_and_swept_by_their_time(world: AwsWorld) -> None:
    aws, registry = AWS(), Registry()
    later = replace(order(), name="mine", owner=f"laptop/{provider_accounts.owner(registry).rpartition('/')[2]}")
    registry.close()
    lost = launched(later)
    past = launched(replace(order(token="t1"), pool="89abcdef", until=time.time() - 60, owner="other/12345678"))
    other = launched(replace(order(token="t2"), pool="00000001", owner="other/12345678"))
    found = {one.id: one for one in aws.pools()}
    assert found[later.pool].name == "mine"
    assert found[later.pool].until == UNTIL
    assert {found["89abcdef"].owner, found["00000001"].owner} == {"other/12345678"}
    lines = list(sweep.lines(None, aws, all_regions=False))
    assert {line[:5] for line in lines if lost[0] in line or past[0] in line} == {"ended"}
    assert world.alive() == other
    assert any("ended" in line and other[0] in line for line in sweep.lines("00000001", aws, all_regions=True))
    assert world.alive() == []
