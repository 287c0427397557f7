"""Requirements of an image that the running interpreter satisfies."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import metadata
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ..errors import SpecError
from ..util.redaction import HIDDEN, without_secrets


def parse(text: str) -> Requirement:
    """Parse one requirement as pip would; raise SpecError if it is invalid."""
    try:
        requirement = Requirement(text)
        if requirement.url:
            _check_url(requirement)
        return requirement
    except InvalidRequirement as error:
        reason = str(error).partition("\n")[0]
        # The invalid part may be its password.
        name, url, _ = text.partition("://")
        shown = f"{name}{url}{HIDDEN}" if url else text
        reason = "what is behind :// has a blank in it, or a marker without a blank before its ;" if url else reason
        raise SpecError(
            f"requirement {shown!r} cannot be read: {reason}; write NAME, NAME[EXTRA]>=VERSION or NAME @ URL"
        ) from None


def _check_url(requirement: Requirement) -> None:
    try:
        _ = urlsplit(requirement.url or "").port
    except ValueError:
        raise SpecError(
            f"the URL of requirement {requirement.name!r} has no port behind its host's colon; in a password write "
            "/ as %2F, @ as %40 and : as %3A"
        ) from None


def missing(requirements: Iterable[str]) -> list[str]:
    """Return the requirements that this interpreter does not satisfy, as given.

    Markers are evaluated here. If a requirement names extras, their requirements count too.

    Parameters
    ----------
    requirements : iterable of str
        Requirements by PEP 508, such as ``"jax[cpu]>=0.6"``.

    Returns
    -------
    list of str
        Those that an environment for the image has to add.

    Raises
    ------
    SpecError
        When one is no requirement.
    """
    return [text for text in requirements if not _satisfied(parse(text), "", set())]


def frozen(leaving_out: Iterable[str] = ()) -> list[str]:
    """Return this interpreter's distributions, as sorted ``name==version`` lines.

    Where two have one name, the one that would be imported counts.
    """
    names = {canonicalize_name(name) for name in leaving_out}
    found: dict[str, str] = {}
    for distribution in metadata.distributions():
        # Each access to the property parses its file again.
        about = distribution.metadata
        name, version = about["Name"], about["Version"]
        # A half-removed distribution has no name; an invalid version cannot be a constraint.
        if name and canonicalize_name(name) not in names and _is_version(version):
            found.setdefault(canonicalize_name(name), version)
    return sorted(f"{name}=={version}" for name, version in found.items())


def installed(name: str, version: str) -> bool:
    """Tell whether this interpreter has exactly this version of a distribution."""
    try:
        return Version(metadata.version(name)) == Version(version)
    except (metadata.PackageNotFoundError, InvalidVersion):
        return False


def _satisfied(requirement: Requirement, extra: str, seen: set[tuple[str, str]]) -> bool:
    if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
        return True
    try:
        distribution = metadata.distribution(requirement.name)
    except metadata.PackageNotFoundError:
        return False
    if requirement.url:
        if not _came_from(distribution, requirement.url):
            return False
    elif not requirement.specifier.contains(distribution.version, prereleases=True):
        return False
    for wanted in requirement.extras:
        key = (canonicalize_name(requirement.name), canonicalize_name(wanted))
        if key not in seen:
            seen.add(key)  # extras may name each other in a circle
            if not all(_satisfied(item, wanted, seen) for item in _asked_by_extra(distribution, wanted)):
                return False
    return True


def _asked_by_extra(distribution: metadata.Distribution, extra: str) -> list[Requirement]:
    found = []
    for text in distribution.requires or ():
        try:
            item = Requirement(text)
        except InvalidRequirement:
            # Old metadata, such as `pytz (>dev)`: installers ignore it too.
            continue
        if item.marker and item.marker.evaluate({"extra": extra}) and not item.marker.evaluate({"extra": ""}):
            found.append(item)
    return found


def _came_from(distribution: metadata.Distribution, url: str) -> bool:
    """Tell whether the installer recorded this URL.

    Only archives count: a commit or a folder may have changed since.

    Installers record no login, and our own records have no tokens either.
    """
    recorded = json.loads(distribution.read_text("direct_url.json") or "{}")
    return "archive_info" in recorded and without_secrets(str(recorded.get("url"))) == without_secrets(url)


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except (InvalidVersion, TypeError):
        return False
    return True
