"""Packages that a machine has already, and what an environment adds to them.

uv plans here, with the names, versions and requirements that the machine reports. So a build that no index has, such as
a vendor's torch, is used as it is, and the machine needs no index.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ..spec.pool_spec import Image
from . import package_indexes
from .local_environment import PHASE, PLANNED
from .satisfied_requirements import parse
from .uv import OnLine, run_uv
from .wheels import TargetPlatform

# The machine's own Python runs it. Of several packages with one name the first counts, as for an import.
_ASK = """
import importlib.metadata as metadata, json, os, site, sys
folders = [path for path in sys.path if path.rstrip("/").endswith(("site-packages", "dist-packages"))]
found = {}
for one in metadata.distributions(path=folders):
    name = one.metadata["Name"]
    if name:
        found.setdefault(name.lower().replace("_", "-").replace(".", "-"), [
            name, one.version, one.requires or [], one.metadata.get_all("Provides-Extra") or []])
print("sky-installed " + json.dumps([[path for path in folders if os.path.isdir(path)], sorted(found.values())]))
"""
_MARK = "sky-installed "


@dataclass(frozen=True)
class InstalledPackages:
    """Packages of one interpreter on a machine.

    Parameters
    ----------
    folders : tuple of str
        Their folders on the machine.
    packages : tuple
        Name, version, requirements and extras of each.
    """

    folders: tuple[str, ...]
    packages: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...]

    @property
    def digest(self) -> str:
        """Hash of what is installed."""
        return hashlib.blake2b(json.dumps([self.folders, self.packages]).encode(), digest_size=12).hexdigest()

    def paths(self) -> str:
        """Return a ``.pth`` file that adds these packages behind an environment's own."""
        return "".join(f"import site; site.addsitedir({folder!r})\n" for folder in self.folders)


def question(python: str) -> str:
    """Return shell text that prints what an interpreter has; `read` reads it."""
    return f"{shlex.quote(python)} -I -c {shlex.quote(f'exec({_ASK!r})')}"


def read(said: str) -> InstalledPackages | None:
    """Parse the output of `question`; return None if the script did not print it."""
    for line in said.splitlines():
        if line.startswith(_MARK):
            folders, rows = json.loads(line.removeprefix(_MARK))
            packages = [(name, version, tuple(needs), tuple(extras)) for name, version, needs, extras in rows]
            return InstalledPackages(tuple(folders), tuple(packages))
    return None


def lacking(
    there: InstalledPackages,
    asked: Sequence[str],
    target: TargetPlatform,
    *,
    image: Image,
    on_line: OnLine,
    stop: threading.Event | None = None,
) -> list[str]:
    """Return the requirements that installed packages do not meet, with versions.

    Installed packages keep their versions, except those that ``asked`` names. Raise BootstrapError, with uv's message,
    if there is no such set.
    """
    named = {canonicalize_name(parse(item).name) for item in asked}
    with tempfile.TemporaryDirectory(prefix="sky-installed-") as folder:
        tree, kept = Path(folder, "tree"), Path(folder, "constraints.txt")
        tree.mkdir()
        lines = [_describe(tree, *package) for package in there.packages]
        kept.write_text("".join(f"{line}\n" for line in lines if line and line.split("==")[0] not in named))
        command = ["pip", "install", "--dry-run", "--target", str(tree), "--python", sys.executable, *target.arguments]
        with package_indexes.arguments(asked, image) as (words, given):
            plan = run_uv(
                [*command, "--constraints", str(kept), *words],
                phase=PHASE,
                on_line=lambda line: None if line.startswith((" ", "Would ", "Using ")) else on_line(line),
                stop=stop,
                env=package_indexes.environment(image, os.environ),
                stdin=given,
            )
    direct = {canonicalize_name(item.name): f"{item.name} @ {item.url}" for item in map(parse, asked) if item.url}
    found: dict[str, str] = {}
    for match in filter(None, map(PLANNED.match, plan)):
        name = canonicalize_name(match["name"])
        url = match["at"] or match["from"]
        found[name] = direct.get(name) or (f"{match['name']} @ {url}" if url else f"{name}=={match['version']}")
    return sorted(found.values())


def _describe(tree: Path, name: str, version: str, needs: Sequence[str], extras: Sequence[str]) -> str:
    """Write a package's metadata for uv; return it as a constraint.

    Return nothing if its version is not valid.
    """
    try:
        Version(version)
    except InvalidVersion:
        return ""
    folder = tree / f"{name.replace('-', '_')}-{version}.dist-info"
    if not folder.is_relative_to(tree) or folder.parent != tree:
        return ""
    folder.mkdir(exist_ok=True)
    rows = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    rows += [f"Provides-Extra: {extra}" for extra in extras]
    rows += [f"Requires-Dist: {need}" for need in needs if _is_requirement(need)]
    (folder / "METADATA").write_text("\n".join([*rows, ""]), encoding="utf-8")
    (folder / "RECORD").write_text("", encoding="utf-8")
    (folder / "INSTALLER").write_text("uv", encoding="utf-8")
    return f"{canonicalize_name(name)}=={version}"


def _is_requirement(text: str) -> bool:
    try:
        Requirement(text)
    except InvalidRequirement:
        return False
    return "\n" not in text
