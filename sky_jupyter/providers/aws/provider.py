"""`AWS`: machines of Amazon EC2, made for a pool and ended with it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from ...errors import SpecError
from ...machines.power_watchdog import POWER_FILE
from ...machines.ssh import pool_keys
from ...machines.ssh.resolve_target import HostAddress
from ...spec.pool_spec import PoolSpec
from ...util.validate import brief, check_whole, is_number
from .. import pool_listing, provider_registry, wait_for_ssh
from ..base import Charge, ConnectionSession, MachineRecord, Offer, Order

if TYPE_CHECKING:
    from ...machines.base import Machine
    from ..pool_listing import BoughtPool
    from .clients import Clients

_REGION = re.compile(r"[a-z]{2,}(-[a-z]+)+-\d+\Z")
_TEXTS = {
    "profile": (r"[^\x00-\x1f\[\]]{1,128}", "a profile's name, such as 'default'"),
    "region": (_REGION.pattern, "a region such as 'us-east-1'"),
    "instance_type": (r"[a-z][a-z0-9-]*\.[a-z0-9-]+", "an instance type such as 'g5.xlarge'"),
    "subnet": (r"subnet-[0-9a-f]{8,17}", "a subnet's id, 'subnet-…'"),
    "ami": (r"ami-[0-9a-f]{8,17}", "an image's id, 'ami-…'"),
    "iam_instance_profile": (r"(arn:[^\s]{1,1000}|[\w+=,.@-]{1,128})", "the name or ARN of an instance profile"),
    "reservation": (r"cr-[0-9a-f]{8,17}", "a capacity reservation's id, 'cr-…'"),
    "user": (r"[a-z_][a-z0-9_.-]{0,31}", "the user that the image lets in, such as 'ubuntu'"),
}
_MOST_DISK = 16_384


@dataclass(frozen=True)
class AWS:
    """Machines of Amazon EC2, made for the pool and ended with it.

    Credentials are found as in every AWS tool: profile, environment, SSO, role.

    Parameters
    ----------
    profile : str, optional
        Profile of the AWS configuration; AWS_PROFILE or the default one by default.
    region : str, optional
        Region; by default that of the profile or environment. The pool's ``region`` has precedence.
    regions : str or iterable of str
        Regions to choose from.
    instance_type : str, optional
        Instance type, such as ``"g5.xlarge"``; by default, one that fits the pool's wishes.
    subnet : str, optional
        Subnet to launch in; by default, those of the default VPC.
    ami : str, optional
        Image to boot; by default, the latest one of Ubuntu, with the accelerator's drivers.
    disk_gb : int, optional
        Size of the root disk in GB, at least the image's; by default the pool's ``disk_gb``, or else 50 GB more than
        the image's.
    iam_instance_profile : str, optional
        Instance profile with the role of the machines; none by default.
    reservation : str, optional
        Capacity reservation or capacity block to launch into.
    ssh_from : str, optional
        Network (IPv4) that may reach port 22, such as ``"10.0.0.0/8"``, or ``"any"``. By default, this machine's public
        address; in a private subnet or with a jump host, all private networks.
    user : str
        User to log in as.
    jump : str, optional
        Jump host to reach machines in a private subnet by their private addresses.
    offline : bool
        True to send machines all packages from here, so that a private subnet needs no NAT gateway.
    visible_within : float
        Seconds after which EC2 lists a new machine, at the latest.

    Raises
    ------
    SpecError
        When an argument is not valid.
    """

    kind = "aws"
    provisions = True
    survives_manager = True
    queues = False
    power_file = POWER_FILE
    supported_options = ("region", "allocation", "max_hourly_cost", "vcpus", "memory_gb", "disk_gb")
    notice = "sky_jupyter.providers.aws.spot_notice:read"

    profile: str | None = None
    region: str | None = None
    regions: tuple[str, ...] = ()
    instance_type: str | None = None
    subnet: str | None = None
    ami: str | None = None
    disk_gb: int | None = None
    iam_instance_profile: str | None = None
    reservation: str | None = None
    ssh_from: str | None = field(default=None, compare=False)
    user: str = "ubuntu"
    jump: str | None = field(default=None, compare=False)
    offline: bool = field(default=False, compare=False)
    visible_within: float = field(default=5.0, compare=False)

    def __post_init__(self) -> None:
        for name, (pattern, form) in _TEXTS.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not re.fullmatch(pattern, value)):
                raise SpecError(f"{name} must be {form}, not {brief(value)}")
        object.__setattr__(self, "regions", _regions(self.regions))
        if self.region and self.regions and self.region not in self.regions:
            raise SpecError(f"region {self.region!r} is not among regions {', '.join(self.regions)}; give one of both")
        if self.disk_gb is not None:
            check_whole("disk_gb", self.disk_gb, 1, _MOST_DISK)
        if self.ssh_from is not None:
            object.__setattr__(self, "ssh_from", _network(self.ssh_from))
        if self.jump is not None:
            if not isinstance(self.jump, str):
                raise SpecError(f"jump must be a host such as 'me@bastion', not {brief(self.jump)}")
            for part in self.jump.split(","):
                HostAddress.parse(part)
        if not is_number(self.visible_within, 0, 600):
            raise SpecError(f"visible_within must be a number of seconds up to 600, not {brief(self.visible_within)}")

    # -- what it is --------------------------------------------------------------------------------

    def default_nodes(self) -> int:
        """Return 1."""
        return 1

    def spares(self, ids: Sequence[str]) -> Sequence[str] | None:
        """Return None: machines are created as needed."""
        return None

    def resized(self, ids: Sequence[str], add: Sequence[str], remove: Sequence[str]) -> AWS:
        """Return the same provider; raise SpecError if machines are added by name."""
        if add:
            raise SpecError("AWS's machines are made, not added by name: say how many nodes there shall be")
        return self

    def recipe(self) -> Mapping[str, Any]:
        """Return the fields that are set, and the environment's profile."""
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        found = {item.name: given[item.name] for item in fields(self) if given[item.name] != item.default}
        named = os.environ.get("AWS_PROFILE")
        return {**found, "environment_profile": named} if named and self.profile is None else found

    @classmethod
    def restore(cls, recipe: Mapping[str, Any]) -> AWS:
        """Return a provider made from its recipe.

        A process without AWS_PROFILE, such as a sweep, uses the AWS_PROFILE of the process that made the machines.
        """
        given = dict(recipe)
        named = given.pop("environment_profile", None)
        if named and "AWS_PROFILE" not in os.environ:
            given["profile"] = named
        return cls(**given)

    def __str__(self) -> str:
        where = self.region or ", ".join(self.regions)
        return f"aws ({where})" if where else "aws"

    # -- calls of AWS ------------------------------------------------------------------------------

    @property
    def clients(self) -> Clients:
        """The API's clients, made when first used."""
        from .clients import clients

        return clients(self.profile)

    def account(self) -> str:
        """Return the account number; raise ProvisionError for invalid credentials."""
        from .api_errors import translated

        with translated("ask for the account", self.region or "", profile=self.profile):
            return str(self.clients.sts(self.region or "").get_caller_identity()["Account"])

    def list(self, pool: str | None, regions: Sequence[str] = ()) -> Sequence[MachineRecord]:
        """Return the instances tagged with a pool's id, or with any if it is None."""
        from . import instances

        return instances.records(self.clients, instances.tagged(pool), list(regions or self.home_regions()))

    def describe(self, ids: Sequence[str]) -> Sequence[MachineRecord]:
        """Return the state of instances; ``"unknown"`` for one that EC2 does not list."""
        from . import instances

        found = instances.find(self.clients, ids, self.home_regions)
        known = {id: instances.record_of(one, region) for id, (region, one) in found.items()}
        return [known.get(id, MachineRecord(id, "unknown")) for id in ids]

    def destroy(self, ids: Sequence[str]) -> None:
        """Terminate instances; ignore those that have ended."""
        from . import instances

        if ids:
            instances.terminate(self.clients, ids, self.home_regions)

    def home_regions(self) -> Sequence[str]:
        """Return the regions to look in unless others are named."""
        from . import instances

        named = self.regions or tuple(filter(None, [self.region or self.clients.default_region()]))
        return named or instances.enabled_regions(self.clients)

    def stop(self, ids: Sequence[str]) -> None:
        """Stop instances, on demand only; their disks stay."""
        from . import power_states

        power_states.stop(self.clients, ids, self.home_regions)

    def start(self, ids: Sequence[str]) -> None:
        """Start stopped instances."""
        from . import power_states

        power_states.start(self.clients, ids, self.home_regions)

    def pools(self, *, all_regions: bool = False) -> Sequence[BoughtPool]:
        """Return the account's pools, found by tags, also those of other computers."""
        return pool_listing.pools(self, self.all_regions() if all_regions else ())

    def all_regions(self) -> Sequence[str]:
        """Return the regions that the account may use."""
        from . import instances

        return instances.enabled_regions(self.clients)

    def offers(self, spec: PoolSpec) -> Sequence[Offer]:
        """Return instance types that fit the spec, by region and market, the best first."""
        from . import offers

        return offers.offers(self, self.clients, spec)

    def price_list(self, spec: PoolSpec) -> tuple[Sequence[Offer], str]:
        """Return offers, also without credentials, and a text that says what is missing."""
        from . import offers

        return offers.price_list(self, spec)

    def costs(self, records: Sequence[MachineRecord], at: float) -> Sequence[Charge]:
        """Return what instances cost: their time, disk and public address."""
        from . import instance_costs

        return instance_costs.charges(self.clients, records, at)

    def create(self, spec: PoolSpec, count: int, order: Order) -> Sequence[str]:
        """Launch instances in one zone, by one call; return their ids."""
        from . import launch_request

        return launch_request.run(self, self.clients, spec, count, order)

    def connect(self, ids: Sequence[str], session: ConnectionSession) -> Sequence[Machine]:
        """Connect to instances over SSH, once they have booted."""
        from . import instances, vpc_network

        def admit(record: MachineRecord) -> str:
            return vpc_network.admit(self, record)

        def console(record: MachineRecord) -> str:
            return instances.console(self.clients, record)

        access = wait_for_ssh.BootAccess(self.describe, self.user, self.jump, admit, console)
        return wait_for_ssh.connect(access, ids, session)

    def forget(self, pool: str) -> None:
        """Remove the keys of a pool, and its placement group once its machines are gone."""
        from . import launch_request, vpc_network

        keys = pool_keys.of(pool)
        region = "" if keys is None else keys.note(launch_request.PLACEMENT)
        pool_keys.forget(pool)
        if region:
            vpc_network.remove_placement_group(self.clients, region, pool)


def _regions(value: Any) -> tuple[str, ...]:
    names = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, (list, tuple, set, frozenset)) or not all(
        isinstance(name, str) and _REGION.match(name) for name in names
    ):
        raise SpecError(f"regions must be names such as 'us-east-1', not {brief(value)}")
    return tuple(dict.fromkeys(names))


def _network(value: Any) -> str:
    import ipaddress

    if value == "any":
        return "any"
    try:
        if isinstance(value, str):
            # The address at which machines are reached is IPv4.
            return str(ipaddress.IPv4Network(value))
    except ValueError:
        pass
    raise SpecError(
        f"ssh_from must be a network such as '203.0.113.7/32' or '10.0.0.0/8', or 'any', not {brief(value)}"
    )


provider_registry.register(AWS)

__all__ = ["AWS"]
