"""Image -> environment on hosts that are reached over SSH, all of them side by side, phase by phase.

What is kept there, in ``~/.cache/sky_jupyter``: uv, wheels, environments and this package's code, each
named by its content or by what it was made from. It is built beside its place under a lock and renamed
when it is whole, so that what has its name can be trusted, whoever was ended in between.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import json
import os
import platform
import shlex
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar

import platformdirs

from ..errors import BootstrapError, MachineError, SkyError
from ..spec import PoolSpec
from . import environment, hosts, package, wheels
from .hosts import Facts
from .uv import LAST_LINES, OnLine, run_uv, without_secrets

if TYPE_CHECKING:
    from ..machines.ssh.machine import SSHMachine

# Another way to build gives other environments.
_RECIPE = 1
_NEEDS = (
    *environment._NODE_NEEDS,
    "py-spy>=0.4.1; platform_machine == 'x86_64' or platform_machine == 'aarch64'",
)
# The wheels, what is made of them, and what Python makes of that.
_ROOM = 6
_PATIENCE = 120.0
_WARM_PATIENCE = 60.0
T = TypeVar("T")


@dataclass
class Site:
    """One host, and what has been found and made there so far.

    Parameters
    ----------
    node : int
        The node that it will be.
    machine : SSHMachine
        The connection.
    """

    node: int
    machine: SSHMachine
    facts: Facts = field(init=False)
    python: str = ""
    version: str = ""
    environment: str = ""
    package: str = ""

    @property
    def interpreter(self) -> str:
        """What the node's processes are started with."""
        return f"{self.environment}/bin/python"

    @property
    def address(self) -> str:
        """How the pool's other hosts reach it."""
        own = self.facts.address
        return own if own and not own.startswith(("127.", "::1")) else self.machine.address

    def variables(self) -> dict[str, str]:
        """What the node's processes need in their environment, besides what a login has there."""
        return {
            "PATH": f"{self.environment}/bin:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
            "PYTHONPATH": self.package,
            "VIRTUAL_ENV": self.environment,
        }

    def run(self, script: str, phase: str, what: str, timeout: float = _PATIENCE) -> str:
        """What a script on the host says; BootstrapError where it fails."""
        done = self.machine.shell.run(script, timeout=timeout)
        said = done.out.decode("utf-8", "replace")
        if done.status:
            lines = said.strip().splitlines()[-LAST_LINES:]
            raise BootstrapError(phase, f"{what} (exit status {done.status})", node=self.node, lines=lines)
        return said


class Crew:
    """The hosts of one pool, prepared together; its phases are called in the order of `phases`.

    Parameters
    ----------
    machines : sequence of SSHMachine
        By node.
    spec : PoolSpec
        The pool.
    offline : bool
        Whether hosts are sent all that they need from here.
    stop : threading.Event
        When set, what can end ends.
    """

    def __init__(self, machines: Sequence[SSHMachine], spec: PoolSpec, *, offline: bool, stop: threading.Event) -> None:
        self.sites = [Site(node, machine) for node, machine in enumerate(machines)]
        self.spec, self.image = spec, spec.full_image
        self.offline, self.stop = offline, stop
        asked = self.image.python or platform.python_version()
        self.minor = ".".join(asked.split(".")[:2])
        self.uv = metadata.version("uv")
        self._saying = threading.Lock()
        self._bundles: dict[wheels.Aim, list[wheels.Wheel]] = {}
        self._locks: dict[wheels.Aim, list[str]] = {}
        self._bundling = threading.RLock()

    @property
    def phases(self) -> Sequence[tuple[str, str, Callable[[OnLine], None]]]:
        """Name, what it is at, and the work, which is told where its lines go."""
        return (
            ("system", "looking at the hosts", self.look),
            ("python", f"Python {self.minor}", self.find_python),
            ("environment", "looking for the environment", self.make_environments),
            ("files", "sky_jupyter's own code", self.send_package),
            *((("plugins", "their own steps", self.run_steps),) if self._commands() else ()),
        )

    # -- the phases --------------------------------------------------------------------------------

    def look(self, say: OnLine) -> None:
        """Learn of each host whether it can take part."""

        def one(site: Site) -> None:
            site.facts = hosts.look(site.machine, self.minor, self.uv)
            for line in hosts.warnings(site.facts):
                self._tell(site, line, say)

        self.each(one, "system")
        hosts.check_alike([site.facts for site in self.sites], self.spec.accelerator)

    def find_python(self, say: OnLine) -> None:
        """Settle on the interpreter that environments are made of: the host's own, or uv's."""

        def one(site: Site) -> None:
            facts = site.facts
            if facts.python and (self.image.python or self.minor).count(".") < 2:
                site.python, site.version = facts.python, facts.python_version
                return
            if facts.python and facts.python_version == self.image.python:
                site.python, site.version = facts.python, facts.python_version
                return
            # The environments of uv's own Pythons say which they are of; a minor version is enough to find them.
            site.python, site.version = "", self.image.python or self.minor
            if self.offline:
                has = ", ".join(facts.pythons) or "none"
                raise BootstrapError(
                    "python",
                    f"{site.machine.target} has no Python {site.version} (it has {has}), and offline none can be "
                    f"fetched there: install it (Debian: apt-get install python{self.minor}), ask for one that it "
                    "has (sky.Image(python=…)), or leave --offline out",
                    node=site.node,
                )

        self.each(one, "python")

    def make_environments(self, say: OnLine) -> None:
        """See that each host has the environment; the same is used again by every later pool."""

        def warm(site: Site) -> bool:
            site.environment = f"{site.facts.cache}/environments/{self._key(site)}"
            done = site.machine.shell.run(_is_ready(site.environment), timeout=_WARM_PATIENCE)
            return done.status == 0

        cold = [site for site, ready in zip(self.sites, self.each(warm, "environment"), strict=True) if not ready]
        self.each(lambda site: self._make_environment(site, say), "environment", cold)

    def send_package(self, say: OnLine) -> None:
        """See that each host has this package's code, as it is here."""
        code = package.own()

        def one(site: Site) -> None:
            site.package = f"{site.facts.cache}/package/{code.digest}"
            whole, part = shlex.quote(site.package), shlex.quote(f"{site.package}.tmp-{os.urandom(4).hex()}")
            if site.machine.shell.run(f"[ -d {whole} ]", timeout=_PATIENCE).status == 0:
                return
            done = site.machine.shell.run(
                f"umask 077; mkdir -p -- {part} && head -c {len(code.data)} | gzip -dc | tar -xof - -C {part} && "
                f"{{ mv -T -- {part} {whole} 2>/dev/null || {{ rm -rf -- {part}; [ -d {whole} ]; }}; }}",
                [code.data],
                timeout=_PATIENCE,
            )
            if done.status:
                said = done.out.decode("utf-8", "replace").strip().splitlines()[-LAST_LINES:]
                raise BootstrapError("files", "sky_jupyter's code could not be written", node=site.node, lines=said)

        self.each(one, "files")

    def run_steps(self, say: OnLine) -> None:
        """Run the plugins' own commands, in their order, on each host."""

        def one(site: Site) -> None:
            for argv in self._commands():
                self._stream(
                    site,
                    shlex.join(argv),
                    {**site.variables(), **self.image.env},
                    "plugins",
                    say,
                    shown=shlex.join(argv),
                )

        self.each(one, "plugins")

    # -- an environment ----------------------------------------------------------------------------

    def _key(self, site: Site) -> str:
        facts = site.facts
        where = [site.version, site.python, facts.machine, list(facts.glibc)]
        what = [_RECIPE, self.image.digest, environment._pins(), _NEEDS]
        return hashlib.blake2b(json.dumps([where, what]).encode(), digest_size=12).hexdigest()

    def _aim(self, site: Site) -> wheels.Aim:
        return wheels.Aim(self.minor, site.facts.platform)

    def _make_environment(self, site: Site, say: OnLine) -> None:
        tell = functools.partial(self._tell, site, say=say)
        cache, folder = site.facts.cache, site.environment
        lock = f"{folder}.lock"
        with _locked(site, lock, tell):
            if site.machine.shell.run(_is_ready(folder), timeout=_WARM_PATIENCE).status == 0:
                return
            sent = self._bundle(self._aim(site), tell) if self.offline else []
            self._check_room(site, sent)
            self._send(site, sent, tell)
            program = f"{cache}/bin/uv-{self.uv}"
            part = f"{folder}.tmp-{os.urandom(4).hex()}"
            names = [f"{cache}/wheels/{wheel.digest}/{wheel.path.name}" for wheel in sent]
            if self.offline:
                install = ["--no-config", "--offline", "--no-index", "--no-deps", *names]
            else:
                install = ["--no-deps", *self._lock(self._aim(site), tell)]
            tell(f"building the environment of {len(sent) or len(install) - 1} packages")
            python = site.python or site.version
            venv = [program, "venv", "--quiet", "--relocatable", "--no-project", "--python", python, part]
            fill = [program, "pip", "install", "--compile-bytecode", "--python", f"{part}/bin/python", *install]
            contents = json.dumps({"python": site.version, "pip": [without_secrets(item) for item in self.image.pip]})
            stale = f"{shlex.quote(folder)}.tmp-*"
            script = "; ".join(
                [
                    "umask 077",
                    f"rm -rf -- {stale} {shlex.quote(folder)}",
                    f"{{ {shlex.join(venv)} && {shlex.join(fill)} && "
                    f"printf '%s\\n' {shlex.quote(contents)} >{shlex.quote(part + '/.ok')} && "
                    f"mv -T -- {shlex.quote(part)} {shlex.quote(folder)}; }} || "
                    f"{{ _sky_r=$?; rm -rf -- {shlex.quote(part)}; exit $_sky_r; }}",
                ]
            )
            variables = {
                # A proxy, or an index: what the host itself has been told of those counts too.
                **self.image.env,
                "UV_CACHE_DIR": f"{cache}/uv",
                "UV_PYTHON_INSTALL_DIR": f"{cache}/python",
                "UV_NO_PROGRESS": "1",
                "NO_COLOR": "1",
            }
            if site.python:
                variables["UV_PYTHON_DOWNLOADS"] = "never"
            shown = shlex.join(["uv", *fill[1:4], "-r", "…"]) if self.offline else without_secrets(shlex.join(fill))
            advice = (
                "" if self.offline else "; a host without a way to the package index needs --offline (offline=True)"
            )
            self._stream(site, script, variables, "environment", say, shown=shown, advice=advice)

    def _asked(self) -> list[str]:
        return [*environment._pins(), *_NEEDS, *self.image.pip]

    def _bundle(self, aim: wheels.Aim, tell: OnLine) -> list[wheels.Wheel]:
        """The wheels for hosts of one kind, found once."""
        with self._bundling:
            if aim not in self._bundles:
                lock = self._lock(aim, tell)
                self._bundles[aim] = wheels.gather(lock, aim, _own_cache() / "wheels", on_line=tell, stop=self.stop)
            return self._bundles[aim]

    def _lock(self, aim: wheels.Aim, tell: OnLine) -> list[str]:
        """The packages of an environment, each with its version, found once for hosts of one kind."""
        with self._bundling:
            if aim not in self._locks:
                tell(f"resolving for Python {aim.python} on {aim.platform}")
                self._locks[aim] = wheels.resolve(self._asked(), aim, on_line=tell, stop=self.stop)
            return self._locks[aim]

    def _check_room(self, site: Site, sent: Sequence[wheels.Wheel]) -> None:
        needed = _ROOM * sum(wheel.path.stat().st_size for wheel in sent)
        needed += 0 if site.facts.has_uv else 2 * 40 * 1_000_000
        if 0 < site.facts.free < needed:
            raise BootstrapError(
                "environment",
                f"{site.facts.home} on {site.machine.target} has {site.facts.free / 1e6:.0f} MB left, and the "
                f"environment takes about {needed / 1e6:.0f} MB; make room there",
                node=site.node,
            )

    def _send(self, site: Site, sent: Sequence[wheels.Wheel], tell: OnLine) -> None:
        """Send wheels and uv where they are missing; each comes under its name when it is whole."""
        from ..machines.ssh import files

        cache = site.facts.cache
        where = shlex.quote(f"{cache}/wheels")
        listed = site.machine.shell.run(f"ls -1 {where} 2>/dev/null; :", timeout=_PATIENCE).out.decode().split()
        there = set(listed)
        missing = [wheel for wheel in sent if wheel.digest not in there]
        if not missing and site.facts.has_uv:
            return
        incoming = f"{cache}/incoming-{PurePosixPath(site.environment).name}"
        with tempfile.TemporaryDirectory(prefix=".sending-", dir=_own_cache()) as folder:
            for wheel in missing:
                Path(folder, "wheels", wheel.digest).mkdir(parents=True)
                os.link(wheel.path, Path(folder, "wheels", wheel.digest, wheel.path.name))
            if not site.facts.has_uv:
                os.link(self._uv_archive(site, tell), Path(folder, "uv.gz"))
            size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
            what = [f"{len(missing)} packages"] if missing else []
            what += [] if site.facts.has_uv else ["uv"]
            tell(f"sending {' and '.join(what)} ({size / 1e6:.0f} MB)")
            files.upload(site.machine, Path(folder), incoming)
        base, new, uv = shlex.quote(cache), shlex.quote(incoming), shlex.quote(f"uv-{self.uv}")
        site.run(
            f"umask 077; cd {base} && mkdir -p wheels bin && "
            f"if [ -d {new}/wheels ]; then for d in {new}/wheels/*; do [ -e wheels/${{d##*/}} ] || mv -- $d wheels/ || "
            f"exit 1; done; fi && if [ -f {new}/uv.gz ]; then gzip -dc <{new}/uv.gz >bin/{uv}.part && "
            f"chmod 700 bin/{uv}.part && mv -f -- bin/{uv}.part bin/{uv}; fi && rm -rf -- {new} && bin/{uv} --version",
            "environment",
            "what was sent could not be put in its place",
        )

    def _uv_archive(self, site: Site, tell: OnLine) -> Path:
        """uv's program for a host, compressed; this environment's own where both machines are alike."""
        aim = self._aim(site)
        folder = _own_cache() / "uv"
        folder.mkdir(parents=True, exist_ok=True)
        archive = folder / f"uv-{self.uv}-{site.facts.machine}.gz"
        with self._bundling:
            if archive.is_file():
                return archive
            data = self._uv_program(aim, site.facts.machine, tell)
            handle, part = tempfile.mkstemp(dir=folder, prefix=".part-")
            with os.fdopen(handle, "wb") as file:
                file.write(gzip.compress(data, 6, mtime=0))
            os.replace(part, archive)
        return archive

    def _uv_program(self, aim: wheels.Aim, machine: str, tell: OnLine) -> bytes:
        import uv

        if sys.platform == "linux" and platform.machine() == machine:
            return Path(uv.find_uv_bin()).read_bytes()
        with tempfile.TemporaryDirectory(prefix="sky-uv-") as folder:
            target = ["--no-deps", "--target", folder, "--python", sys.executable, *aim.arguments]
            command = ["pip", "install", "--quiet", *target, f"uv=={self.uv}"]
            run_uv(command, phase="environment", on_line=tell, stop=self.stop)
            return Path(folder, "bin", "uv").read_bytes()

    # -- parts -------------------------------------------------------------------------------------

    def _commands(self) -> list[Sequence[str]]:
        plugins = self.spec.plugins
        return [argv for plugin in plugins if plugin.bootstrap is not None for argv in plugin.bootstrap(self.spec)]

    def _stream(
        self, site: Site, script: str, env: dict[str, str], phase: str, say: OnLine, *, shown: str, advice: str = ""
    ) -> None:
        """Run a script on a host that ends with our connection; its lines are told as they come."""
        log = PurePosixPath(f"{site.facts.cache}/bootstrap.log")
        command = site.machine.exec(
            ["/bin/sh", "-c", f"exec 2>&1; {script}"], env=env, cwd=site.facts.home, log=log, survive=False
        )
        lines: list[str] = []
        for line in command.lines():
            text = without_secrets(line)
            lines.append(text)
            # uv ends with a line for each package.
            if not text.startswith(" + "):
                self._tell(site, text, say)
        status = command.wait(_PATIENCE)
        if status:
            raise BootstrapError(
                phase, f"exit status {status}{advice}", node=site.node, command=shown, lines=lines[-LAST_LINES:]
            )

    def _tell(self, site: Site, line: str, say: OnLine) -> None:
        with self._saying:
            say(f"{site.machine.target.name}: {line}" if len(self.sites) > 1 else line)

    def each(self, work: Callable[[Site], T], phase: str, sites: Sequence[Site] | None = None) -> list[T]:
        """Do something on all hosts at once, and wait for all.

        Raises
        ------
        BootstrapError
            For the first host that failed; the others that did are named below it.
        """
        chosen = self.sites if sites is None else sites
        if not chosen:
            return []
        if self.stop.is_set():
            raise BootstrapError(phase, "stopped")
        with ThreadPoolExecutor(len(chosen), thread_name_prefix="sky-crew") as several:
            futures = [several.submit(work, site) for site in chosen]
        failed = [(site, error) for site, future in zip(chosen, futures, strict=True) if (error := future.exception())]
        if not failed:
            return [future.result() for future in futures]
        site, error = failed[0]
        others = [f"{other.machine.target.name}: {str(fault).partition(chr(10))[0]}" for other, fault in failed[1:]]
        raise _located(site, error, phase, others) from error


def _located(site: Site, error: BaseException, phase: str, others: list[str]) -> BaseException:
    """The error, with the node that it happened on, and what happened on others."""
    more = f" (and {'; '.join(others)})" if others else ""
    if isinstance(error, BootstrapError):
        text = error.args[0] if error.node is not None and not more else ""
        if text:
            return error
        inner = str(error).partition(": ")[2].partition("\n")[0]
        return BootstrapError(
            error.phase,
            f"{inner} [{site.machine.target.name}]{more}",
            node=site.node if error.node is None else error.node,
            command=error.command,
            lines=error.lines,
        )
    if isinstance(error, (MachineError, TimeoutError)) or not isinstance(error, SkyError):
        return BootstrapError(phase, f"{error}{more}", node=site.node)
    return error


@contextlib.contextmanager
def _locked(site: Site, path: str, tell: OnLine) -> Iterator[None]:
    """Hold a lock on the host that no other pool holds; it is let go of when our connection ends, too."""
    machine, quoted = site.machine, shlex.quote(path)
    script = (
        f'umask 077; mkdir -p -- "$(dirname -- {quoted})" || exit 1; exec 9>{quoted}; '
        "flock -n 9 || { echo waiting; flock 9 || exit 1; }; echo locked; exec sleep 2147483"
    )
    log = PurePosixPath(f"{site.facts.cache}/bootstrap.log")
    holder = machine.exec(["/bin/sh", "-c", script], env={}, cwd=site.facts.home, log=log, survive=False)
    try:
        for line in holder.lines():
            if line == "locked":
                break
            tell("waiting for another pool that builds the same environment")
        else:
            raise BootstrapError("environment", f"{path} could not be locked", node=site.node)
        yield
    finally:
        with contextlib.suppress(MachineError, TimeoutError):
            holder.kill()


def _is_ready(folder: str) -> str:
    quoted = shlex.quote(folder)
    # The interpreter is a link: it dangles once the Python that it was made from is gone.
    return f"[ -f {quoted}/.ok ] && [ -x {quoted}/bin/python ]"


def _own_cache() -> Path:
    folder = platformdirs.user_cache_path("sky_jupyter") / "hosts"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder
