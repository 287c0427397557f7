"""AWS keeps the contract of providers that create machines; what is special about its instances."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from sky_jupyter.errors import ProvisionError
from sky_jupyter.providers import AWS
from sky_jupyter.providers.aws import instances
from sky_jupyter.providers.aws.clients import clients
from sky_jupyter.providers.provisioning_types import Offer, Order
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.providers import aws_world
from tests.providers.aws_world import AwsWorld
from tests.providers.conformance import ProvisionerConformance, eventually

PROVIDER = AWS(region="us-east-1", instance_type="t3.medium", ssh_from="any", visible_within=0.2)


@pytest.fixture(scope="module")
def shared() -> Iterator[AwsWorld]:
    with aws_world.light() as made:
        yield made


@pytest.fixture(autouse=True)
def aws(shared: AwsWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AwsWorld:
    """One cloud for all tests: each has pools of its own."""
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))
    shared.calm()
    shared.forget_calls()
    return shared


class TestContract(ProvisionerConformance):
    @pytest.fixture
    def provider(self) -> AWS:
        return PROVIDER


def launched(pool: str, count: int = 1, market: str = "on-demand", region: str = "us-east-1") -> Sequence[str]:
    offer = Offer("t3.medium", None, region=region, zones=(f"{region}a",), market=market)
    order = Order(pool, f"token-{pool}-{count}-{market}-{region}", offer, f"{region}a", 2e9, "me")
    return PROVIDER.create(PoolSpec(provider=PROVIDER), count, order)


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process know no instance's region, as a process that has just begun."""
    monkeypatch.setattr(instances, "_regions", {})


def test_nothing_of_a_spot_pool_is_left(aws: AwsWorld) -> None:
    before = aws.left()
    ids = launched("spot0", 2, "spot")
    assert aws.left()["spot_requests"] == before["spot_requests"] + 2
    PROVIDER.destroy(ids)
    # Their group is in use until they have shut down.
    eventually(lambda: aws.left() == before)


def test_one_unknown_id_keeps_no_other_alive(aws: AwsWorld) -> None:
    ids = launched("unknown0", 2)
    # It was seen here, and EC2 has forgotten it.
    gone = "i-0123456789abcdef0"
    instances.remember([gone], "us-east-1")
    PROVIDER.destroy([*ids, gone])
    assert aws.alive("unknown0") == []
    with pytest.raises(ClientError, match="NotFound"):
        clients(None).ec2("us-east-1").terminate_instances(InstanceIds=[*ids, gone])


def test_an_instance_that_is_not_listed_yet_is_no_error(aws: AwsWorld) -> None:
    aws.configure(shown=60.0)
    ids = launched("early0", 2)
    assert [one.state for one in PROVIDER.describe(ids)] == ["unknown", "unknown"]
    PROVIDER.destroy(ids)
    aws.configure(shown=0.0)


@pytest.mark.slow
@pytest.mark.usefixtures("unseen")
def test_a_process_that_knows_no_region_finds_machines_in_all_of_them(aws: AwsWorld) -> None:
    ids = [*launched("far0"), *launched("far0", region="eu-west-1")]
    instances._regions.clear()
    assert [one.region for one in PROVIDER.describe(ids)] == ["us-east-1", "eu-west-1"]
    asked = {one["region"] for one in aws.calls("DescribeInstances")}
    assert {"us-east-1", "eu-west-1", "us-west-2"} <= asked
    instances._regions.clear()
    PROVIDER.destroy(ids)
    assert aws.alive("far0") == []


def test_instances_are_listed_in_every_state_until_they_have_ended(aws: AwsWorld) -> None:
    (id,) = launched("states0")
    ec2: Any = clients(None).ec2("us-east-1")

    def state() -> list[tuple[str, bool, bool]]:
        return [(one.state, one.is_there, one.is_usable) for one in PROVIDER.list("states0")]

    eventually(lambda: state() == [("running", True, True)])
    ec2.stop_instances(InstanceIds=[id])
    eventually(lambda: state() == [("stopped", True, False)])
    PROVIDER.destroy([id])
    eventually(lambda: state() in ([], [("ending", False, False)]))
    eventually(lambda: state() == [])
    assert [one.state for one in PROVIDER.describe([id])] == ["ended"]


def test_a_spot_request_that_may_not_be_cancelled_keeps_no_instance_alive(aws: AwsWorld) -> None:
    ids = launched("denied0", 1, "spot")
    aws.plan("CancelSpotInstanceRequests", code="UnauthorizedOperation", status=403)
    with pytest.raises(ProvisionError, match="cancel spot requests"):
        PROVIDER.destroy(ids)
    assert aws.alive("denied0") == []
    PROVIDER.destroy(ids)


def test_a_spot_request_whose_cancelling_was_put_off_is_cancelled_once_its_instance_ends(aws: AwsWorld) -> None:
    before = aws.left()
    ids = launched("busy0", 1, "spot")
    aws.plan("CancelSpotInstanceRequests", code="InternalError")
    PROVIDER.destroy(ids)
    assert aws.left() == before
