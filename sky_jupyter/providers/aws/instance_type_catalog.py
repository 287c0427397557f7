"""Instance types of EC2: what each has, and which zones have it.

They come from EC2, and are kept in the user's cache for a week. Without credentials they come from ``catalog.json``,
which `docs/aws_catalog.py` regenerates.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ProvisionError, SpecError
from ...spec.accelerators import CATALOGUE, Accelerator
from .. import answer_cache
from .api_errors import translated

if TYPE_CHECKING:
    from .clients import Clients

_WEEK = 7 * 86_400.0
# Patterns of present and future families with accelerators. Matching types without one are left out afterwards.
_ACCELERATED = ("g*", "p*", "trn*", "inf*")
_MIB = 1024
# Filters take 200 values at most.
_MOST_VALUES = 200


@dataclass(frozen=True)
class InstanceType:
    """Instance type of one region.

    Attributes
    ----------
    accelerator : str
        One of its accelerators, as `Accelerator.kind` writes it; empty if it has none.
    arch : str
        Architecture of its processors: ``"x86_64"`` or ``"arm64"``.
    efa : int
        Number of EFA interfaces that it can have.
    markets : tuple of str
        ``"on-demand"``, ``"spot"``, ``"capacity-block"``.
    zones : tuple of str
        Zones that have it; empty if unknown.
    """

    name: str
    vcpus: int
    memory_gb: float
    accelerator: str = ""
    count: int = 0
    arch: str = "x86_64"
    efa: int = 0
    markets: tuple[str, ...] = ("on-demand", "spot")
    zones: tuple[str, ...] = ()

    @property
    def is_burstable(self) -> bool:
        """True if a busy processor costs more than the listed price (T family)."""
        return re.match(r"t\d", self.name) is not None

    @property
    def is_metal(self) -> bool:
        """True if it has no hypervisor; it then takes many minutes to start."""
        return ".metal" in self.name


@functools.cache
def catalogue() -> Mapping[str, Any]:
    """Return the packaged catalogue as it is in its file."""
    return dict(json.loads(Path(__file__).with_name("catalog.json").read_text(encoding="utf-8")))


@functools.cache
def packaged() -> Mapping[str, InstanceType]:
    """Return the packaged catalogue's types by name."""
    found = {}
    for family, row in catalogue()["families"].items():
        for size, (vcpus, memory, count, _) in row["sizes"].items():
            name, arch = f"{family}.{size}", row.get("arch", "x86_64")
            found[name] = InstanceType(name, vcpus, memory, row.get("accelerator", ""), count, arch)
    return found


def available(clients: Clients, region: str) -> Mapping[str, InstanceType]:
    """Return a region's types by name: accelerated, or of a family in the catalogue."""
    plain = [family for family, row in catalogue()["families"].items() if "accelerator" not in row]
    values = [*_ACCELERATED, *(f"{family}.*" for family in plain)]
    found = _cached(clients, region, "types", {"Filters": [{"Name": "instance-type", "Values": values}]})
    # For some types, EC2 does not describe the accelerators.
    return {name: one for name, one in found.items() if one.count or name.partition(".")[0] in plain}


def named(clients: Clients, region: str, name: str) -> InstanceType:
    """Return one type; raise ProvisionError if the region does not have it."""
    if name.partition(".")[0] in catalogue()["families"] and (found := available(clients, region).get(name)):
        return found
    if found := _cached(clients, region, name, {"InstanceTypes": [name]}).get(name):
        return found
    raise ProvisionError(
        f"{name} cannot be used: it has a fraction of an accelerator, or one that EC2 does not describe"
    )


def _cached(clients: Clients, region: str, key: str, asked: Mapping[str, Any]) -> dict[str, InstanceType]:
    def fetch(keys: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        return {key: [asdict(one) for one in described(clients, region, asked)]}

    # The field names are in the subject: rows that another release of this package has written may have other fields.
    subject = ("aws", "types", *identity(clients, region), region, *(one.name for one in fields(InstanceType)))
    rows = answer_cache.lookup(subject, [key], _WEEK, fetch)[key][1]
    return {row["name"]: InstanceType(**{**row, **_tuples(row)}) for row in rows}


def _tuples(row: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {key: tuple(row[key]) for key in ("markets", "zones")}


@functools.lru_cache(maxsize=32)
def identity(clients: Clients, region: str) -> tuple[str, str]:
    """Return the account and its endpoint: zones have other names in other accounts."""
    with translated("ask for the account", region, profile=clients.profile):
        account = str(clients.sts(region).get_caller_identity()["Account"])
    return account, str(clients.ec2(region).meta.endpoint_url)


def described(clients: Clients, region: str, asked: Mapping[str, Any]) -> list[InstanceType]:
    """Ask EC2 for types and their zones; skip types with a fractional accelerator."""
    ec2 = clients.ec2(region)
    with translated("describe instance types", region, profile=clients.profile):
        pages = ec2.get_paginator("describe_instance_types").paginate(**asked)
        rows = {row["InstanceType"]: row for page in pages for row in page["InstanceTypes"]}
        zones = _zones(ec2, list(rows))
    read = [(_parsed(row, sorted(zones.get(name, ()))), row) for name, row in sorted(rows.items())]
    return [one for one, row in read if one.count or not any(key in row for key in ("GpuInfo", "NeuronInfo"))]


def _zones(ec2: Any, names: Sequence[str]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for start in range(0, len(names), _MOST_VALUES):
        only = [{"Name": "instance-type", "Values": list(names[start : start + _MOST_VALUES])}]
        pages = ec2.get_paginator("describe_instance_type_offerings").paginate(
            LocationType="availability-zone", Filters=only
        )
        for page in pages:
            for row in page["InstanceTypeOfferings"]:
                found.setdefault(row["InstanceType"], set()).add(row["Location"])
    return found


def _parsed(row: Mapping[str, Any], zones: Iterable[str]) -> InstanceType:
    gpus = row.get("GpuInfo", {}).get("Gpus") or row.get("NeuronInfo", {}).get("NeuronDevices") or [{}]
    return InstanceType(
        row["InstanceType"],
        row["VCpuInfo"]["DefaultVCpus"],
        row["MemoryInfo"]["SizeInMiB"] / _MIB,
        _kind(gpus[0]) if gpus[0] else "",
        gpus[0].get("Count", 0),
        "arm64" if "arm64" in row["ProcessorInfo"]["SupportedArchitectures"] else "x86_64",
        row.get("NetworkInfo", {}).get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        tuple(row.get("SupportedUsageClasses", ("on-demand",))),
        tuple(zones),
    )


def _kind(device: Mapping[str, Any]) -> str:
    """Return the `Accelerator.kind` for EC2's name and memory of an accelerator."""
    try:
        sizes = CATALOGUE[Accelerator(device["Name"]).name].memories
    except SpecError:
        return f"custom:{device['Name']}"
    gib = device.get("MemoryInfo", {}).get("SizeInMiB", 0) / _MIB
    near = min(sizes, key=lambda size: abs(size - gib))
    return Accelerator(device["Name"], variant=near).kind


__all__ = ["InstanceType", "available", "catalogue", "described", "identity", "named", "packaged"]
