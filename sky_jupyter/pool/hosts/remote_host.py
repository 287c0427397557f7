"""Start and control of a pool's hosts on other machines."""

from __future__ import annotations

import contextlib
import functools
import queue
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import BootstrapError, CaptureError, LinkLost, MachineError, PoolError, SkyError
from ...machines import remote_cleanup
from ...node.protocol.agent_process import log_of
from ...node.protocol.host_config import NEXT, READY, HostConfig
from ...node.protocol.version import HOST_PROCESS
from ...spec.pool_spec import PoolSpec
from ...util.background_tasks import map_all
from ..base.timeouts import TIMEOUTS
from ..control import certificates
from ..registry.remote_leftovers import RemotePart, Traces
from . import event_listener, launch
from . import reachability as reach
from .pool_link import PoolLink

if TYPE_CHECKING:
    from ...bootstrap.remote_environment import PreparedHost
    from ...machines.base import Command, Machine, Process
    from ...machines.ssh.types import Prompts
    from ...providers.base import Provider

# Timeouts of commands on a host, and of one that must answer at once.
_PATIENCE, _MOMENT = TIMEOUTS.start.remote_host, TIMEOUTS.start.moment
_LOOK = TIMEOUTS.polls.remote_host
# A run's folder is named by its id.
_RUN = "[0-9a-f]" * 8
_BESIDE = 16
T = TypeVar("T")


@dataclass(kw_only=True)
class RemoteHost(launch.Host):
    """Host process on another machine.

    Its ``folder`` and ``blobs`` are on this machine, for keys and what is sent; ``there`` and ``blobs_there`` are its
    own.
    """

    # The registry's records of it.
    traces: Traces
    # The number of its events that were read.
    heard: int = 0

    @property
    def process(self) -> Process:
        """Its process, whichever connection started it."""
        return self.machine.process(self.command.identity)

    @property
    def name(self) -> str:
        """The name of its machine, as the user gave it."""
        return self.machine.name

    @property
    def place(self) -> str:
        """The suffix that names its machine in messages."""
        return f" on {self.machine.name}"

    def cure(self, said: Sequence[str]) -> str:
        """Return how to rebuild the environment if a module is missing."""
        if not any(word in line for word in ("ModuleNotFoundError", "ImportError") for line in said):
            return ""
        return f"; `%sky clean --host {self.name}` removes the environments there, and the next pool makes its own"

    def last_words(self, agent: str) -> list[str]:
        """Return the last lines of an agent's log, to follow a message."""
        return [f"\n  | {line}" for line in self._tail(log_of(agent))]

    def log(self) -> list[str]:
        """Return the last lines of the host's own log."""
        return self._tail("host.log")

    def facts(self) -> dict[str, Any]:
        """Return the arguments of `adopt`, for the pool's record."""
        there = (self.there, self.blobs_there, self.python)
        apart = None if self.apart is None else asdict(self.apart)
        return {**super().facts(), **self.machine.facts(), "there": there, "apart": apart}

    def config(self) -> HostConfig:
        """Return its configuration; raise PoolError if it cannot be read."""
        path = f"{self.there}/host.json"
        done = self.machine.run(f"cat -- {shlex.quote(path)}", timeout=_PATIENCE)
        return launch.read_config(done.out, f"{path} on {self.name}")

    def change(self, config: HostConfig) -> None:
        """Replace its configuration, for agents that it starts from now on."""
        self.machine.put({PurePosixPath(self.there, NEXT): config.dump()})

    def hear(self) -> None:
        """Start the thread that reads the host's events."""
        threading.Thread(target=event_listener.listen, args=(self,), name="sky-host", daemon=True).start()

    def reach(self, address: str, wish: int = 0) -> str:
        """Return the address of the link's tunnel to the scheduler, or to an agent."""
        return f"tls://127.0.0.1:{self.machine.forward(*reach.place(address), local_port=wish).port}"

    def reach_agent(self, address: str) -> str:
        """Return the address of the link's tunnel to an agent.

        Raises MachineError where the machine refuses tunnels.
        """
        # The agent of a host that is apart listens on its machine's loopback.
        return self.reach(address if self.apart is None else f"tls://127.0.0.1:{self.apart.agent}")

    def say(self, word: str) -> None:
        """Write a marker file to the pool's folder: `STARTING` or `READY`."""
        done = self.machine.run(f"echo x >{shlex.quote(f'{self.there}/{word}')}", timeout=_PATIENCE)
        if done.status and word == READY:
            raise MachineError(self.name, "command", f"{self.there} cannot be written")

    def end(self) -> None:
        """End the host with all that it started; remove its folders.

        Raises MachineError if it cannot be reached; it then ends by its lease.
        """
        self.leave()
        self.end_process()
        _remove(self.machine, self.there, self.blobs_there)
        self.traces.forget(self.there)

    def _tail(self, name: str) -> list[str]:
        with contextlib.suppress(SkyError, TimeoutError):
            script = f"tail -n 30 -- {shlex.quote(f'{self.there}/{name}')} 2>/dev/null"
            done = self.machine.run(script, timeout=_PATIENCE)
            return done.out.decode("utf-8", "replace").splitlines()
        return []


def adopt(facts: Mapping[str, Any], machine: Machine, here: tuple[Path, Path], traces: Traces) -> RemoteHost:
    """Return a host that another manager started, on its machine."""
    there, blobs, python = facts["there"]
    command = machine.process(tuple(facts["process"]))
    host = _host(command, list(facts["nodes"]), here, machine, (there, blobs, python), traces)
    host.apart = launch.RelayInfo(**facts["apart"]) if facts.get("apart") else None
    return host


def relay(hosts: Sequence[launch.Host], scheduler: str) -> None:
    """Recreate the relays of all hosts that need some, in a new link."""
    for host in hosts:
        if host.apart is not None:
            _relayed(hosts[0].machine, host.machine, scheduler, host.apart)


def _relayed(head: Machine, machine: Machine, scheduler: str, apart: launch.RelayInfo) -> launch.RelayInfo:
    """Make the link's relays between a host and the head."""
    return replace(
        apart,
        scheduler=machine.relay(head, *reach.place(scheduler), there_port=apart.scheduler),
        contact=head.relay(machine, "127.0.0.1", apart.agent, there_port=apart.contact),
    )


def _host(
    command: Command,
    nodes: list[int],
    here: tuple[Path, Path],
    machine: Machine,
    there: tuple[str, str, str],
    traces: Traces,
) -> RemoteHost:
    folder, blobs, python = there
    told: queue.Queue[dict[str, Any]] = queue.Queue()
    host = RemoteHost(
        command, nodes, *here, told, machine=machine, there=folder, blobs_there=blobs, python=python, traces=traces
    )
    host.vouch()
    return host


class PoolGone(PoolError):
    """Error of an attachment to a pool that has ended: nothing of it runs."""


def reopen(
    facts: Sequence[Mapping[str, Any]],
    name: str,
    traces: Traces,
    prompts: Prompts | None = None,
    provider: Provider | None = None,
    ids: Sequence[str] = (),
) -> tuple[PoolLink, list[launch.Host]]:
    """Return the link and the hosts of another manager's pool.

    Raises PoolGone if all of its hosts have ended, PoolError if some have, and MachineError if a machine cannot be
    reached. ``prompts`` are for a new link.
    """
    here = (Path(facts[0]["folder"]), Path(facts[0]["blobs"]))
    link = PoolLink.reopen(*here)
    try:
        machines: Sequence[Machine]
        # The provider of bought machines knows where they are now, and lets this computer in.
        if all("target" in one for one in facts) and (provider is None or not provider.provisions):
            machines = link.connect([(one["target"], one["address"]) for one in facts], prompts)
        elif provider is None:
            raise PoolError(
                f"how the machines of pool {name!r} are reached is known to its provider alone: attach to it"
            )
        else:
            known = {ids[one["nodes"][0]]: one for one in facts}
            machines = provider.connect(list(known), link.session(prompts, threading.Event(), known))
        hosts = [adopt(one, machine, here, traces) for one, machine in zip(facts, machines, strict=True)]
        lives = _all([functools.partial(_lives, host) for host in hosts])
        if not any(lives):
            raise PoolGone(f"pool {name!r} has ended: by its lease, or with its hosts; nothing of it is left")
        if not all(lives):
            gone = ", ".join(host.machine.name for host, alive in zip(hosts, lives, strict=True) if not alive)
            raise PoolError(
                f"pool {name!r} cannot be taken up: its processes on {gone} are gone; `%sky down --name {name}` ends "
                "the others, and so does its lease"
            )
        _all([functools.partial(event_listener.skip_past, host) for host in hosts])
    except BaseException:
        for host in hosts if "hosts" in locals() else ():
            host.leave()
        link.give_up()
        raise
    for host in hosts:
        host.hear()
    return link, list(hosts)


def _lives(host: RemoteHost) -> bool:
    return host.process.alive


def start(
    traces: Traces,
    spec: PoolSpec,
    sites: Sequence[PreparedHost],
    here: tuple[Path, Path],
    env: Mapping[str, str],
    on_host: Callable[[launch.Host], None],
    stop: threading.Event,
    tell: Callable[[str], None],
    ttl: float | None = None,
) -> str:
    """Start a host on each machine; return the scheduler's address.

    ``on_host`` receives each host as soon as it must be ended. The registry records each before anything is made on its
    machine. The pool's folders ``here`` get its keys. When ``stop`` is set, no more are started. ``tell`` gets messages
    on hosts that do not reach each other. ``ttl`` is the rest of the pool's ``ttl``.
    """
    keys = certificates.make(traces.pool)
    launch.LOCAL.put({here[0] / name: data for name, data in keys.items()})
    start = _Start(traces, spec, sites, here, keys, env, on_host, stop, ttl=ttl)
    collective = [plugin.name for plugin in spec.plugins if plugin.collective]
    # Tested while the head starts, at no cost; Dask would fail only after half a minute.
    with ThreadPoolExecutor(1, thread_name_prefix="sky-hosts") as beside:
        looking = beside.submit(_look, spec, sites, stop)
        head = _start_one(start, 0)
        found = looking.result()
    _refuse_collectives(sites, found, collective)
    _start_others(start, sites[1:], head, found, tell)
    return head


def start_more(
    traces: Traces,
    spec: PoolSpec,
    sites: Sequence[PreparedHost],
    fresh: Collection[int],
    scheduler: str,
    shape: int,
    here: tuple[Path, Path],
    env: Mapping[str, str],
    on_host: Callable[[launch.Host], None],
    stop: threading.Event,
    tell: Callable[[str], None],
    ttl: float | None = None,
    absent: Collection[int] = (),
) -> None:
    """Start the hosts of new nodes of a live pool, as `start` does.

    The pool's other nodes go on meanwhile. ``sites`` are those of all nodes of the new pool, ``fresh`` the nodes to
    start, ``scheduler`` is the scheduler's address as the hosts see it, and ``shape`` that of `HostConfig`. The
    machines of ``absent`` nodes are not asked.
    """
    keys = {name: (here[0] / name).read_bytes() for name in certificates.NAMES}
    collective = [plugin.name for plugin in spec.plugins if plugin.collective]
    found = _look(spec, [site for site in sites if site.node not in absent], stop)
    _refuse_collectives(sites, found, collective)
    start = _Start(traces, spec, sites, here, keys, env, on_host, stop, shape, ttl)
    _start_others(start, [sites[node] for node in fresh], scheduler, found, tell)


@dataclass(frozen=True)
class _Start:
    """Arguments shared by all hosts of a start; see `start`, `start_more`."""

    traces: Traces
    spec: PoolSpec
    sites: Sequence[PreparedHost]
    here: tuple[Path, Path]
    keys: Mapping[str, bytes]
    env: Mapping[str, str]
    on_host: Callable[[launch.Host], None]
    stop: threading.Event
    shape: int = 0
    ttl: float | None = None


def _look(spec: PoolSpec, sites: Sequence[PreparedHost], stop: threading.Event) -> reach.Reachability:
    """Return which hosts reach each other; independent nodes need not."""
    if not spec.options.cluster:
        return reach.apart(sites, stop)
    return reach.look(sites, stop, everyone=any(plugin.collective for plugin in spec.plugins))


def _start_others(
    start: _Start,
    chosen: Sequence[PreparedHost],
    scheduler: str,
    found: reach.Reachability,
    tell: Callable[[str], None],
) -> None:
    """Start hosts in parallel, with relays to the head where needed."""
    others: list[Callable[[], object]] = []
    for site in chosen:
        apart = _apart(site, start.sites[0], scheduler, found, tell)
        others.append(functools.partial(_start_one, start, site.node, scheduler, apart))
    _all(others)


def _refuse_collectives(sites: Sequence[PreparedHost], found: reach.Reachability, collective: Sequence[str]) -> None:
    """Raise BootstrapError if hosts of collectives have gaps.

    Their ranks would wait for each other forever.
    """
    if not collective or not found.gaps:
        return
    gaps = [f"{sites[one].name} does not reach {sites[other].name} {why}" for (one, other), why in found.gaps.items()]
    raise BootstrapError(
        "agent",
        f"the hosts of a pool with {' and '.join(collective)} must all reach each other, on all ports, since its "
        f"collectives go between them; open them, or name hosts (--hosts) that do, by names that lead to the addresses "
        f"at which they do; without {' and '.join(collective)} a pool runs on these",
        lines=gaps,
    )


def _apart(
    site: PreparedHost, head: PreparedHost, scheduler: str, found: reach.Reachability, tell: Callable[[str], None]
) -> launch.RelayInfo | None:
    """Relay a host and the head through the link if there is a gap.

    Returns None if they reach each other. Raises BootstrapError if one of them forbids forwarding.
    """
    for one, other in ((site, head), (head, site)):
        if gap := found.gaps.get((one.node, other.node)):
            why = gap if gap == reach.ALONE else f"{one.name} does not reach {other.name} ({gap})"
            apart = launch.RelayInfo(why, found.free[site.node])
            try:
                made = _relayed(head.machine, site.machine, scheduler, apart)
            except MachineError as error:
                raise BootstrapError(
                    "agent",
                    f"{why}, and they cannot be connected through here: {error}",
                    node=site.node,
                    host=site.name,
                ) from None
            if gap != reach.ALONE:
                tell(
                    f"{why}: the control connection of {site.name} goes through this notebook's link; "
                    "collectives between them will not work"
                )
            return made
    return None


def _start_one(start: _Start, node: int, scheduler: str | None = None, apart: launch.RelayInfo | None = None) -> str:
    """Start the host of one node; return the scheduler's address."""
    site, spec, pool = start.sites[node], start.spec, start.traces.pool
    machine = site.machine
    if start.stop.is_set():
        raise BootstrapError("agent", "stopped", node=node)
    name = f"sky-{pool}-{secrets.token_hex(4)}"
    folder, blobs = f"{site.facts.runtime}/{name}", f"{site.facts.shared}/{name}"
    if blobs == folder:
        blobs = f"{folder}/blobs"
    addresses = [one.address for one in start.sites]
    config = launch.config_of(pool, spec, [node], addresses, site.facts.home, blobs)
    config = replace(config, scheduler=scheduler, shape=start.shape, ttl=start.ttl)
    if apart is not None:
        config = replace(
            config,
            scheduler=f"tls://127.0.0.1:{apart.scheduler}",
            contact=f"tls://127.0.0.1:{apart.contact}",
            port=apart.agent,
        )
    contents = {**start.keys, "host.json": config.dump()}
    trace = start.traces.note(machine.name, folder, blobs)
    try:
        # First the process, then the secrets: the folder never exists without an owner.
        command = machine.exec(
            [site.interpreter, "-m", HOST_PROCESS, folder, f"{launch.start_lease():g}"],
            env={**site.variables(), **start.env},
            cwd=folder,
            log=PurePosixPath(folder, "host.log"),
            make=True,
        )
        machine.put({PurePosixPath(folder, name): data for name, data in contents.items()})
    except BaseException as error:
        _end_unconfirmed(machine, trace, start.traces)
        if isinstance(error, MachineError):
            raise BootstrapError("files", str(error), node=node) from None
        raise
    host = _host(command, [node], start.here, machine, (folder, blobs, site.interpreter), start.traces)
    host.apart = apart
    host.hear()
    start.on_host(host)
    return host.await_start()


def _end_unconfirmed(machine: Machine, trace: RemotePart, traces: Traces) -> None:
    """End a host that may have started; on failure, keep its record in the registry."""
    with contextlib.suppress(SkyError, TimeoutError):
        remote_cleanup.run(machine, trace.script)
        traces.forget(trace.folder)


def end_all(hosts: Iterable[launch.Host], missed: Collection[str] = ()) -> list[launch.Host]:
    """End hosts in parallel; failures do not affect the others.

    Parameters
    ----------
    hosts : iterable of Host
        The hosts.
    missed : collection of str
        Machines that did not answer lately: they are tried for a moment only.

    Returns
    -------
    list of Host
        Hosts that may still run.
    """
    unsure: list[launch.Host] = []

    def one(host: launch.Host) -> None:
        try:
            if not host.here and host.name in missed and not _answers(host):
                host.leave()
                unsure.append(host)
            else:
                host.end()
        except Exception:
            if not host.here:
                unsure.append(host)

    _all([functools.partial(one, host) for host in hosts])
    return unsure


def _answers(host: launch.Host) -> bool:
    """Return whether its machine answers within a moment."""
    there, end = threading.Event(), time.monotonic() + _MOMENT

    def ask() -> None:
        # On a silent connection this outlasts the timeout.
        with contextlib.suppress(SkyError, TimeoutError):
            host.machine.retry()
            while (left := end - time.monotonic()) > 0:
                with contextlib.suppress(LinkLost):
                    host.machine.run("true", timeout=left)
                    there.set()
                    return
                time.sleep(_LOOK)

    threading.Thread(target=ask, name="sky-hosts-ask", daemon=True).start()
    return there.wait(_MOMENT)


def send(hosts: Iterable[launch.Host], folder: Path, run: str) -> None:
    """Send small blobs of a run to each host, with one command per host.

    Raises CaptureError if a host has no room for them.
    """
    send_each([(host, folder) for host in hosts], run)


def send_each(folders: Iterable[tuple[launch.Host, Path]], run: str) -> None:
    """Send each host the small blobs of a folder of its own; see `send`."""

    def one(host: launch.Host, folder: Path) -> None:
        target = PurePosixPath(host.blobs_there, run)
        contents: dict[PurePath, bytes] = {
            target / path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()
        }
        try:
            if contents:
                host.machine.put(contents)
        except MachineError as error:
            if error.reason != "full":
                raise
            raise CaptureError(
                f"the cell needs {sum(map(len, contents.values())) / 1e6:.1f} MB of the notebook's values on "
                f"{error.host}, and there is no room: make large values inside the cell"
            ) from None

    _all([functools.partial(one, host, folder) for host, folder in folders if not host.here])


def discard(hosts: Iterable[launch.Host], folder: Path, *, parts: bool = False) -> None:
    """Remove a run's blobs in the background; with ``parts``, also partial ones."""
    for host in hosts:
        if not host.here:
            places = [host.blobs_there, f"{host.there}/blobs"]
            names = [folder.name, "arriving"] if parts else [folder.name]
            paths = dict.fromkeys(f"{place}/{name}" for place in places for name in names)
            threading.Thread(target=_discard, args=(host.machine, *paths), name="sky-discard", daemon=True).start()


def tidy(hosts: Iterable[launch.Host], on: Sequence[str]) -> None:
    """Remove files of finished runs from hosts, in the background."""
    keep = "|".join([*on, "''"])
    for host in hosts:
        if not host.here:
            script = f"cd {shlex.quote(host.blobs_there)} && for d in {_RUN}; do case $d in {keep}) ;; *) "
            script += 'rm -rf -- "$d";; esac; done'
            threading.Thread(target=_run, args=(host.machine, script), name="sky-tidy", daemon=True).start()


def _remove(machine: Machine, *folders: str) -> None:
    machine.run(f"rm -rf -- {shlex.join(folders)}", timeout=_PATIENCE)


def _discard(machine: Machine, *folders: str) -> None:
    _run(machine, f"rm -rf -- {shlex.join(folders)}")


def _run(machine: Machine, script: str) -> None:
    with contextlib.suppress(SkyError, TimeoutError):
        machine.run(script, timeout=_PATIENCE)


def _all(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Call all in parallel and wait; raise the first error."""
    return map_all(lambda call: call(), calls, "sky-hosts", most=_BESIDE)
