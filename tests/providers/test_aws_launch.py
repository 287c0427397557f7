"""What a launch asks of EC2, as moto has it: the request, images, network, user data."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.errors import NoCapacity, ProvisionError
from sky_jupyter.machines.ssh import pool_keys
from sky_jupyter.providers import AWS
from sky_jupyter.providers.aws import vpc_network
from sky_jupyter.providers.aws.clients import clients
from sky_jupyter.providers.provisioning_types import MachineRecord, Offer, Order
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.pool.remote import wait_until
from tests.providers import aws_world
from tests.providers.aws_world import REGION, AwsWorld

SLOW = pytest.mark.slow
POOL, ZONE, HERE = "0123abcd", "us-east-1b", "203.0.113.7/32"
UNTIL = 2_000_000_000.0


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))


@pytest.fixture(scope="module")
def known_types(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A cache of instance types: moto takes seconds to list them."""
    return str(tmp_path_factory.mktemp("types"))


@pytest.fixture
def world(known_types: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsWorld]:
    with aws_world.light() as made:
        monkeypatch.setenv("SKY_AWS_CACHE", known_types)
        yield made


def order(
    kind: str = "t3.medium", market: str = "on-demand", zone: str = ZONE, token: str = "t0", **more: Any
) -> Order:
    offer = Offer(kind, 0.1, region=REGION, zones=(zone,), market=market, **more)
    return Order(POOL, token, offer, zone, UNTIL, "me@here", "lab")


def launched(aws: AWS, made: Order, count: int = 1, **spec: Any) -> list[str]:
    return list(aws.create(PoolSpec(provider=aws, nodes=count, **spec), count, made))


def ec2() -> Any:
    return clients(None).ec2(REGION)


def session() -> Any:
    import boto3

    return boto3.Session(region_name=REGION)


def described(id: str) -> dict[str, Any]:
    found: dict[str, Any] = ec2().describe_instances(InstanceIds=[id])["Reservations"][0]["Instances"][0]
    return found


def sent(world: AwsWorld) -> dict[str, Any]:
    """What the last launch asked for."""
    found: dict[str, Any] = world.calls("RunInstances")[-1]["sent"]
    return found


def of(request: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in request.items() if name.startswith(prefix)}


def tags(request: dict[str, Any]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for number in range(1, 9):
        part = of(request, f"TagSpecification.{number}.")
        if part:
            pairs = range(1, sum(1 for name in part if name.endswith(".Key")) + 1)
            found[part["ResourceType"]] = {part[f"Tag.{n}.Key"]: part[f"Tag.{n}.Value"] for n in pairs}
    return found


def config(world: AwsWorld) -> dict[str, Any]:
    """The cloud-config of the only machine there is."""
    head, _, text = world.instances()[0]["user_data"].partition("\n")
    assert head == "#cloud-config"
    found: dict[str, Any] = json.loads(text)
    return found


def test_machines_are_all_made_by_one_call_in_one_zone_and_end_with_all_they_have(world: AwsWorld) -> None:
    aws = AWS()
    ids = launched(aws, order(), 3)
    request = sent(world)
    assert len(world.calls("RunInstances")) == 1
    assert sorted(ids) == sorted(one["id"] for one in world.instances(zone=ZONE))
    expected = {
        "MinCount": "3",
        "MaxCount": "3",
        "ClientToken": "t0",
        "InstanceType": "t3.medium",
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions.HttpTokens": "required",
        "MetadataOptions.HttpPutResponseHopLimit": "1",
        "NetworkInterface.1.DeleteOnTermination": "true",
        "NetworkInterface.1.AssociatePublicIpAddress": "true",
        "BlockDeviceMapping.1.DeviceName": "/dev/sda1",
        "BlockDeviceMapping.1.Ebs.VolumeType": "gp3",
        "BlockDeviceMapping.1.Ebs.Throughput": "500",
        "BlockDeviceMapping.1.Ebs.DeleteOnTermination": "true",
    }
    assert {name: request.get(name) for name in expected} == expected
    assert not any(name.startswith(("IamInstanceProfile", "KeyName", "InstanceMarketOptions")) for name in request)
    common = {"Name": "sky-jupyter lab", "sky-jupyter": POOL, "sky-jupyter-owner": "me@here"}
    common["sky-jupyter-until"] = "2000000000"
    of_instance = {**common, "sky-jupyter-disk-gb": request["BlockDeviceMapping.1.Ebs.VolumeSize"]}
    assert tags(request) == {"instance": of_instance, "volume": common, "network-interface": common}
    aws.destroy(ids)
    # The group is kept.
    wait_until(lambda: {name for name, number in world.left().items() if number} == {"groups"})


def test_a_repeated_launch_is_the_same_request_and_makes_the_same_machines(world: AwsWorld) -> None:
    aws = AWS()
    first = launched(aws, order(), 2)
    before = sent(world)
    assert launched(aws, order(), 2) == first
    assert sent(world) == before
    assert len(world.instances()) == 2


def test_spot_machines_are_asked_for_once_without_a_maximum_price(world: AwsWorld) -> None:
    [id] = launched(AWS(), order(market="spot"))
    request = sent(world)
    assert of(request, "InstanceMarketOptions.") == {
        "MarketType": "spot",
        "SpotOptions.SpotInstanceType": "one-time",
        "SpotOptions.InstanceInterruptionBehavior": "terminate",
    }
    assert tags(request)["spot-instances-request"]["sky-jupyter"] == POOL
    assert described(id)["InstanceLifecycle"] == "spot"


@pytest.mark.parametrize(
    ("kind", "image", "least"),
    [
        ("t3.medium", "ubuntu-noble-24.04-amd64", 8),
        pytest.param("m7g.large", "ubuntu-noble-24.04-arm64", 8, marks=SLOW),
        ("g5.xlarge", "Deep Learning Base AMI with Single CUDA (Ubuntu 24.04)", 45),
        pytest.param("g5g.xlarge", "Deep Learning Base ARM64 AMI with Single CUDA", 45, marks=SLOW),
        ("trn1.2xlarge", "Deep Learning AMI Neuron", 120),
        pytest.param("inf2.xlarge", "Deep Learning AMI Neuron", 120, marks=SLOW),
    ],
)
def test_the_image_suits_architecture_and_accelerator(kind: str, image: str, least: int, world: AwsWorld) -> None:
    zone = next(
        one["Location"]
        for one in ec2().describe_instance_type_offerings(
            LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": [kind]}]
        )["InstanceTypeOfferings"]
    )
    [id] = launched(AWS(), order(kind, zone=zone))
    found = ec2().describe_images(ImageIds=[described(id)["ImageId"]])["Images"][0]
    assert image in found["Name"]
    assert int(sent(world)["BlockDeviceMapping.1.Ebs.VolumeSize"]) == least + 50


@pytest.mark.parametrize(("asked", "size"), [(20, 45), pytest.param(300, 300, marks=SLOW)])
def test_the_disk_is_as_large_as_asked_and_as_the_image_needs(asked: int, size: int, world: AwsWorld) -> None:
    launched(AWS(disk_gb=asked), order("g5.xlarge"))
    assert int(sent(world)["BlockDeviceMapping.1.Ebs.VolumeSize"]) == size
    launched(AWS(), order("g5.xlarge", token="t1"), disk_gb=asked)
    assert int(sent(world)["BlockDeviceMapping.1.Ebs.VolumeSize"]) == size


@SLOW
def test_an_image_of_the_user_is_taken_with_its_root_device(world: AwsWorld) -> None:
    source = launched(AWS(), order())[0]
    own = ec2().create_image(InstanceId=source, Name="own")["ImageId"]
    device = ec2().describe_images(ImageIds=[own])["Images"][0]["RootDeviceName"]
    launched(AWS(ami=own), order(token="t1"))
    assert (sent(world)["ImageId"], sent(world)["BlockDeviceMapping.1.DeviceName"]) == (own, device)
    with pytest.raises(ProvisionError, match=r"is for x86_64, and m7g\.large is arm64"):
        launched(AWS(ami=own), order("m7g.large", token="t2"))


def test_all_volumes_of_an_image_end_with_their_machine(world: AwsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    described = ec2().describe_images

    def with_disks(**asked: Any) -> Any:
        """Moto's images have their root volume only."""
        answer = described(**asked)
        for image in answer["Images"]:
            image["BlockDeviceMappings"] += [
                {"DeviceName": "/dev/sdf", "Ebs": {"VolumeSize": 9, "DeleteOnTermination": False}},
                {"DeviceName": "/dev/sdb", "VirtualName": "ephemeral0"},
            ]
        return answer

    monkeypatch.setattr(ec2(), "describe_images", with_disks)
    launched(AWS(), order())
    assert of(sent(world), "BlockDeviceMapping.2.") == {
        "DeviceName": "/dev/sdf",
        "Ebs.VolumeSize": "9",
        "Ebs.DeleteOnTermination": "true",
    }
    assert not of(sent(world), "BlockDeviceMapping.3.")


def test_user_data_has_the_keys_of_the_pool_and_the_watchdog(world: AwsWorld) -> None:
    launched(AWS(), order())
    keys = pool_keys.make(POOL)
    found = config(world)
    assert found["ssh_authorized_keys"] == [keys.client]
    private, public = keys.first_host
    assert found["ssh_keys"] == {"ed25519_private": private, "ed25519_public": public}
    assert "2000000000" in found["bootcmd"][0][2]
    assert "apt-daily" in found["bootcmd"][1][2]
    assert len(world.instances()[0]["user_data"].encode()) <= 16_384
    client = (keys.folder / "client_key").read_text().splitlines()[3]
    assert client not in world.instances()[0]["user_data"]


def rules(world: AwsWorld) -> dict[str, Any]:
    [group] = ec2().describe_security_groups(Filters=[{"Name": "tag-key", "Values": ["sky-jupyter"]}])["SecurityGroups"]
    found: dict[str, Any] = group
    return found


def ssh_sources(group: dict[str, Any]) -> list[str]:
    return sorted(
        part["CidrIp"] for rule in group["IpPermissions"] if rule.get("FromPort") == 22 for part in rule["IpRanges"]
    )


def test_one_group_is_kept_for_all_pools_and_lets_in_its_members_and_this_computer(world: AwsWorld) -> None:
    first, second = (launched(AWS(), order(token=token))[0] for token in "ab")
    group = rules(world)
    assert {one["GroupId"] for id in (first, second) for one in described(id)["NetworkInterfaces"][0]["Groups"]} == {
        group["GroupId"]
    }
    assert ssh_sources(group) == [HERE]
    own = [rule for rule in group["IpPermissions"] if rule["IpProtocol"] == "-1"]
    assert [pair["GroupId"] for rule in own for pair in rule["UserIdGroupPairs"]] == [group["GroupId"]]
    assert len(group["IpPermissions"]) == 2


def test_the_rule_for_ssh_follows_this_computer_and_leaves_those_of_others(
    world: AwsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws = AWS()
    [id] = launched(aws, order())
    # It has its public address then.
    wait_until(lambda: described(id)["State"]["Name"] == "running")
    record = MachineRecord(id, "running", POOL, region=REGION)
    monkeypatch.setattr(vpc_network, "own_address", lambda: "198.51.100.1")
    vpc_network.admit(aws, record)
    vpc_network.admit(aws, record)
    assert ssh_sources(rules(world)) == ["198.51.100.1/32"]
    monkeypatch.setattr(vpc_network.socket, "gethostname", lambda: "another")
    monkeypatch.setattr(vpc_network, "own_address", lambda: "198.51.100.2")
    vpc_network.admit(aws, record)
    assert ssh_sources(rules(world)) == ["198.51.100.1/32", "198.51.100.2/32"]


@pytest.mark.parametrize(("given", "allowed"), [("any", "0.0.0.0/0"), ("198.51.100.0/24", "198.51.100.0/24")])
def test_ssh_from_says_who_may_connect(given: str, allowed: str, world: AwsWorld) -> None:
    launched(AWS(ssh_from=given), order())
    assert ssh_sources(rules(world)) == [allowed]


def test_a_jump_host_is_let_in_by_its_private_address_in_a_public_subnet_too(world: AwsWorld) -> None:
    aws = AWS(jump="me@bastion")
    [id] = launched(aws, order())
    allowed = ["10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16"]
    assert ssh_sources(rules(world)) == allowed
    vpc_network.admit(aws, aws.describe([id])[0])
    assert ssh_sources(rules(world)) == allowed


def test_a_user_and_a_host_may_have_any_name_or_none(world: AwsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr("getpass.getuser", unknown)
    monkeypatch.setattr(vpc_network.socket, "gethostname", lambda: "Ann\u2019s computer")
    launched(AWS(), order())
    group = rules(world)
    assert group["GroupName"] == f"sky-jupyter-{os.getuid()}"
    said = [part["Description"] for rule in group["IpPermissions"] for part in rule["IpRanges"]]
    assert said == ["SSH from Ann-s-computer"]


@SLOW
def test_racing_launches_of_a_new_account_share_what_they_make(world: AwsWorld) -> None:
    failed: list[BaseException] = []

    def launch(token: str) -> None:
        try:
            launched(AWS(), order(token=token))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=launch, args=(f"t{n}",)) for n in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert failed == []
    assert len(world.instances()) == 6
    assert ssh_sources(rules(world)) == [HERE]


def test_an_unknown_own_address_is_an_error_that_names_ssh_from(
    world: AwsWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_CHECKIP", "http://127.0.0.1:9/")
    with pytest.raises(ProvisionError, match="ssh_from=") as caught:
        launched(AWS(), order())
    assert not caught.value.passing
    assert world.instances() == []


def test_without_a_default_vpc_it_is_said_how_to_make_one(world: AwsWorld) -> None:
    for subnet in ec2().describe_subnets()["Subnets"]:
        ec2().delete_subnet(SubnetId=subnet["SubnetId"])
    with pytest.raises(NoCapacity, match="no subnet there"):
        launched(AWS(), order())
    ec2().delete_vpc(VpcId=ec2().describe_vpcs()["Vpcs"][0]["VpcId"])
    with pytest.raises(ProvisionError, match=f"aws ec2 create-default-vpc --region {REGION}") as caught:
        launched(AWS(), order())
    assert not isinstance(caught.value, NoCapacity)


def private_subnet() -> str:
    vpc = ec2().create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    made = ec2().create_subnet(VpcId=vpc, CidrBlock="10.9.1.0/24", AvailabilityZone=ZONE)
    return str(made["Subnet"]["SubnetId"])


def test_a_private_subnet_gives_no_public_address_and_lets_private_addresses_in(world: AwsWorld) -> None:
    subnet = private_subnet()
    launched(AWS(subnet=subnet), order())
    request = sent(world)
    assert request["NetworkInterface.1.SubnetId"] == subnet
    assert request["NetworkInterface.1.AssociatePublicIpAddress"] == "false"
    assert ssh_sources(rules(world)) == ["10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16"]
    with pytest.raises(NoCapacity, match=f"only in {ZONE}"):
        launched(AWS(subnet=subnet), order(zone="us-east-1a"))


@SLOW
def test_a_subnet_with_a_route_to_the_internet_gives_a_public_address(world: AwsWorld) -> None:
    subnet = private_subnet()
    vpc = ec2().describe_subnets(SubnetIds=[subnet])["Subnets"][0]["VpcId"]
    gateway = ec2().create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2().attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    table = ec2().describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [vpc]}])["RouteTables"][0]
    ec2().create_route(RouteTableId=table["RouteTableId"], DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway)
    launched(AWS(subnet=subnet), order())
    assert sent(world)["NetworkInterface.1.AssociatePublicIpAddress"] == "true"


def efa_cards(request: dict[str, Any]) -> list[tuple[str, str, str]]:
    parts = [part for number in range(1, 40) if (part := of(request, f"NetworkInterface.{number}."))]
    return [(one.get("NetworkCardIndex", ""), one["DeviceIndex"], one.get("InterfaceType", "")) for one in parts]


def zone_of(kind: str) -> str:
    found = ec2().describe_instance_type_offerings(
        LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": [kind]}]
    )["InstanceTypeOfferings"]
    return str(found[0]["Location"])


def test_several_nodes_with_efa_are_near_each_other_and_have_its_card(world: AwsWorld) -> None:
    zone = zone_of("p4d.24xlarge")
    ids = launched(AWS(), order("p4d.24xlarge", zone=zone), 2)
    request = sent(world)
    assert efa_cards(request) == [("0", "0", "efa")]
    assert request["NetworkInterface.1.AssociatePublicIpAddress"] == "true"
    assert request["Placement.GroupName"] == f"sky-jupyter-{POOL}"
    [group] = ec2().describe_placement_groups()["PlacementGroups"]
    assert (group["Strategy"], group["Tags"]) == ("cluster", [{"Key": "sky-jupyter", "Value": POOL}])
    assert "one of the 4 EFA cards of p4d.24xlarge is used" in vpc_network.admit(AWS(), AWS().describe(ids)[0])
    egress = rules(world)["IpPermissionsEgress"]
    assert any(pair["GroupId"] == rules(world)["GroupId"] for rule in egress for pair in rule["UserIdGroupPairs"])


@pytest.mark.parametrize(
    ("kind", "number", "both"), [("p4d.24xlarge", 4, 1), pytest.param("p5.48xlarge", 32, 8, marks=SLOW)]
)
def test_without_public_addresses_all_efa_cards_are_used(kind: str, number: int, both: int, world: AwsWorld) -> None:
    launched(AWS(subnet=private_subnet()), order(kind), 2)
    cards = efa_cards(sent(world))
    assert [card for card, _, _ in cards] == [str(card) for card in range(number)]
    assert [device for _, device, _ in cards] == ["0"] + ["1"] * (number - 1)
    assert sum(1 for _, _, what in cards if what == "efa") == both


@pytest.mark.parametrize(
    ("kind", "count"),
    [("p4d.24xlarge", 1), *(pytest.param(kind, 2, marks=SLOW) for kind in ("g5.xlarge", "c5n.18xlarge"))],
)
def test_others_have_a_plain_card_and_no_placement_group(kind: str, count: int, world: AwsWorld) -> None:
    launched(AWS(), order(kind, zone=zone_of(kind)), count)
    assert efa_cards(sent(world)) == [("", "0", "")]
    assert world.left()["placement_groups"] == 0


@SLOW
def test_a_role_is_given_by_name_or_arn(world: AwsWorld) -> None:
    arn = session().client("iam").create_instance_profile(InstanceProfileName="nodes")["InstanceProfile"]["Arn"]
    for given, prefix in (("nodes", "Name"), (arn, "Arn")):
        launched(AWS(iam_instance_profile=given), order(token=prefix))
        assert of(sent(world), "IamInstanceProfile.") == {prefix: given}


@pytest.mark.parametrize(("kind", "market"), [("default", {}), ("capacity-block", {"MarketType": "capacity-block"})])
def test_a_reservation_is_launched_into_and_a_capacity_block_as_its_own_market(
    kind: str, market: dict[str, str], world: AwsWorld
) -> None:
    id = "cr-0123456789abcdef0"
    world.configure(reservations={id: kind})
    launched(AWS(reservation=id), order())
    assert of(sent(world), "CapacityReservationSpecification.CapacityReservationTarget.") == {
        "CapacityReservationId": id
    }
    assert of(sent(world), "InstanceMarketOptions.") == market


@pytest.mark.parametrize("group", ["", "near"])
def test_a_reservation_has_its_own_placement_group_or_none(group: str, world: AwsWorld) -> None:
    id = "cr-0123456789abcdef0"
    facts = {"PlacementGroupArn": f"arn:aws:ec2:{REGION}:123456789012:placement-group/{group}"} if group else {}
    world.configure(reservations={id: {"ReservationType": "default", **facts}})
    if group:
        ec2().create_placement_group(GroupName=group, Strategy="cluster")
    launched(AWS(reservation=id), order("p4d.24xlarge", zone=zone_of("p4d.24xlarge")), 2)
    assert sent(world).get("Placement.GroupName", "") == group
    assert efa_cards(sent(world)) == [("0", "0", "efa")]
    assert not [one for one in ec2().describe_placement_groups()["PlacementGroups"] if one["GroupName"] != group]


def test_a_zone_without_capacity_is_asked_once_and_says_so(world: AwsWorld) -> None:
    world.refuse(ZONE)
    with pytest.raises(NoCapacity, match=ZONE):
        launched(AWS(), order())
    assert len(world.calls("RunInstances")) == 1


@SLOW
def test_volumes_stay_untagged_where_tagging_them_is_not_allowed(world: AwsWorld) -> None:
    denied = (
        "You are not authorized to perform this operation. User: arn:aws:iam::123456789012:user/me is not "
        "authorized to perform: ec2:CreateTags on resource: "
        "arn:aws:ec2:us-east-1:123456789012:volume/* because of a policy"
    )
    world.plan("RunInstances", code="UnauthorizedOperation", status=403, message=denied)
    [id] = launched(AWS(), order())
    assert set(tags(sent(world))) == {"instance", "network-interface"}
    assert world.alive(POOL) == [id]


@SLOW
def test_a_group_that_is_not_known_everywhere_yet_is_worth_another_try(world: AwsWorld) -> None:
    world.plan("RunInstances", code="InvalidGroup.NotFound")
    with pytest.raises(ProvisionError) as caught:
        launched(AWS(), order())
    assert caught.value.passing


@SLOW
def test_the_placement_group_goes_with_its_last_machine(world: AwsWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vpc_network, "_GOING_PAUSE", 0.05)
    aws = AWS()
    ids = launched(aws, order("p4d.24xlarge", zone=zone_of("p4d.24xlarge")), 2)
    aws.forget(POOL)
    wait_until(lambda: bool(world.calls("DeletePlacementGroup")))
    assert world.left()["placement_groups"] == 1
    aws.destroy(ids)
    wait_until(lambda: world.left()["placement_groups"] == 0)


@SLOW
def test_a_launch_deletes_the_placement_groups_that_others_left(world: AwsWorld) -> None:
    zone = zone_of("p4d.24xlarge")
    used = order("p4d.24xlarge", zone=zone)
    launched(AWS(), used, 2)
    vpc_network.placement_group(clients(None), REGION, "gone")
    launched(AWS(), replace(used, pool="other", token="t1"), 2)
    names = {group["GroupName"] for group in ec2().describe_placement_groups()["PlacementGroups"]}
    assert names == {f"sky-jupyter-{POOL}", "sky-jupyter-other"}


def test_the_keys_of_a_pool_go_when_its_machines_have_ended(world: AwsWorld) -> None:
    aws = AWS()
    launched(aws, order())
    assert pool_keys.of(POOL) is not None
    aws.forget(POOL)
    assert pool_keys.of(POOL) is None
