"""Bringing a pool's hosts up: folders, keys and host.json on each machine, then the host process."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...errors import BootstrapError, MachineError, PoolError, SkyError
from ...machines.base import Command, Machine, Process
from ...machines.local import LocalMachine, LocalProcess, working_folder
from ...node.protocol.host_config import NEXT, READY, STARTING, HostConfig
from ...node.protocol.version import HOST_PROCESS
from ...node.system.stopped import STILL
from ...spec.options import DEFAULT_EXIT_TIMEOUT
from ...spec.pool_spec import PoolSpec
from ..base.timeouts import TIMEOUTS
from ..control import certificates

LOCAL = LocalMachine()
_SOCKET_PATH = 80
_SHARED_MEMORY = Path("/dev/shm")
_START = TIMEOUTS.start.host
_FAREWELL = TIMEOUTS.end.host
_LAST_LINES = 30
# How often the words of a host are looked for that are not heard as they come; where they lie.
_LOOK = TIMEOUTS.polls.host_words
EVENTS = "host.events"
# So long hosts live without word of who makes their pool, before it is ready; and how long they are waited for then.
_START_LEASE, _SETTLE = TIMEOUTS.start.lease, TIMEOUTS.start.settle
# What belongs to the notebook's process and must not reach a rank. (Under the last one, ipykernel
# leaves what native code prints where it falls.)
_OWN = (
    "JPY_PARENT_PID",
    "JPY_SESSION_NAME",
    "JPY_INTERRUPT_EVENT",
    "COMPUTE_POOL",
    "PYTHONDONTWRITEBYTECODE",
    "PYTEST_CURRENT_TEST",
)


@dataclass(frozen=True)
class Apart:
    """How the head and a host that do not reach each other are connected: by relays through here.

    Parameters
    ----------
    why : str
        Which host does not reach which other one, and why, in words.
    agent : int
        The port of its agent, on its own loopback.
    contact : int
        The port on the head's loopback that leads there.
    scheduler : int
        The port on its own loopback that leads to the scheduler.
    """

    why: str
    agent: int
    contact: int = 0
    scheduler: int = 0


@dataclass
class Host:
    """A host process of a pool, as the manager holds it; this class is that of hosts of this machine."""

    command: Command
    nodes: list[int]
    folder: Path
    blobs: Path
    events: queue.Queue[dict[str, Any]]
    # Told what the host says once it has started; called in a thread.
    on_event: Callable[[dict[str, Any]], None] | None = None
    # Told, from its start on, which of its processes stand still, or do not any more; called in a thread.
    on_standstill: Callable[[dict[str, Any]], None] | None = None
    # Seconds that it gives its ranks for an orderly end.
    exit_timeout: float = DEFAULT_EXIT_TIMEOUT
    # Set when the pool is ready, or its start of no interest any more; and when the host has been told.
    over: threading.Event = field(default_factory=threading.Event)
    settled: threading.Event = field(default_factory=threading.Event)
    # Its machine; on that, the pool's folder, that of the payload's blobs, and the environment's interpreter.
    machine: Machine = LOCAL
    there: str = ""
    blobs_there: str = ""
    python: str = ""
    # Where the head reaches it through here only: files are not to take that way twice.
    apart: Apart | None = None
    # Set when what it says concerns nobody any more.
    left: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.there = self.there or str(self.folder)
        self.blobs_there = self.blobs_there or str(self.blobs)

    def next_event(self, deadline: float) -> dict[str, Any]:
        """The next thing the host says; a host that ends or is silent raises."""
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
        """What helps where it has not come up, by what it said; it begins with a semicolon."""
        return ""

    def listen(self, on_event: Callable[[dict[str, Any]], None]) -> None:
        """Have a handler told, in a thread, what the host has said and will say."""
        self.on_event = on_event
        with contextlib.suppress(queue.Empty):
            while True:
                on_event(self.events.get_nowait())

    def watch(self, on_standstill: Callable[[dict[str, Any]], None]) -> None:
        """Have a handler told, in a thread, who stands still: sooner than `listen`, whatever the host is still at."""
        self.on_standstill = on_standstill
        for _ in range(self.events.qsize()):
            with contextlib.suppress(queue.Empty):
                self.tell(self.events.get_nowait())

    def last_words(self, agent: str) -> list[str]:
        """The last lines of an agent's log, to be read below a message."""
        log = self.folder / f"n{agent.rpartition(' ')[2]}" / "agent.log"
        with contextlib.suppress(OSError):
            return [f"\n  | {line}" for line in log.read_text(errors="replace").splitlines()[-30:]]
        return []

    def log(self) -> list[str]:
        """The last lines of the host's own log."""
        with contextlib.suppress(OSError):
            return (self.folder / "host.log").read_text(errors="replace").splitlines()[-30:]
        return []

    def facts(self) -> dict[str, Any]:
        """What `adopt` needs."""
        return {
            "nodes": self.nodes,
            "folder": str(self.folder),
            "blobs": str(self.blobs),
            "process": self.command.identity,
        }

    @property
    def here(self) -> bool:
        """Whether its process is this machine's."""
        return self.machine.is_this_machine

    @property
    def name(self) -> str:
        """What the user calls its machine; nothing where that is this one."""
        return ""

    @property
    def place(self) -> str:
        """Where its process is, for a message: nothing needs to be said of this machine."""
        return ""

    def tell(self, event: dict[str, Any]) -> None:
        """Hand on what the host has said: to whoever listens, or until somebody does."""
        if self.on_standstill is not None and event["event"] == "standstill":
            self.on_standstill(event)
        elif self.on_event is None:
            self.events.put(event)
        else:
            self.on_event(event)

    def reach(self, address: str, wish: int = 0) -> str:
        """Where the pool's scheduler is reached from here, at the port ``wish`` if may be: at its own address."""
        return address

    def leave(self) -> None:
        """Listen to it no more, and tell it nothing."""
        self.left.set()
        self.settled.set()
        self.over.set()

    def end(self) -> None:
        """Have the host end with all that it started, and wait for it."""
        self.leave()
        self.end_process()
        self.remove_folders()

    @property
    def process(self) -> Command | Process:
        """Its process."""
        return self.command

    def end_process(self) -> None:
        """Ask the host's process to end, and see to it."""
        process = self.process
        process.terminate()
        try:
            process.wait(self.exit_timeout + _FAREWELL)
        except TimeoutError:
            process.kill()
            process.wait(_FAREWELL)

    def remove_folders(self) -> None:
        """Remove what lies on this machine."""
        for folder in (self.folder, self.blobs):
            shutil.rmtree(folder, ignore_errors=True)

    def config(self) -> HostConfig:
        """What it was told of the pool; raises PoolError where that cannot be read."""
        path = self.folder / "host.json"
        try:
            return read_config(path.read_bytes(), str(path))
        except OSError as error:
            raise PoolError(f"{path} cannot be read: {error}") from None

    def change(self, config: HostConfig) -> None:
        """Have it be another part of the pool from now on; the agents that it starts then say that it is."""
        LOCAL.put({self.folder / NEXT: config.dump()})

    def say(self, word: str) -> None:
        """Leave a word in the pool's folder: `STARTING`, or `READY`."""
        (self.folder / word).write_text(word)

    def vouch(self) -> None:
        """Tell it again and again, in a thread, that its maker lives, until it is told that the pool is ready."""
        threading.Thread(target=self._vouch, name="sky-start", daemon=True).start()

    def _vouch(self) -> None:
        while not self.settled.is_set():
            is_ready = self.over.wait(start_lease() / 8)
            with contextlib.suppress(SkyError, OSError, TimeoutError):
                self.say(READY if is_ready else STARTING)
                if is_ready:
                    self.settled.set()
            if is_ready:
                # One that is away is told when it is back.
                self.settled.wait(_LOOK)

    def hear(self) -> None:
        """Take in, in a thread, what the host says from now on."""
        threading.Thread(target=_listen, args=(self,), name="sky-host", daemon=True).start()

    def await_start(self) -> str:
        """The scheduler's address, once the host says that it has started; raises BootstrapError where it does not."""
        deadline = time.monotonic() + _START
        early = []
        while (event := self.next_event(deadline))["event"] != "started":
            early.append(event)
        for one in early:
            # Whoever listens then hears it.
            self.events.put(one)
        return str(event["scheduler"])


def start_lease() -> float:
    """Seconds that hosts live without word of who makes their pool; ``SKY_START_LEASE`` is for tests."""
    return float(os.environ.get("SKY_START_LEASE") or _START_LEASE)


def settle(hosts: Sequence[Host]) -> None:
    """Tell hosts that their pool is ready; those that do not answer just now are told when they do."""
    for host in hosts:
        host.over.set()
    end = time.monotonic() + _SETTLE
    for host in hosts:
        host.settled.wait(max(0.0, end - time.monotonic()))


def read_config(text: bytes, where: str) -> HostConfig:
    """A host's own host.json; raises PoolError where it is none, or of a host that cannot be changed."""
    try:
        config = HostConfig.parse(text)
        told = b'"shape"' in text
    except (ValueError, TypeError) as error:
        raise PoolError(f"{where} cannot be read: {type(error).__name__}: {error}") from None
    if not told:
        raise PoolError(
            "the pool was made by an earlier version of Sky Jupyter, and its nodes cannot be changed: "
            "`%sky restart` makes it anew"
        )
    return config


def adopt(facts: Mapping[str, Any]) -> Host:
    """A host that another manager launched; raises PoolError where its process is gone."""
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
    """Start a host on each machine; ``on_host`` gets each as soon as it must be ended, and ``ttl`` is what is left.

    Returns
    -------
    str
        The scheduler's address.
    """
    cwd = str(working_folder())
    by_key: dict[str, list[int]] = {}
    for node, machine in enumerate(machines):
        by_key.setdefault(machine.key, []).append(node)
    scheduler: str | None = None
    keys = certificates.make(pool).files()
    for nodes in by_key.values():
        folder, blobs = make_folders(pool)
        machine = machines[nodes[0]]
        try:
            config = config_of(pool, spec, nodes, [machine.address for machine in machines], cwd, str(blobs))
            config = replace(config, scheduler=scheduler, ttl=ttl)
            if not spec.keep:
                config = replace(config, owner=os.getpid(), start_timeout=None)
            machine.put({folder / name: data for name, data in {**keys, "host.json": config.dump()}.items()})
            # The pool's folder is the working folder: a `random.py` beside the notebook must not be
            # what a node's own modules import.
            command = machine.exec(
                [str(python), "-m", HOST_PROCESS, str(folder)],
                env=node_environment(env, secret_variables(spec)),
                cwd=str(folder),
                log=folder / "host.log",
            )
        except BaseException as error:
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
    """Return what a host of a pool is told, where nobody's process owns it and it lives by its lease.

    Parameters
    ----------
    nodes : sequence of int
        The host's.
    addresses : sequence of str
        Of all nodes.
    cwd, blobs : str
        Folders on the host's machine: where ranks begin, and where payloads are.
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
    )


def node_environment(image_env: Mapping[str, str], secret: Iterable[str] = ()) -> dict[str, str]:
    """The notebook's environment without what is its own, with the image's variables.

    Where this package is not installed but used from a checkout, nodes find it there too.

    Parameters
    ----------
    secret : iterable of str
        Variables that plugins give the ranks themselves: no process of the pool is started with them.
    """
    left_out = {*_OWN, *secret}
    env = {key: value for key, value in os.environ.items() if key not in left_out}
    root = Path(__file__).resolve().parents[3]
    if root.name not in ("site-packages", "dist-packages"):
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), env.get("PYTHONPATH", "")]))
    return {**env, **image_env}


def secret_variables(spec: PoolSpec) -> list[str]:
    """The names of the variables that the pool's plugins give the ranks in memory."""
    return [name for plugin in spec.plugins for name in plugin.secret_variables]


def make_folders(pool: str) -> tuple[Path, Path]:
    """The pool's folder, short enough for unix sockets, and one in shared memory for blobs."""
    parents = [os.environ.get("XDG_RUNTIME_DIR") or "", tempfile.gettempdir(), "/tmp"]
    # (A path with a line break in it is more than Dask, and lines of logs, can do with.)
    fit = [p for p in parents if p and len(p) < _SOCKET_PATH - 40 and p.isprintable()]
    usable = [Path(p) for p in fit if os.access(p, os.W_OK)]
    if not usable:
        raise BootstrapError("files", f"no writable folder with a short path among {parents}; set TMPDIR to one")
    folder = Path(tempfile.mkdtemp(prefix=f"sky-{pool}-", dir=usable[0]))
    try:
        if sys.platform == "linux" and os.access(_SHARED_MEMORY, os.W_OK):
            blobs = Path(tempfile.mkdtemp(prefix=f"sky-{pool}-", dir=_SHARED_MEMORY))
        else:
            blobs = folder / "blobs"
            blobs.mkdir(mode=0o700)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder, blobs


def _left(host: Host) -> Iterator[str]:
    """What a host that another manager launched says from now on: it leaves that in its folder too."""
    assert isinstance(host.command, LocalProcess)
    with contextlib.suppress(OSError), open(host.folder / EVENTS, errors="replace") as file:
        yield from _who_stood_still(file)
        while host.command.alive:
            yield from file
            time.sleep(_LOOK)
    yield from host.command.lines()


def _who_stood_still(said: Iterable[str]) -> list[str]:
    """Of what a host has said so far, which of its processes stand still."""
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
    """Take in what a host says as JSON lines, until it ends."""
    lines = _left(host) if isinstance(host.command, LocalProcess) else host.command.lines()
    with contextlib.suppress(ValueError):
        for line in lines:
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and "event" in event:
                    host.tell(event)
    host.tell({"event": "gone", "message": "the host ended"})


def new_id() -> str:
    """A pool's or run's id: eight hex digits."""
    return secrets.token_hex(4)
