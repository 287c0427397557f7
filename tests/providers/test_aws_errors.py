"""What AWS refuses, and what the pool then does: a row each, through the real client and real HTTP answers."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.errors import NoCapacity, OrderSpent, ProvisionError
from sky_jupyter.pool.lifecycle.provisioning import Provisioning
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.providers import AWS
from sky_jupyter.providers.aws import api_errors
from sky_jupyter.providers.aws.clients import clients
from sky_jupyter.spec.options import Options
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.providers import aws_world
from tests.providers.aws_world import AwsWorld

NEXT, MARKET, REGION, AGAIN, NEW, STOP = "next zone", "other market", "other region", "same token", "new token", "stop"
_ARN = "arn:aws:iam::123456789012:user/ada"
_DENIED = f"You are not authorized to perform this operation. User: {_ARN} is not authorized to perform: "


@dataclass(frozen=True)
class Row:
    """One error of AWS, what the pool does, and what a person reads."""

    code: str
    does: str
    told: str = ""
    message: str = ""
    status: int = 400
    action: str = "RunInstances"

    def __str__(self) -> str:
        return f"{self.code}-{self.message[:24]}"


TABLE = [
    Row("InsufficientInstanceCapacity", NEXT, "us-east-1a: no capacity for t3.medium (spot)", status=500),
    Row("UnfulfillableCapacity", NEXT, "us-east-1a: no capacity", status=500),
    Row("InsufficientFreeAddressesInSubnet", NEXT, "us-east-1a: the subnet has no free addresses"),
    Row("InsufficientVolumeCapacity", NEXT, "us-east-1a: no capacity for the volume", status=500),
    Row("VolumeTypeNotAvailableInZone", NEXT, "us-east-1a: no volumes of this type"),
    Row("Unsupported", NEXT, "us-east-1a: not supported"),
    Row("ReservationCapacityExceeded", NEXT, "us-east-1a: the reservation is used up"),
    Row(
        "MaxSpotInstanceCountExceeded",
        MARKET,
        "us-east-1: quota 'All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests' (L-34B43A08) is used up: "
        "2 vCPUs needed, 256 allowed in all; raise it: https://console.aws.amazon.com/servicequotas/home/services/ec2/"
        "quotas/L-34B43A08?region=us-east-1",
        "Max spot instance count exceeded",
    ),
    Row("VcpuLimitExceeded", MARKET, "quota 'All Standard", "your current vCPU limit of 1 allows"),
    Row("InstanceLimitExceeded", MARKET, "(L-34B43A08) is used up", "your current instance limit of 0 allows"),
    Row("SpotMaxPriceTooLow", MARKET, "us-east-1a: the spot price is above the maximum"),
    Row(
        "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
        MARKET,
        "aws iam create-service-linked-role --aws-service-name spot.amazonaws.com",
        status=403,
    ),
    *(
        Row(code, AGAIN, f"({code}); the order is sent again", status=status)
        for code, status in (
            *(("RequestLimitExceeded", 503), ("EC2ThrottledException", 503), ("Throttling", 400)),
            *(("InternalError", 500), ("InternalFailure", 500), ("ServerInternal", 500)),
            *(("ServiceUnavailable", 503), ("Unavailable", 503), ("SomethingNew", 502)),
        )
    ),
    Row("lost", AGAIN, "Connection was closed"),
    Row("cut", AGAIN, "Connection was closed"),
    Row("IdempotentParameterMismatch", NEW),
    Row("IdempotentInstanceTerminated", NEW),
    Row(
        "UnauthorizedOperation",
        STOP,
        "cannot launch instances: the IAM action ec2:RunInstances on arn:aws:ec2:us-east-1:1:instance/* is not "
        "allowed; allow ec2:RunInstances in a policy",
        f"{_DENIED}ec2:RunInstances on resource: arn:aws:ec2:us-east-1:1:instance/* because no identity-based policy "
        "allows the ec2:RunInstances action. Encoded authorization failure message: 0123456789abcdef",
        403,
    ),
    Row(
        "UnauthorizedOperation",
        STOP,
        "a policy of the organization forbids it: ask the account's administrator",
        f"{_DENIED}ec2:RunInstances on resource: arn:x with an explicit deny in a service control policy",
        403,
    ),
    Row("AuthFailure", STOP, "AWS does not know these credentials", "AWS was not able to validate them", 401),
    Row("InvalidClientTokenId", STOP, "check the access key: `aws sts get-caller-identity`", status=403),
    Row("SignatureDoesNotMatch", STOP, "AWS does not know these credentials", status=403),
    Row("ExpiredToken", STOP, "the session token has expired", "The security token is expired"),
    Row("RequestExpired", STOP, "the session token has expired", "Request has expired."),
    *(
        Row(code, STOP, f"AWS throttles this account in us-east-1: wait ({code}); another region may work", "wait")
        for code in ("PendingVerification", "OptInRequired", "Blocked", "AccountDisabled")
    ),
    *(
        Row(code, STOP, "`aws ec2 create-default-vpc --region us-east-1`")
        for code in ("VPCIdNotSpecified", "DefaultVpcDoesNotExist")
    ),
    *(
        Row(code, STOP, f"cannot launch instances in us-east-1a: its words ({code})", "its words")
        for code in (
            *("InvalidBlockDeviceMapping", "InvalidUserData.Malformed", "InvalidParameterValue"),
            *("InvalidParameterCombination", "TagPolicyViolation"),
        )
    ),
]


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsWorld]:
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))
    with aws_world.light() as made:
        yield made


@pytest.fixture(scope="module")
def shared() -> Iterator[AwsWorld]:
    """One cloud for all rows: what it offers is asked once."""
    with aws_world.light() as made:
        yield made


def rank_zones(aws: AwsWorld) -> None:
    """Have the spot market be cheapest in the first zone, then in the next one."""
    for number, zone in enumerate("abcdef"):
        aws.spot_price("t3.medium", f"us-east-1{zone}", 0.01 + number / 1000)


@pytest.fixture
def cloud(shared: AwsWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AwsWorld:
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))
    shared.calm()
    shared.forget_calls()
    rank_zones(shared)
    return shared


def spec(provider: AWS | None = None, **more: Any) -> PoolSpec:
    provider = provider or AWS(region="us-east-1", instance_type="t3.medium", ssh_from="any", visible_within=0.0)
    options = Options(console=False, provision_retry_delay=0.01, max_provision_attempts=1)
    return PoolSpec(provider=provider, **{"allocation": "spot-if-available", "options": options, **more})


def sent(aws: AwsWorld) -> list[tuple[str, str, str]]:
    """Zone, market and token of each launch."""
    market = "InstanceMarketOptions.MarketType"
    return [
        (one["zone"], one["sent"].get(market, "on-demand"), one["sent"]["ClientToken"])
        for one in aws.calls("RunInstances")
    ]


def plan(aws: AwsWorld, row: Row) -> None:
    if row.code in ("lost", "cut"):
        aws.plan("RunInstances", row.code)
    else:
        aws.plan("RunInstances", code=row.code, status=row.status, message=row.message)


@pytest.mark.parametrize("row", TABLE, ids=str)
def test_a_refusal_is_an_error_by_which_the_pool_knows_what_to_do(cloud: AwsWorld, row: Row) -> None:
    plan(cloud, row)
    where = ("us-east-1", "us-east-1a", "spot")
    with pytest.raises(ProvisionError) as raised:
        with api_errors.translated("launch instances", *where, kind="t3.medium", vcpus=2):
            clients(None).launcher("us-east-1").run_instances(ImageId="ami-0", MinCount=1, MaxCount=1)
    error = raised.value
    kinds = {NEXT: NoCapacity, MARKET: NoCapacity, NEW: OrderSpent}
    assert type(error) is kinds.get(row.does, type(error))
    assert isinstance(error, (NoCapacity, OrderSpent)) == (row.does in kinds)
    assert getattr(error, "scope", "zone") == ("market" if row.does == MARKET else "zone")
    assert error.passing == (row.does not in (STOP, MARKET))
    assert row.told.removesuffix("; the order is sent again") in str(error)
    assert "Encoded" not in str(error)
    # It was sent once.
    assert len(cloud.calls("RunInstances")) == 1


def _daily() -> list[Any]:
    """The table; all but the first row of each reaction take long."""
    firsts = {row.does: row for row in reversed(TABLE)}
    return [row if row is firsts[row.does] else pytest.param(row, marks=pytest.mark.long) for row in TABLE]


@pytest.mark.parametrize("row", _daily(), ids=str)
def test_a_refused_launch_goes_on_where_that_helps_and_says_what_mends_it(
    cloud: AwsWorld, registry: Registry, row: Row
) -> None:
    plan(cloud, row)
    wanted, told, pool = spec(), [], uuid.uuid4().hex[:8]
    machines = Provisioning(registry, pool)
    machines.plan(wanted)
    machines.begin()
    if row.does == STOP:
        with pytest.raises(ProvisionError) as raised:
            machines.acquire(wanted, 1, tell=told.append)
        assert row.told in str(raised.value)
        assert len(sent(cloud)) == 1
    else:
        (id,) = machines.acquire(wanted, 1, tell=told.append)
        assert cloud.alive(pool) == [id]
        assert not row.told or any(row.told in line for line in told)
        (first, last) = sent(cloud)
        places = {NEXT: ("us-east-1b", "spot"), MARKET: (last[0], "on-demand")}
        assert first[:2] == ("us-east-1a", "spot")
        assert last[:2] == places.get(row.does, first[:2])
        assert (last[2] == first[2]) == (row.does == AGAIN)
        calls = [one["action"] for one in cloud.calls()]
        between = calls[calls.index("RunInstances") : len(calls) - calls[::-1].index("RunInstances")]
        # What the token has made before is looked for.
        assert ("DescribeInstances" in between) == (row.does == NEW)
    assert machines.end(wanted, 10) == []
    assert cloud.alive(pool) == []


def test_zones_that_aws_names_are_tried_next(cloud: AwsWorld, registry: Registry) -> None:
    message = (
        "We currently do not have sufficient t3.medium capacity in the Availability Zone you requested (us-east-1a). "
        "Our system will be working on provisioning additional capacity. You can currently get t3.medium capacity by "
        "not specifying an Availability Zone in your request or choosing us-east-1d, us-east-1f."
    )
    cloud.refuse("us-east-1a", message=message)
    machines = Provisioning(registry, "0123abcd")
    machines.plan(spec())
    machines.acquire(spec(), 1)
    assert [zone for zone, _, _ in sent(cloud)] == ["us-east-1a", "us-east-1d"]
    machines.end(spec(), 10)


def test_where_all_markets_are_at_their_quota_it_stops_with_each_of_them(cloud: AwsWorld, registry: Registry) -> None:
    cloud.refuse(code="VcpuLimitExceeded")
    machines = Provisioning(registry, "0123abcd")
    machines.plan(spec())
    with pytest.raises(ProvisionError) as raised:
        machines.acquire(spec(), 1)
    assert not raised.value.passing
    assert "L-34B43A08" in str(raised.value)
    assert "L-1216C47A" in str(raised.value)
    assert len(sent(cloud)) == 2


def test_an_encoded_refusal_is_decoded_where_that_is_allowed(aws: AwsWorld) -> None:
    from botocore.exceptions import ClientError
    from botocore.stub import Stubber

    message = "You are not authorized to perform this operation. Encoded authorization failure message: abc"
    refusal = {"Error": {"Code": "UnauthorizedOperation", "Message": message}}
    decoded = {"allowed": False, "context": {"action": "ec2:RunInstances", "resource": "arn:aws:ec2:x"}}
    with Stubber(clients(None).sts("us-east-1")) as stubber:
        stubber.add_response("decode_authorization_message", {"DecodedMessage": json.dumps(decoded)})
        with pytest.raises(api_errors.NotAuthorized) as raised, api_errors.translated("launch", "us-east-1"):
            raise ClientError(refusal, "RunInstances")
    assert (raised.value.action, raised.value.resource) == ("ec2:RunInstances", "arn:aws:ec2:x")
    # Where it is not, it says so without it.
    with pytest.raises(api_errors.NotAuthorized, match="this is not allowed"):
        with api_errors.translated("launch", "us-east-1"):
            raise ClientError(refusal, "RunInstances")


def test_a_region_that_is_not_enabled_is_told_from_wrong_keys(aws: AwsWorld) -> None:
    aws.plan("DescribeInstances", code="AuthFailure", status=401, message="AWS was not able to validate")
    with pytest.raises(NoCapacity, match="aws account enable-region --region-name ap-east-1") as raised:
        AWS(region="ap-east-1").list(None)
    assert raised.value.scope == "region"


def test_a_region_that_is_not_enabled_is_left_out_where_others_are(aws: AwsWorld) -> None:
    aws.plan("*", code="AuthFailure", status=401, region="ap-east-1", times=0)
    provider = AWS(regions=("ap-east-1", "us-east-1"), instance_type="t3.medium")
    assert {one.region for one in provider.offers(PoolSpec(provider=provider))} == {"us-east-1"}
    alone = AWS(region="ap-east-1", instance_type="t3.medium")
    with pytest.raises(NoCapacity, match="aws account enable-region"):
        alone.offers(PoolSpec(provider=alone))


def test_a_clock_that_is_wrong_is_named(aws: AwsWorld) -> None:
    aws.configure(clock=3600)
    with pytest.raises(ProvisionError, match="set it"):
        AWS(region="us-east-1").list(None)


# -- log-ins -----------------------------------------------------------------------------------------


SSO = """
[profile lab]
sso_session = us
sso_account_id = 123456789012
sso_role_name = dev
[sso-session us]
sso_start_url = https://x.awsapps.com/start
sso_region = us-east-1
[profile console]
login_session = arn:aws:iam::123456789012:user/ada
"""


@pytest.fixture
def config(aws: AwsWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Writes AWS's two files, without keys in the environment."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))

    def write(config: str, credentials: str = "") -> None:
        (tmp_path / "config").write_text(config)
        (tmp_path / "credentials").write_text(credentials)

    return write


@pytest.mark.parametrize(
    ("profile", "told"),
    [
        (None, "`aws configure`, `aws sso login --profile NAME` or `aws login`"),
        ("lab", "`aws sso login --profile lab`"),
        ("console", "aws login"),
        ("other", r"\(other\) could not be found"),
    ],
)
def test_a_log_in_that_is_missing_is_named_with_its_command(
    config: Callable[..., None], profile: str | None, told: str
) -> None:
    config(SSO)
    with pytest.raises(ProvisionError, match=told) as raised:
        AWS(profile=profile, region="us-east-1").account()
    assert not raised.value.passing


def test_a_new_log_in_helps_at_once(config: Callable[..., None]) -> None:
    provider = AWS(profile="lab", region="us-east-1")
    config(SSO)
    with pytest.raises(ProvisionError, match="aws sso login"):
        provider.account()
    config("[profile lab]\n", "[lab]\naws_access_key_id = testing\naws_secret_access_key = testing\n")
    assert provider.account() == "123456789012"


def test_nothing_is_bought_without_a_log_in(config: Callable[..., None], aws: AwsWorld, registry: Registry) -> None:
    config(SSO)
    machines = Provisioning(registry, "0123abcd")
    wanted = spec(AWS(profile="lab", region="us-east-1", instance_type="t3.medium"))
    machines.plan(wanted)
    with pytest.raises(ProvisionError, match="`aws sso login --profile lab`"):
        machines.acquire(wanted, 1)
    assert aws.calls() == []


def test_other_variables_make_other_clients_at_once(aws: AwsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    before = clients(None)
    assert clients(None) is before
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other")
    AWS(region="us-east-1").account()
    assert [one["caller"] for one in aws.calls("GetCallerIdentity")] == ["other"]
    assert os.environ["AWS_ACCESS_KEY_ID"] == "other"
    assert clients(None) is not before


def test_without_a_region_it_says_how_to_give_one(aws: AwsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(ProvisionError, match="--region us-east-1"):
        clients(None).region()
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert clients(None).region() == "eu-west-1"
