"""What a Python lacks of what this package needs: which wheels bring it, and how they are fetched elsewhere.

The environment of a machine with GPUs is used as it is: what it lacks lies in a folder beside it, for this run alone.
"""

from __future__ import annotations

import email
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from .table import ROOT, python_of_this

# Checks that need these are left out where neither the machine nor the wheels have them.
WELCOME = ("keras>=3.10",)
# They come with the frameworks, in versions that suit those.
_THE_MACHINES = ("numpy", "ml-dtypes", "jax", "jaxlib", "torch")
_MANYLINUX = ("1", "2010", "2014", "_2_17", "_2_24", "_2_26", "_2_27", "_2_28", "_2_31", "_2_34")


class LacksError(Exception):
    """Something is missing; the message says what, and what brings it."""


@dataclass(frozen=True)
class Wheel:
    """One wheel of a folder: its file, name, version, and what it needs."""

    path: Path
    name: str
    version: str
    requires: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Wheel:
        """Read its metadata."""
        with zipfile.ZipFile(path) as archive:
            inside = next(name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
            said = email.message_from_bytes(archive.read(inside))
        requires = tuple(said.get_all("Requires-Dist") or ())
        return cls(path, canonical(str(said["Name"])), str(said["Version"]), requires)


def canonical(name: str) -> str:
    """A distribution's name as all its spellings have it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements() -> list[str]:
    """What the package needs, as its pyproject.toml says."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r"^dependencies = \[\n(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert listed is not None, "pyproject.toml lists no dependencies"
    return re.findall(r'^\s*"(.+)",\s*$', listed[1], re.MULTILINE)


def lacking(wanted: Iterable[str], wheels: Mapping[str, Wheel] | None = None) -> tuple[list[str], list[Wheel]]:
    """Which requirements nothing satisfies, and the wheels that satisfy those which this Python does not.

    What is installed here comes first, then a wheel of the name; what either needs in turn is looked at too.
    """
    wheels = wheels or {}
    missing: dict[str, None] = {}
    chosen: dict[str, Wheel] = {}
    seen: set[tuple[str, str]] = set()
    todo = [_requirement(text) for text in wanted]
    while todo:
        requirement = todo.pop(0)
        name, extras = canonical(requirement.name), requirement.extras or {""}
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if not applies or (str(requirement), name) in seen:
            continue
        seen.add((str(requirement), name))
        have = _installed(name) if name not in chosen else None
        if have is not None and requirement.specifier.contains(have.version, prereleases=True):
            todo += _needs(have.requires or (), extras)
        elif (wheel := wheels.get(name)) and requirement.specifier.contains(wheel.version, prereleases=True):
            if name not in chosen:
                chosen[name] = wheel
            todo += _needs(wheel.requires, extras)
        else:
            missing[f"{name}{requirement.specifier}{f' (here: {have.version})' if have else ''}"] = None
    return list(missing), list(chosen.values())


def _needs(requires: Iterable[str], extras: Iterable[str]) -> list[Any]:
    """What a distribution needs with some of its extras; the markers are evaluated here."""
    found = []
    for text in requires:
        requirement = _requirement(text)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": one}) for one in (*extras, "")):
            requirement.marker = None
            found.append(requirement)
    return found


def _requirement(text: str) -> Any:
    for home in ("packaging", "pip._vendor.packaging"):
        try:
            return importlib.import_module(f"{home}.requirements").Requirement(text)
        except ImportError:
            continue
    raise LacksError(f"{python_of_this()} has neither pip nor packaging, which read what is needed")


def _installed(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def wheels_of(folder: Path) -> dict[str, Wheel]:
    """The wheels of a folder, by name."""
    found: dict[str, Wheel] = {}
    for path in sorted(folder.glob("*.whl")):
        wheel = Wheel.read(path)
        if other := found.get(wheel.name):
            raise LacksError(f"{folder} has two wheels of {wheel.name}, {other.path.name} and {path.name}: keep one")
        found[wheel.name] = wheel
    if not found:
        raise LacksError(f"{folder} has no wheels; on a machine with a network: {_fetch(str(folder))}")
    return found


def supply(wheels: Path | None, into: Path) -> dict[str, str]:
    """Install what this Python lacks into a folder, and say what a process's environment needs to have it.

    Raises
    ------
    LacksError
        When something is missing still; it names all of it, and the command that fetches it.
    """
    found = wheels_of(wheels) if wheels is not None else {}
    missing, chosen = lacking(requirements(), found)
    if missing:
        raise LacksError(
            f"{python_of_this()} lacks {', '.join(missing)}{', as do the wheels' if found else ''}, and what "
            f"that needs in turn. On a machine with a network: {_fetch()}; then here: "
            "python3 dev.py gpu --wheels DIR"
        )
    # Their lack is no fault: a check says so.
    lacks, more = lacking(WELCOME, found)
    chosen += [] if lacks else [wheel for wheel in more if wheel not in chosen]
    variables = {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))}
    if not chosen:
        return variables
    # So called, it is not taken for the user's own code.
    place = into / "site-packages"
    command = [*_pip(), "install", "--quiet", "--no-index", "--no-deps", "--target", str(place)]
    print(f"dev.py gpu: {len(chosen)} packages go beside {python_of_this()}", flush=True)
    done = subprocess.run([*command, *(str(wheel.path) for wheel in chosen)], capture_output=True, text=True)
    if done.returncode:
        raise LacksError(f"the wheels could not be installed:\n{done.stdout}{done.stderr}")
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), str(place), os.environ.get("PYTHONPATH", "")]))
    variables["PATH"] = os.pathsep.join([str(place / "bin"), os.environ.get("PATH", "")])
    return variables


def _fetch(folder: str = "DIR") -> str:
    version = ".".join(map(str, sys.version_info[:2]))
    return f"python3 dev.py gpu --fetch {folder} --python {version} --arch {os.uname().machine}"


def _pip() -> list[str]:
    done = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True)
    if done.returncode == 0:
        return [sys.executable, "-m", "pip"]
    tool = shutil.which("uv")
    if tool is None:
        raise LacksError(f"{python_of_this()} has no pip, and there is no uv, to unpack the wheels with")
    return [tool, "pip"]


def fetch(folder: Path, python: str, arch: str) -> int:
    """Download the wheels for a machine of Linux, without what comes with the frameworks; uv's or pip's status."""
    folder.mkdir(parents=True, exist_ok=True)
    tool = shutil.which("uv")
    if tool is None:
        raise LacksError("uv is not there, which finds the versions")
    with tempfile.TemporaryDirectory() as temporary:
        wanted, pinned = Path(temporary, "wanted.in"), Path(temporary, "pinned.txt")
        wanted.write_text("\n".join([*requirements(), *WELCOME, ""]), encoding="utf-8")
        command = [tool, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python-version", python]
        command += ["--python-platform", f"{arch}-manylinux_2_28", "--constraints", str(ROOT / "constraints.txt")]
        for name in _THE_MACHINES:
            command += ["--no-emit-package", name]
        if status := subprocess.run([*command, "--output-file", str(pinned), str(wanted)]).returncode:
            return status
        command = [*_pip(), "download", "--quiet", "--no-deps", "--only-binary=:all:", "--implementation", "cp"]
        command += ["--python-version", python, "--dest", str(folder), "--requirement", str(pinned)]
        for kind in _MANYLINUX:
            command += ["--platform", f"manylinux{kind}_{arch}"]
        if status := subprocess.run(command).returncode:
            return status
    size = sum(path.stat().st_size for path in folder.glob("*.whl"))
    print(f"{len(list(folder.glob('*.whl')))} wheels, {size / 1e6:.0f} MB, are in {folder}; there: ", end="")
    print(f"python3 dev.py gpu --wheels {folder.name}")
    return 0
