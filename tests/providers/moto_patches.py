"""What moto's EC2 lacks or has wrong, beside what a provider of machines needs; for the server's process alone.

Moto launches instances that run at once, forgets tokens and some tags, deletes groups in use, and has neither
Ubuntu's and NVIDIA's images nor prices, quotas and placement groups.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from moto.core.responses import ActionResult, EmptyResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend, ec2_backends, instances
from moto.ec2.models.amis import Ami, AmiBackend
from moto.ec2.models.core import TaggedEC2Resource
from moto.ec2.models.instances import Instance, InstanceBackend, InstanceState, Reservation, StateReason
from moto.ec2.models.spot_requests import SpotInstanceRequest, SpotRequestBackend
from moto.ec2.responses import EC2Response
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, get_prefix, random_spot_request_id
from moto.servicequotas.exceptions import NoSuchResource
from moto.servicequotas.models import ServiceQuotasBackend
from moto.ssm.models import Parameter, SimpleSystemManagerBackend

ACCOUNT = "123456789012"
# What stands for checkip.amazonaws.com.
CHECKIP = "/checkip"
USER_DATA_BYTES = 16_384
# Dollars an hour in us-east-1; elsewhere a tenth more.
PRICES = {
    "t3.medium": 0.0416,
    "m7i.large": 0.1008,
    "m7i.xlarge": 0.2016,
    "g4dn.xlarge": 0.526,
    "g5.xlarge": 1.006,
    "g5.12xlarge": 5.672,
    "g5.48xlarge": 16.288,
    "g6.xlarge": 0.805,
    "g6e.xlarge": 1.861,
    "p4d.24xlarge": 21.96,
    "p4de.24xlarge": 27.45,
    "p5.4xlarge": 6.88,
    "p5.48xlarge": 55.04,
    "trn1.2xlarge": 1.344,
    "inf2.xlarge": 0.758,
}
QUOTAS = {
    "L-1216C47A": ("Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", 256.0),
    "L-DB2E81BA": ("Running On-Demand G and VT instances", 192.0),
    "L-417A185B": ("Running On-Demand P instances", 384.0),
    "L-2C3B7624": ("Running On-Demand Trn instances", 128.0),
    "L-1945791B": ("Running On-Demand Inf instances", 128.0),
    "L-34B43A08": ("All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests", 256.0),
    "L-3819A6DF": ("All G and VT Spot Instance Requests", 192.0),
    "L-7212CCBC": ("All P4, P3 and P2 Spot Instance Requests", 384.0),
    "L-6B0D517C": ("All Trn Spot Instance Requests", 128.0),
    "L-B5D1601B": ("All Inf Spot Instance Requests", 128.0),
}


@dataclass(frozen=True)
class Image:
    """One image that AWS's parameters name."""

    name: str
    owner: str
    architecture: str
    size: int

    def id(self, region: str) -> str:
        return f"ami-{hashlib.sha256(f'{self.name}/{region}'.encode()).hexdigest()[:17]}"


_DLAMI, _CANONICAL = "898082745236", "099720109477"
_BASE = "Deep Learning Base"
IMAGES = {
    f"/aws/service/canonical/ubuntu/server/24.04/stable/current/{arch}/hvm/ebs-gp3/ami-id": Image(
        f"ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-{arch}-server-20261102", _CANONICAL, machine, 8
    )
    for arch, machine in (("amd64", "x86_64"), ("arm64", "arm64"))
}
for _arch in ("x86_64", "arm64"):
    _mark = "" if _arch == "x86_64" else " ARM64"
    IMAGES |= {
        f"/aws/service/deeplearning/ami/{_arch}/base-with-single-cuda-ubuntu-24.04/latest/ami-id": Image(
            f"{_BASE}{_mark} AMI with Single CUDA (Ubuntu 24.04) 20261102", _DLAMI, _arch, 45
        ),
        f"/aws/service/deeplearning/ami/{_arch}/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id": Image(
            f"{_BASE}{_mark} OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 20261102", _DLAMI, _arch, 75
        ),
    }
for _release in ("22.04", "24.04"):
    IMAGES[f"/aws/service/neuron/dlami/multi-framework/ubuntu-{_release}/latest/image_id"] = Image(
        f"Deep Learning AMI Neuron (Ubuntu {_release}) 20261102", _DLAMI, "x86_64", 120
    )


@dataclass
class Settings:
    """How the cloud behaves now; a reset recreates it.

    Attributes
    ----------
    pending, shown, ending : float
        Seconds until an instance runs, until it is listed, and between its end and its being gone.
    reservations : dict
        Type of each capacity reservation, by its id.
    network : str
        What the addresses of instances begin with, where each is a host; else instances run by themselves.
    """

    pending: float = 0.05
    shown: float = 0.0
    ending: float = 0.05
    network: str = ""
    hosts: int = 0
    capacity: int = 100
    quotas: dict[str, float] = field(default_factory=dict)
    spot: dict[tuple[str, str], list[tuple[float, float]]] = field(default_factory=dict)
    tokens: dict[tuple[str, str, str], tuple[str, str]] = field(default_factory=dict)
    placement: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    reservations: dict[str, Any] = field(default_factory=dict)


settings = Settings()
# Told of instances that begin and end: ("run" | "stop" | "start" | "end", instance).
listeners: list[Callable[[str, Any], None]] = []


def backends() -> Iterator[Any]:
    """Yield EC2 of each region that was asked for anything."""
    yield from list(ec2_backends[ACCOUNT].values())


def machine(id: str) -> Any:
    """Return an instance by its id, or None."""
    return next((one for one in machines() if one.id == id), None)


def machines() -> Iterator[Any]:
    """Yield all instances there ever were."""
    for backend in backends():
        for reservation in list(backend.reservations.values()):
            yield from reservation.instances


class Machine(Instance):
    """An instance that takes time to begin and to end, and whose second end is no error."""

    spot_instance_request_id: str | None = None

    def __init__(self, backend: Any, image: str, data: Any, groups: Any, **options: Any) -> None:
        self.runs_at = self.gone_at = self.shown_at = 0.0
        self.host = 0
        self.sent = options
        super().__init__(backend, image, data, groups, **options)
        for nic in () if options.get("nics") else self.nics.values():
            nic.delete_on_termination = True
        self.group_name = options.get("placement_group") or ""
        self._placement.group_name = self.group_name
        self._state = InstanceState("pending", 0)
        self.runs_at = time.time() + settings.pending if not settings.network else float("inf")
        if settings.network:
            settings.hosts += 1
            self.host = settings.hosts
            self.nics[0].private_ip_address = f"{settings.network}.{self.host}"

    @property
    def _state(self) -> InstanceState:
        now = time.time()
        state: InstanceState = self.__dict__["state_now"]
        if state.name == "pending" and now >= self.runs_at:
            state.name, state.code = "running", 16
        if state.name == "shutting-down" and now >= self.gone_at:
            state.name, state.code = "terminated", 48
        return state

    @_state.setter
    def _state(self, state: InstanceState) -> None:
        self.__dict__["state_now"] = state

    @property
    def is_there(self) -> bool:
        """Whether it costs money."""
        return self._state.name not in ("shutting-down", "terminated")

    @property
    def public_ip(self) -> str | None:
        if self._state.name != "running":
            return None
        return self.nics[0].private_ip_address if self.host else self.nics[0].public_ip

    @property
    def public_ip_address(self) -> str | None:
        return self.public_ip

    def terminate(self) -> InstanceState:
        before = InstanceState(self._state.name, self._state.code)
        if not self.is_there:
            return before
        super().terminate()
        self._state = InstanceState("shutting-down", 32)
        self.gone_at = time.time() + settings.ending
        self._tell("end")
        return before

    def stop(self) -> InstanceState:
        if self.lifecycle == "spot":
            words = f"You can't stop the Spot Instance '{self.id}' because it is associated with a one-time Spot"
            raise EC2ClientError("UnsupportedOperation", f"{words} Instance request.")
        self._must_be("pending", "running", "stopped")
        before = super().stop()
        if before.name != "stopped":
            self._tell("stop")
        return before

    def start(self) -> InstanceState:
        self._must_be("stopped", "running")
        before = super().start()
        if before.name == "stopped" and "nics" in self.__dict__:
            self._state = InstanceState("pending", 0)
            self.runs_at = time.time() + settings.pending if not self.host else float("inf")
            self._tell("start")
        return before

    def end_by_itself(self) -> None:
        """End as after `shutdown -P` within."""
        if self.instance_initiated_shutdown_behavior == "stop":
            super().stop()
            return
        self.terminate()
        code = "Client.InstanceInitiatedShutdown"
        self.state_reason = StateReason(f"{code}: Instance initiated shutdown", code)
        self._close_request("instance-terminated-by-user")

    def interrupt(self) -> None:
        """Be taken away, as spot instances are."""
        self.terminate()
        code = "Server.SpotInstanceTermination"
        self.state_reason = StateReason(f"{code}: Instance terminated due to spot interruption", code)
        self._reason = "Server.SpotInstanceTermination"
        self._close_request("instance-terminated-no-capacity")

    def _close_request(self, why: str) -> None:
        request = self.ec2_backend.spot_instance_requests.get(self.spot_instance_request_id)
        if request is not None:
            request.state, request._status_code = "closed", why

    def _must_be(self, *states: str) -> None:
        if self._state.name not in states:
            words = f"The instance '{self.id}' is not in a state from which it can be started."
            raise EC2ClientError("IncorrectInstanceState", words)

    def _tell(self, what: str) -> None:
        for listener in listeners:
            listener(what, self)


# -- launches --------------------------------------------------------------------------------------

_run_instances = InstanceBackend.run_instances


def run_instances(self: Any, image_id: str, count: int, user_data: Any, groups: Any, **options: Any) -> Any:
    """Have tokens, limits, spot requests and all tags, as EC2."""
    if options.get("instance_market_options") != "spot":
        options["instance_market_options"] = {}
    zone, token = _zone(self, options), options["client_token"]
    key = (self.region_name, zone, token)
    sent = json.dumps([image_id, count, str(user_data), groups, options], default=str, sort_keys=True)
    if token != "ABCDE" and key in settings.tokens:
        return _made_before(self, key, sent)
    _check(self, image_id, count, user_data, options)
    tags = {kind: dict(values) for kind, values in (options.get("tags") or {}).items()}
    made: Reservation = _run_instances(self, image_id, count, user_data, groups, **options)
    for one in made.instances:
        for nic in one.nics.values():
            nic.add_tags(tags.get("network-interface", {}))
        if one.lifecycle == "spot":
            _add_request(self, one, tags.get("spot-instances-request", {}))
        one.shown_at = time.time() + settings.shown
        one._tell("run")
    settings.tokens[key] = (sent, made.id)
    return made


def _zone(backend: Any, options: Mapping[str, Any]) -> str:
    subnets = [nic["SubnetId"] for nic in options["nics"] if "SubnetId" in nic]
    subnet = options.get("subnet_id") or (subnets[0] if subnets else None)
    return backend.get_subnet(subnet).availability_zone if subnet else options.get("placement") or ""


def _made_before(backend: Any, key: tuple[str, str, str], sent: str) -> Any:
    before, reservation = settings.tokens[key]
    if before != sent:
        words = "The request uses the same client token as a previous, but non-identical request."
        raise EC2ClientError("IdempotentParameterMismatch", words)
    made = backend.reservations[reservation]
    if not any(one.is_there for one in made.instances):
        raise EC2ClientError("IdempotentInstanceTerminated", "The instances of this client token have terminated.")
    return made


def _check(backend: Any, image_id: str, count: int, user_data: Any, options: Mapping[str, Any]) -> None:
    if user_data and len(user_data.decode()) > USER_DATA_BYTES:
        raise EC2ClientError("InvalidParameterValue", f"User data is limited to {USER_DATA_BYTES} bytes")
    nics = options["nics"]
    if len(nics) > 1 and any(nic.get("AssociatePublicIpAddress") for nic in nics):
        words = "The associatePublicIPAddress parameter cannot be specified when launching with multiple interfaces."
        raise EC2ClientError("InvalidParameterCombination", words)
    if image_id not in backend.amis:
        raise EC2ClientError("InvalidAMIID.NotFound", f"The image id '[{image_id}]' does not exist")
    image = backend.amis[image_id]
    for mapping in options.get("block_device_mappings", ()):
        size = mapping["Ebs"].get("VolumeSize")
        least = getattr(image, "size", 0)
        if mapping["DeviceName"] == image.root_device_name and size and int(size) < least:
            words = f"Volume of size {size}GB is smaller than snapshot '{image.ebs_snapshot.id}'"
            raise EC2ClientError("InvalidBlockDeviceMapping", f"{words}, expect size >= {least}GB")
    group = options.get("placement_group")
    if group and group not in settings.placement.get(backend.region_name, {}):
        raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{group}' is unknown.")
    if settings.network and settings.hosts + count > settings.capacity:
        raise EC2ClientError("InsufficientInstanceCapacity", "There is no capacity left in this zone.")


def _add_request(backend: Any, one: Any, tags: dict[str, str]) -> None:
    """Have the request that each spot instance comes with; it stays active until it is cancelled."""
    request = SpotInstanceRequest.__new__(SpotInstanceRequest)
    request.ec2_backend, request.id = backend, random_spot_request_id()
    request.state, request._status_code, request.status_message = "active", "fulfilled", ""
    request.instance, request.price, request.type = one, "", "one-time"
    request.valid_from = request.valid_until = request.launch_group = request.availability_zone_group = None
    request.instance_interruption_behaviour = "terminate"
    request.launch_specification = None
    backend.spot_instance_requests[request.id] = request
    request.add_tags(tags)
    one.spot_instance_request_id = request.id


def cancel_spot_instance_requests(self: Any, request_ids: list[str]) -> list[Any]:
    """Cancel requests, and remember them."""
    if unknown := [id for id in request_ids if id not in self.spot_instance_requests]:
        words = f"The spot instance request ID '{unknown[0]}' does not exist"
        raise EC2ClientError("InvalidSpotInstanceRequestID.NotFound", words)
    found = [self.spot_instance_requests[id] for id in request_ids]
    for request in found:
        if request.state in ("open", "active"):
            request.state, request._status_code = "cancelled", "request-canceled-and-instance-running"
    return found


def all_reservations(self: Any, filters: Any = None) -> list[Any]:
    """Leave out what EC2 does not show yet."""
    found = _all_reservations(self, None)
    now = time.time()
    for one in found:
        one.instances = [each for each in one.instances if getattr(each, "shown_at", 0.0) <= now]
    found = [one for one in found if one.instances]
    return instances.filter_reservations(found, filters) if filters is not None else found


_all_reservations = InstanceBackend.all_reservations
_delete_group = EC2Backend.delete_security_group


def delete_security_group(self: Any, name: str | None = None, group_id: str | None = None) -> None:
    """Refuse to delete a group of which an interface or an instance that is going is."""
    group = self.get_security_group_from_id(group_id) if group_id else self.get_security_group_by_name_or_id(name)
    if group is not None and group.id in groups_in_use(self):
        raise EC2ClientError("DependencyViolation", f"resource {group.id} has a dependent object")
    _delete_group(self, name, group_id)


def groups_in_use(backend: Any) -> set[str]:
    """Return the groups of which an interface is, or an instance that has not ended."""
    used = {group.id for nic in backend.enis.values() for group in nic._group_set if nic.instance is not None}
    for reservation in backend.reservations.values():
        for one in reservation.instances:
            if one._state.name == "shutting-down":
                used |= {group.id for nic in one.nics.values() for group in nic._group_set}
    return used


# -- images and parameters -------------------------------------------------------------------------


class SizedAmi(Ami):
    """An image that says how large its root is."""

    size = 8

    @property
    def block_device_mappings(self) -> list[dict[str, Any]]:
        found = super().block_device_mappings
        found[0]["Ebs"] |= {"VolumeSize": self.size, "DeleteOnTermination": True, "VolumeType": "gp3"}
        return [*found, {"DeviceName": "/dev/sdb", "VirtualName": "ephemeral0"}]


def load_amis(self: Any) -> None:
    """Have the images that the parameters name."""
    for image in IMAGES.values():
        id = image.id(self.region_name)
        ami = SizedAmi(
            self,
            id,
            name=image.name,
            owner_id=image.owner,
            owner_alias="amazon",
            public=True,
            virtualization_type="hvm",
            architecture=image.architecture,
            hypervisor="xen",
            root_device_type="ebs",
            root_device_name="/dev/sda1",
            region_name=f"{self.region_name}a",
            description=image.name,
            creation_date=datetime.datetime(2026, 11, 2),
        )
        ami.size = image.size
        self.amis[id] = ami


_get_parameter = SimpleSystemManagerBackend.get_parameter


def get_parameter(self: Any, name: str) -> Any:
    """Have AWS's own parameters for images."""
    if image := IMAGES.get(name):
        now = datetime.datetime.now()
        words = {"description": None, "allowed_pattern": None, "keyid": None, "data_type": "aws:ec2:image"}
        value = image.id(self.region_name)
        return Parameter(self.account_id, name, value, "String", last_modified_date=now, version=1, **words)
    return None if name.startswith("/aws/") else _get_parameter(self, name)


# -- prices and quotas -----------------------------------------------------------------------------


def hourly(kind: str, region: str) -> float | None:
    """Return the price on demand."""
    price = PRICES.get(kind)
    return price if price is None or region == "us-east-1" else round(price * 1.1, 6)


def spot_history(kind: str, zone: str) -> list[tuple[float, float]]:
    """Return since when a spot instance costs how much, the oldest first."""
    price = hourly(kind, zone[:-1])
    if (kind, zone) not in settings.spot and price is None:
        return []
    before = [(0.0, round((price or 0.0) * (0.3 + 0.02 * (ord(zone[-1]) - ord("a"))), 6))] if price else []
    return sorted([*before, *settings.spot.get((kind, zone), [])])


def describe_spot_price_history(self: Any) -> ActionResult:
    """Have each zone's prices: what held at the start, and the changes since, in pages."""
    filters = self._filters_from_querystring()
    kinds = self._get_param("InstanceTypes", []) or filters.get("instance-type", [])
    zones = [self._get_param("AvailabilityZone")] if self._get_param("AvailabilityZone") else None
    zones = zones or filters.get("availability-zone")
    start, end = (_moment(self._get_param(name)) for name in ("StartTime", "EndTime"))
    offered = self.ec2_backend.describe_instance_type_offerings("availability-zone", {})
    rows = []
    for kind, zone in sorted({(one["InstanceType"], one["Location"]) for one in offered}):
        if (kinds and kind not in kinds) or (zones and zone not in zones):
            continue
        history = spot_history(kind, zone)
        begun = max([at for at, _ in history if start is not None and at <= start], default=0.0)
        rows += [
            {
                "InstanceType": kind,
                "ProductDescription": "Linux/UNIX",
                "SpotPrice": f"{price:.6f}",
                "AvailabilityZone": zone,
                "Timestamp": datetime.datetime.fromtimestamp(at or 1.7e9, datetime.timezone.utc),
            }
            for at, price in reversed(history)
            if at >= begun and (end is None or at <= end)
        ]
    first = int(self._get_param("NextToken") or 0)
    size = min(int(self._get_param("MaxResults") or 50), 50)
    following = str(first + size) if first + size < len(rows) else ""
    return ActionResult({"SpotPriceHistory": rows[first : first + size], "NextToken": following})


def _moment(value: Any) -> float | None:
    if not value:
        return None
    if isinstance(value, str):
        value = datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
    return (value if value.tzinfo else value.replace(tzinfo=datetime.timezone.utc)).timestamp()


def products(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Answer `pricing:GetProducts`, in pages."""
    wanted = {one["Field"]: one["Value"] for one in asked.get("Filters", ())}
    region = wanted.get("regionCode", "us-east-1")
    found = []
    for kind in PRICES:
        attributes = {
            "instanceType": kind,
            "regionCode": region,
            "operatingSystem": "Linux",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
            "marketoption": "OnDemand",
            "tenancy": "Shared",
            "servicecode": "AmazonEC2",
        }
        if any(attributes.get(name, value) != value for name, value in wanted.items()):
            continue
        dimension = {"unit": "Hrs", "pricePerUnit": {"USD": f"{hourly(kind, region):.10f}"}}
        terms = {"OnDemand": {f"{kind}.T": {"priceDimensions": {f"{kind}.T.R": dimension}}}}
        product = {"productFamily": "Compute Instance", "attributes": attributes, "sku": kind}
        found.append(json.dumps({"product": product, "serviceCode": "AmazonEC2", "terms": terms}))
    first, size = int(asked.get("NextToken") or 0), min(int(asked.get("MaxResults") or 10), 10)
    answer = {"FormatVersion": "aws_v1", "PriceList": found[first : first + size]}
    return answer | ({"NextToken": str(first + size)} if first + size < len(found) else {})


_get_quota = ServiceQuotasBackend.get_service_quota


def get_service_quota(self: Any, service_code: str, quota_code: str) -> dict[str, Any]:
    """Have EC2's quotas of vCPUs."""
    if service_code != "ec2":
        return _get_quota(self, service_code, quota_code)
    if quota_code not in QUOTAS:
        raise NoSuchResource
    name, value = QUOTAS[quota_code]
    value = settings.quotas.get(quota_code, value)
    known = {"ServiceCode": "ec2", "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)"}
    return known | {"QuotaCode": quota_code, "QuotaName": name, "Value": value, "Unit": "None", "Adjustable": True}


# -- placement groups ------------------------------------------------------------------------------


def create_placement_group(self: Any) -> ActionResult:
    """Make a placement group."""
    groups = settings.placement.setdefault(self.region, {})
    name = self._get_param("GroupName")
    if name in groups:
        raise EC2ClientError("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
    tags = self._parse_tag_specification().get("placement-group", {})
    id = f"pg-{hashlib.sha256(f'{self.region}/{name}'.encode()).hexdigest()[:17]}"
    groups[name] = {
        "GroupName": name,
        "GroupId": id,
        "State": "available",
        "Strategy": self._get_param("Strategy", "cluster"),
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }
    return ActionResult({"PlacementGroup": groups[name]})


def describe_placement_groups(self: Any) -> ActionResult:
    """List placement groups, by name, id or tag."""
    names, ids = self._get_param("GroupNames", []), self._get_param("GroupIds", [])
    groups = settings.placement.get(self.region, {})
    if unknown := [name for name in names if name not in groups]:
        raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{unknown[0]}' is unknown.")
    found = [one for one in groups.values() if not names or one["GroupName"] in names]
    found = [one for one in found if not ids or one["GroupId"] in ids]
    for name, values in self._filters_from_querystring().items():
        found = [one for one in found if _passes(one, name, values)]
    return ActionResult({"PlacementGroups": found})


def _passes(group: Mapping[str, Any], name: str, values: Any) -> bool:
    tags = {tag["Key"]: tag["Value"] for tag in group["Tags"]}
    if name == "tag-key":
        return any(value in tags for value in values)
    if name.startswith("tag:"):
        return tags.get(name.removeprefix("tag:")) in values
    return group[{"group-name": "GroupName", "state": "State", "strategy": "Strategy"}[name]] in values


def delete_placement_group(self: Any) -> EmptyResult:
    """Delete a placement group that no instance is in."""
    groups, name = settings.placement.get(self.region, {}), self._get_param("GroupName")
    if name not in groups:
        raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
    there = [one for one in machines() if one.group_name == name and one._state.name != "terminated"]
    if any(one.ec2_backend.region_name == self.region for one in there):
        raise EC2ClientError("InvalidPlacementGroup.InUse", f"The placement group '{name}' is in use.")
    del groups[name]
    return EmptyResult()


def describe_capacity_reservations(self: Any) -> ActionResult:
    """List reservations by id, with what the settings say of each: its kind, or all fields."""
    ids = self._get_param("CapacityReservationId", []) or self._get_param("CapacityReservationIds", [])
    told = {id: settings.reservations[id] for id in ids}
    kinds = {id: said if isinstance(said, dict) else {"ReservationType": said} for id, said in told.items()}
    rows = [{"CapacityReservationId": id, **kinds[id]} for id in ids]
    return ActionResult({"CapacityReservations": rows})


_respond_run = EC2Response.run_instances


def respond_run(self: Any) -> Any:
    """Hand the placement group on, which moto drops."""
    group = self._get_param("Placement.GroupName")
    backend, before = self.ec2_backend, self.ec2_backend.run_instances
    backend.__dict__["run_instances"] = lambda *sent, **options: before(*sent, placement_group=group, **options)
    try:
        return _respond_run(self)
    finally:
        del backend.__dict__["run_instances"]


def get_tags(self: Any) -> list[dict[str, str]]:
    """Return a thing's tags; moto searches those of all things that there ever were."""
    kind = EC2_PREFIX_TO_RESOURCE.get(get_prefix(self.id), "")
    tags = self.ec2_backend.tags.get(self.id, {}).copy()
    return [{"resource_id": self.id, "key": key, "value": tags[key], "resource_type": kind} for key in tags]


def left() -> dict[str, int]:
    """Return how many there are of each kind of thing that AWS keeps or charges for."""
    found = {
        "instances": sum(1 for one in machines() if one.is_there),
        "placement_groups": sum(len(groups) for groups in settings.placement.values()),
    }
    for backend in backends():
        requests = [one for one in backend.spot_instance_requests.values() if one.state in ("open", "active")]
        groups = {one.id for each in backend.groups.values() for one in each.values() if one.name != "default"}
        addresses = backend.addresses if isinstance(backend.addresses, dict) else list(backend.addresses)
        counts = {
            "volumes": len(backend.volumes),
            "interfaces": len(backend.enis),
            "addresses": len(addresses),
            "groups": len(groups),
            "groups_in_use": len(groups & groups_in_use(backend)),
            "spot_requests": len(requests),
            "templates": len(backend.launch_templates),
            "key_pairs": len(backend.key_pairs),
        }
        for name, number in counts.items():
            found[name] = found.get(name, 0) + number
    return found


def described() -> list[dict[str, Any]]:
    """Return what a test may want to know of each instance there ever was."""
    return [
        {
            "id": one.id,
            "state": one._state.name,
            "region": one.ec2_backend.region_name,
            "zone": one.availability_zone,
            "kind": one.instance_type,
            "market": "spot" if one.lifecycle == "spot" else "on-demand",
            "token": one.client_token,
            "image": one.image_id,
            "tags": {tag["key"]: tag["value"] for tag in one.get_tags()},
            "user_data": one.user_data.decode() if one.user_data else "",
            "private": one.private_ip_address,
            "public": one.public_ip,
            "interfaces": len(one.nics),
            "at_shutdown": one.instance_initiated_shutdown_behavior,
            "request": one.spot_instance_request_id,
            "reason": one.state_reason.code,
            "host": one.host,
        }
        for one in machines()
    ]


def reset() -> None:
    """Begin with an empty cloud; moto's own reset is asked for beside."""
    settings.__init__()


def install() -> None:
    """Put all of this into moto."""
    instances.Instance = Machine
    TaggedEC2Resource.get_tags = get_tags
    InstanceBackend.run_instances = run_instances
    InstanceBackend.all_reservations = all_reservations
    EC2Backend.delete_security_group = delete_security_group
    SpotRequestBackend.cancel_spot_instance_requests = cancel_spot_instance_requests
    AmiBackend._load_amis = load_amis
    SimpleSystemManagerBackend.get_parameter = get_parameter
    ServiceQuotasBackend.get_service_quota = get_service_quota
    for function in (create_placement_group, describe_placement_groups, delete_placement_group):
        setattr(EC2Response, function.__name__, function)
    EC2Response.describe_spot_price_history = describe_spot_price_history
    EC2Response.describe_capacity_reservations = describe_capacity_reservations
    EC2Response.run_instances = respond_run
