"""Start of local host processes: folders, keys, host.json and the process."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from ...errors import BootstrapError, MachineError, PoolError, SkyError
from ...machines.base import Command, Machine, Process
from ...machines.local_machine import LocalMachine, LocalProcess, working_folder
from ...node.protocol.agent_process import log_of
from ...node.protocol.host_config import BUDGET, CONFIG, NEXT, READY, STARTING, HostConfig
from ...node.system.stopped_processes import STILL
from ...spec.options import DEFAULT_EXIT_TIMEOUT
from ...spec.pool_spec import PoolSpec
from ..base.timeouts import TIMEOUTS
from ..control import certificates
from .early_host import early_hosts
from .early_host import start as start_host
from .host_places import make_folders, node_environment

LOCAL = LocalMachine()
_START = TIMEOUTS.start.host
_FAREWELL = TIMEOUTS.end.host
_LAST_LINES = 30
# The poll interval of the event file of a host that another manager started, and the file's name.
_LOOK = TIMEOUTS.polls.host_words
EVENTS = "host.events"
# The hosts' lease until their pool is ready; the timeout of telling them that it is.
_START_LEASE, _SETTLE = TIMEOUTS.start.lease, TIMEOUTS.start.settle


@dataclass(frozen=True)
class RelayInfo:
    """Relays through this machine between a host and an unreachable head.

    Parameters
    ----------
    why : str
        Which host does not reach which other one, and why.
    agent : int
        Port of its agent, on its own loopback.
    contact : int
        Port on the head's loopback that is forwarded to the agent.
    scheduler : int
        Port on its own loopback that is forwarded to the scheduler.
    """

    why: str
    agent: int
    contact: int = 0
    scheduler: int = 0


@dataclass
class Host:
    """Host process of a pool, as the manager sees it; here, a local one."""

    command: Command
    nodes: list[int]
    folder: Path
    blobs: Path
    events: queue.Queue[dict[str, Any]]
    # Receives the host's events once it has started; called in a thread.
    on_event: Callable[[dict[str, Any]], None] | None = None
    # Receives its events on stopped processes, from its start on; called in a thread.
    on_standstill: Callable[[dict[str, Any]], None] | None = None
    # Seconds that it gives its ranks for an orderly shutdown.
    exit_timeout: float = DEFAULT_EXIT_TIMEOUT
    # Set when the pool is ready or given up; set when the host has been told.
    over: threading.Event = field(default_factory=threading.Event)
    settled: threading.Event = field(default_factory=threading.Event)
    # Its machine; there, the pool's folder, the folder of blobs, and the environment's interpreter.
    machine: Machine = LOCAL
    there: str = ""
    blobs_there: str = ""
    python: str = ""
    # Its relays, if the head reaches it only through this machine; files do not go through them.
    apart: RelayInfo | None = None
    # Set when its events are to be ignored.
    left: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.there = self.there or str(self.folder)
        self.blobs_there = self.blobs_there or str(self.blobs)

    def next_event(self, deadline: float) -> dict[str, Any]:
        """Return the host's next event; raise BootstrapError if none comes."""
        try:
            event = self.events.get(timeout=max(0.01, deadline - time.monotonic()))
        except queue.Empty:
            raise BootstrapError("agent", "the host did not start in time", lines=self.log()) from None
        if event["event"] in ("gone", "failed", "ending"):
            told = event.get("lines")
            lines = [str(line) for line in told][-_LAST_LINES:] if isinstance(told, list) and told else self.log()
            message = str(event.get("message", "the host ended"))
            raise BootstrapError("agent", f"{message}{self.cure([message, *lines])}", lines=lines)
        return event

    def cure(self, said: Sequence[str]) -> str:
        """Return the remedy for a failed start, by the host's output."""
        return ""

    def listen(self, on_event: Callable[[dict[str, Any]], None]) -> None:
        """Subscribe to the host's events, past ones included, in a thread."""
        self.on_event = on_event
        with contextlib.suppress(queue.Empty):
            while True:
                on_event(self.events.get_nowait())

    def watch(self, on_standstill: Callable[[dict[str, Any]], None]) -> None:
        """Subscribe to reports of stopped processes, even before `listen`."""
        self.on_standstill = on_standstill
        for _ in range(self.events.qsize()):
            with contextlib.suppress(queue.Empty):
                self.tell(self.events.get_nowait())

    def last_words(self, agent: str) -> list[str]:
        """Return the last lines of an agent's log, to follow a message."""
        log = self.folder / log_of(agent)
        with contextlib.suppress(OSError):
            return [f"\n  | {line}" for line in log.read_text(errors="replace").splitlines()[-30:]]
        return []

    def log(self) -> list[str]:
        """Return the last lines of the host's own log."""
        with contextlib.suppress(OSError):
            return (self.folder / "host.log").read_text(errors="replace").splitlines()[-30:]
        return []

    def facts(self) -> dict[str, Any]:
        """Return the arguments of `adopt`, for the pool's record."""
        return {
            "nodes": self.nodes,
            "folder": str(self.folder),
            "blobs": str(self.blobs),
            "process": self.command.identity,
        }

    @property
    def here(self) -> bool:
        """Whether its process is on this machine."""
        return self.machine.is_this_machine

    @property
    def name(self) -> str:
        """The name of its machine, as the user gave it; "" for this one."""
        return ""

    @property
    def place(self) -> str:
        """The suffix that names its machine in messages; "" for this one."""
        return ""

    def tell(self, event: dict[str, Any]) -> None:
        """Forward an event to its subscriber; queue it without one."""
        if self.on_standstill is not None and event["event"] == "standstill":
            self.on_standstill(event)
        elif self.on_event is None:
            self.events.put(event)
        else:
            self.on_event(event)

    def reach(self, address: str, wish: int = 0) -> str:
        """Return the scheduler's address from here, preferably at local port ``wish``."""
        return address

    def reach_agent(self, address: str) -> str:
        """Return an agent's address from here, given its address in the control plane."""
        return address

    def leave(self) -> None:
        """Ignore its events from now on, and send it nothing more."""
        self.left.set()
        self.settled.set()
        self.over.set()

    def end(self) -> None:
        """End the host with all that it started, and wait for it."""
        self.leave()
        self.end_process()
        self.remove_folders()

    @property
    def process(self) -> Command | Process:
        return self.command

    def end_process(self) -> None:
        """Terminate the host's process and wait; kill it after the timeout."""
        process = self.process
        process.terminate()
        try:
            process.wait(self.exit_timeout + _FAREWELL)
        except TimeoutError:
            process.kill()
            process.wait(_FAREWELL)

    def remove_folders(self) -> None:
        """Remove its folders on this machine."""
        for folder in (self.folder, self.blobs):
            shutil.rmtree(folder, ignore_errors=True)

    def config(self) -> HostConfig:
        """Return its configuration; raise PoolError if it cannot be read."""
        path = self.folder / "host.json"
        try:
            return read_config(path.read_bytes(), str(path))
        except OSError as error:
            raise PoolError(f"{path} cannot be read: {error}") from None

    def change(self, config: HostConfig) -> None:
        """Replace its configuration, for agents that it starts from now on."""
        LOCAL.put({self.folder / NEXT: config.dump()})

    def say(self, word: str) -> None:
        """Write a marker file to the pool's folder: `STARTING` or `READY`."""
        (self.folder / word).write_text(word)

    def say_budget(self, seconds: float) -> None:
        """Tell it in how many seconds the pool's budget is used up."""
        self.machine.put({PurePosixPath(self.there, BUDGET): f"{seconds:.0f}\n".encode()})

    def vouch(self) -> None:
        """Renew its start lease, in a thread, until the pool is ready."""
        threading.Thread(target=self._vouch, name="sky-start", daemon=True).start()

    def _vouch(self) -> None:
        while not self.settled.is_set():
            is_ready = self.over.wait(start_lease() / 8)
            with contextlib.suppress(SkyError, OSError, TimeoutError):
                self.say(READY if is_ready else STARTING)
                if is_ready:
                    self.settled.set()
            if is_ready:
                # An unreachable host is told when it is back.
                self.settled.wait(_LOOK)

    def hear(self) -> None:
        """Start the thread that reads the host's events."""
        threading.Thread(target=_listen, args=(self,), name="sky-host", daemon=True).start()

    def await_start(self) -> str:
        """Return the scheduler's address; raise BootstrapError on failure."""
        deadline = time.monotonic() + _START
        early = []
        while (event := self.next_event(deadline))["event"] != "started":
            early.append(event)
        for one in early:
            # For the later subscriber.
            self.events.put(one)
        return str(event["scheduler"])


def start_lease() -> float:
    """Return the hosts' lease until their pool is ready."""
    return float(os.environ.get("SKY_START_LEASE") or _START_LEASE)


def settle(hosts: Sequence[Host]) -> None:
    """Tell hosts that their pool is ready; unreachable ones are told later."""
    for host in hosts:
        host.over.set()
    end = time.monotonic() + _SETTLE
    for host in hosts:
        host.settled.wait(max(0.0, end - time.monotonic()))


def read_config(text: bytes, where: str) -> HostConfig:
    """Parse a host.json.

    Raises PoolError if it is malformed, or of a host that cannot be changed.
    """
    try:
        config = HostConfig.parse(text)
        told = b'"shape"' in text
    except (ValueError, TypeError) as error:
        raise PoolError(f"{where} cannot be read: {type(error).__name__}: {error}") from None
    if not told:
        raise PoolError(
            "the pool was made by an earlier version of Sky Jupyter, and its nodes cannot be changed: "
            "`%sky restart` recreates it"
        )
    return config


def adopt(facts: Mapping[str, Any]) -> Host:
    """Return another manager's host; raise PoolError if it has ended."""
    process = LOCAL.process(tuple(facts["process"]))
    if not process.alive:
        raise PoolError("the pool's processes are gone")
    host = Host(process, list(facts["nodes"]), Path(facts["folder"]), Path(facts["blobs"]), queue.Queue())
    host.hear()
    host.vouch()
    return host


def launch(
    pool: str,
    spec: PoolSpec,
    machines: Sequence[Machine],
    python: Path,
    env: Mapping[str, str],
    on_host: Callable[[Host], None],
    ttl: float | None = None,
) -> str:
    """Start a host on each machine; return the scheduler's address.

    ``on_host`` receives each host as soon as it must be ended; ``ttl`` is the rest of the pool's ``ttl``.
    """
    cwd = str(working_folder())
    by_key: dict[str, list[int]] = {}
    for node, machine in enumerate(machines):
        by_key.setdefault(machine.key, []).append(node)
    scheduler: str | None = None
    keys = certificates.make(pool)
    for nodes in by_key.values():
        machine = machines[nodes[0]]
        variables = node_environment(env, secret_variables(spec))
        begun = early_hosts.take(pool, machine, python, variables)
        folder, blobs = make_folders(pool) if begun is None else begun.make_folders()
        try:
            config = config_of(pool, spec, nodes, [machine.address for machine in machines], cwd, str(blobs))
            config = replace(config, scheduler=scheduler, ttl=ttl)
            if not spec.keep:
                config = replace(config, owner=os.getpid(), start_timeout=None)
            files: dict[PurePath, bytes] = {folder / name: data for name, data in keys.items()}
            files |= begun.files(variables) if begun is not None else {}
            # The configuration comes last, as a waiting host begins with it.
            machine.put({**files, folder / CONFIG: config.dump()})
            command = begun.command if begun is not None else start_host(machine, python, folder, variables)
        except BaseException as error:
            if begun is not None:
                begun.end()
            for made in (folder, blobs):
                shutil.rmtree(made, ignore_errors=True)
            if isinstance(error, MachineError):
                why = str(error).removeprefix(f"{error.host}: ")
                raise BootstrapError("files", f"{why}; set TMPDIR to another disk") from None
            raise
        host = Host(command, nodes, folder, blobs, queue.Queue(), machine=machine)
        host.hear()
        if spec.keep:
            host.vouch()
        else:
            host.settled.set()
        on_host(host)
        scheduler = host.await_start()
    assert scheduler is not None
    return scheduler


def config_of(
    pool: str, spec: PoolSpec, nodes: Sequence[int], addresses: Sequence[str], cwd: str, blobs: str
) -> HostConfig:
    """Return the configuration of a host that has a lease, but no owner.

    Parameters
    ----------
    pool : str
        The pool's id.
    spec : PoolSpec
        Spec of the pool.
    nodes : sequence of int
        The host's nodes.
    addresses : sequence of str
        Addresses of all nodes.
    cwd : str
        The ranks' working folder.
    blobs : str
        Folder of blobs on the host's machine.

    Returns
    -------
    HostConfig
        The configuration.
    """
    return HostConfig(
        pool=pool,
        nodes=list(nodes),
        total_nodes=spec.nodes,
        ranks_per_node=spec.ranks_per_node,
        addresses=list(addresses),
        preload=[module for plugin in spec.plugins for module in plugin.preload],
        cwd=cwd,
        blobs=blobs,
        idle_timeout=spec.lease,
        journal=spec.journal,
        cluster=spec.options.cluster,
        blob_limit=spec.blob_limit,
        exit_timeout=spec.options.exit_timeout,
        start_timeout=start_lease(),
        # A provider of another distribution may lack it.
        notice=getattr(spec.provider, "notice", ""),
        power_file=getattr(spec.provider, "power_file", ""),
        nodes_per_agent=max(1, getattr(spec.provider, "ranks_per_agent", 1) // spec.ranks_per_node),
    )


def secret_variables(spec: PoolSpec) -> list[str]:
    """Return the names of variables that only the ranks get."""
    return [name for plugin in spec.plugins for name in plugin.secret_variables]


def _left(host: Host) -> Iterator[str]:
    """Yield the events of another manager's host, from the host's file."""
    assert isinstance(host.command, LocalProcess)
    with contextlib.suppress(OSError), open(host.folder / EVENTS, errors="replace") as file:
        yield from who_stood_still(file)
        while host.command.alive:
            yield from file
            time.sleep(_LOOK)
    yield from host.command.lines()


def who_stood_still(said: Iterable[str]) -> list[str]:
    """Return the last reports of processes that are still stopped."""
    still: dict[Any, str] = {}
    for line in said:
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict) and event.get("event") == "standstill":
                still.pop(event.get("pid"), None)
                if event.get("state") == STILL:
                    still[event.get("pid")] = line
    return list(still.values())


def _listen(host: Host) -> None:
    """Forward a host's events, JSON lines, until it ends."""
    lines = _left(host) if isinstance(host.command, LocalProcess) else host.command.lines()
    with contextlib.suppress(ValueError):
        for line in lines:
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and "event" in event:
                    host.tell(event)
    host.tell({"event": "gone", "message": "the host ended"})
