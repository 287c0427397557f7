"""From an image to an environment on hosts, over SSH, phase by phase.

A host keeps, in ``~/.cache/sky_jupyter``, uv, wheels, environments and this package's code, each named by its content
or by what it was made from. Each is built beside its place under a lock, and renamed when it is complete: what has its
final name can be trusted, even if a build was killed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import re
import shlex
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..errors import BootstrapError, MachineError
from ..plugins.core.plugin import Step, steps_of
from ..spec.pool_spec import PoolSpec
from ..util.redaction import without_secrets
from . import (
    apt,
    host_probe,
    installed_packages,
    local_environment,
    package_indexes,
    source_archive,
    uv_messages,
    wheels,
)
from .offline_bundle import OfflineBundle, own_cache
from .prepared_host import PATIENCE, PreparedHost, T, on_all
from .satisfied_requirements import frozen
from .uv import LAST_LINES, OnLine

if TYPE_CHECKING:
    from ..machines.base import Machine

# Raise it when environments are built in another way, so that they get other names.
_RECIPE = 1
_LISTING = ".listing"
_PATHS = "_sky_jupyter_image.pth"
_NEEDS = (
    *local_environment.NODE_NEEDS,
    "py-spy>=0.4.1; platform_machine == 'x86_64' or platform_machine == 'aarch64'",
)
_WARM_PATIENCE = 60.0
_SUPPORTED = re.compile(r"3\.1[0-4]\.")


class HostPreparation:
    """Hosts of one pool, prepared in parallel, in the order of `phases`.

    Parameters
    ----------
    machines : sequence of Machine
        The machines, by node.
    spec : PoolSpec
        The pool.
    offline : bool
        True to send hosts everything from here.
    stop : threading.Event
        Set to stop what can be stopped.
    standing : mapping of int to tuple of str
        Nodes that are part of the pool already, each with its interpreter and address. They are probed, but nothing is
        done there.
    absent : collection of int
        Those of them that are lost; they are not probed.
    on_node : callable
        Called with the progress of each node: its number, ``"on"``, ``"done"`` or ``"failed"``, and a line of output.
        In any thread.
    """

    def __init__(
        self,
        machines: Sequence[Machine],
        spec: PoolSpec,
        *,
        offline: bool,
        stop: threading.Event,
        standing: Mapping[int, tuple[str, str]] = MappingProxyType({}),
        absent: Collection[int] = (),
        on_node: Callable[[int, str, str], None] = lambda node, state, line: None,
    ) -> None:
        self.sites = [PreparedHost(node, machine) for node, machine in enumerate(machines)]
        for node, (python, address) in standing.items():
            self.sites[node].environment = str(PurePosixPath(python).parents[1])
            self.sites[node].known = address
        # Hosts that become new nodes.
        self.fresh = [site for site in self.sites if site.node not in standing]
        self._there = [site for site in self.sites if site.node not in absent]
        self.spec, self.image = spec, spec.full_image
        self.offline, self.stop, self.on_node = offline, stop, on_node
        # Packages that are installed on the machines count if these are made from an image that the user chose for
        # them.
        self.overlays = getattr(spec.provider, "image_packages", False)
        self._plans: dict[str, list[str] | BootstrapError] = {}
        asked = self.image.python or platform.python_version()
        self.minor = ".".join(asked.split(".")[:2])
        self.offline_bundle = OfflineBundle(
            [*local_environment.pinned(), *_NEEDS, *package_indexes.wanted(self.image)], stop, self.image
        )
        self._saying = threading.Lock()

    @property
    def phases(self) -> Sequence[tuple[str, str, Callable[[OnLine], None]]]:
        """Name, text and work of each phase; the work gets a callback for its lines."""
        return (
            ("system", "looking at the hosts", self.look),
            ("python", f"Python {self.minor}", self.find_python),
            ("environment", "looking for the environment", self.make_environments),
            ("files", "sky_jupyter's own code", self.send_package),
            *((("plugins", "their own steps", self.run_steps),) if self._steps() else ()),
        )

    # -- the phases --------------------------------------------------------------------------------

    def look(self, say: OnLine) -> None:
        """Probe each host, and check its Debian packages."""

        def one(site: PreparedHost) -> None:
            site.facts = host_probe.look(site.machine, self.minor, self.offline_bundle.uv, self.image.env)
            for line in host_probe.warnings(site.facts, getattr(self.spec.provider, "shared_memory", 0)):
                self._tell(site, line, say)

        self.each(one, "system", self._there)
        host_probe.check_alike({site.name: site.facts for site in self._there}, self.spec)
        if self.image.apt:
            self._see_to_packages(say)
        # Prefer the notebook's versions, so that values can be exchanged. Hosts may not find a local build, such as
        # torch's +cpu, and it is not meant for hosts with accelerators.
        builds = self.offline and not any(site.facts.devices.all for site in self._there)
        self.offline_bundle.prefer = [item for item in frozen() if builds or "+" not in item]

    def find_python(self, say: OnLine) -> None:
        """Choose the interpreter of environments: the host's own, or uv's."""

        def one(site: PreparedHost) -> None:
            facts, exact = site.facts, (self.image.python or self.minor).count(".") == 2
            if facts.python and (not exact or facts.python_version == self.image.python):
                site.python, site.version = facts.python, facts.python_version
                if self.overlays:
                    said = site.run(
                        installed_packages.question(facts.python), "python", "its packages could not be read"
                    )
                    site.installed = installed_packages.read(said)
                return
            if self.overlays and facts.pythons:
                self._tell(site, self._other_python(facts.pythons[0]), say)
            # The environments of uv's own Pythons say which they are of; a minor version is enough to find them.
            site.python, site.version = "", self.image.python or self.minor
            if self.offline:
                self._choose_standalone(site, say)

        self.each(one, "python")

    def make_environments(self, say: OnLine) -> None:
        """Make the environment on each host; later pools reuse it."""

        def warm(site: PreparedHost) -> bool:
            site.environment = f"{site.facts.cache}/environments/{self._key(site)}"
            done = site.machine.run(_is_ready(site.environment), timeout=_WARM_PATIENCE)
            return done.status == 0

        cold = [site for site, ready in zip(self.fresh, self.each(warm, "environment"), strict=True) if not ready]
        self.each(lambda site: self._make_environment(site, say), "environment", cold)

    def send_package(self, say: OnLine) -> None:
        """Send each host this package's code, as it is here."""
        code = source_archive.own()

        def one(site: PreparedHost) -> None:
            site.package = f"{site.facts.cache}/package/{code.digest}"
            if site.machine.run(f"[ -d {shlex.quote(site.package)} ]", timeout=PATIENCE).status == 0:
                return
            script = source_archive.unpack_script(site.package, len(code.data))
            done = site.machine.run(script, stdin=[code.data], timeout=PATIENCE)
            if done.status:
                said = done.out.decode("utf-8", "replace").strip().splitlines()[-LAST_LINES:]
                raise BootstrapError("files", "sky_jupyter's code could not be written", lines=said)

        self.each(one, "files")

    def run_steps(self, say: OnLine) -> None:
        """Run the plugins' own commands, in their order, on each host."""

        def one(site: PreparedHost) -> None:
            for step in self._steps():
                text = shlex.join(step.command)
                env = {**site.variables(), **self.image.env, **step.variables}
                self._stream(site, text, env, "plugins", say, shown=text, hide=step.hide)

        self.each(one, "plugins")

    def _see_to_packages(self, say: OnLine) -> None:
        """Install the image's Debian packages; change no host unless all can have them."""

        def look(site: PreparedHost) -> apt.Findings:
            asked = apt.question(self.image.apt)
            return apt.read(site.run(asked, apt.PHASE, "its Debian packages could not be looked at"))

        def check(site: PreparedHost) -> bool:
            found = look(site)
            apt.refuse(found, offline=self.offline)
            return bool(found.missing)

        def install(site: PreparedHost) -> None:
            tell = functools.partial(self._tell, site, say=say)
            with _locked(site, f"{site.facts.cache}/apt.lock", tell, "installs Debian packages", apt.PHASE):
                found = look(site)
                if not found.missing:
                    return
                tell(f"installing Debian packages: {', '.join(found.missing)}")
                script, env = apt.installation(found), dict(self.image.env)
                # It continues without our connection: half an installation would block all later ones.
                self._stream(site, script, env, apt.PHASE, say, shown=found.by_hand, survive=True)

        lacking = zip(self.fresh, self.each(check, apt.PHASE), strict=True)
        self.each(install, apt.PHASE, [site for site, lacks in lacking if lacks])

    def _choose_standalone(self, site: PreparedHost, say: OnLine) -> None:
        """Choose a Python to send with the wheels; raise BootstrapError if there is none."""
        try:
            site.standalone = self.offline_bundle.python(site.version, site.facts.machine, say)
        except BootstrapError as error:
            raise BootstrapError("python", self._no_python(site), command=error.command, lines=error.lines) from None
        site.version = site.standalone.version
        site.python = f"{site.facts.cache}/python/{site.standalone.name}/{site.standalone.program}"

    def _other_python(self, there: str) -> str:
        """Return a warning that this pool cannot use the packages of an image."""
        minor = there.rpartition(".")[0]
        why = f"this pool asks for {self.image.python}" if self.image.python else f"the notebook runs {self.minor}"
        way = f"; with --python {minor} they are" if _SUPPORTED.match(there) else ""
        return f"the image has Python {there}, and {why}: the image's packages are not used{way}"

    def _no_python(self, site: PreparedHost) -> str:
        """Return what a host lacks, and what can be done about it."""
        why = "the image asks for" if self.image.python else "the notebook runs"
        fitting = [found for found in site.facts.pythons if _SUPPORTED.match(found)]
        minor = fitting[0].rpartition(".")[0] if fitting else ""
        other = (
            f", use the one that it has (sky.Image(python={minor!r}): cells run there, functions of the notebook do "
        )
        other = f"{other}not)" if minor else ""
        return (
            f"no Python {site.version} (it has {', '.join(site.facts.pythons) or 'none'}), which {why}, offline "
            "it can fetch none, and uv has none here to send, nor a way to one: install it there (Debian: apt-get "
            f"install python{self.minor}){other}, or have it sent (uv python install {self.minor} here)"
        )

    # -- an environment ----------------------------------------------------------------------------

    def _key(self, site: PreparedHost) -> str:
        facts = site.facts
        where = [site.version, site.python, facts.machine, list(facts.glibc)]
        what = [_RECIPE, self.image.digest, local_environment.pinned(), _NEEDS]
        what += [site.installed.digest] if site.installed else []
        return hashlib.blake2b(json.dumps([where, what]).encode(), digest_size=12).hexdigest()

    def _target(self, site: PreparedHost) -> wheels.TargetPlatform:
        return wheels.TargetPlatform(self.minor, site.facts.platform)

    def _lock(self, site: PreparedHost, tell: OnLine) -> list[str]:
        """Return the packages to install on a host, each with its version.

        If a host's installed packages cannot stay, return all packages, and report why.
        """
        target = self._target(site)
        if site.installed is None:
            return self.offline_bundle.lock(target, tell)
        with self.offline_bundle.finding:
            key = f"{target} {site.installed.digest}"
            if key not in self._plans:
                tell(f"looking for what the image's {len(site.installed.packages)} packages lack")
                asked = self.offline_bundle.asked
                try:
                    self._plans[key] = installed_packages.lacking(
                        site.installed, asked, target, image=self.image, on_line=lambda line: None, stop=self.stop
                    )
                except BootstrapError as error:
                    if self.stop.is_set():
                        raise
                    self._plans[key] = error
            plan = self._plans[key]
        if not isinstance(plan, BootstrapError):
            return plan
        why = " ".join(line.strip() for line in plan.lines if line.strip())
        tell(f"the image's packages are not used, as they do not go with what is asked for: {why or plan.message}")
        site.installed = None
        return self.offline_bundle.lock(target, tell)

    def _bundle(self, site: PreparedHost, lock: list[str], tell: OnLine) -> list[wheels.Wheel]:
        """Return the wheels of packages to send."""
        target = self._target(site)
        if site.installed is None:
            return self.offline_bundle.bundle(target, tell)
        with self.offline_bundle.finding:
            folder = own_cache() / "wheels"
            if not lock:
                return []
            return wheels.gather(lock, target, folder, image=self.image, on_line=tell, stop=self.stop)

    def _make_environment(self, site: PreparedHost, say: OnLine) -> None:
        tell = functools.partial(self._tell, site, say=say)
        packages = self._lock(site, tell)
        # Without the image's packages, the key is another one.
        site.environment = f"{site.facts.cache}/environments/{self._key(site)}"
        cache, folder, target = site.facts.cache, site.environment, self._target(site)
        lock = f"{folder}.lock"
        with _locked(site, lock, tell):
            if site.machine.run(_is_ready(folder), timeout=_WARM_PATIENCE).status == 0:
                return
            sent = self._bundle(site, packages, tell) if self.offline else []
            self.offline_bundle.check_room(site, sent)
            self.offline_bundle.send(site, sent, target, tell)
            program = f"{cache}/bin/uv-{self.offline_bundle.uv}"
            part = f"{folder}.tmp-{os.urandom(4).hex()}"
            given = shlex.quote(f"{part}.asked")
            names = [f"{cache}/wheels/{wheel.digest}/{wheel.path.name}" for wheel in sent]
            # The file has names, versions and indexes; logins are in the environment. A requirement with a URL may hold
            # a password: it is passed by a file that is removed as soon as it is opened.
            text, lines = ("", "") if self.offline else package_indexes.parts(packages, self.image)
            if self.offline:
                install = ["--no-config", "--offline", "--no-index", "--no-deps", *names]
            else:
                install = ["--no-deps", *(["-r", f"{part}/{package_indexes.FILE}"] if text else []), "-r", "-"]
            beside = f" beside the image's {len(site.installed.packages)}" if site.installed else ""
            tell(f"building the environment of {len(packages)} packages{beside}")
            python = site.python or site.version
            venv = [program, "venv", "--quiet", "--relocatable", "--no-project", "--python", python, part]
            fill = [program, "pip", "install", "--compile-bytecode", "--python", f"{part}/bin/python", *install]
            contents = json.dumps({"python": site.version, "pip": [without_secrets(item) for item in self.image.pip]})
            behind = shlex.quote(f"{part}/lib/python{self.minor}/site-packages/{_PATHS}")
            paths = f"printf %s {shlex.quote(site.installed.paths())} >{behind}" if site.installed else ":"
            stale, project = f"{shlex.quote(folder)}.tmp-*", shlex.quote(f"{part}/{package_indexes.FILE}")
            script = "; ".join(
                [
                    "umask 077",
                    f"exec 8<{given} && rm -f -- {given} || exit 1",
                    f"rm -rf -- {stale} {shlex.quote(folder)}",
                    f"{{ {shlex.join(venv)} && "
                    f"printf %s {shlex.quote(text)} >{project} && {shlex.join(fill) if packages else ':'} <&8 && "
                    f"rm -f -- {project} && {paths} && {_forget_tokens(part)} && {_list_packages(part)} && "
                    f"printf '%s\\n' {shlex.quote(contents)} >{shlex.quote(part + '/.ok')} && "
                    f"mv -T -- {shlex.quote(part)} {shlex.quote(folder)}; }} || "
                    f"{{ _sky_r=$?; rm -rf -- {shlex.quote(part)}; exit $_sky_r; }}",
                ]
            )
            variables = {
                # For a proxy or an index; the host's own settings apply too.
                **self.image.env,
                "UV_CACHE_DIR": f"{cache}/uv",
                "UV_PYTHON_INSTALL_DIR": f"{cache}/python",
                "UV_NO_PROGRESS": "1",
                "NO_COLOR": "1",
                **({} if self.offline else package_indexes.environment(self.image, self.image.env)),
            }
            if site.python:
                variables["UV_PYTHON_DOWNLOADS"] = "never"
            shown = shlex.join(["uv", *fill[1:4], "-r", "…"]) if self.offline else without_secrets(shlex.join(fill))
            advice = (
                "" if self.offline else "; a host without a way to the package index needs --offline (offline=True)"
            )
            # A build that was killed may leave the file; the next build removes it.
            done = site.machine.run(
                f"umask 077; head -c {len(lines.encode())} >{given}", stdin=[lines.encode()], timeout=PATIENCE
            )
            if done.status:
                said = done.out.decode("utf-8", "replace").strip().splitlines()[-LAST_LINES:]
                raise BootstrapError("environment", f"{part}.asked could not be written", lines=said)
            self._stream(site, script, variables, "environment", say, shown=shown, advice=advice)

    # -- parts -------------------------------------------------------------------------------------

    def _steps(self) -> list[Step]:
        return [step for plugin in self.spec.plugins for step in steps_of(plugin, self.spec)]

    def _stream(
        self,
        site: PreparedHost,
        script: str,
        env: dict[str, str],
        phase: str,
        say: OnLine,
        *,
        shown: str,
        advice: str = "",
        survive: bool = False,
        hide: Callable[[str], str] = str,
    ) -> list[str]:
        """Run a script on a host, pass on its lines, and return them.

        It ends with our connection, unless ``survive`` is true.
        """
        log = PurePosixPath(f"{site.facts.cache}/bootstrap.log")
        command = site.machine.exec(
            ["/bin/sh", "-c", f"exec 2>&1; {script}"], env=env, cwd=site.facts.home, log=log, survive=survive
        )
        lines: list[str] = []
        for line in map(hide, command.lines()):
            # Keep the last state of a line that was overwritten, such as a progress bar.
            text = without_secrets(line.rstrip("\r").rpartition("\r")[2])
            lines.append(text)
            # uv ends with a line for each package.
            if not text.startswith(" + "):
                self._tell(site, text, say)
        status = command.wait(PATIENCE)
        if status:
            why = uv_messages.of(lines) if phase == "environment" else ""
            told = f"{why}; exit status {status}{advice}" if why else f"exit status {status}{advice}"
            raise BootstrapError(phase, told, command=shown, lines=lines[-LAST_LINES:])
        return lines

    def _tell(self, site: PreparedHost, line: str, say: OnLine) -> None:
        self.on_node(site.node, "on", line)
        with self._saying:
            say(f"{site.machine.name}: {line}" if len(self.sites) > 1 else line)

    def each(
        self, work: Callable[[PreparedHost], T], phase: str, sites: Sequence[PreparedHost] | None = None
    ) -> list[T]:
        """Run a function on all hosts in parallel; see `prepared_host.on_all`."""

        def one(site: PreparedHost) -> T:
            self.on_node(site.node, "on", "")
            try:
                done = work(site)
            except BaseException:
                self.on_node(site.node, "failed", "")
                raise
            self.on_node(site.node, "done", "")
            return done

        return on_all(self.fresh if sites is None else sites, one, phase, self.stop)


@contextlib.contextmanager
def _locked(
    site: PreparedHost, path: str, tell: OnLine, what: str = "builds the same environment", phase: str = "environment"
) -> Iterator[None]:
    """Hold a lock of the host; it is released when our connection ends, too."""
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
            tell(f"waiting for another pool, or for a node with the same home, that {what}")
        else:
            raise BootstrapError(phase, f"{path} could not be locked")
        yield
    finally:
        with contextlib.suppress(MachineError, TimeoutError):
            holder.kill()


def _forget_tokens(folder: str) -> str:
    """Return shell text that removes recorded URLs with a query: they hold tokens."""
    return (
        f"for f in {shlex.quote(folder)}/lib/python3*/site-packages/*.dist-info/direct_url.json; do "
        'if grep -qF "?" "$f" 2>/dev/null; then rm -f -- "$f"; fi; done'
    )


def _is_ready(folder: str) -> str:
    quoted = shlex.quote(folder)
    # The interpreter is a link: it dangles once its Python is gone. All listed packages must be there; an environment
    # of an earlier version has no list.
    return (
        f"[ -f {quoted}/.ok ] && [ -x {quoted}/bin/python ] && {{ [ ! -f {quoted}/{_LISTING} ] || "
        f"( cd {quoted}/lib/python3*/site-packages && "
        f'while IFS= read -r n; do [ -e "$n" ] || exit 1; done <{quoted}/{_LISTING} ); }}'
    )


def _list_packages(folder: str) -> str:
    """Return shell text that stores the names of an environment's packages."""
    quoted = shlex.quote(folder)
    return f"( cd {quoted}/lib/python3*/site-packages && ls -1A | grep -v __pycache__ ) >{quoted}/{_LISTING}"


__all__ = ["HostPreparation", "PreparedHost"]
