"""What a pool shall be: frozen values, valid once they exist, that do nothing.

A `PoolSpec` is made by the magics or by `Compute`, held by the pool for its whole life, and
compared when a name is used again. Everything that can be wrong in it is refused here, before
anything starts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from .accelerators import Accelerator as Accelerator  # noqa: PLC0414 - a part of every spec
from .errors import SpecError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_APT = re.compile(r"[a-z0-9][a-z0-9+.-]*(:[a-z0-9-]+)?(=[A-Za-z0-9.+:~-]+)?\Z")
_PYTHON = re.compile(r"3\.(?P<minor>[0-9]+)(\.[0-9]+)?\Z")
_SECONDS = re.compile(r"(?P<number>[0-9]{1,15}(\.[0-9]{1,9})?)\s*(?P<unit>[smhd]?)\Z")
_SIZE = re.compile(r"(?P<number>[0-9]{1,15}(\.[0-9]{1,9})?)\s*(?P<unit>[kmgt]?)(i?b)?\Z")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
MAX_NODES = 4096
MAX_RANKS_PER_NODE = 256
MAX_IDLE_TIMEOUT = 10 * 366 * 86_400.0
DEFAULT_IDLE_TIMEOUT = 12 * 3600.0
# Machines that others may want: a notebook that does not come back has left them.
DEFAULT_REMOTE_IDLE_TIMEOUT = 30 * 60.0
# A manager is heard once a second; what is shorter could end under its hands.
MIN_IDLE_TIMEOUT = 10.0
MIN_JOURNAL, MAX_JOURNAL = 1 << 20, 1 << 40
DEFAULT_JOURNAL = 256 << 20
MAX_BLOBS = 1 << 50


@dataclass(frozen=True)
class Image:
    """What a node must have before a cell runs.

    Parameters
    ----------
    python : str, optional
        Python version such as ``"3.12"``; the notebook's own when not given.
    pip : iterable of str
        Requirements (PEP 508) to install.
    apt : iterable of str
        Debian packages, as ``"git"`` or ``"git=1:2.39.5-0+deb12u2"``. Missing ones are installed on hosts, which
        needs root there, or sudo without a password; never on the machine of local nodes.
    env : mapping of str to str
        Environment variables of every rank, set before anything is imported.
    """

    python: str | None = None
    pip: tuple[str, ...] = ()
    apt: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("pip", "apt"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise SpecError(f"image.{name} must be a list of strings, not the string {value!r}")
            # Order carries no meaning for an image, so equal sets give equal hashes.
            object.__setattr__(self, name, tuple(sorted({str(item).strip() for item in value})))
        for package in self.apt:
            if not _APT.match(package):
                raise SpecError(f"apt package {package!r} is not NAME, NAME:ARCHITECTURE or NAME=VERSION")
        object.__setattr__(self, "env", dict(sorted(self.env.items())))
        for key, value in self.env.items():
            if not _ENV_NAME.match(key):
                raise SpecError(f"environment variable {key!r} is not a valid name; use letters, digits and _")
            if not isinstance(value, str):
                raise SpecError(f"environment variable {key} must be a string, not {value!r}")
        if self.python is not None:
            match = _PYTHON.match(self.python)
            if not match or not 10 <= int(match["minor"]) <= 14:
                raise SpecError(f"python {self.python!r} is not supported; use one of 3.10 to 3.14")

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def digest(self) -> str:
        """Sixteen hex digits that name this image's packages; variables of the ranks do not change them."""
        builds = [self.build_env] if self.build_env else []
        facts = json.dumps([self.python, self.pip, self.apt, *builds])
        return hashlib.blake2b(facts.encode(), digest_size=8).hexdigest()

    @property
    def build_env(self) -> dict[str, str]:
        """The variables that decide which builds of packages are installed."""
        return {name: value for name, value in self.env.items() if name == "UV_TORCH_BACKEND"}

    def adding(
        self, *, pip: Iterable[str] = (), apt: Iterable[str] = (), env: Mapping[str, str] | None = None
    ) -> Image:
        """This image with more packages and variables; a variable that is already set stays."""
        return Image(
            python=self.python,
            pip=(*self.pip, *pip),
            apt=(*self.apt, *apt),
            env={**(env or {}), **self.env},
        )


def seconds(text: str) -> float:
    """Read a length of time such as ``"90"``, ``"90s"``, ``"30m"``, ``"12h"`` or ``"2d"``.

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
    """Read a number of bytes such as ``"64MB"`` or ``"1GB"``; a MB is 2**20 of them, however it is spelled.

    Raises
    ------
    SpecError
        When the text has another form.
    """
    match = _SIZE.match(text.strip().lower())
    if not match:
        raise SpecError(f"{text!r} is not a size, such as 64MB or 1GB")
    return int(float(match["number"]) * 1024 ** " kmgt".index(match["unit"] or " "))


@dataclass(frozen=True)
class PoolSpec:
    """The frozen, validated description of a pool.

    Parameters
    ----------
    provider : Any
        What makes the machines, such as ``sky.Local()``.
    nodes : int
        How many nodes, 1 or more.
    ranks_per_node : int
        How many rank processes on each node, 1 or more.
    accelerator : Accelerator, optional
        What every node must have.
    image : Image
        What the user asked of every node; plugins add to it.
    plugins : tuple of Plugin
        Entered in this order in every rank.
    name : str
        What the pool is called.
    keep : bool
        Whether it outlives the notebook's kernel.
    idle_timeout : float, optional
        Seconds without a manager and without a run after which nodes end themselves; twelve hours
        unless given, half an hour on remote machines.
    journal : int
        Bytes of each run's output that a node keeps, 1 MiB or more.
    blob_limit : int, optional
        Bytes of sent values that a machine keeps for later runs though no name there holds them; a quarter
        of the memory or disk that is free unless given.
    """

    provider: Any
    nodes: int = 1
    ranks_per_node: int = 1
    accelerator: Accelerator | None = None
    image: Image = field(default_factory=Image)
    plugins: tuple[Any, ...] = ()
    name: str = "default"
    keep: bool = False
    idle_timeout: float | None = None
    journal: int = DEFAULT_JOURNAL
    blob_limit: int | None = None

    def __post_init__(self) -> None:
        _whole("nodes", self.nodes, MAX_NODES)
        _whole("ranks_per_node", self.ranks_per_node, MAX_RANKS_PER_NODE)
        if not isinstance(self.name, str) or not _NAME.match(self.name):
            raise SpecError(
                f"pool name {self.name!r} is not valid; use letters, digits, '.', '_' and '-', at most 63, "
                "beginning with a letter or digit"
            )
        if not isinstance(self.keep, bool):
            raise SpecError(f"keep must be True or False, not {self.keep!r}")
        if self.accelerator is not None and not isinstance(self.accelerator, Accelerator):
            raise SpecError(
                f"accelerator must be an Accelerator, such as sky.accelerators.A100(count=8), not {self.accelerator!r}"
            )
        if self.idle_timeout is not None:
            number = isinstance(self.idle_timeout, (int, float)) and not isinstance(self.idle_timeout, bool)
            if not number or not MIN_IDLE_TIMEOUT <= self.idle_timeout <= MAX_IDLE_TIMEOUT:
                raise SpecError(
                    f"idle_timeout must be a number of seconds from {MIN_IDLE_TIMEOUT:g} to ten years, "
                    f"not {self.idle_timeout!r}"
                )
            if self.provider.kind == "local" and not self.keep:
                raise SpecError(
                    "a local pool ends with its notebook, so that idle_timeout has no meaning without keep: "
                    "give --keep (keep=True) too, or leave it out"
                )
        _whole("journal", self.journal, MAX_JOURNAL, MIN_JOURNAL, "of bytes ")
        if self.blob_limit is not None:
            _whole("blob_limit", self.blob_limit, MAX_BLOBS, 0, "of bytes ")
        object.__setattr__(self, "plugins", tuple(self.plugins))

    @property
    def world_size(self) -> int:
        """All ranks of the pool."""
        return self.nodes * self.ranks_per_node

    @property
    def lease(self) -> float | None:
        """Seconds without a manager and a run after which the nodes end; None where only their owner ends them."""
        if self.provider.kind != "local":
            return self.idle_timeout or DEFAULT_REMOTE_IDLE_TIMEOUT
        return self.idle_timeout or (DEFAULT_IDLE_TIMEOUT if self.keep else None)

    @property
    def full_image(self) -> Image:
        """The image with all that the plugins add, in their order."""
        image = self.image
        for plugin in self.plugins:
            image = plugin.transform_image(image, self)
        return image

    def differences(self, other: PoolSpec) -> list[str]:
        """What differs between two specs, as ``"nodes: 2 -> 4"``, one line a field."""
        lines = []
        for item in fields(self):
            mine, theirs = getattr(self, item.name), getattr(other, item.name)
            if mine != theirs:
                lines.append(f"{item.name}: {_short(mine)} -> {_short(theirs)}")
        return lines


def _whole(name: str, value: Any, top: int, bottom: int = 1, what: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not bottom <= value <= top:
        raise SpecError(f"{name} must be a whole number {what}from {bottom} to {top}, not {value!r}")


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(str(item) for item in value) or "none"
    if isinstance(value, Image):
        parts = [*value.pip, *value.apt, *(f"{k}={v}" for k, v in value.env.items())]
        return f"({value.python or 'own python'}: {', '.join(parts) or 'nothing added'})"
    return str(value)
