"""Network of the instances: subnets, the kept security group, placement groups.

One security group per VPC and user is kept for all pools. It allows all traffic between its members, and SSH from this
computer.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import NoCapacity, ProvisionError
from ...machines.ssh.ssh_config import own_user
from . import instance_type_catalog
from .api_errors import code_of

if TYPE_CHECKING:
    from ..provisioning_types import MachineRecord
    from .clients import Clients
    from .context import AWSContext

# Environment variable that replaces the URL, named like those of AWS's tools for the endpoints of services.
_CHECKIP, _CHECKIP_URL = "AWS_ENDPOINT_URL_CHECKIP", "https://checkip.amazonaws.com"
_CHECKIP_TIMEOUT, _CHECKIP_AGE = 10.0, 60.0
_ANY = "0.0.0.0/0"
# Only these networks can reach a machine without a public address.
_PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")
_EVENTUALLY, _PAUSE = 10, 0.5
# Maximum seconds that the machines of a placement group take to end, and seconds between attempts to delete it.
_GOING, _GOING_PAUSE = 600.0, 5.0
_GROUP = "sky-jupyter-"
# URL -> when it was asked, and the address.
_addresses: dict[str, tuple[float, str]] = {}


@dataclass(frozen=True)
class Subnet:
    """Subnet of a zone, found by `subnet`."""

    id: str
    vpc: str
    zone: str
    public: bool


def subnet(aws: AWSContext, clients: Clients, region: str, zone: str) -> Subnet:
    """Return the subnet for a zone: the provider's own, or one of the default VPC.

    The caller translates botocore's errors. Raises NoCapacity if there is no subnet in the zone.
    """
    ec2 = clients.ec2(region)
    if aws.subnet:
        found = ec2.describe_subnets(SubnetIds=[aws.subnet])["Subnets"]
    else:
        vpcs = ec2.describe_vpcs(Filters=_filters(**{"is-default": "true"}))["Vpcs"]
        if not vpcs:
            raise ProvisionError(
                f"the account has no default VPC in {region}: make one with `aws ec2 create-default-vpc --region "
                f"{region}` (it costs nothing), or name a subnet: sky.AWS(subnet='subnet-…')"
            )
        filters = {"vpc-id": vpcs[0]["VpcId"], "state": "available"}
        found = ec2.describe_subnets(Filters=_filters(**filters))["Subnets"]
    fit = [one for one in found if not zone or one["AvailabilityZone"] == zone]
    if not fit:
        has = ", ".join(sorted({one["AvailabilityZone"] for one in found})) or "none"
        raise NoCapacity(f"{zone}: {aws.subnet or 'the default VPC'} has no subnet there (only in {has})")
    one = max(fit, key=lambda one: (one.get("DefaultForAz", False), one.get("AvailableIpAddressCount", 0)))
    return Subnet(one["SubnetId"], one["VpcId"], one["AvailabilityZone"], _is_public(ec2, one))


def _is_public(ec2: Any, one: dict[str, Any]) -> bool:
    """Return whether a subnet has a route to an internet gateway."""
    if one.get("DefaultForAz"):
        return True
    tables = ec2.describe_route_tables(Filters=_filters(**{"association.subnet-id": one["SubnetId"]}))["RouteTables"]
    if not tables:
        main = {"vpc-id": one["VpcId"], "association.main": "true"}
        tables = ec2.describe_route_tables(Filters=_filters(**main))["RouteTables"]
    return any(str(route.get("GatewayId", "")).startswith("igw-") for table in tables for route in table["Routes"])


def group(aws: AWSContext, clients: Clients, region: str, place: Subnet, *, efa: bool) -> str:
    """Return the id of a VPC's kept security group; create it and its missing rules."""
    ec2 = clients.ec2(region)
    filters = _filters(**{"vpc-id": place.vpc, "group-name": group_name()})
    found = ec2.describe_security_groups(Filters=filters)["SecurityGroups"]
    if not found:
        tags = [{"Key": "sky-jupyter", "Value": "kept"}, {"Key": "Name", "Value": group_name()}]
        with _existing("InvalidGroup.Duplicate"):
            ec2.create_security_group(
                GroupName=group_name(),
                Description="Machines of sky-jupyter pools",
                VpcId=place.vpc,
                TagSpecifications=[{"ResourceType": "security-group", "Tags": tags}],
            )
        for _ in range(_EVENTUALLY):
            if found := ec2.describe_security_groups(Filters=filters)["SecurityGroups"]:
                break
            time.sleep(_PAUSE)
        else:
            raise ProvisionError(f"the security group {group_name()} of {place.vpc} was made, and is not shown")
    facts = found[0]
    own = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": facts["GroupId"]}]}]
    if not _allows_itself(facts["IpPermissions"], facts["GroupId"]):
        _authorize(ec2.authorize_security_group_ingress, facts["GroupId"], own)
    if efa and not _allows_itself(facts["IpPermissionsEgress"], facts["GroupId"]):
        # EFA's own traffic has no IP address: the rule for all addresses does not cover it.
        _authorize(ec2.authorize_security_group_egress, facts["GroupId"], own)
    _allow_ssh(ec2, facts, _sources(aws, public=place.public))
    return str(facts["GroupId"])


def admit(aws: AWSContext, record: MachineRecord) -> str:
    """Allow SSH from this computer's present address in an instance's kept group.

    Returns a notice if the instance uses only one of several EFA cards, else an empty text.
    """
    ec2 = aws.clients.ec2(record.region)
    found = ec2.describe_instances(InstanceIds=[record.id])["Reservations"][0]["Instances"][0]
    cards = found.get("NetworkInterfaces", ())
    ids = sorted({one["GroupId"] for card in cards for one in card["Groups"]})
    for facts in ec2.describe_security_groups(GroupIds=ids)["SecurityGroups"] if ids else ():
        if facts["GroupName"].startswith(_GROUP):
            _allow_ssh(ec2, facts, _sources(aws, public=bool(found.get("PublicIpAddress"))))
    if len(cards) > 1 or not found.get("Placement", {}).get("GroupName", "").startswith(_GROUP):
        return ""
    if (most := instance_type_catalog.named(aws.clients, record.region, record.kind).efa) < 2:
        return ""
    return (
        f"one of the {most} EFA cards of {record.kind} is used: with several, EC2 gives no public address. In a "
        "private subnet (sky.AWS(subnet=…)) all are"
    )


def group_name() -> str:
    """Return the name of the user's security group."""
    return _GROUP + (re.sub(r"[^A-Za-z0-9_.-]+", "-", own_user())[:64] or "user")


def _sources(aws: AWSContext, *, public: bool) -> tuple[str, ...]:
    if aws.ssh_from:
        return (_ANY,) if aws.ssh_from == "any" else (aws.ssh_from,)
    # A jump host connects from a private address, in a public subnet too.
    return (f"{own_address()}/32",) if public and not aws.jump else _PRIVATE


def _allow_ssh(ec2: Any, facts: dict[str, Any], sources: Sequence[str]) -> None:
    """Allow SSH from these addresses, and revoke this computer's other ones."""
    here = "SSH from " + re.sub(r"[^A-Za-z0-9_.-]+", "-", socket.gethostname())[:200]
    mine, there = set(), set()
    for rule in facts["IpPermissions"]:
        if (rule.get("IpProtocol"), rule.get("FromPort"), rule.get("ToPort")) == ("tcp", 22, 22):
            for part in rule.get("IpRanges", ()):
                there.add(part["CidrIp"])
                if part.get("Description") == here:
                    mine.add(part["CidrIp"])
    for old in sorted(mine - set(sources)):
        with _existing("InvalidPermission.NotFound"):
            ec2.revoke_security_group_ingress(GroupId=facts["GroupId"], IpPermissions=[_ssh(old, here)])
    for new in sources:
        if new not in there:
            _authorize(ec2.authorize_security_group_ingress, facts["GroupId"], [_ssh(new, here)])


def _ssh(source: str, here: str) -> dict[str, Any]:
    return {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": source, "Description": here}]}


def _authorize(call: Any, group: str, rules: list[dict[str, Any]]) -> None:
    with _existing("InvalidPermission.Duplicate"):
        call(GroupId=group, IpPermissions=rules)


def _allows_itself(rules: Sequence[dict[str, Any]], group: str) -> bool:
    return any(
        rule.get("IpProtocol") == "-1"
        and any(pair.get("GroupId") == group for pair in rule.get("UserIdGroupPairs", ()))
        for rule in rules
    )


def placement_group(clients: Clients, region: str, pool: str) -> str:
    """Return the name of a pool's cluster placement group; create it if needed.

    Groups that ended pools have left are deleted first.
    """
    ec2, name = clients.ec2(region), _GROUP + pool
    remove_placement_groups(clients, region, but=name)
    tags = [{"Key": "sky-jupyter", "Value": pool}]
    with _existing("InvalidPlacementGroup.Duplicate"):
        ec2.create_placement_group(
            GroupName=name,
            Strategy="cluster",
            TagSpecifications=[{"ResourceType": "placement-group", "Tags": tags}],
        )
    return name


def remove_placement_groups(clients: Clients, region: str, *, but: str = "") -> list[str]:
    """Delete the region's placement groups of pools; return names of those in use.

    This may delete a group that another pool has just made. That pool's launch is then refused and retried, which makes
    the group again.
    """
    ec2, used = clients.ec2(region), []
    tagged = [{"Name": "tag-key", "Values": ["sky-jupyter"]}]
    for group in ec2.describe_placement_groups(Filters=tagged)["PlacementGroups"]:
        if (name := str(group["GroupName"])) != but:
            with _existing("InvalidPlacementGroup.InUse", "InvalidPlacementGroup.Unknown") as refused:
                ec2.delete_placement_group(GroupName=name)
            used += [name] if "InvalidPlacementGroup.InUse" in refused else []
    return used


def remove_placement_group(clients: Clients, region: str, pool: str) -> threading.Thread:
    """Delete a pool's placement group once its machines are gone, in the background.

    If this process ends first, a sweep or the next launch with a placement group deletes it; it costs nothing.
    """

    def work() -> None:
        until = time.monotonic() + _GOING
        while time.monotonic() < until:
            with contextlib.suppress(Exception):
                if _GROUP + pool not in remove_placement_groups(clients, region):
                    return
            time.sleep(_GOING_PAUSE)

    thread = threading.Thread(target=work, name="sky-placement", daemon=True)
    thread.start()
    return thread


@contextlib.contextmanager
def _existing(*codes: str) -> Iterator[list[str]]:
    """Ignore and list errors with these codes: another process may have been first."""
    from botocore.exceptions import ClientError

    ignored: list[str] = []
    try:
        yield ignored
    except ClientError as error:
        if (code := code_of(error)) not in codes:
            raise
        ignored.append(code)


def own_address() -> str:
    """Return this computer's public IPv4 address; raise ProvisionError if unknown."""
    url = os.environ.get(_CHECKIP) or _CHECKIP_URL
    asked, known = _addresses.get(url, (0.0, ""))
    if known and time.monotonic() - asked < _CHECKIP_AGE:
        return known
    try:
        with urllib.request.urlopen(url, timeout=_CHECKIP_TIMEOUT) as answer:
            found = str(answer.read(100).decode("ascii").strip())
        socket.inet_aton(found)
    except (OSError, ValueError) as error:
        raise ProvisionError(
            f"the public address of this computer is not known, so SSH cannot be allowed from it: {url} did not say it "
            f"({error}); name it: sky.AWS(ssh_from='203.0.113.7/32'), or ssh_from='any'"
        ) from None
    _addresses[url] = time.monotonic(), found
    return found


def _filters(**values: str) -> list[dict[str, Any]]:
    return [{"Name": name, "Values": [value]} for name, value in values.items()]
