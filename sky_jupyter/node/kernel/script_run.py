"""Scripts on a rank: fresh processes with the environment of torchrun or JAX.

A script is a run whose code is one call of `run`. Each rank starts its share of the processes, relays their output to
the run, passes interrupts on, and raises `ScriptError` for an exit code other than 0. The rank's own namespace and
process groups are not touched.
"""

from __future__ import annotations

import codecs
import collections
import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, TextIO, cast

import psutil

from ...errors import ScriptError
from ..runtime.instance_info import POOL_VARIABLE, InstanceInfo, instance_info
from ..runtime.rank_environment import environment
from ..shared.shared_types import SharedCounter, SharedDict
from ..system import processes
from . import accelerate_launch
from .project_modules import included

# The variable in which the agent names all devices of a node's ranks.
DEVICES = "SKY_DEVICES"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
# Seconds that interrupted processes have to end, as with torchrun.
PATIENCE = 30.0
# Seconds that they have after another process of the script has failed.
_SHORT_PATIENCE = 5.0
_LOOK = 0.1
_ASK = 0.5
_PIPE = 1 << 16
# A longer line of one of several processes is split.
_LONGEST = 1 << 20
_TAIL, _TAIL_LINE = 5, 300
_EXEC_FAILED = 127
# A bar returns to the begin of its line to redraw itself; the next line erases it.
_DRAWN, _ERASE = "\r", "\x1b[K"
# Variables of a rank's plugins or of a cluster's launcher, which a fresh process would take for its own.
_NOT_FOR_SCRIPTS = ("PET_", "TORCHELASTIC_", "JAX_COORDINATOR_", "JAX_LOCAL_DEVICE_COUNT")
# The process leads its own group, dies with its parent, may be inspected by our host's other processes (Yama), and then
# becomes the program. A function between fork and exec would run beside the kernel's threads.
_LAUNCH = f"""
import ctypes, os, sys
parent, host, *command = sys.argv[1:]
os.setpgid(0, 0)
if sys.platform == "linux":
    prctl = ctypes.CDLL(None).prctl
    prctl(1, 9, 0, 0, 0)
    prctl(0x59616D61, ctypes.c_ulong(int(host)), 0, 0, 0)
    if os.getppid() != int(parent):
        os._exit(1)
try:
    os.execvp(command[0], command)
except OSError as error:
    print(f"{{command[0]}} cannot be run: {{error.strerror}}", file=sys.stderr)
    os._exit({_EXEC_FAILED})
"""


@dataclass(frozen=True)
class Place:
    """Place of one process of a script: its numbers, as torchrun counts them."""

    rank: int
    local_rank: int
    local_world: int
    group: int


def layout(ranks: Sequence[int], ranks_per_node: int, per_node: int = 0) -> dict[int, list[Place]]:
    """Return the processes that each of a pool's ranks starts.

    Parameters
    ----------
    ranks : sequence of int
        The ranks that take part.
    ranks_per_node : int
        How many ranks a node has.
    per_node : int
        The number of processes on each node; 0 for one per rank.

    Returns
    -------
    dict of int to list of Place
        The processes by rank; a rank may have several, or none.
    """
    nodes: dict[int, list[int]] = {}
    for rank in sorted(ranks):
        nodes.setdefault(rank // ranks_per_node, []).append(rank)
    found: dict[int, list[Place]] = {rank: [] for rank in sorted(ranks)}
    first = 0
    for group, there in enumerate(nodes.values()):
        count = per_node or len(there)
        for local in range(count):
            # In order: each rank's processes are neighbours. With fewer processes than ranks, the first ranks have
            # them.
            starter = there[local * len(there) // count if count > len(there) else local]
            found[starter].append(Place(first + local, local, count, group))
        first += count
    return found


@dataclass(frozen=True)
class ScriptPlan:
    """Parameters of a script, the same for all ranks; the notebook makes them.

    Parameters
    ----------
    id : str
        Id that its processes get: torchrun's ``--rdzv-id``.
    kind : str
        ``"file"``, ``"module"`` or ``"program"`` (``--no-python``).
    target : str
        Path, module or program.
    args : list of str
        The arguments after it.
    ranks : list of int
        The pool's ranks that take part.
    per_node : int
        The number of processes on each node; 0 for one per rank.
    restarts : int
        How often all processes are restarted after one has failed.
    role : str
        torchrun's ``--role``.
    sent : bool
        Whether the file is among the code that was sent; otherwise its path is the same as on the notebook's machine.
    jax : bool
        Whether ``jax.distributed.initialize()`` without arguments must find the other processes.
    accelerate : dict, optional
        The options that Accelerate parses, and the text of its file; Accelerate then sets its variables.
    key : str
        Id of this start of the script, by which its ranks find each other.
    """

    id: str
    kind: str
    target: str
    args: list[str]
    ranks: list[int]
    per_node: int = 0
    restarts: int = 0
    role: str = "default"
    sent: bool = False
    jax: bool = False
    accelerate: Mapping[str, Any] | None = None
    key: str = ""

    @property
    def name(self) -> str:
        """The script's name in messages."""
        return f"-m {self.target}" if self.kind == "module" else os.path.basename(self.target)

    def to_json(self) -> str:
        """Serialize to the argument of `run`."""
        return json.dumps(asdict(self))


def run(plan: str) -> None:
    """Run this rank's part of a script; the notebook sends a cell that calls it.

    Parameters
    ----------
    plan : str
        A `ScriptPlan` in JSON.

    Raises
    ------
    ScriptError
        When a process ended with another exit code than 0.
    """
    __tracebackhide__ = True
    _Script(ScriptPlan(**json.loads(plan)), instance_info()).run()


class _Script:
    """Part of a running script on this rank."""

    def __init__(self, plan: ScriptPlan, info: InstanceInfo) -> None:
        self.plan = plan
        # In a pool without a cluster each rank is a world of its own, whose number is 0.
        self.me = info.rank if info.cluster else plan.ranks[0]
        ranks = plan.ranks if info.cluster else [self.me]
        self.info, self.first = info, ranks[0]
        found = layout(ranks, info.ranks_per_node, plan.per_node)
        self.mine = found[self.me]
        self.world = sum(map(len, found.values()))
        self.groups = len({rank // info.ranks_per_node for rank in ranks})
        self.alone, self.ranks = len(ranks) == 1, ranks
        # There are as many processes as ranks, in the same order: the pool's facts of a rank are also true of its
        # process.
        self.is_the_pool = [[one.rank for one in places] for places in found.values()] == [
            [rank] for rank in range(info.world_size)
        ]
        self.key = f"sky-script:{plan.key or plan.id}"
        self.shared = SharedDict(self.key)

    def run(self) -> None:
        __tracebackhide__ = True
        for attempt in range(self.plan.restarts + 1):
            last = attempt == self.plan.restarts
            with self._ports(attempt) as ports:
                failed = self._attempt(attempt, ports, last=last)
            if failed is None:
                return
            if last:
                raise failed
            if self.me == self.first:
                print(f"{_in_a_line(failed)}; start {attempt + 2} of {self.plan.restarts + 1}", file=sys.stderr)

    def _attempt(self, attempt: int, ports: Sequence[int], *, last: bool) -> ScriptError | None:
        """Run the processes once; return a failure, with ``last`` of this rank alone."""
        children = Children(self.plan.name, prefixed=len(self.mine) > 1)
        try:
            with children.interruptible():
                for place in self.mine:
                    children.start(place, self._command(), self._environment(place, attempt, ports))
                failed = children.watch(None if last or self.alone else lambda: self._told(attempt))
        finally:
            children.kill()
        if children.interrupts:
            raise KeyboardInterrupt
        if last or self.alone:
            return failed
        if failed is not None:
            self.shared["failed", attempt] = [str(failed), failed.process]
            return failed
        return self._others(attempt)

    def _told(self, attempt: int) -> ScriptError | None:
        """Return the failure of another rank's process."""
        if (told := self.shared.get(("failed", attempt))) is None:
            return None
        text, process = told
        failed = ScriptError(text)
        failed.process = process
        return failed

    def _others(self, attempt: int) -> ScriptError | None:
        """Wait until all ranks' processes have ended well, or one has failed."""
        done = SharedCounter(f"{self.key}:{attempt}")
        count = done.add(1)
        while count < len(self.ranks):
            if (failed := self._told(attempt)) is not None:
                return failed
            time.sleep(_LOOK)
            count = done.add(0)
        return None

    @contextlib.contextmanager
    def _ports(self, attempt: int) -> Iterator[tuple[int, int]]:
        """Yield two reserved ports of the first rank's node, for torch and for JAX."""
        if self.me != self.first:
            while (found := self.shared.get(("ports", attempt))) is None:
                if (failed := self._told(attempt)) is not None:
                    raise failed
                time.sleep(_LOOK)
            yield cast("tuple[int, int]", tuple(found))
            return
        try:
            holders = [_held(self.info.addr), _held(self.info.addr)]
        except OSError as error:
            failed = ScriptError(f"rank {self.me} has no port at {self.info.addr}: {error}")
            failed.process = self.mine[0].rank
            if not self.alone:
                self.shared["failed", attempt] = [str(failed), failed.process]
            raise failed from error
        try:
            ports = (holders[0].getsockname()[1], holders[1].getsockname()[1])
            if sys.platform != "linux":
                # Only on Linux can others use a port with SO_REUSEADDR that a bound socket reserves without listening.
                for holder in holders:
                    holder.close()
            if not self.alone:
                self.shared["ports", attempt] = list(ports)
            yield ports
        finally:
            for holder in holders:
                holder.close()

    def _command(self) -> list[str]:
        plan = self.plan
        if plan.kind == "program":
            program = [plan.target]
        elif plan.kind == "module":
            program = [sys.executable, "-m", plan.target]
        else:
            program = [sys.executable, str(included(plan.target)) if plan.sent else plan.target]
        if plan.accelerate is not None:
            # By the file and not as a module: the process need not find this package.
            program = [sys.executable, accelerate_launch.__file__, json.dumps(plan.accelerate), *program]
        return [*program, *plan.args]

    def _environment(self, place: Place, attempt: int, ports: Sequence[int]) -> dict[str, str]:
        env = {name: value for name, value in environment().items() if not name.startswith(_NOT_FOR_SCRIPTS)}
        if not self.is_the_pool:
            env.pop(POOL_VARIABLE, None)
        if env.get("MPLBACKEND", "").startswith("module://"):
            # The kernel's backend, which draws into its cells.
            del env["MPLBACKEND"]
        if devices := env.pop(DEVICES, ""):
            # As under torchrun, LOCAL_RANK is the number of a process's device among those of its node.
            env[_VISIBLE] = devices
        if place.local_world > 1:
            env.setdefault("OMP_NUM_THREADS", "1")
        # Otherwise its output would come in blocks.
        env.setdefault("PYTHONUNBUFFERED", "1")
        master, coordinator = ports
        addr = self.info.peers[self.first // self.info.ranks_per_node] if self.info.cluster else self.info.addr
        place_of = f"[{addr}]:{coordinator}" if ":" in addr else f"{addr}:{coordinator}"
        if self.plan.jax:
            env |= _found_by_jax(place, self.world, place_of, len(list(filter(None, devices.split(",")))))
        return {
            **env,
            "MASTER_ADDR": addr,
            "MASTER_PORT": str(master),
            "RANK": str(place.rank),
            "LOCAL_RANK": str(place.local_rank),
            "WORLD_SIZE": str(self.world),
            "LOCAL_WORLD_SIZE": str(place.local_world),
            "NODE_RANK": str(place.group),
            "GROUP_RANK": str(place.group),
            "GROUP_WORLD_SIZE": str(self.groups),
            "ROLE_NAME": self.plan.role,
            "ROLE_RANK": str(place.rank),
            "ROLE_WORLD_SIZE": str(self.world),
            "TORCHELASTIC_RUN_ID": self.plan.id,
            "TORCHELASTIC_RESTART_COUNT": str(attempt),
            "TORCHELASTIC_MAX_RESTARTS": str(self.plan.restarts),
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "JAX_COORDINATOR_ADDRESS": place_of,
            # By default it would listen on every interface of the machine.
            "JAX_COORDINATOR_BIND_ADDRESS": place_of,
            "JAX_NUM_PROCESSES": str(self.world),
            "JAX_PROCESS_ID": str(place.rank),
        }


def _found_by_jax(place: Place, world: int, coordinator: str, devices: int) -> dict[str, str]:
    """Return the variables by which JAX finds its processes, as under Open MPI.

    From its own variables, JAX reads the coordinator's address, but not the number of processes.
    """
    env = {
        "OMPI_MCA_orte_hnp_uri": f"0.0;tcp://{coordinator}",
        "OMPI_COMM_WORLD_SIZE": str(world),
        "OMPI_COMM_WORLD_RANK": str(place.rank),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(place.local_rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(place.local_world),
    }
    if devices and devices % place.local_world == 0:
        each = devices // place.local_world
        own = range(place.local_rank * each, (place.local_rank + 1) * each)
        env["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, own))
    return env


def _held(addr: str) -> socket.socket:
    """Return a socket that reserves a free port, which can still be bound by number."""
    family = socket.AF_INET6 if ":" in addr else socket.AF_INET
    holder = socket.socket(family, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((addr, 0))
    return holder


class _Stream:
    """One stream of a process: its pipe, the target of its text, and its last lines.

    Parameters
    ----------
    pipe : BinaryIO
        The process's end of output, to read from.
    to : str
        ``"stdout"`` or ``"stderr"``.
    prefix : str
        Prefix of each line.
    bars : set of str
        Streams, of all processes, whose last line is a bar that the next line replaces.
    """

    def __init__(self, pipe: BinaryIO, to: str, prefix: str, bars: set[str]) -> None:
        self.pipe, self._bars = pipe, bars
        self.tail: collections.deque[str] = collections.deque(maxlen=_TAIL)
        self._to, self._prefix = to, prefix
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._line = ""
        os.set_blocking(pipe.fileno(), False)

    def take(self) -> bool:
        """Relay available output; return False at its end."""
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.pipe.fileno(), _PIPE)
            self._relay(self._decode(data, final=not data), end=not data)
            return bool(data)
        return True

    def _relay(self, text: str, *, end: bool) -> None:
        *lines, self._line = (self._line + text).split("\n")
        self.tail.extend(line.rpartition("\r")[2][:_TAIL_LINE] for line in lines if line.strip())
        if self._prefix:
            # Only complete lines, as several processes share a stream.
            rest = [self._line] if end and self._line else []
            text = "".join(map(self._prefixed, [*lines, *rest])) + self._bar()
            if not end and len(self._line) > _LONGEST:
                text, self._line = text + self._prefixed(self._line), ""
        if end and self._line.strip():
            self.tail.append(self._line.rpartition("\r")[2][:_TAIL_LINE])
        # Of a very long line, only the end is kept.
        self._line = "" if end else self._line if self._prefix else self._line[-_PIPE:]
        if text:
            stream: TextIO = getattr(sys, self._to)
            stream.write(text)
            stream.flush()

    def _prefixed(self, line: str) -> str:
        over = _ERASE if self._to in self._bars else ""
        self._bars.discard(self._to)
        return f"{over}{self._prefix}{line.rstrip(_DRAWN).rpartition(_DRAWN)[2]}\n"

    def _bar(self) -> str:
        """Remove a progress bar's last complete drawing from the open line; return it."""
        # A last "\r" may be the first half of a line end.
        drawn, found, rest = self._line[:-1].rpartition(_DRAWN)
        if not found:
            return ""
        self._line = rest + self._line[-1:]
        drawing = drawn.rpartition(_DRAWN)[2]
        if not drawing.strip():
            return ""
        self._bars.add(self._to)
        return f"{_ERASE}{self._prefix}{drawing}{_DRAWN}"


@dataclass(frozen=True)
class _Child:
    place: Place
    process: subprocess.Popen[bytes]
    streams: tuple[_Stream, _Stream]


class Children:
    """The processes of a script that this rank starts, relays and ends.

    Parameters
    ----------
    name : str
        The script's name in messages.
    prefixed : bool
        Whether each line begins with its process's number, since there are several.
    """

    def __init__(self, name: str, *, prefixed: bool) -> None:
        self.interrupts = 0
        self._name, self._prefixed = name, prefixed
        self._children: list[_Child] = []
        self._bars: set[str] = set()
        self._selector = selectors.DefaultSelector()
        # The time at which processes that were asked to end are killed.
        self._deadline: float | None = None

    def start(self, place: Place, command: Sequence[str], env: Mapping[str, str]) -> None:
        """Start a process."""
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), str(_host()), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
        )
        prefix = f"[{place.rank}]: " if self._prefixed else ""
        assert process.stdout is not None
        assert process.stderr is not None
        streams = (
            _Stream(cast("BinaryIO", process.stdout), "stdout", prefix, self._bars),
            _Stream(cast("BinaryIO", process.stderr), "stderr", prefix, self._bars),
        )
        self._children.append(_Child(place, process, streams))
        for stream in streams:
            self._selector.register(stream.pipe, selectors.EVENT_READ, stream)
        if self.interrupts:
            # The interrupt came before this process existed.
            self._signal(signal.SIGINT if self.interrupts == 1 else signal.SIGKILL)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Pass interrupts on to the processes inside the block; a second one kills."""
        before = signal.signal(signal.SIGINT, self._on_interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def watch(self, told: Any = None) -> ScriptError | None:
        """Relay output to the end; return the first failure, here or from ``told``."""
        failed: ScriptError | None = None
        asked = time.monotonic()
        while self._step():
            fresh = self._failure() if failed is None else None
            if failed is None and fresh is None and told is not None and time.monotonic() - asked > _ASK:
                fresh, asked = told(), time.monotonic()
            if fresh is not None:
                failed = fresh
                if not self.interrupts:
                    self._end(signal.SIGTERM, _SHORT_PATIENCE)
        return failed or self._failure()

    def _step(self) -> bool:
        """Wait briefly for output and relay it; return False once all have ended."""
        running = [child for child in self._children if child.process.poll() is None]
        if self._deadline is not None and time.monotonic() > self._deadline:
            self._signal(signal.SIGKILL)
        for key, _ in self._selector.select(_LOOK if running else 0):
            if not key.data.take():
                self._selector.unregister(key.fileobj)
        for child in running:
            if not any(stream.pipe in self._open() for stream in child.streams):
                # Its pipes are closed: it is about to end, or continues without output.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.process.wait(_LOOK)
        return bool(running)

    def _open(self) -> list[Any]:
        return [key.fileobj for key in self._selector.get_map().values()]

    def _on_interrupt(self, number: int, frame: Any) -> None:
        self.interrupts += 1
        if self.interrupts > 1:
            self._signal(signal.SIGKILL)
        else:
            self._end(signal.SIGINT, PATIENCE)

    def _end(self, number: int, patience: float) -> None:
        """Signal all processes to end; they are killed after a while."""
        self._deadline = time.monotonic() + patience
        self._signal(number)

    def _signal(self, number: int) -> None:
        for child in self._children:
            if child.process.returncode is None:
                processes.signal_group(child.process.pid, number)

    def _failure(self) -> ScriptError | None:
        """Return the error of the first process that has failed."""
        for child in self._children:
            if (code := child.process.returncode) not in (None, 0):
                for stream in child.streams:
                    self._drain(stream)
                return _failure(self._name, child, code, named=self._prefixed)
        return None

    def _drain(self, stream: _Stream) -> None:
        """Relay an ended process's output from a pipe that its children may hold open."""
        while stream.pipe in self._open():
            ready = [key for key, _ in self._selector.select(0) if key.data is stream]
            if not ready:
                return
            if not stream.take():
                self._selector.unregister(stream.pipe)

    def kill(self) -> None:
        """Kill the remaining processes and those that they started; close the pipes."""
        for child in self._children:
            ended = child.process.poll() is not None
            processes.kill_group(child.process.pid, ended=ended)
            child.process.wait()
            for stream in child.streams:
                self._drain(stream)
                stream.pipe.close()
        self._selector.close()


def _failure(name: str, child: _Child, code: int, *, named: bool) -> ScriptError:
    how = f"ended with exit code {code}"
    if code < 0:
        with contextlib.suppress(ValueError):
            how = f"was killed by {signal.Signals(-code).name} ({-code})"
    which = f" (process {child.place.rank})" if named else ""
    lines = list(child.streams[1].tail)
    error = ScriptError("\n".join([f"{name} {how}{which}", *(f"  | {line}" for line in lines)]))
    error.exit_code, error.process = code, child.place.rank
    return error


def _in_a_line(failed: ScriptError) -> str:
    """Return in one line which process failed and how; the rest has been printed."""
    which = f" (process {failed.process})"
    return f"{str(failed).splitlines()[0].removesuffix(which)}{which}"


def _host() -> int:
    """Return our host process, whose other children inspect stacks."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(os.getppid()).ppid()
    return 0


def process_of(pid: int) -> int | None:
    """Return the first process of a script that a kernel runs; None if there is none."""
    with contextlib.suppress(psutil.Error, OSError):
        for child in psutil.Process(pid).children():
            if os.getpgid(child.pid) == child.pid:
                return int(child.pid)
    return None
