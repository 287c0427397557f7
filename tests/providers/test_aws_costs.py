"""What EC2's instances cost: list price or spot history, disk and address, a minute at least."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import sky_jupyter as sky
from sky_jupyter.providers.aws import instances, prices
from sky_jupyter.providers.provisioning_types import Charge, MachineRecord
from tests.providers import aws_world
from tests.providers.aws_world import AwsWorld

HOUR = 3600.0
DISK, FAST, ADDRESS = 0.08 / 730, 375 * 0.04 / 730, 0.005
P4D, LISTED = "p4d.24xlarge", 21.96
NOW = time.time()


@pytest.fixture
def aws() -> Iterator[AwsWorld]:
    with aws_world.light() as made:
        yield made


def machine(**more: Any) -> MachineRecord:
    record = MachineRecord("i-1", "running", region="us-east-1", zone="us-east-1a", kind=P4D, market="on-demand")
    return replace(record, **{"launched": NOW - 10 * HOUR, **more})


def cost(*records: MachineRecord, at: float = NOW) -> list[Charge]:
    return list(sky.AWS().costs(records, at))


@pytest.mark.usefixtures("aws")
def test_a_machine_on_demand_costs_the_list_price_and_its_disk_and_address() -> None:
    (charge,) = cost(machine(disk_gb=200.0, public=True))
    hourly = LISTED + 200 * DISK + FAST + ADDRESS
    assert charge == Charge(pytest.approx(hourly), pytest.approx(10 * hourly))
    assert charge.dollars == pytest.approx(10 * LISTED, rel=0.01)


@pytest.mark.usefixtures("aws")
def test_a_machine_costs_a_minute_at_least_and_a_stopped_one_its_disk() -> None:
    young, stopped = cost(machine(), machine(state="stopped", disk_gb=100.0), at=NOW - 10 * HOUR + 5)
    assert young.dollars == pytest.approx(LISTED / 60)
    disk = 100 * DISK + FAST
    assert stopped == Charge(pytest.approx(disk), pytest.approx(disk * 5 / HOUR))


def test_a_spot_machine_costs_what_its_zone_cost_at_each_time(aws: AwsWorld) -> None:
    for price, ago in ((4.0, 12.0), (6.0, 7.0), (5.0, 2.0)):
        aws.spot_price(P4D, "us-east-1a", price, NOW - ago * HOUR)
    aws.spot_price(P4D, "us-east-1b", 9.0, NOW - 12 * HOUR)
    early, late = cost(machine(market="spot"), machine(market="spot", launched=NOW - HOUR))
    assert early == Charge(5.0, pytest.approx(3 * 4 + 5 * 6 + 2 * 5, rel=0.01))
    assert late == Charge(5.0, pytest.approx(5.0, rel=0.01))


@pytest.mark.usefixtures("aws")
def test_what_nobody_knows_the_price_of_is_unknown_and_not_nothing() -> None:
    odd = machine(kind="p9.odd", region="eu-west-1", zone="eu-west-1a", disk_gb=100.0)
    assert cost(odd, machine(market="capacity-block")) == [Charge(), Charge()]


def test_a_record_has_what_its_cost_depends_on() -> None:
    described = {
        "InstanceId": "i-1",
        "State": {"Name": "running"},
        "Tags": [{"Key": instances.DISK, "Value": "150"}],
        "PublicIpAddress": "192.0.2.1",
    }
    record = instances.record_of(described, "us-east-1")
    assert (record.disk_gb, record.public) == (150.0, True)
    assert prices.hourly(None, P4D, "us-east-1") == LISTED
