"""Wheel files made here for an environment on another machine.

uv resolves and fetches for the other machine's Python, architecture and C library, and installs into a folder. uv keeps
no wheel files, so wheels are made from that folder, once for each content.
"""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import io
import os
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ..errors import BootstrapError
from ..spec.pool_spec import Image
from ..util.atomic_write import atomic_write
from . import package_indexes
from .uv import OnLine, run_uv

PHASE = "environment"
_PLAIN = Image()
# Files that an installer adds to those of the wheel.
_ADDED = {"INSTALLER", "REQUESTED", "RECORD", "RECORD.jws", "direct_url.json", "uv_cache.json", "uv_build.json"}
_DATA = ("share", "etc", "man")
_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class TargetPlatform:
    """Interpreter that wheels are for.

    Parameters
    ----------
    python : str
        Its minor version, such as ``"3.12"``.
    platform : str
        As uv's ``--python-platform``.
    """

    python: str
    platform: str

    @property
    def arguments(self) -> list[str]:
        """Arguments of uv.

        Only wheels: a source distribution would be built for this machine.
        """
        return ["--python-version", self.python, "--python-platform", self.platform, "--only-binary", ":all:"]


@dataclass(frozen=True)
class Wheel:
    """Wheel file and the hash of its content."""

    path: Path
    digest: str


def resolve(
    requirements: Sequence[str],
    target: TargetPlatform,
    prefer: Sequence[str] = (),
    *,
    image: Image = _PLAIN,
    on_line: OnLine = lambda line: None,
    stop: threading.Event | None = None,
) -> list[str]:
    """Return all distributions that requirements resolve to, each with its version.

    ``prefer`` has versions to choose if several fit, as ``name==version``. The indexes are those of ``image``. Raise
    BootstrapError, with uv's message, if there is no such set of wheels.
    """
    with tempfile.TemporaryDirectory(prefix="sky-lock-") as folder:
        asked, lock = _asked(Path(folder), requirements, image), Path(folder, "lock.txt")
        # uv prefers the versions in this file.
        lock.write_text("".join(f"{item}\n" for item in prefer), encoding="utf-8")
        command = ["pip", "compile", "--quiet", "--no-header", "--no-annotate", *target.arguments]
        command += ["--output-file", str(lock), str(asked)]
        run_uv(command, phase=PHASE, on_line=on_line, stop=stop, env=package_indexes.environment(image, os.environ))
        lines = lock.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.strip() and not line.startswith(("#", "--"))]


def _asked(folder: Path, requirements: Sequence[str], image: Image) -> Path:
    """Write a file of requirements for uv."""
    text = package_indexes.project(requirements, image)
    path = folder / (package_indexes.FILE if text else "asked.txt")
    path.write_text(text or "".join(f"{item}\n" for item in requirements), encoding="utf-8")
    return path


def gather(
    lock: Sequence[str],
    target: TargetPlatform,
    cache: Path,
    *,
    image: Image = _PLAIN,
    on_line: OnLine = lambda line: None,
    stop: threading.Event | None = None,
) -> list[Wheel]:
    """Return the wheels that `resolve` found; fetch those that uv's cache lacks.

    ``cache`` is the folder for wheels, each in a subfolder named by its content. Raise BootstrapError if one cannot be
    fetched.
    """
    cache.mkdir(parents=True, exist_ok=True)
    # Beside the cache: uv links from its own cache if both are on one disk.
    with tempfile.TemporaryDirectory(prefix=".unpacked-", dir=cache) as folder:
        tree, asked = Path(folder, "tree"), _asked(Path(folder), lock, image)
        command = ["pip", "install", "--quiet", "--no-deps", "--target", str(tree), "--python", sys.executable]
        command += [*target.arguments, "-r", str(asked)]
        run_uv(command, phase=PHASE, on_line=on_line, stop=stop, env=package_indexes.environment(image, os.environ))
        infos = sorted(tree.glob("*.dist-info"))
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as several:
            wheels = list(several.map(lambda info: _wheel(tree, info, cache), infos))
    if len(wheels) != len(lock):
        raise BootstrapError(PHASE, f"uv fetched {len(wheels)} of {len(lock)} distributions")
    return wheels


def _wheel(tree: Path, info: Path, cache: Path) -> Wheel:
    """Return the wheel of an unpacked distribution, from the cache or made now."""
    record = (info / "RECORD").read_bytes()
    digest = _digest(tree, info, record)
    name = f"{info.name.removesuffix('.dist-info')}-{_tags(info)}.whl"
    path = cache / digest / name
    if path.is_file():
        return Wheel(path, digest)
    path.parent.mkdir(exist_ok=True)
    with atomic_write(path) as file:
        _pack(tree, info, record.decode("utf-8"), file)
    return Wheel(path, digest)


def _digest(tree: Path, info: Path, record: bytes) -> str:
    """Return the hash of a distribution's content; its record may have no hashes."""
    whole = hashlib.blake2b(digest_size=12)
    for source, name in _members(info, record.decode("utf-8"), _own_scripts(info)):
        with open(tree / source, "rb") as file:
            content = hashlib.blake2b()
            while data := file.read(1 << 20):
                content.update(data)
        whole.update(f"{name}\0{os.stat(tree / source).st_mode & 0o111}\0{content.hexdigest()}\0".encode())
    return whole.hexdigest()


def _tags(info: Path) -> str:
    """Return the tags of a wheel's file name: ``cp311.cp312-abi3-linux_x86_64``."""
    tags = [
        line.partition(":")[2].strip().split("-")
        for line in (info / "WHEEL").read_text(encoding="utf-8").splitlines()
        if line.lower().startswith("tag:")
    ]
    return "-".join(".".join(dict.fromkeys(part)) for part in zip(*tags, strict=True))


def _pack(tree: Path, info: Path, record: str, file: object) -> None:
    own = _own_scripts(info)
    rows: list[tuple[str, str, int]] = []
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:  # type: ignore[call-overload]
        for source, name in _members(info, record, own):
            data = (tree / source).read_bytes()
            if ".data/scripts/" in name and data.startswith(b"#!"):
                data = _portable(data)
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = ((tree / source).stat().st_mode & 0o777 | 0o100000) << 16
            archive.writestr(entry, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append((name, f"sha256={digest}", len(data)))
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        lines.writerows([*rows, (f"{info.name}/RECORD", "", "")])
        archive.writestr(zipfile.ZipInfo(f"{info.name}/RECORD", _DATE), text.getvalue())


def _members(info: Path, record: str, own: set[str]) -> Iterator[tuple[str, str]]:
    """Return the place of each file of a distribution, and its name in the wheel."""
    data = info.name.replace(".dist-info", ".data")
    for row in csv.reader(io.StringIO(record)):
        path = PurePosixPath(row[0])
        if path.parts[0] == info.name and len(path.parts) == 2 and path.name in _ADDED:
            continue
        if path.suffix == ".pyc" or ".." in path.parts or path.is_absolute():
            continue
        if path.parts[0] == "bin":
            if path.name not in own:
                yield row[0], f"{data}/scripts/{path.name}"
        elif path.parts[0] in _DATA:
            yield row[0], f"{data}/data/{path}"
        else:
            yield row[0], row[0]


def _own_scripts(info: Path) -> set[str]:
    """Return the programs that an installer makes from entry points."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    if (info / "entry_points.txt").is_file():
        parser.read(info / "entry_points.txt", encoding="utf-8")
    names: set[str] = set()
    for section in ("console_scripts", "gui_scripts"):
        if parser.has_section(section):
            names.update(parser.options(section))
    return names


def _portable(data: bytes) -> bytes:
    """Return a script without this machine's interpreter, as a wheel has it."""
    first, _, rest = data.partition(b"\n")
    return b"#!python\n" + rest if b"python" in first else data
