"""The cloud that AWS's tests run on behaves as EC2 where moto alone does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

boto3 = pytest.importorskip("boto3")
from botocore.config import Config  # noqa: E402
from botocore.exceptions import ClientError, ConnectionClosedError  # noqa: E402

from tests.providers import aws_world  # noqa: E402
from tests.providers.aws_world import AwsWorld  # noqa: E402

_UBUNTU = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
_TAGS = [{"Key": "sky-jupyter", "Value": "pool"}]
_TAGGED = ("instance", "volume", "network-interface", "spot-instances-request")
_ONCE = Config(retries={"total_max_attempts": 1})


@pytest.fixture
def aws() -> Iterator[AwsWorld]:
    with aws_world.light() as made:
        yield made


def launch(zone: str = "us-east-1a", count: int = 1, token: str = "", spot: bool = False, **more: Any) -> list[str]:
    """Launch as a provider does."""
    ec2 = boto3.client("ec2", config=_ONCE)
    image = boto3.client("ssm").get_parameter(Name=_UBUNTU)["Parameter"]["Value"]
    (subnet,) = ec2.describe_subnets(Filters=[{"Name": "availability-zone", "Values": [zone]}])["Subnets"]
    nic = {"DeviceIndex": 0, "SubnetId": subnet["SubnetId"], "DeleteOnTermination": True}
    root = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 20, "DeleteOnTermination": True}}
    words: dict[str, Any] = {
        "InstanceType": "t3.medium",
        "ImageId": image,
        "MinCount": count,
        "MaxCount": count,
        "NetworkInterfaces": [nic | {"AssociatePublicIpAddress": True}],
        "BlockDeviceMappings": [root],
        "TagSpecifications": [{"ResourceType": kind, "Tags": _TAGS} for kind in _TAGGED if spot or "spot" not in kind],
        **({"ClientToken": token} if token else {}),
        **({"InstanceMarketOptions": {"MarketType": "spot"}} if spot else {}),
        **more,
    }
    return [one["InstanceId"] for one in ec2.run_instances(**words)["Instances"]]


def code(refused: pytest.ExceptionInfo[ClientError]) -> str:
    return str(refused.value.response["Error"]["Code"])


def test_a_spot_instance_is_tagged_at_birth_and_leaves_nothing_once_ended_and_cancelled(aws: AwsWorld) -> None:
    ec2 = boto3.client("ec2")
    ids = launch(count=2, spot=True)
    requests = ec2.describe_spot_instance_requests(Filters=[{"Name": "tag:sky-jupyter", "Values": ["pool"]}])
    names = [one["SpotInstanceRequestId"] for one in requests["SpotInstanceRequests"]]
    listed = ec2.describe_instances(Filters=[{"Name": "tag:sky-jupyter", "Values": ["pool"]}])["Reservations"]
    assert sorted(one["SpotInstanceRequestId"] for each in listed for one in each["Instances"]) == sorted(names)
    nics = ec2.describe_network_interfaces(Filters=[{"Name": "tag:sky-jupyter", "Values": ["pool"]}])
    assert len(nics["NetworkInterfaces"]) == 2
    assert {name: number for name, number in aws.left().items() if number} == {
        "instances": 2,
        "volumes": 2,
        "interfaces": 2,
        "spot_requests": 2,
    }
    for _ in range(2):
        ec2.terminate_instances(InstanceIds=ids)
    assert aws.left()["spot_requests"] == 2
    ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=names)
    assert not any(aws.left().values())


def test_a_token_holds_for_one_zone_and_what_was_sent_and_is_spent_once_its_machines_end(aws: AwsWorld) -> None:
    first = launch(token="one")
    assert launch(token="one") == first
    assert launch("us-east-1b", token="one") != first
    with pytest.raises(ClientError) as refused:
        launch(token="one", InstanceType="t3.large")
    assert code(refused) == "IdempotentParameterMismatch"
    boto3.client("ec2").terminate_instances(InstanceIds=first)
    with pytest.raises(ClientError) as refused:
        launch(token="one")
    assert code(refused) == "IdempotentInstanceTerminated"
    assert aws.left()["instances"] == 1


def test_a_zone_refuses_by_a_status_of_500_and_others_do_not(aws: AwsWorld) -> None:
    aws.refuse("us-east-1a", message="no capacity in us-east-1a, or choosing us-east-1b")
    for _ in range(2):
        with pytest.raises(ClientError) as refused:
            launch()
        assert code(refused) == "InsufficientInstanceCapacity"
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500
    assert launch("us-east-1b")
    asked = aws.calls("RunInstances")
    assert [one["zone"] for one in asked] == ["us-east-1a", "us-east-1a", "us-east-1b"]


def test_an_answer_is_lost_after_the_act_and_cut_before_it(aws: AwsWorld) -> None:
    aws.plan("RunInstances", "lost")
    aws.plan("RunInstances", "cut")
    for _ in range(2):
        with pytest.raises(ConnectionClosedError):
            launch(token="one")
        assert len(aws.alive()) == 1
    assert launch(token="one") == aws.alive()


def test_a_machine_is_listed_and_runs_a_moment_after_it_was_made(aws: AwsWorld) -> None:
    aws.configure(shown=1e6, pending=1e6)
    (id,) = launch()
    ec2 = boto3.client("ec2")
    with pytest.raises(ClientError) as refused:
        ec2.describe_instances(InstanceIds=[id])
    assert code(refused) == "InvalidInstanceID.NotFound"
    aws.configure(shown=0.0)
    (other,) = launch("us-east-1b")
    ((found,),) = [one["Instances"] for one in ec2.describe_instances(InstanceIds=[other])["Reservations"]]
    assert found["State"]["Name"] == "pending"
    assert "PublicIpAddress" not in found
    assert sorted(aws.alive()) == sorted([id, other])


def test_a_spot_machine_that_is_taken_away_says_so(aws: AwsWorld) -> None:
    (id,) = launch(spot=True)
    aws.interrupt(id)
    ((found,),) = [one["Instances"] for one in boto3.client("ec2").describe_instances()["Reservations"]]
    assert found["StateReason"]["Code"] == "Server.SpotInstanceTermination"
    assert not any(aws.left().values())


def test_groups_and_placement_groups_in_use_cannot_be_deleted(aws: AwsWorld) -> None:
    ec2 = boto3.client("ec2")
    group = ec2.create_security_group(GroupName="ours", Description="ours")["GroupId"]
    ec2.create_placement_group(GroupName="near", Strategy="cluster")
    (subnet, *_) = ec2.describe_subnets(Filters=[{"Name": "availability-zone", "Values": ["us-east-1a"]}])["Subnets"]
    nic = {"DeviceIndex": 0, "SubnetId": subnet["SubnetId"], "DeleteOnTermination": True, "Groups": [group]}
    (id,) = launch(NetworkInterfaces=[nic], Placement={"GroupName": "near"})
    assert (aws.left()["groups_in_use"], aws.left()["placement_groups"]) == (1, 1)
    with pytest.raises(ClientError) as refused:
        ec2.delete_security_group(GroupId=group)
    assert code(refused) == "DependencyViolation"
    with pytest.raises(ClientError) as refused:
        ec2.delete_placement_group(GroupName="near")
    assert code(refused) == "InvalidPlacementGroup.InUse"
    aws.configure(ending=0.0)
    ec2.terminate_instances(InstanceIds=[id])
    ec2.delete_security_group(GroupId=group)
    ec2.delete_placement_group(GroupName="near")
    assert not any(aws.left().values())


def test_a_clock_that_is_an_hour_off_is_refused(aws: AwsWorld) -> None:
    aws.configure(clock=3600)
    with pytest.raises(ClientError) as refused:
        boto3.client("ec2").describe_vpcs()
    assert code(refused) == "RequestExpired"


def test_prices_quotas_and_images_are_there(aws: AwsWorld) -> None:
    now = 1_790_000_000.0
    aws.spot_price("g5.xlarge", "us-east-1a", 0.5, at=now)
    ec2 = boto3.client("ec2")
    asked = {"InstanceTypes": ["g5.xlarge"], "ProductDescriptions": ["Linux/UNIX"], "StartTime": now + 1}
    pages = ec2.get_paginator("describe_spot_price_history").paginate(**asked)
    prices = {one["AvailabilityZone"]: float(one["SpotPrice"]) for page in pages for one in page["SpotPriceHistory"]}
    assert prices["us-east-1a"] == 0.5
    assert all(0 < price < 1.006 for price in prices.values())
    quota = boto3.client("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode="L-DB2E81BA")["Quota"]
    assert quota["Value"] == 192.0
    filters = [{"Type": "TERM_MATCH", "Field": "regionCode", "Value": "us-east-1"}]
    pricing = boto3.client("pricing", region_name="us-east-1").get_paginator("get_products")
    assert (
        len([one for page in pricing.paginate(ServiceCode="AmazonEC2", Filters=filters) for one in page["PriceList"]])
        > 10
    )
    gpu = "/aws/service/deeplearning/ami/x86_64/base-with-single-cuda-ubuntu-24.04/latest/ami-id"
    image = boto3.client("ssm").get_parameter(Name=gpu)["Parameter"]["Value"]
    (found,) = ec2.describe_images(ImageIds=[image])["Images"]
    assert found["RootDeviceName"] == found["BlockDeviceMappings"][0]["DeviceName"]
    with pytest.raises(ClientError) as refused:
        launch(ImageId=image)
    assert code(refused) == "InvalidBlockDeviceMapping"


def test_a_fault_kills_the_process_that_calls_after_its_machine_was_made(aws: AwsWorld) -> None:
    aws.plan("RunInstances", "kill-after", caller="other")
    script = "from tests.providers.test_aws_world import launch; launch()"
    env = {**os.environ, **aws.environment("other"), "PYTHONPATH": os.getcwd()}
    done = subprocess.run([sys.executable, "-c", script], env=env, cwd=os.fspath(aws_world._ROOT))
    assert done.returncode == -signal.SIGKILL
    assert len(aws.alive()) == 1
    assert launch()
