"""Specification of a pool: frozen values, valid once they exist.

A `PoolSpec` is made by the magics or by `Compute`, held by the pool for its whole life, and compared when a name is
used again. It refuses invalid values before anything starts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..errors import SpecError
from ..util.redaction import without_secrets
from ..util.text import nearest
from ..util.validate import check_flag, check_whole, is_number
from .accelerators import Accelerator as Accelerator  # noqa: PLC0414 - a part of every spec
from .image import Image
from .options import Options
from .provider_traits import ProviderTraits

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z")
_SECONDS = re.compile(r"(?P<number>[0-9]{1,15}(\.[0-9]{1,9})?)\s*(?P<unit>[smhd]?)\Z")
_SIZE = re.compile(r"(?P<number>[0-9]{1,15}(\.[0-9]{1,9})?)\s*(?P<unit>[kmgt]?)((?P<binary>i)?b)?\Z")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
MAX_NODES = 4096
MAX_RANKS_PER_NODE = 256
MAX_IDLE_TIMEOUT = 10 * 366 * 86_400.0
DEFAULT_IDLE_TIMEOUT = 12 * 3600.0
# Others may need these machines, and a notebook that does not return has abandoned them.
DEFAULT_REMOTE_IDLE_TIMEOUT = 30 * 60.0
# A manager sends a heartbeat once a second: with a shorter timeout, nodes could end while it is there.
MIN_IDLE_TIMEOUT = 10.0
MAX_TTL = 10 * 366 * 86_400.0
# Machines that are created for a pool cost money until they end: without a ``ttl`` they must not go on forever.
DEFAULT_PROVISIONED_TTL = 24 * 3600.0
ALLOCATIONS = ("spot", "on-demand", "spot-if-available", "cheapest")
# The options that say which machines a provider creates; they have no effect on existing machines.
MACHINE_OPTIONS = ("region", "allocation", "max_hourly_cost", "vcpus", "memory_gb", "disk_gb")
MIN_JOURNAL, MAX_JOURNAL = 10**6, 10**12
DEFAULT_JOURNAL = 256 * 10**6
DEFAULT_OPTIONS = Options()
MAX_BLOBS = 1 << 50


def seconds(text: str) -> float:
    """Parse a length of time.

    Parameters
    ----------
    text : str
        Such as ``"90"``, ``"90s"``, ``"30m"``, ``"12h"`` or ``"2d"``.

    Returns
    -------
    float
        Seconds.

    Raises
    ------
    SpecError
        When the text has another form.
    """
    match = _SECONDS.match(text.strip().lower())
    if not match:
        raise SpecError(f"{text!r} is not a length of time, such as 90s, 30m or 12h")
    return float(match["number"]) * _UNITS[match["unit"]]


def size(text: str) -> int:
    """Parse a number of bytes.

    Parameters
    ----------
    text : str
        Such as ``"64MB"`` or ``"1GB"``; a MB is 10**6 bytes, and a MiB 2**20.

    Returns
    -------
    int
        Bytes.

    Raises
    ------
    SpecError
        When the text has another form.
    """
    match = _SIZE.match(text.strip().lower())
    if not match:
        raise SpecError(f"{text!r} is not a size, such as 64MB or 1GB")
    return int(float(match["number"]) * (1024 if match["binary"] else 1000) ** " kmgt".index(match["unit"] or " "))


@dataclass(frozen=True)
class PoolSpec:
    """Frozen, validated description of a pool.

    Parameters
    ----------
    provider : ProviderTraits
        Provider of the machines, such as ``sky.Local()``.
    nodes : int
        Number of nodes, 1 or more.
    ranks_per_node : int
        Rank processes on each node, 1 or more.
    accelerator : Accelerator, optional
        Accelerators of every node.
    image : Image
        Packages, variables and files of every node; plugins add to it.
    plugins : tuple of Plugin
        Plugins, entered in this order in every rank.
    name : str
        Name of the pool.
    keep : bool
        True if the pool survives the notebook's kernel.
    idle_timeout : float, optional
        Seconds without a manager and without a run after which nodes end themselves. By default, twelve hours for a
        pool that is kept, half an hour on other machines for one that is not.
    journal : int
        Bytes of each run's output that a node keeps, 1 MB or more.
    options : Options
        Options of its start and supervision.
    region : str, optional
        Region of the machines.
    allocation : str, optional
        ``"spot"``, ``"on-demand"``, ``"spot-if-available"`` or ``"cheapest"``; the provider's default if None.
    max_hourly_cost : float, optional
        Maximum price of a node, in dollars per hour.
    vcpus, memory_gb, disk_gb : float, optional
        Minimum of each node.
    max_cost : float, optional
        Budget of the pool: the dollars that its machines may cost in all. It ends when they are used up.
    ttl : float, optional
        Seconds after which the pool ends, even while it runs a cell. By default, 24 hours if the provider creates the
        machines, and no limit for existing ones.
    blob_limit : int, optional
        Cache of sent values on each machine, in bytes, for values that no name refers to; by default, a quarter of the
        free memory or disk.
    """

    provider: ProviderTraits
    nodes: int = 1
    ranks_per_node: int = 1
    accelerator: Accelerator | None = None
    image: Image = field(default_factory=Image)
    plugins: tuple[Any, ...] = ()
    name: str = "default"
    keep: bool = False
    idle_timeout: float | None = None
    journal: int = DEFAULT_JOURNAL
    options: Options = DEFAULT_OPTIONS
    region: str | None = None
    allocation: str | None = None
    max_hourly_cost: float | None = None
    vcpus: float | None = None
    memory_gb: float | None = None
    disk_gb: float | None = None
    max_cost: float | None = None
    ttl: float | None = None
    blob_limit: int | None = None

    def __post_init__(self) -> None:
        check_whole("nodes", self.nodes, 1, MAX_NODES)
        check_whole("ranks_per_node", self.ranks_per_node, 1, MAX_RANKS_PER_NODE)
        if not isinstance(self.name, str) or not _NAME.match(self.name):
            raise SpecError(
                f"pool name {self.name!r} is not valid; use letters, digits, '.', '_' and '-', at most 63, "
                "beginning with a letter or digit"
            )
        check_flag("keep", self.keep)
        if self.accelerator is not None and not isinstance(self.accelerator, Accelerator):
            raise SpecError(
                f"accelerator must be an Accelerator, such as sky.accelerators.A100(count=8), not {self.accelerator!r}"
            )
        if self.idle_timeout is not None:
            if not is_number(self.idle_timeout, MIN_IDLE_TIMEOUT, MAX_IDLE_TIMEOUT):
                raise SpecError(
                    f"idle_timeout must be a number of seconds from {MIN_IDLE_TIMEOUT:g} to ten years, "
                    f"not {self.idle_timeout!r}"
                )
            if not self.provider.survives_manager and not self.keep:
                raise SpecError(
                    "a local pool ends with its notebook, so that idle_timeout has no meaning without keep: "
                    "give --keep (keep=True) too, or leave it out"
                )
        check_whole("journal", self.journal, MIN_JOURNAL, MAX_JOURNAL, "of bytes ")
        if self.blob_limit is not None:
            check_whole("blob_limit", self.blob_limit, 0, MAX_BLOBS, "of bytes ")
        object.__setattr__(self, "plugins", tuple(self.plugins))
        self._check_options()
        self._check_wishes()

    def _check_options(self) -> None:
        if not isinstance(self.options, Options):
            raise SpecError(f"options must be sky.Options(…), not {self.options!r}")
        if self.ttl is not None:
            _amount("ttl", self.ttl, MAX_TTL, "a number of seconds above 0, at most ten years")
        for plugin in self.plugins:
            if getattr(plugin, "fits", None) is not None:
                plugin.fits(self)
        together = [str(plugin) for plugin in self.plugins if getattr(plugin, "collective", False)]
        if together and not self.options.cluster and self.world_size > 1:
            names = " and ".join(together)
            raise SpecError(
                f"with Options(cluster=False) each rank is a world of its own, and {names} "
                f"{'need' if len(together) > 1 else 'needs'} them to work together: leave cluster=False out "
                "(--no-cluster), or the plugin, which a function can import for itself"
            )

    def _check_wishes(self) -> None:
        if self.region is not None and (not isinstance(self.region, str) or not self.region.strip()):
            raise SpecError(f"region must be a name such as 'us-east-1', not {self.region!r}")
        if isinstance(self.allocation, str):
            # Skyward has both spellings.
            object.__setattr__(self, "allocation", self.allocation.replace("_", "-"))
        if self.allocation is not None and self.allocation not in ALLOCATIONS:
            near = nearest(self.allocation, ALLOCATIONS) if isinstance(self.allocation, str) else ""
            raise SpecError(f"allocation must be one of {', '.join(ALLOCATIONS)}, not {self.allocation!r}{near}")
        for name in ("max_hourly_cost", "vcpus", "memory_gb", "disk_gb", "max_cost"):
            if getattr(self, name) is not None:
                _amount(name, getattr(self, name), 1e9, "a number above 0")

    @property
    def ignored(self) -> tuple[str, ...]:
        """The given machine options that have no effect with this provider."""
        supported = self.provider.supported_options
        budget = ("max_cost",) if self.max_cost is not None and not self.provider.provisions else ()
        return (
            *(name for name in MACHINE_OPTIONS if getattr(self, name) is not None and name not in supported),
            *budget,
        )

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def lease(self) -> float | None:
        """The seconds without manager and run until the nodes end; None without a lease."""
        if self.keep:
            return self.idle_timeout or DEFAULT_IDLE_TIMEOUT
        return self.idle_timeout or (DEFAULT_REMOTE_IDLE_TIMEOUT if self.provider.survives_manager else None)

    @property
    def lifetime(self) -> float | None:
        """The seconds after which the pool ends: its ``ttl``, or the default."""
        return DEFAULT_PROVISIONED_TTL if self.ttl is None and self.provider.provisions else self.ttl

    @property
    def full_image(self) -> Image:
        """The image with the additions of all plugins, in order."""
        image = self.image
        for plugin in self.plugins:
            image = plugin.transform_image(image, self)
        return image

    def differences(self, other: PoolSpec) -> list[str]:
        """Return the fields that differ, one line each, as ``"nodes: 2 -> 4"``."""
        lines = []
        for item in fields(self):
            if item.name in _CHANGEABLE:
                continue
            mine, theirs = (_compared(getattr(spec, item.name)) for spec in (self, other))
            if mine == theirs:
                continue
            if isinstance(mine, Image) and isinstance(theirs, Image):
                lines += _images(mine, theirs)
            else:
                lines.append(f"{item.name}: {_short(mine)} -> {_short(theirs)}")
        return lines


# Fields that can change while a pool is live.
_CHANGEABLE = ("max_cost",)


def _amount(name: str, value: Any, top: float, form: str) -> None:
    if not is_number(value, 0, top) or not value:
        raise SpecError(f"{name} must be {form}, not {value!r}")


def _compared(value: Any) -> Any:
    """Return the part of a field that matters for a comparison.

    Options of supervision, and an image's files, may differ.
    """
    if isinstance(value, Options):
        return "together" if value.cluster else "each node for itself (cluster=False)"
    return replace(value, includes=(), excludes=()) if isinstance(value, Image) else value


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(str(item) for item in value) or "none"
    return "none" if value is None else str(value)


def _images(mine: Image, theirs: Image) -> list[str]:
    """Return differences of two images, without values of variables (secrets)."""
    lines = []
    for name, read in _PARTS.items():
        one, other = read(mine), read(theirs)
        if one != other:
            lines.append(f"{name}: {one} -> {other}")
    if mine.env != theirs.env:
        names = sorted(name for name in {**mine.env, **theirs.env} if mine.env.get(name) != theirs.env.get(name))
        lines.append(f"variables: {', '.join(names)}")
    return lines


_PARTS: dict[str, Callable[[Image], str]] = {
    "python": lambda image: image.python or "the notebook's",
    "packages": lambda image: ", ".join(map(without_secrets, image.pip)) or "none added",
    "Debian packages": lambda image: ", ".join(image.apt) or "none",
    "indexes": lambda image: ", ".join(index.shown for index in image.pip_indexes) or "the usual one",
}


__all__ = [
    "ALLOCATIONS",
    "DEFAULT_IDLE_TIMEOUT",
    "DEFAULT_JOURNAL",
    "DEFAULT_PROVISIONED_TTL",
    "DEFAULT_REMOTE_IDLE_TIMEOUT",
    "MAX_NODES",
    "MAX_RANKS_PER_NODE",
    "Accelerator",
    "Image",
    "Options",
    "PoolSpec",
    "seconds",
    "size",
]
