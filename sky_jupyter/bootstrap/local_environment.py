"""Image -> environment on this machine, for local nodes.

The notebook's own environment is used if it has all that the image asks for. Otherwise uv builds one in the user's
cache folder, named by what it is built from, and later pools reuse it:

- same Python: an *overlay* with the missing packages only. The notebook's packages come after them in ``sys.path``,
  at the same versions, so that values can be exchanged;
- another Python: a *whole* environment with what a node needs and what the image asks for.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import site
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import platformdirs
from packaging.utils import canonicalize_name

from ..errors import BootstrapError
from ..spec.pool_spec import Image
from ..util.redaction import without_secrets
from . import package_indexes
from .satisfied_requirements import frozen, installed, missing, parse
from .uv import OnLine, run_uv

PHASE = "environment"
# Both ends of the control plane must speak the same version of these.
_SAME_ON_NODES = ("cloudpickle", "dask", "distributed")
NODE_NEEDS = (
    "cryptography",
    "exceptiongroup; python_version < '3.11'",
    "ipykernel>=7.3",
    "jupyter_client>=8.6",
    "orjson>=3.10",
    "psutil",
)
# For a requirement with a URL, some releases of uv print ``name==version (from url)``, others ``name @ url``.
PLANNED = re.compile(
    r" [+~] (?P<name>[\w.-]+)(?:==(?P<version>\S+))?(?: @ (?P<at>\S+)| \(from (?P<from>.+)\))?\Z", re.ASCII
)
_MARK = ".ok"


@dataclass(frozen=True)
class Environment:
    """Python environment of a node's processes.

    Parameters
    ----------
    python : Path
        The interpreter to start.
    reused : bool
        True if it existed already.
    path : Path or None
        Folder in the cache; None for the notebook's own environment.
    """

    python: Path
    reused: bool
    path: Path | None


def ensure(
    image: Image,
    *,
    cache: Path | None = None,
    on_line: OnLine = lambda line: None,
    stop: threading.Event | None = None,
) -> Environment:
    """Find or build the environment that an image asks for.

    Parameters
    ----------
    image : Image
        Its Python and pip requirements count here.
    cache : Path, optional
        The folder that holds environments; under the user's cache folder unless given.
    on_line : callable
        Called with each line that uv prints, in this thread.
    stop : threading.Event, optional
        When set, building ends, what was made is removed, and an error is raised.

    Returns
    -------
    Environment

    Raises
    ------
    SpecError
        When a requirement cannot be read; nothing has been started.
    BootstrapError
        When uv fails or is stopped; nothing is left behind.
    """
    own_python = is_own_python(image.python)
    wanted = missing(package_indexes.wanted(image))
    if own_python and not wanted:
        return Environment(Path(sys.executable), reused=True, path=None)
    beside = frozen(leaving_out=[parse(text).name for text in wanted]) if own_python else pinned()
    cache = platformdirs.user_cache_path("sky_jupyter") / "environments" if cache is None else cache
    folder = cache.absolute() / _key(image, beside)

    def build(part: Path) -> None:
        if own_python:
            _build_overlay(part, image, wanted, beside, on_line, stop)
        else:
            _build_whole(part, image, beside, on_line, stop)

    if _ready(folder):
        return Environment(_python(folder), reused=True, path=folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f"{folder.name}.lock"), on_line, stop):
        reused = _ready(folder)
        if not reused:
            _make(folder, build, image)
    return Environment(_python(folder), reused=reused, path=folder)


def is_own(image: Image) -> bool:
    """Tell whether the notebook's own environment has all that an image asks for."""
    return is_own_python(image.python) and not missing(package_indexes.wanted(image))


def is_own_python(asked: str | None) -> bool:
    """Tell whether an image's Python is the one that runs this."""
    return asked is None or platform.python_version_tuple()[: asked.count(".") + 1] == tuple(asked.split("."))


def pinned() -> list[str]:
    """Return requirements that pin the control plane's packages to the versions here."""
    return [f"{name}=={metadata.version(name)}" for name in _SAME_ON_NODES]


def _key(image: Image, beside: list[str]) -> str:
    machine = [platform.python_version(), sys.prefix, sys.base_prefix, sysconfig.get_platform(), platform.libc_ver()]
    # An environment of an earlier version of this package may lack what nodes need now.
    facts = json.dumps([image.digest, machine, beside, NODE_NEEDS])
    return hashlib.blake2b(facts.encode(), digest_size=12).hexdigest()


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _ready(folder: Path) -> bool:
    # The interpreter is a link: it dangles once the Python that it was made from is gone.
    return (folder / _MARK).is_file() and _python(folder).exists()


def _make(folder: Path, build: Callable[[Path], None], image: Image) -> None:
    """Build beside the folder, mark, and move into place; the lock is held."""
    for stale in [*folder.parent.glob(f"{folder.name}.tmp-*"), folder]:
        shutil.rmtree(stale, ignore_errors=True)
    part = folder.with_name(f"{folder.name}.tmp-{os.getpid()}")
    try:
        build(part)
        contents = {"python": image.python or platform.python_version(), "pip": [without_secrets(x) for x in image.pip]}
        (part / _MARK).write_text(json.dumps(contents) + "\n", encoding="utf-8")
        part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _build_overlay(
    part: Path, image: Image, wanted: list[str], beside: list[str], on_line: OnLine, stop: threading.Event | None
) -> None:
    run_uv(_venv(part, sys.executable), phase=PHASE, on_line=on_line, stop=stop)
    constraints = part / "constraints.txt"
    constraints.write_text("\n".join([*beside, ""]), encoding="utf-8")

    # uv plans against the notebook's own environment, which a dry run does not change, so that uv keeps what is
    # installed there. Then only what is missing goes into the overlay.
    command = ["pip", "install", "--dry-run", "--break-system-packages", "--python", sys.executable]
    with package_indexes.arguments(wanted, image) as (asked, lines):
        plan = run_uv(
            [*command, "--constraints", str(constraints), *asked],
            phase=PHASE,
            on_line=lambda line: None if PLANNED.match(line) or line.startswith("Would ") else on_line(line),
            stop=stop,
            env=package_indexes.environment(image, os.environ),
            stdin=lines,
        )
    if additions := _additions(plan, wanted):
        _install(part, image, ["--no-deps"], additions, on_line, stop)
    _check_installed(part, wanted, beside=sys.path)
    text = "".join(f"import site; site.addsitedir({folder!r})\n" for folder in _site_folders())
    (_site_packages(part) / "_sky_jupyter_notebook.pth").write_text(text, encoding="utf-8")


def _build_whole(part: Path, image: Image, pins: list[str], on_line: OnLine, stop: threading.Event | None) -> None:
    run_uv(_venv(part, image.python or ""), phase=PHASE, on_line=on_line, stop=stop)
    asked = [*pins, *NODE_NEEDS, *package_indexes.wanted(image)]
    _install(part, image, [], asked, on_line, stop)
    # uv evaluates markers for the other Python.
    _check_installed(part, [text for text in asked if parse(text).marker is None])


def _venv(part: Path, python: str) -> list[str]:
    return ["venv", "--quiet", "--relocatable", "--no-project", "--python", python, str(part)]


def _install(
    part: Path,
    image: Image,
    switches: list[str],
    requirements: list[str],
    on_line: OnLine,
    stop: threading.Event | None,
) -> None:
    # Compiled once here, instead of by every rank at its first import.
    command = ["pip", "install", "--compile-bytecode", "--python", str(_python(part)), *switches]
    with package_indexes.arguments(requirements, image) as (asked, lines):
        env = package_indexes.environment(image, os.environ)
        run_uv([*command, *asked], phase=PHASE, on_line=on_line, stop=stop, env=env, stdin=lines)
    for record in part.glob("lib/python3*/site-packages/*.dist-info/direct_url.json"):
        text = record.read_text(encoding="utf-8")
        if without_secrets(text) != text:
            # uv removes logins, but not tokens in the query.
            record.write_text(without_secrets(text), encoding="utf-8")


def _additions(plan: list[str], wanted: list[str]) -> list[str]:
    """Return what the overlay needs: requirements with a URL as given, and uv's plan.

    The form in which uv prints a URL depends on its release; the password is missing.
    """
    direct = {canonicalize_name(item.name): f"{item.name} @ {item.url}" for item in map(parse, wanted) if item.url}
    additions = list(direct.values())
    for match in filter(None, map(PLANNED.match, plan)):
        name, version, url = match["name"], match["version"], match["at"] or match["from"]
        if canonicalize_name(name) in direct:
            continue
        if url:
            additions.append(f"{name} @ {url}")
        elif not installed(name, version):  # uv does not see the user's site, or the distribution's own packages
            additions.append(f"{name}=={version}")
    return additions


def _check_installed(part: Path, wanted: list[str], beside: Sequence[str] = ()) -> None:
    """Raise BootstrapError if an environment lacks a package, whatever uv reported.

    ``beside`` are folders at the end of the environment's ``sys.path``.
    """
    folders = [*(str(path) for path in part.glob("lib/python3*/site-packages")), *beside]
    versions: dict[str, str] = {}
    for distribution in metadata.distributions(path=folders):
        if name := distribution.metadata["Name"]:
            versions.setdefault(canonicalize_name(name), distribution.version)
    for requirement in map(parse, wanted):
        version = versions.get(canonicalize_name(requirement.name))
        if version is not None and requirement.specifier.contains(version, prereleases=True):
            continue
        has = f"has {version} of it" if version is not None else "lacks it"
        raise BootstrapError(
            PHASE,
            f"{requirement.name}{requirement.specifier} was asked for, and the environment {has}, although uv "
            f"{metadata.version('uv')} has ended well; use another release of uv (pip install -U uv), or install "
            f"{requirement.name} where the notebook runs",
        )


def _site_folders() -> list[str]:
    folders = site.getsitepackages()
    if site.ENABLE_USER_SITE:
        folders = [site.getusersitepackages(), *folders]
    return [folder for folder in folders if os.path.isdir(folder)]


def _site_packages(part: Path) -> Path:
    """Return the site-packages folder of an overlay, for this interpreter's Python."""
    return Path(sysconfig.get_path("purelib", "posix_prefix", {"base": str(part), "platbase": str(part)}))


@contextlib.contextmanager
def _locked(path: Path, on_line: OnLine, stop: threading.Event | None) -> Iterator[None]:
    """Hold a lock file that no other process or thread holds; it is gone afterwards."""
    told = False
    while True:
        with open(path, "wb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not told:
                    on_line("waiting for another pool that builds the same environment")
                    told = True
                if stop is not None and stop.wait(0.1):
                    raise BootstrapError(PHASE, "stopped while another pool built the same environment") from None
                if stop is None:
                    time.sleep(0.1)
                continue
            # The former holder has removed the file, and another process may have recreated it: then this is not the
            # lock.
            if not path.exists() or os.fstat(file.fileno()).st_ino != path.stat().st_ino:
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
