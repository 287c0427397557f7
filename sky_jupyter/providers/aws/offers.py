"""Offers of EC2: fitting instance types with places and prices, the best first."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import ProvisionError, SpecError
from ...spec.accelerators import Accelerator
from ...util.text import first_line
from ..provisioning_types import Offer
from . import instance_type_catalog, prices
from .api_errors import translated
from .instance_type_catalog import InstanceType, catalogue, packaged

if TYPE_CHECKING:
    from ...spec.pool_spec import PoolSpec
    from .clients import Clients
    from .context import AWSContext

# The images' drivers and CUDA need Turing or later.
_OLDEST = (7, 5)
# Minimum processors and GB of memory for a pool without wishes, and the architecture that packages are built for.
_LEAST_VCPUS, _LEAST_GB, _ARCH = 2, 4, "x86_64"
# Only this many types without accelerators are tried, the smallest: an order for 2 processors must not buy 192.
_MOST_PLAIN = 8
_SPOT, _ON_DEMAND = "spot", "on-demand"
_DEFAULT = "spot-if-available"
# Environment variables, and files, that credentials come from.
_VARIABLES = ("ACCESS_KEY_ID", "PROFILE", "DEFAULT_PROFILE", "WEB_IDENTITY_TOKEN_FILE", "CONTAINER_CREDENTIALS_")
_FILES = {"AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials", "AWS_CONFIG_FILE": "~/.aws/config"}
# Number of regions that are searched at a time.
_AT_ONCE = 8
_Priced = tuple[Offer, InstanceType]


class NothingFits(ProvisionError):
    """Raised when EC2 has no instance type that fits."""


def offers(aws: AWSContext, clients: Clients | None, spec: PoolSpec, *, everything: bool = False) -> list[Offer]:
    """Return the offers with which a pool's machines can be ordered, the best first.

    A spot offer with a known price has one zone, as prices differ by zone; an offer on demand has all zones of its
    region. Offers are sorted by price; those of unknown price come last, the smallest first. Unless the allocation is
    ``"cheapest"``, the spot offers that cost no more than the cheapest one on demand come before all others.

    Parameters
    ----------
    aws : AWSContext
        The provider.
    clients : Clients or None
        Clients to ask AWS with; with None, the packaged catalogue answers.
    spec : PoolSpec
        The pool.
    everything : bool
        Whether types that do not fit the pool are listed too.

    Returns
    -------
    list of Offer
        The offers; those above ``max_hourly_cost`` are left out.

    Raises
    ------
    NothingFits
        When no instance type of these regions fits.
    """

    def ask(region: str) -> tuple[list[InstanceType], list[_Priced]] | ProvisionError:
        try:
            name, zone = _bound(aws, clients, region)
            there = _types(clients, region, name)
            fit = there if everything else _fitting(aws, there, spec, chosen=bool(name))
            return there, list(_priced(aws, clients, region, zone, fit, spec))
        except ProvisionError as error:
            return error

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="sky-offers") as workers:
        answers = list(workers.map(ask, regions(aws, clients, spec)))
    told = [answer for answer in answers if not isinstance(answer, ProvisionError)]
    refused = [answer for answer in answers if isinstance(answer, ProvisionError)]
    if not told:
        raise refused[0]
    # A region that is closed to the account, or lacks the type, is left out.
    types = [one for there, _ in told for one in there]
    found = [row for _, rows in told for row in rows]
    if not found:
        raise NothingFits(_why_none(types, spec))
    most = spec.max_hourly_cost
    cheap = [row for row in found if most is None or row[0].hourly is None or row[0].hourly <= most]
    if not cheap:
        least = min(offer.hourly for offer, _ in found if offer.hourly is not None)
        raise NothingFits(f"the cheapest machine of EC2 that fits is ${least:g} an hour, and max_hourly_cost ${most:g}")
    return _sorted(cheap, apart=(spec.allocation or _DEFAULT) != "cheapest")


def price_list(aws: AWSContext, spec: PoolSpec) -> tuple[list[Offer], str]:
    """Return the offers for a table, and a text that says what is missing.

    Without a wish for an accelerator, processors or memory, all types are listed. Without credentials, or if AWS does
    not answer, the packaged catalogue is listed.
    """
    everything = not (spec.accelerator or spec.vcpus or spec.memory_gb or aws.instance_type)
    why = "no AWS credentials were found"
    if may_have_credentials(aws):
        try:
            return offers(aws, aws.clients, spec, everything=everything), ""
        except NothingFits:
            raise
        except ProvisionError as error:
            why = first_line(error)
    told = f"from the package's catalogue ({catalogue()['priced']}, {catalogue()['region']})"
    return offers(aws, None, spec, everything=everything), f"{told}; present prices and zones need an account: {why}"


def regions(aws: AWSContext, clients: Clients | None, spec: PoolSpec) -> Sequence[str]:
    """Return the regions to search: the pool's, the provider's or the default one."""
    if spec.region:
        if aws.regions and spec.region not in aws.regions:
            raise SpecError(f"region {spec.region!r} is not among the provider's regions {', '.join(aws.regions)}")
        return (spec.region,)
    if aws.region or aws.regions:
        return (aws.region,) if aws.region else aws.regions
    if clients is not None:
        return (clients.region(),)
    return (os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or str(catalogue()["region"]),)


def may_have_credentials(aws: AWSContext) -> bool:
    """Return whether credentials seem to exist, without botocore's slow import."""
    if aws.profile or any(name.startswith(tuple(f"AWS_{end}" for end in _VARIABLES)) for name in os.environ):
        return True
    if any(Path(os.environ.get(name, path)).expanduser().is_file() for name, path in _FILES.items()):
        return True
    # A machine of EC2 may have a role.
    asked = os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() != "true"
    return asked and any("Amazon EC2" in Path(path).read_text() for path in glob("/sys/class/dmi/id/sys_vendor"))


def _bound(aws: AWSContext, clients: Clients | None, region: str) -> tuple[str, str]:
    """Return the instance type and zone that the provider's options fix, or ""."""
    name, zone = aws.instance_type or "", ""
    if clients is not None and aws.reservation:
        with translated("find the reservation", region, profile=aws.profile):
            ids = [aws.reservation]
            found = clients.ec2(region).describe_capacity_reservations(CapacityReservationIds=ids)
        facts = found["CapacityReservations"][0]
        return facts.get("InstanceType", name), facts.get("AvailabilityZone", zone)
    if clients is not None and aws.subnet:
        with translated("find the subnet", region, profile=aws.profile):
            found = clients.ec2(region).describe_subnets(SubnetIds=[aws.subnet])
        zone = found["Subnets"][0]["AvailabilityZone"]
    return name, zone


def _types(clients: Clients | None, region: str, name: str) -> list[InstanceType]:
    """Return the type of a name, or all."""
    if not name:
        known = (
            instance_type_catalog.packaged() if clients is None else instance_type_catalog.available(clients, region)
        )
        return [one for one in known.values() if not one.is_metal]
    if clients is not None:
        return [instance_type_catalog.named(clients, region, name)]
    return [one for one in packaged().values() if one.name == name]


def _fitting(aws: AWSContext, types: Iterable[InstanceType], spec: PoolSpec, *, chosen: bool) -> list[InstanceType]:
    """Return the types that a pool can use; ``chosen`` if the provider names one."""
    least = (0, 0) if spec.accelerator or chosen else (_LEAST_VCPUS, _LEAST_GB)
    vcpus, memory = spec.vcpus or least[0], spec.memory_gb or least[1]
    large = [one for one in types if one.vcpus >= vcpus and one.memory_gb >= memory]
    if spec.accelerator is None:
        # Burstable types cost more than their price when they compute for long.
        plain = [one for one in large if not one.count and one.arch == _ARCH and not one.is_burstable]
        return large if chosen else sorted(plain, key=_size)[:_MOST_PLAIN]
    wanted = spec.accelerator
    have = [one for one in large if one.count >= wanted.count and _is_of(wanted, one.accelerator)]
    if not aws.ami:
        have = [one for one in have if is_supported(one)]
    # EC2 has some models only in eights: a type with more of them than asked for is better than none.
    count = min((one.count for one in have), default=0)
    return [one for one in have if one.count == count]


def is_supported(one: InstanceType) -> bool:
    """Return whether the images have drivers for a type's accelerator, if it has one."""
    if one.accelerator.startswith("custom:"):
        return False
    return not one.accelerator or (Accelerator.parse(one.accelerator).capability or _OLDEST) >= _OLDEST


def _is_of(wanted: Accelerator, kind: str) -> bool:
    if not kind or wanted.is_custom:
        return bool(kind) and wanted.fits(kind)
    there = Accelerator.parse(kind)
    # The same B200 is sold as 180 and as 192 GB.
    return there.name == wanted.name and (wanted.variant in (None, there.variant) or wanted.name == "B200")


def _priced(
    aws: AWSContext, clients: Clients | None, region: str, only: str, types: Sequence[InstanceType], spec: PoolSpec
) -> Iterator[_Priced]:
    """Yield the offers of a region, or of one zone of it, with their types."""
    asked = spec.allocation or _DEFAULT
    # A reservation is billed like machines on demand.
    markets = (_ON_DEMAND,) if aws.reservation else (asked,) if asked in (_SPOT, _ON_DEMAND) else (_SPOT, _ON_DEMAND)
    names = [one.name for one in types]
    listed = prices.listed(clients, names, region) if _ON_DEMAND in markets and names else {}
    now = prices.spot(clients, names, region) if _SPOT in markets and names and clients else {}
    for one in types:
        zones = tuple(zone for zone in one.zones if only in ("", zone))
        if clients and not zones:
            continue
        if _ON_DEMAND in markets and (_ON_DEMAND in one.markets or aws.reservation):
            price, said = listed.get(one.name, (None, ""))
            yield _offer(one, region, zones, _ON_DEMAND, price, said), one
        if _SPOT not in markets or _SPOT not in one.markets:
            continue
        known = {zone: price for zone, price in now.get(one.name, {}).items() if zone in zones}
        for zone, price in known.items():
            yield _offer(one, region, (zone,), _SPOT, price, "spot price now"), one
        if (others := tuple(zone for zone in zones if zone not in known)) or not known:
            yield _offer(one, region, others, _SPOT, None, ""), one


def _offer(
    one: InstanceType, region: str, zones: tuple[str, ...], market: str, price: float | None, said: str
) -> Offer:
    what = (one.accelerator, one.count, one.vcpus, one.memory_gb)
    return Offer(one.name, price, *what, region, zones, market, said)


def _sorted(found: Iterable[_Priced], *, apart: bool) -> list[Offer]:
    rows = list(found)
    listed = {(one.region, one.name): one.hourly for one, _ in rows if one.market == _ON_DEMAND and one.hourly}
    least = min(listed.values(), default=math.inf)

    def rank(row: _Priced) -> tuple[object, ...]:
        offer, one = row
        spot = offer.market == _SPOT
        # No spot price is above the list price.
        most = offer.hourly or listed.get((offer.region, offer.name)) or math.inf
        first = apart and spot and most <= least
        # At the same price, a machine that is not taken away is the better one.
        return (not first, offer.hourly is None, offer.hourly or 0.0, spot, _size(one), one.name)

    return [offer for offer, _ in sorted(rows, key=rank)]


def _size(one: InstanceType) -> float:
    return one.vcpus + one.memory_gb / 8


def _why_none(types: Iterable[InstanceType], spec: PoolSpec) -> str:
    """Return a text that says why no type fits, and which accelerators EC2 has."""
    wishes = {"vCPU": spec.vcpus, "GB of memory": spec.memory_gb}
    asked = [f"{value:g} {name}" for name, value in wishes.items() if value]
    there = [one for one in types if one.accelerator]
    if spec.accelerator is None:
        return f"EC2 has no instance type that fits here: {' and '.join(asked) or 'the instance type has no zone'}"
    same = [one for one in there if _is_of(spec.accelerator, one.accelerator)]
    kinds = {f"{one.accelerator}:{one.count} ({one.name})" for one in same} or {one.accelerator for one in there}
    what = " with ".join([str(spec.accelerator), *([" and ".join(asked)] if asked else [])])
    return f"EC2 has no instance type with {what} here; it has {', '.join(sorted(kinds)) or 'none with accelerators'}"


__all__ = ["NothingFits", "is_supported", "may_have_credentials", "offers", "price_list", "regions"]
