"""Distributions that the notebook's code uses and nodes lack, for one pool.

Added packages go into a folder of the pool: environments are shared by pools, and named by what they were made from.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from . import local_environment, package_indexes, wheels
from .offline_bundle import own_cache
from .remote_environment import HostPreparation
from .satisfied_requirements import parse
from .uv import OnLine, run_uv

if TYPE_CHECKING:
    from ..machines.base import Machine
    from ..spec.image import Image
    from ..spec.pool_spec import PoolSpec
    from .prepared_host import PreparedHost


@functools.lru_cache(1)
def _providers(stamp: object) -> Mapping[str, Sequence[str]]:
    """Return the distributions of each top-level module name.

    Cached until something is installed.
    """
    if sys.version_info < (3, 11):
        # Python 3.10's own function knows only distributions that list their modules, as few do today. Dask requires
        # importlib_metadata there.
        import importlib_metadata

        return importlib_metadata.packages_distributions()
    return metadata.packages_distributions()


def _stamp() -> tuple[tuple[str, int], ...]:
    """Return a stamp that changes when something is installed or removed."""
    return tuple((place, os.stat(place).st_mtime_ns) for place in sys.path if os.path.isdir(place))


def behind(modules: Iterable[str]) -> dict[str, str]:
    """Return the distributions that modules are from, with their versions.

    ``modules`` are full names. Editable distributions are left out: they are sent as source.
    """
    names = sorted(set(modules))
    tops = sorted({name.partition(".")[0] for name in names})
    every = _providers(_stamp()) if tops else {}
    found: dict[str, str] = {}
    for top in tops:
        several = {name: one for name in sorted(set(every.get(top, ()))) if (one := _distribution(name)) is not None}
        # Several distributions may share a top-level name, such as google.
        used = _owners(several, [name for name in names if name.startswith(f"{top}.")])
        found.update(
            {canonicalize_name(name): several[name].version for name in used if not _is_editable(several[name])}
        )
    return found


def _distribution(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def _is_editable(distribution: metadata.Distribution) -> bool:
    try:
        return bool(json.loads(distribution.read_text("direct_url.json") or "{}")["dir_info"]["editable"])
    except (ValueError, LookupError, TypeError):
        return False


def _owners(several: Mapping[str, metadata.Distribution], modules: Sequence[str]) -> set[str]:
    """Return which of the distributions that share a top-level name have the modules."""
    if len(several) == 1:
        return set(several)
    files = {name: [str(path) for path in one.files or ()] for name, one in several.items()}
    owners: set[str] = set()
    for module in modules:
        parts = module.split(".")
        for count in range(len(parts), 1, -1):
            place = "/".join(parts[:count])
            has = {
                name for name, its in files.items() if any(path.startswith((f"{place}/", f"{place}.")) for path in its)
            }
            if has:
                owners |= has
                break
    return owners


def differs(here: str, there: str) -> bool:
    """Tell whether two versions are different releases, whatever their build."""
    try:
        return Version(here).public != Version(there).public
    except InvalidVersion:
        return here != there


def additions(wanted: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """Return the distributions that a node lacks, as ``name==version``.

    Their own requirements are added if the node lacks them, or has versions that do not satisfy them.
    """
    added: dict[str, str] = {}
    left = [(name, version) for name, version in wanted.items() if differs(version, there.get(name, ""))]
    while left:
        name, version = left.pop()
        distribution = _distribution(name)
        if name in added or distribution is None:
            continue
        added[name] = version
        for requirement in _requirements(distribution):
            inner = canonicalize_name(requirement.name)
            its = _distribution(inner)
            known = there.get(inner)
            if its is not None and (known is None or not requirement.specifier.contains(known, prereleases=True)):
                left.append((inner, its.version))
    return sorted(f"{name}=={version}" for name, version in added.items())


def _requirements(distribution: metadata.Distribution) -> list[Requirement]:
    found = []
    for text in distribution.requires or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found.append(requirement)
    return found


def lacking(requirements: Iterable[str], there: Mapping[str, str]) -> list[str]:
    """Return the requirements that a node's distributions may not satisfy."""
    found = []
    for text in requirements:
        one = parse(text)
        version = there.get(canonicalize_name(one.name))
        # Only uv can resolve extras and URLs.
        if version is None or one.extras or one.url or not one.specifier.contains(version, prereleases=True):
            found.append(text)
    return found


def _pins(requirements: Iterable[str], there: Mapping[str, str]) -> list[str]:
    """Return constraints that pin a node's distributions, except those asked for."""
    asked = {canonicalize_name(parse(text).name) for text in requirements}
    return [
        f"{name}=={version}" for name, version in sorted(there.items()) if name not in asked and _is_version(version)
    ]


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def _planned(lines: Iterable[str], requirements: Iterable[str], there: Mapping[str, str]) -> list[str]:
    """Return what a node lacks of the distributions in uv's plan.

    A requirement with a URL is returned as it was given, since uv prints no password.
    """
    direct = {canonicalize_name(one.name): f"{one.name} @ {one.url}" for one in map(parse, requirements) if one.url}
    found = list(direct.values())
    for match in filter(None, map(local_environment.PLANNED.match, lines)):
        name, version = canonicalize_name(match["name"]), match["version"]
        url = match["at"] or match["from"]
        if name not in direct and (url or differs(version or "", there.get(name, ""))):
            found.append(f"{name} @ {url}" if url else f"{name}=={version}")
    return found


def _untold(line: str) -> None:
    """Ignore a line of progress."""


def plan_here(
    python: str, image: Image, requirements: Sequence[str], there: Mapping[str, str], stop: threading.Event
) -> list[str]:
    """Return the distributions that local nodes lack for requirements.

    ``python`` is their interpreter, ``there`` has the versions that they see, and the indexes are those of ``image``.
    Raise BootstrapError, with uv's message, if there is no such set.
    """
    # In an overlay, uv sees the packages that the overlay adds, but not the notebook's.
    seen = sys.executable if local_environment.is_own_python(image.python) else python
    with tempfile.NamedTemporaryFile("w", prefix="sky-asked-", suffix=".txt") as file:
        file.write("".join(f"{line}\n" for line in _pins(requirements, there)))
        file.flush()
        command = [
            "pip",
            "install",
            "--dry-run",
            "--break-system-packages",
            "--python",
            seen,
            "--constraints",
            file.name,
        ]
        with package_indexes.arguments(requirements, image) as (asked, lines):
            env = package_indexes.environment(image, os.environ)
            phase = local_environment.PHASE
            plan = run_uv([*command, *asked], phase=phase, on_line=_untold, stop=stop, env=env, stdin=lines)
    return _planned(plan, requirements, there)


def public(requirement: str) -> str:
    """Return a requirement without its build, such as torch's ``+cpu``."""
    return requirement.partition("+")[0]


def install_here(
    python: str, folder: str, image: Image, requirements: Sequence[str], say: OnLine, stop: threading.Event
) -> None:
    """Install distributions into a folder of this machine; raise BootstrapError."""
    with package_indexes.arguments(requirements, image) as (asked, lines):
        env = package_indexes.environment(image, os.environ)
        run_uv([*_install(python, folder), *asked], phase="environment", on_line=say, stop=stop, env=env, stdin=lines)


def _install(python: str, folder: str) -> list[str]:
    return ["pip", "install", "--no-deps", "--compile-bytecode", "--python", python, "--target", folder]


def _from_indexes(command: Sequence[str], requirements: Sequence[str], image: Image, pins: Sequence[str] = ()) -> str:
    """Return shell text that runs uv for requirements, from an image's indexes.

    Requirements may be arguments: those with a password are refused before.
    """
    text, lines = package_indexes.parts(requirements, image)
    files = {package_indexes.FILE: ("-r", text), "pins": ("--constraints", "".join(f"{line}\n" for line in pins))}
    written = {name: (option, shlex.quote(text)) for name, (option, text) in files.items() if text}
    words = [f'{option} "$d"/{name}' for name, (option, _) in written.items()]
    steps = ["d=$(mktemp -d)", *(f'printf %s {text} >"$d"/{name}' for name, (_, text) in written.items())]
    steps.append(" ".join([shlex.join(command), *words, shlex.join(lines.splitlines())]))
    return f'{" && ".join(steps)}; r=$?; rm -rf -- "$d"; exit $r'


class Addition(HostPreparation):
    """Addition of packages to a live pool's hosts; environments stay as they are.

    Parameters
    ----------
    machines : sequence of Machine
        The hosts.
    spec : PoolSpec
        The pool's spec.
    places : sequence of (str, str)
        For each host, its environment's interpreter and the folder to install into.
    offline : bool
        True if hosts are sent all packages from here.
    stop : threading.Event
        Set to end the installation.
    """

    def __init__(
        self,
        machines: Sequence[Machine],
        spec: PoolSpec,
        places: Sequence[tuple[str, str]],
        *,
        offline: bool,
        stop: threading.Event,
    ) -> None:
        super().__init__(machines, spec, offline=offline, stop=stop)
        self.places = places

    def install(self, requirements: Sequence[str], say: OnLine) -> None:
        """Install distributions on all hosts.

        Raise BootstrapError if uv fails on a host, or a host cannot be sent its packages.
        """
        self.look(say)
        if not self.offline or any(site.facts.devices.all for site in self.sites):
            requirements = [public(item) for item in requirements]
        self.each(lambda site: self._add(site, requirements, say), "environment")

    def add(self, requirements: Sequence[str], there: Mapping[str, str], say: OnLine) -> list[str]:
        """Install missing distributions for requirements on all hosts; return them.

        ``there`` has the versions that the hosts have; their environments are equal. Raise BootstrapError if there is
        no such set, if uv fails on a host, or if a host cannot be sent its packages.
        """
        self.look(say)
        site = self.sites[0]
        pins = _pins(requirements, there)
        if self.offline:
            target = self._target(site)
            found = wheels.resolve(requirements, target, pins, image=self.image, on_line=say, stop=self.stop)
            planned = [
                line for line in found if differs(line.partition("==")[2], there.get(line.partition("==")[0], ""))
            ]
        else:
            planned = _planned(self._plan(site, requirements, pins, say), requirements, there)
        if planned:
            self.each(lambda site: self._add(site, planned, say), "environment")
        return planned

    def _plan(self, site: PreparedHost, requirements: Sequence[str], pins: Sequence[str], say: OnLine) -> list[str]:
        """Return the lines of uv's plan for a host."""
        python, folder = self.places[site.node]
        site.environment = folder
        cache = site.facts.cache
        self.offline_bundle.send(site, [], self._target(site), functools.partial(self._tell, site, say=say))
        command = [f"{cache}/bin/uv-{self.offline_bundle.uv}", "pip", "install", "--dry-run", "--python", python]
        script = _from_indexes(command, requirements, self.image, pins)
        variables = {**self.image.env, "UV_CACHE_DIR": f"{cache}/uv", "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
        variables.update(package_indexes.environment(self.image, self.image.env))
        shown = shlex.join(["uv", "pip", "install", *requirements])
        return self._stream(site, script, variables, "environment", say, shown=shown)

    def _add(self, site: PreparedHost, requirements: Sequence[str], say: OnLine) -> None:
        python, folder = self.places[site.node]
        tell = functools.partial(self._tell, site, say=say)
        cache, target = site.facts.cache, self._target(site)
        # The folder that is uploaded to is named after it.
        site.environment = folder
        sent = []
        if self.offline:
            kept = own_cache() / "wheels"
            with self.offline_bundle.finding:
                sent = wheels.gather(requirements, target, kept, image=self.image, on_line=tell, stop=self.stop)
        self.offline_bundle.send(site, sent, target, tell)
        names = [f"{cache}/wheels/{wheel.digest}/{wheel.path.name}" for wheel in sent]
        command = [f"{cache}/bin/uv-{self.offline_bundle.uv}", *_install(python, folder)]
        variables = {**self.image.env, "UV_CACHE_DIR": f"{cache}/uv", "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
        if self.offline:
            script = shlex.join([*command, "--no-config", "--offline", "--no-index", *names])
        else:
            script = _from_indexes(command, requirements, self.image)
            variables.update(package_indexes.environment(self.image, self.image.env))
        tell(f"installing {', '.join(requirements)}")
        shown = shlex.join(["uv", "pip", "install", *requirements])
        self._stream(site, script, variables, "environment", say, shown=shown)
