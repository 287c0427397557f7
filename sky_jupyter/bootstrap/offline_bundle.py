"""Packages for hosts without a package index: uv, and wheels."""

from __future__ import annotations

import gzip
import os
import platform
import shlex
import sys
import tempfile
import threading
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path, PurePosixPath

import platformdirs

from ..errors import BootstrapError
from ..spec.pool_spec import Image
from ..util.atomic_write import atomic_write
from . import wheels
from .prepared_host import PATIENCE, PreparedHost
from .standalone_python import Standalone, archive, standalone
from .uv import OnLine, run_uv

# Room that an environment needs, in sizes of its wheels: the wheels, their files, and the compiled files.
_ROOM = 6
_UV_SIZE = 40_000_000
_PYTHON_SIZE = 200_000_000


class OfflineBundle:
    """Bundle for all hosts of one kind, made once, by whichever thread asks first.

    Parameters
    ----------
    asked : sequence of str
        The requirements of the environment.
    stop : threading.Event
        Set to stop what can be stopped.
    image : Image, optional
        The image whose indexes count.

    Attributes
    ----------
    prefer : sequence of str
        Versions of packages to choose if several fit, as ``name==version``.
    """

    def __init__(self, asked: Sequence[str], stop: threading.Event, image: Image | None = None) -> None:
        self.asked, self.stop = asked, stop
        self.image = Image() if image is None else image
        self.prefer: Sequence[str] = ()
        self.uv = metadata.version("uv")
        self._locks: dict[wheels.TargetPlatform, list[str] | BootstrapError] = {}
        self._bundles: dict[wheels.TargetPlatform, list[wheels.Wheel]] = {}
        self._pythons: dict[tuple[str, str], Standalone | BootstrapError] = {}
        self.finding = threading.RLock()

    def lock(self, target: wheels.TargetPlatform, tell: OnLine) -> list[str]:
        """Return the packages of the environment, each with its version.

        Raise BootstrapError, with uv's message, if these hosts have no such set.
        """
        with self.finding:
            if target not in self._locks:
                tell(f"resolving for Python {target.python} on {target.platform}")
                try:
                    self._locks[target] = wheels.resolve(
                        self.asked, target, self.prefer, image=self.image, on_line=tell, stop=self.stop
                    )
                except BootstrapError as error:
                    self._locks[target] = error if self.stop.is_set() else _no_such_set(target, error)
            found = self._locks[target]
        if isinstance(found, BootstrapError):
            raise found
        return found

    def bundle(self, target: wheels.TargetPlatform, tell: OnLine) -> list[wheels.Wheel]:
        """Return the wheels of the environment's packages."""
        with self.finding:
            if target not in self._bundles:
                lock, folder = self.lock(target, tell), own_cache() / "wheels"
                self._bundles[target] = wheels.gather(
                    lock, target, folder, image=self.image, on_line=tell, stop=self.stop
                )
            return self._bundles[target]

    def python(self, version: str, machine: str, tell: OnLine) -> Standalone:
        """Return a Python of uv's own for hosts of an architecture.

        Raise BootstrapError if there is none here and none can be fetched.
        """
        with self.finding:
            if (version, machine) not in self._pythons:
                try:
                    found: Standalone | BootstrapError = standalone(version, machine, on_line=tell, stop=self.stop)
                    if isinstance(found, Standalone):
                        tell(f"hosts without a fitting Python are sent {found.name}")
                except BootstrapError as error:
                    found = error
                self._pythons[version, machine] = found
            found = self._pythons[version, machine]
        if isinstance(found, BootstrapError):
            raise found
        return found

    def check_room(self, site: PreparedHost, sent: Sequence[wheels.Wheel]) -> None:
        """Refuse a host whose home has no room for the environment."""
        needed = _ROOM * sum(wheel.path.stat().st_size for wheel in sent)
        needed += 0 if site.facts.has_uv else 2 * _UV_SIZE
        needed += _PYTHON_SIZE if site.standalone else 0
        if 0 < site.facts.free < needed:
            raise BootstrapError(
                "environment",
                f"{site.facts.home} on {site.name} has {site.facts.free / 1e6:.0f} MB left, and the "
                f"environment takes about {needed / 1e6:.0f} MB; make room there",
            )

    def send(
        self, site: PreparedHost, sent: Sequence[wheels.Wheel], target: wheels.TargetPlatform, tell: OnLine
    ) -> None:
        """Send missing wheels and uv; each gets its name when it is complete."""
        cache = site.facts.cache
        where = shlex.quote(f"{cache}/wheels")
        listed = site.machine.run(f"ls -1 {where} 2>/dev/null; :", timeout=PATIENCE).out.decode().split()
        there = set(listed)
        missing = [wheel for wheel in sent if wheel.digest not in there]
        python = self._missing_python(site)
        if not missing and site.facts.has_uv and python is None:
            return
        incoming = f"{cache}/incoming-{PurePosixPath(site.environment).name}"
        with tempfile.TemporaryDirectory(prefix=".sending-", dir=own_cache()) as folder:
            for wheel in missing:
                Path(folder, "wheels", wheel.digest).mkdir(parents=True)
                os.link(wheel.path, Path(folder, "wheels", wheel.digest, wheel.path.name))
            if not site.facts.has_uv:
                os.link(self._uv_archive(site, target, tell), Path(folder, "uv.gz"))
            if python is not None:
                os.link(archive(python, own_cache() / "python"), Path(folder, "python.tar.gz"))
            size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
            what = [f"{len(missing)} packages"] if missing else []
            what += [] if site.facts.has_uv else ["uv"]
            what += [f"Python {python.version}"] if python is not None else []
            tell(f"sending {' and '.join(what)} ({size / 1e6:.0f} MB)")
            site.machine.upload(Path(folder), incoming)
        base, new, uv = shlex.quote(cache), shlex.quote(incoming), shlex.quote(f"uv-{self.uv}")
        site.run(
            f"umask 077; cd {base} && mkdir -p wheels bin && "
            f"if [ -d {new}/wheels ]; then for d in {new}/wheels/*; do [ -e wheels/${{d##*/}} ] || mv -- $d wheels/ || "
            f"exit 1; done; fi && if [ -f {new}/uv.gz ]; then gzip -dc <{new}/uv.gz >bin/{uv}.part && "
            f"chmod 700 bin/{uv}.part && mv -f -- bin/{uv}.part bin/{uv}; fi && "
            f"{_unpacked(python, new)} && rm -rf -- {new} && bin/{uv} --version",
            "environment",
            "what was sent could not be put in its place",
        )

    def _missing_python(self, site: PreparedHost) -> Standalone | None:
        """Return the Python to send; None if the host has one."""
        if site.standalone is None:
            return None
        there = site.machine.run(f"[ -x {shlex.quote(site.python)} ]", timeout=PATIENCE).status == 0
        return None if there else site.standalone

    def _uv_archive(self, site: PreparedHost, target: wheels.TargetPlatform, tell: OnLine) -> Path:
        """Return uv's program for a host, compressed.

        It is this environment's own uv if both machines have the same architecture.
        """
        folder = own_cache() / "uv"
        folder.mkdir(parents=True, exist_ok=True)
        archive = folder / f"uv-{self.uv}-{site.facts.machine}.gz"
        with self.finding:
            if archive.is_file():
                return archive
            data = self._uv_program(target, site.facts.machine, tell)
            with atomic_write(archive) as file:
                file.write(gzip.compress(data, 6, mtime=0))
        return archive

    def _uv_program(self, target: wheels.TargetPlatform, machine: str, tell: OnLine) -> bytes:
        import uv

        if sys.platform == "linux" and platform.machine() == machine:
            return Path(uv.find_uv_bin()).read_bytes()
        with tempfile.TemporaryDirectory(prefix="sky-uv-") as folder:
            options = ["--no-deps", "--target", folder, "--python", sys.executable, *target.arguments]
            command = ["pip", "install", "--quiet", *options, f"uv=={self.uv}"]
            run_uv(command, phase="environment", on_line=tell, stop=self.stop)
            return Path(folder, "bin", "uv").read_bytes()


def _unpacked(python: Standalone | None, incoming: str) -> str:
    """Return shell text that unpacks a Python that was sent, atomically."""
    if python is None:
        return ":"
    part, whole = (shlex.quote(f"python/{python.name}{end}") for end in (f".tmp-{os.urandom(4).hex()}", ""))
    # Another pool may have unpacked it meanwhile, and use it.
    return (
        f"mkdir -p {part} && gzip -dc <{incoming}/python.tar.gz | tar -xof - -C {part} && "
        f"{{ mv -T -- {part} {whole} 2>/dev/null || {{ rm -rf -- {part}; [ -d {whole} ]; }}; }}"
    )


def own_cache() -> Path:
    """Return the folder here that caches what hosts are sent."""
    folder = platformdirs.user_cache_path("sky_jupyter") / "hosts"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def _no_such_set(target: wheels.TargetPlatform, error: BootstrapError) -> BootstrapError:
    glibc = target.platform.rpartition("manylinux_")[2].replace("_", ".")
    return BootstrapError(
        error.phase,
        f"no set of wheels does for Python {target.python} with glibc {glibc} on {target.platform.partition('-')[0]}, "
        "as it is there; uv says below which package stands in the way: ask for another release of that one, or use "
        "hosts with a newer system",
        command=error.command,
        lines=error.lines,
    )
