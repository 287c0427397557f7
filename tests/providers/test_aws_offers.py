"""What EC2's machines cost, and which of them a pool is offered."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import sky_jupyter as sky
from sky_jupyter.api import spec_fallbacks
from sky_jupyter.errors import ProvisionError, SpecError
from sky_jupyter.providers.aws import instance_type_catalog, offers, prices
from sky_jupyter.providers.aws.instance_type_catalog import InstanceType
from sky_jupyter.providers.aws.offers import NothingFits
from sky_jupyter.providers.provisioning_types import Offer
from sky_jupyter.spec.accelerators import Accelerator
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.programs import ROOT
from tests.providers import aws_world
from tests.providers.aws_world import AwsWorld

T4 = "g4dn.xlarge"


@pytest.fixture
def aws() -> Iterator[AwsWorld]:
    with aws_world.light() as made:
        yield made


def spec(accelerator: str = "", **wishes: Any) -> PoolSpec:
    kind = Accelerator.parse(accelerator) if accelerator else None
    return PoolSpec(provider=sky.AWS(), accelerator=kind, **wishes)


def packaged(accelerator: str = "", *, by: sky.AWS | None = None, **wishes: Any) -> list[Offer]:
    """The offers of the packaged catalogue."""
    return offers.offers(by or sky.AWS(), None, spec(accelerator, **wishes))


def names(found: list[Offer]) -> list[str]:
    return list(dict.fromkeys(one.name for one in found))


@pytest.mark.parametrize(
    ("accelerator", "first", "count"),
    [
        ("T4", T4, 1),
        ("T4:4", "g4dn.12xlarge", 4),
        ("A10G:8", "g5.48xlarge", 8),
        ("L40S", "g6e.xlarge", 1),
        ("H100", "p5.4xlarge", 1),
        ("H200:8", "p5en.48xlarge", 8),
        ("A100-80GB:8", "p4de.24xlarge", 8),
        # EC2 has no single A100.
        ("A100", "p4d.24xlarge", 8),
        ("B200-192GB:8", "p6-b200.48xlarge", 8),
        ("RTX PRO 6000", "g7e.2xlarge", 1),
        ("trn1:16", "trn1.32xlarge", 16),
        ("T4G", "g5g.xlarge", 1),
    ],
)
def test_an_accelerator_gets_the_cheapest_type_that_has_it(accelerator: str, first: str, count: int) -> None:
    found = packaged(accelerator, allocation="on-demand")
    assert found[0].name == first
    wanted = Accelerator.parse(accelerator).name
    assert {(Accelerator.parse(one.accelerator).name, one.count) for one in found} == {(wanted, count)}
    known = [one.hourly for one in found if one.hourly is not None]
    assert known == sorted(known)
    assert [one.hourly for one in found[len(known) :]] == [None] * (len(found) - len(known))


def test_processors_and_memory_are_minima() -> None:
    assert all(one.vcpus >= 16 and one.memory_gb >= 100 for one in packaged("T4", vcpus=16, memory_gb=100))
    assert names(packaged("T4", vcpus=16, memory_gb=100)) == ["g4dn.8xlarge", "g4dn.16xlarge"]
    assert packaged(vcpus=3, memory_gb=12, allocation="on-demand")[0].name == "m7i.xlarge"


def test_a_pool_without_wishes_gets_small_machines_whose_price_is_all_they_cost() -> None:
    found = packaged(allocation="on-demand")
    assert found[0].name == "m7i.large"
    assert all(2 <= one.vcpus <= 16 and one.memory_gb >= 4 and not one.count for one in found)
    assert not [one for one in found if one.name.startswith(("t3", "m7g"))]
    # Who names one gets it.
    assert packaged(by=sky.AWS(instance_type="t3.medium"), allocation="on-demand")[0].hourly == 0.0416


@pytest.mark.parametrize(
    ("accelerator", "wishes", "told"),
    [
        ("A100:16", {}, r"no instance type with A100:16 here; it has A100-40GB:8 \(p4d.24xlarge\)"),
        ("RTX_4090", {}, "no instance type with RTX_4090 here; it has A100-40GB, A100-80GB, A10G"),
        ("T4", {"vcpus": 200}, "no instance type with T4 with 200 vCPU here"),
        ("", {"memory_gb": 99_999}, "no instance type that fits here: 99999 GB of memory"),
        ("A100-80GB:8", {"max_hourly_cost": 20}, r"is \$27.45 an hour, and max_hourly_cost \$20"),
    ],
)
def test_what_ec2_does_not_have_is_said_with_what_it_has(accelerator: str, wishes: dict[str, Any], told: str) -> None:
    with pytest.raises(NothingFits, match=told):
        packaged(accelerator, allocation="on-demand", **wishes)


def test_a_limit_leaves_out_what_costs_more_and_not_what_has_an_unknown_price() -> None:
    assert T4 not in names(packaged("T4", allocation="on-demand", max_hourly_cost=0.5))
    assert {one.hourly for one in packaged("T4", allocation="on-demand", max_hourly_cost=0.5)} == {None}


def test_the_typed_catalogue_has_what_ec2_says(aws: AwsWorld) -> None:
    there = instance_type_catalog.available(sky.AWS().clients, "us-east-1")
    for name, one in instance_type_catalog.packaged().items():
        real = there[name]
        assert replace(one, efa=real.efa, zones=real.zones, markets=real.markets) == real
    # All that a pool can ask for of what there is.
    mine = {one.accelerator for one in instance_type_catalog.packaged().values()}
    assert {one.accelerator for one in there.values()} - mine == {"V100-32GB"}
    assert there["p5.48xlarge"].efa == 32
    assert not [name for name in there if name.startswith("g6f.")]


def test_a_price_is_the_one_of_the_market_zone_and_day(aws: AwsWorld) -> None:
    aws.spot_price(T4, "us-east-1b", 0.2)
    aws.spot_price(T4, "us-east-1a", 0.3)
    found = [one for one in sky.AWS().offers(spec("T4", vcpus=4)) if one.name == T4]
    spot = [one for one in found if one.market == "spot"]
    assert [(one.zones, one.hourly) for one in spot if one.zones[0] in ("us-east-1a", "us-east-1b")] == [
        (("us-east-1b",), 0.2),
        (("us-east-1a",), 0.3),
    ]
    (demand,) = [one for one in found if one.market == "on-demand"]
    assert len(demand.zones) > 2
    assert demand.hourly == 0.526
    assert demand.priced == f"list price of {time.strftime('%Y-%m-%d', time.gmtime())}"
    clients = sky.AWS().clients
    assert prices.hourly(clients, T4, "us-east-1") == 0.526
    assert prices.hourly(clients, T4, "us-east-1", "us-east-1b", "spot") == 0.2
    assert prices.hourly(None, T4, "us-east-1") == 0.526
    assert prices.hourly(None, T4, "eu-west-1") is None


def test_spot_comes_first_unless_it_costs_more_than_a_machine_on_demand(aws: AwsWorld) -> None:
    for zone in "abcdf":
        aws.spot_price(T4, f"us-east-1{zone}", 0.2)
        aws.spot_price("g4dn.16xlarge", f"us-east-1{zone}", 1.4)
    found = sky.AWS().offers(spec("T4"))
    order = [(one.name, one.market) for one in found if one.hourly is not None]
    assert order.index((T4, "spot")) < order.index((T4, "on-demand")) < order.index(("g4dn.16xlarge", "spot"))
    assert {one.market for one in sky.AWS().offers(spec("T4", allocation="spot"))} == {"spot"}
    assert {one.market for one in sky.AWS().offers(spec("T4", allocation="on-demand"))} == {"on-demand"}
    cheapest = [one.hourly for one in sky.AWS().offers(spec("T4", allocation="cheapest")) if one.hourly is not None]
    assert cheapest == sorted(cheapest)
    limited = sky.AWS().offers(spec("T4", max_hourly_cost=0.3))
    assert {one.market for one in limited if one.hourly is not None} == {"spot"}


def test_regions_are_the_pools_or_the_providers_or_the_default_one(aws: AwsWorld) -> None:
    def of(provider: sky.AWS, **wishes: Any) -> set[str]:
        return {one.region for one in provider.offers(spec("T4", **wishes))}

    assert of(sky.AWS()) == {"us-east-1"}
    assert of(sky.AWS(region="eu-west-1")) == {"eu-west-1"}
    assert of(sky.AWS(region="eu-west-1"), region="us-west-2") == {"us-west-2"}
    assert of(sky.AWS(regions=("eu-west-1", "us-west-2"))) == {"eu-west-1", "us-west-2"}
    assert of(sky.AWS(regions=("eu-west-1", "us-west-2")), region="us-west-2") == {"us-west-2"}
    with pytest.raises(SpecError, match="'us-east-1' is not among the provider's regions"):
        of(sky.AWS(regions=("eu-west-1",)), region="us-east-1")


def test_a_region_that_is_closed_is_left_out_if_there_is_another(aws: AwsWorld) -> None:
    aws.plan("DescribeInstanceTypes", code="AuthFailure", region="eu-west-1", times=0)
    found = sky.AWS(regions=("eu-west-1", "us-west-2")).offers(spec("T4"))
    assert {one.region for one in found} == {"us-west-2"}
    with pytest.raises(ProvisionError, match="eu-west-1"):
        sky.AWS(region="eu-west-1").offers(spec("T4"))


def test_a_subnet_leaves_its_zone_only(aws: AwsWorld) -> None:
    clients = sky.AWS().clients
    subnets = clients.ec2("us-east-1").describe_subnets()["Subnets"]
    one = next(subnet for subnet in subnets if subnet["AvailabilityZone"] == "us-east-1b")
    found = sky.AWS(subnet=one["SubnetId"]).offers(spec("T4"))
    assert {zone for offer in found for zone in offer.zones} == {"us-east-1b"}


def test_a_reservation_leaves_its_type_and_zone_on_demand_only(aws: AwsWorld) -> None:
    facts = {"ReservationType": "capacity-block", "InstanceType": "p5.48xlarge", "AvailabilityZone": "us-east-1d"}
    aws.configure(reservations={"cr-0123456789abcdef0": facts})
    (one,) = sky.AWS(reservation="cr-0123456789abcdef0").offers(spec("H100:8"))
    assert (one.name, one.zones, one.market) == ("p5.48xlarge", ("us-east-1d",), "on-demand")
    with pytest.raises(NothingFits, match=r"with T4 here; it has H100-80GB"):
        sky.AWS(reservation="cr-0123456789abcdef0").offers(spec("T4"))


def test_a_type_that_is_named_is_taken_as_it_is(aws: AwsWorld) -> None:
    assert names(sky.AWS(instance_type="c5.large").offers(spec())) == ["c5.large"]
    assert names(sky.AWS(instance_type="g4dn.metal").offers(spec("T4:8"))) == ["g4dn.metal"]
    with pytest.raises(NothingFits, match="no instance type with A100 here"):
        sky.AWS(instance_type=T4).offers(spec("A100"))
    with pytest.raises(ProvisionError, match=r"do not exist: \[g99.xlarge\]"):
        sky.AWS(instance_type="g99.xlarge").offers(spec())


def test_a_named_type_with_a_fraction_of_an_accelerator_is_refused(
    aws: AwsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instance_type_catalog, "described", lambda clients, region, asked: [])
    with pytest.raises(ProvisionError, match=r"g6f\.large cannot be used"):
        sky.AWS(instance_type="g6f.large").offers(spec())


def test_an_answer_is_asked_for_once_until_it_is_old(aws: AwsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    sky.AWS().offers(spec("T4"))
    before = len(aws.calls())
    sky.AWS().offers(spec("T4", vcpus=8))
    assert len(aws.calls()) == before
    later = time.time() + 16 * 60
    monkeypatch.setattr(time, "time", lambda: later)
    sky.AWS().offers(spec("T4"))
    assert [call["action"] for call in aws.calls()[before:]] == ["DescribeSpotPriceHistory"]


def test_answers_that_an_earlier_release_wrote_with_other_fields_are_asked_for_again(
    aws: AwsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = dataclasses.field(default=1)
    earlier = dataclasses.make_dataclass("Earlier", [("gone", int, row)], bases=(InstanceType,), frozen=True)
    with monkeypatch.context() as patched:
        patched.setattr(instance_type_catalog, "InstanceType", earlier)
        found = names(sky.AWS().offers(spec("T4")))
    assert names(sky.AWS().offers(spec("T4"))) == found


@pytest.mark.parametrize("action", ["DescribeSpotPriceHistory", "GetProducts"])
def test_a_price_that_is_not_told_blocks_nothing(aws: AwsWorld, action: str) -> None:
    aws.plan(action, code="AccessDeniedException", status=400, times=0)
    found = sky.AWS().offers(spec("T4"))
    market = "spot" if action == "DescribeSpotPriceHistory" else "on-demand"
    (one,) = [offer for offer in found if (offer.name, offer.market) == (T4, market)]
    assert one.hourly == (None if market == "spot" else 0.526)
    assert one.priced == ("" if market == "spot" else "list price of July 2026, us-east-1")
    # Others' orders are sorted all the same: the smallest first.
    assert found[0].name == T4


def test_spot_prices_of_a_time_begin_with_the_one_that_was_valid(aws: AwsWorld) -> None:
    now = round(time.time())
    for ago, price in ((7200, 0.3), (1800, 0.25), (60, 0.2)):
        aws.spot_price(T4, "us-east-1a", price, at=now - ago)
    found = prices.spot_history(sky.AWS().clients, T4, "us-east-1", "us-east-1a", now - 3600, now)
    assert found == [(now - 7200, 0.3), (now - 1800, 0.25), (now - 60, 0.2)]


def test_the_catalogue_is_read_without_aws_sdk() -> None:
    code = """
import sys, json
import sky_jupyter as sky
from sky_jupyter.providers.aws import offers
from sky_jupyter.spec.pool_spec import PoolSpec
found, told = sky.AWS().price_list(PoolSpec(provider=sky.AWS()))
print(json.dumps([len(found), told, sorted({"boto3", "botocore", "paramiko", "distributed"} & set(sys.modules))]))
"""
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true"}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    count, told, heavy = json.loads(said.stdout)
    assert count > 100
    assert told == (
        "from the package's catalogue (July 2026, us-east-1); present prices and zones need an account: "
        "no AWS credentials were found"
    )
    assert heavy == []


def test_a_table_has_a_row_for_each_type_and_region_with_both_prices(aws: AwsWorld) -> None:
    aws.spot_price(T4, "us-east-1b", 0.15)
    aws.spot_price(T4, "us-east-1a", 0.2)
    found = sky.offers(accelerator="T4", region="us-east-1")
    assert all(isinstance(one, Offer) for one in found)
    lines = repr(found).splitlines()
    assert lines[0].split("  ")[0] == "type"
    assert [head for head in ("on demand", "spot") if head in lines[0]] == ["on demand", "spot"]
    (row,) = [line for line in lines if line.startswith(f"{T4} ")]
    assert row.split() == [T4, "T4", "4", "16", "GB", "us-east-1", *row.split()[6:-2], "$0.5260", "$0.1500"]
    assert row.split()[6] == "b"
    assert lines[-1].startswith("dollars an hour; on demand: list price of ")
    html = found._repr_html_()
    assert html.count("<tr>") == len(lines) - 1
    assert "<td" in html
    assert "$0.1500" in html
    assert {one.market for one in sky.offers(accelerator="T4", spot=True)} == {"spot"}
    assert {one.market for one in sky.offers(accelerator="T4", spot=False)} == {"on-demand"}


def test_a_table_without_wishes_has_all_types_and_one_with_wishes_what_fits(aws: AwsWorld) -> None:
    everything = {one.name for one in sky.offers()}
    assert {"t3.medium", "m7g.large", T4, "p5.48xlarge", "trn1.2xlarge"} <= everything
    assert {one.name for one in sky.offers(vcpus=90, memory_gb=700)} == {"m7i.48xlarge", "r7i.24xlarge", "r7i.48xlarge"}


def test_a_table_is_shown_from_the_catalogue_where_aws_refuses(aws: AwsWorld) -> None:
    aws.plan("DescribeInstanceTypes", code="RequestExpired", status=400, times=0)
    found = sky.offers(accelerator="T4")
    assert found[0].hourly == 0.526
    assert found.note.startswith("from the package's catalogue (July 2026, us-east-1); present prices and zones need")
    assert "xpired" in found.note


def test_a_table_of_another_provider_has_what_that_offers() -> None:
    assert repr(sky.offers("local")).split() == ["type", "on", "demand", "this", "machine", "$0.0000"]
    with pytest.raises(SpecError, match="unknown provider 'azure'"):
        sky.offers("azure")


@pytest.mark.slow
def test_the_catalogue_is_made_anew_from_what_aws_tells(aws: AwsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    at = importlib.util.spec_from_file_location("aws_catalog", ROOT / "docs" / "aws_catalog.py")
    assert at is not None
    assert at.loader is not None
    script = importlib.util.module_from_spec(at)
    monkeypatch.setattr(sys, "path", list(sys.path))
    at.loader.exec_module(script)
    made = json.loads(script.text(sky.AWS(), "2026-12-24"))
    typed = instance_type_catalog.catalogue()
    assert (made["priced"], made["region"]) == ("2026-12-24", "us-east-1")
    for family, row in typed["families"].items():
        new = made["families"][family]
        assert {key: new[key] for key in row if key != "sizes"} == {key: row[key] for key in row if key != "sizes"}
        assert {size: values[:3] for size, values in row["sizes"].items()}.items() <= {
            size: values[:3] for size, values in new["sizes"].items()
        }.items()
    assert made["families"]["g4dn"]["sizes"]["xlarge"][3] == 0.526
    assert set(made["families"]) == set(typed["families"])
    aws.plan("GetProducts", code="AccessDeniedException", status=400, times=0)
    with tempfile.TemporaryDirectory() as empty, monkeypatch.context() as patched:
        patched.setenv("SKY_ANSWER_CACHE", empty)
        with pytest.raises(SystemExit, match="pricing:GetProducts"):
            script.text(sky.AWS(), "2026-12-24")


def test_of_several_ways_the_cheapest_pool_is_made_first(aws: AwsWorld) -> None:
    aws.spot_price("p5.4xlarge", "us-east-1a", 2.0)
    demand, spot = (spec(kind, nodes=2, allocation=market) for kind, market in (("T4", "on-demand"), ("H100", "spot")))
    assert spec_fallbacks.price(demand) == 2 * 0.526
    assert spec_fallbacks.price(spot) <= 2 * 2.0
    tried: list[PoolSpec] = []

    def refuse(one: PoolSpec) -> None:
        tried.append(one)
        raise ProvisionError("no capacity")

    options = sky.Options(selection="cheapest")
    ways = [replace(one, options=options) for one in (spot, demand)]
    with pytest.raises(ProvisionError, match="none of the 2 specs"):
        spec_fallbacks.first_of(ways, refuse, lambda text: None)
    assert [str(one.accelerator) for one in tried] == ["T4", "H100"]
