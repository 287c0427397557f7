"""Packages of this process, and packages that ``--sync`` and ``--pip`` added."""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

FOLDER = "site"
"""Folder of the added packages, in the pool's folder on a machine."""

VARIABLE = "SKY_SITE"
_SEPARATORS = re.compile(r"[-_.]+")


def canonical(name: str) -> str:
    """Normalize a distribution's name (PEP 503)."""
    return _SEPARATORS.sub("-", name).lower()


def installed(first: str) -> dict[str, list[str]]:
    """Return all distributions that a process here finds, by name.

    Each has its version and the requirement that installs it again. ``first`` is a folder that is searched before all
    others.
    """
    found: dict[str, list[str]] = {}
    for distribution in metadata.distributions(path=[first, *sys.path]):
        # A partly removed distribution has no name.
        name = distribution.metadata["Name"]
        if name and distribution.version and canonical(name) not in found:
            found[canonical(name)] = [distribution.version, _requirement(canonical(name), distribution)]
    return found


def added(folder: str) -> set[str]:
    """Return the distributions in a folder, as ``name==version``."""
    found = ((each.metadata["Name"], each.version) for each in metadata.distributions(path=[folder]))
    return {f"{canonical(name)}=={version}" for name, version in found if name and version}


def _requirement(name: str, distribution: metadata.Distribution) -> str:
    try:
        origin: dict[str, Any] = json.loads(distribution.read_text("direct_url.json") or "{}")
        if origin.get("dir_info", {}).get("editable"):
            return f"-e {origin['url']}"
        if "vcs_info" in origin:
            return f"{name} @ {origin['vcs_info']['vcs']}+{origin['url']}@{origin['vcs_info']['commit_id']}"
        # A wheel from the notebook's machine is in our cache; its URL is useless elsewhere.
        if "url" in origin and "/sky_jupyter/wheels/" not in origin["url"]:
            return f"{name} @ {origin['url']}"
    except (ValueError, LookupError, TypeError, AttributeError):
        pass  # Some installers write a malformed record.
    return f"{name}=={distribution.version}"


class Added:
    """Added packages in a rank; made by its kernel before any user code runs."""

    def __init__(self) -> None:
        self._folder = os.environ.get(VARIABLE, "")
        self._early = frozenset(sys.modules)
        self._known = ""

    def update(self, added: Iterable[str] | None) -> None:
        """Make added distributions importable; ``added`` lists all, in order.

        Items are ``name==version``. A module that was imported earlier stays loaded; standard error says so.
        """
        token = "\n".join(added or ())
        if token == self._known and (self._folder in sys.path or not os.path.isdir(self._folder)):
            return
        known = set(self._known.splitlines())
        fresh = set(token.splitlines()) - known
        self._known = token
        if self._folder not in sys.path:
            # After the notebook's own modules.
            sys.path.insert(1, self._folder)
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), self._folder]))
        importlib.invalidate_caches()
        earlier = {line.partition("==")[0] for line in known}
        for requirement in sorted(fresh):
            self._say_if_late(requirement, again=requirement.partition("==")[0] in earlier)

    def _say_if_late(self, requirement: str, *, again: bool) -> None:
        tops = {name.partition("/")[0] for name in self._files(requirement.partition("==")[0])}
        for top in sorted(tops & set(sys.modules)):
            file = getattr(sys.modules[top], "__file__", None) or ""
            if file and (again or not Path(file).is_relative_to(self._folder)):
                way = f"recreate the pool with --pip {requirement}" if top in self._early else "`%sky restart`"
                print(f"{top} was loaded before {requirement} was installed, and stays: {way}", file=sys.stderr)

    def _files(self, name: str) -> list[str]:
        for distribution in metadata.distributions(path=[self._folder]):
            if canonical(distribution.metadata["Name"] or "") == canonical(name):
                return [str(path).removesuffix(".py") for path in distribution.files or ()]
        return []
