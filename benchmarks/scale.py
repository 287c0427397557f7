"""What each thing costs from 2 nodes to 1,000, beside ipyparallel and plain Dask as far as they go.

2 to 256 nodes are local ones with a kernel each; 100, 300 and 1,000 are simulated (`simulated`): real agents, many to
a process, with ranks that are no processes. All share this machine's processors with the notebook, so elapsed times are
those of a machine that is much too small; the processor time of the notebook's process is what it takes elsewhere too.

`SKY_SCALE_NODES=100,1000` measures some sizes, and `SKY_SCALE_DELAY=0.025` adds so many seconds to each way between
notebook and scheduler; `SKY_SCALE_ALONE=1` leaves the peers out. Each size is printed as a line of JSON, which
`scale_pictures` draws.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil

from . import fresh
from .measure import Options, Row

REAL, SIMULATED = (2, 8, 16, 32, 64, 128, 256), (100, 300, 1000)
# As far as peers go on two processors: of 256 engines 155 were ready after 300 s, when ipyparallel gave up, and Dask's
# client of 128 workers gave up after 30 s.
MOST = {"ipyparallel": 128, "dask": 64}
QUICK_REAL, QUICK_SIMULATED = (2, 4), (20,)
LINES, CALLS, BYTES = 1000, 10_000, 1_000_000
TIMES, FLOODS = 5, 3
# Thousand agents on a few processors are slow to answer.
_SLOW = "5"
_PATIENCE = 600.0
# More of it for each node, on a machine that does other things too; and for what must come about by itself.
_PATIENCE_A_NODE, _LONGEST_WAIT = 2.0, 180.0
# Where 1,000 calls take so many seconds, 10,000 are not made.
_MUCH = 10.0
_NAME = "scale"
_LOG = re.compile(r"/n(\d+)/agent\.log$")
# What a job says besides figures: after which step it failed, and how.
_STOPPED = "stopped"
_OWN, _OTHERS = ": notebook's processor time", ": others' processor time"


def measure(options: Options) -> list[Row]:
    """Measure each size in a process of its own."""
    real, simulated = (QUICK_REAL, QUICK_SIMULATED) if options.quick else (REAL, SIMULATED)
    chosen = os.environ.get("SKY_SCALE_NODES", "").split(",")
    found: list[Row] = []
    for nodes, kind in [*((nodes, "real") for nodes in real), *((nodes, "simulated") for nodes in simulated)]:
        if chosen != [""] and str(nodes) not in chosen:
            continue
        patience = _PATIENCE + _PATIENCE_A_NODE * nodes
        ours = fresh.call("scale", "ours", patience, nodes=nodes, kind=kind, quick=options.quick)
        told: dict[str, Any] = {"nodes": nodes, "kind": kind, "delay": _delay(), "ours": ours}
        if why := ours.pop(_STOPPED, ""):
            print(f"{nodes} nodes: {why}", file=sys.stderr)
            told[_STOPPED] = why
        for peer, most in MOST.items():
            if kind == "simulated" or _delay() or nodes > most or os.environ.get("SKY_SCALE_ALONE"):
                continue
            try:
                told[peer] = fresh.call("scale", peer, _PATIENCE, nodes=nodes, quick=options.quick)
            except RuntimeError as error:
                print(f"{peer} is left out at {nodes} nodes: {error}", file=sys.stderr)
                continue
            for what, value in told[peer].items():
                if what in ours:
                    found.append(Row(f"{nodes} nodes: {what}", [ours[what]], [value], peer, "s"))
        print(json.dumps({**told, "load": os.getloadavg()[0]}), flush=True)
    return found


def _delay() -> float:
    return float(os.environ.get("SKY_SCALE_DELAY") or 0)


class Clock:
    """Elapsed times, with the processor time of this process and of all that it has started; made by each job."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}
        self._me = psutil.Process()

    def take(self, what: str, work: Callable[[], Any], times: int = 1) -> Any:
        """Do something so many times; keep the medians, and return the last result."""
        samples: list[tuple[float, float, float]] = []
        result: Any = None
        for _ in range(times):
            others, own, began = self._others(), self.own(), time.perf_counter()
            result = work()
            elapsed, own = time.perf_counter() - began, self.own() - own
            more = sum(used - others.get(pid, 0.0) for pid, used in self._others().items())
            samples.append((elapsed, own, more))
        for name, values in zip(("", _OWN, _OTHERS), zip(*samples, strict=True), strict=True):
            self.figures[what + name] = statistics.median(values)
        return result

    def own(self) -> float:
        """Return this process's processor time."""
        times = self._me.cpu_times()
        return float(times.user + times.system)

    @property
    def memory(self) -> float:
        """Return the megabytes of this process."""
        return float(self._me.memory_info().rss) / 1e6

    def _others(self) -> dict[int, float]:
        found = {}
        for process in self._me.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                found[process.pid] = float(times.user + times.system)
        return found


@contextlib.contextmanager
def _far(seconds: float) -> Iterator[None]:
    """Have pools reach their scheduler by a relay that holds all back."""
    from sky_jupyter.pool.hosts.launch import Host

    reach, relays = Host.reach, list[subprocess.Popen[str]]()

    def slowly(host: Host, address: str) -> str:
        name, _, port = reach(host, address).rpartition("//")[2].rpartition(":")
        command = [sys.executable, "-m", "benchmarks.delay", name, port, str(seconds)]
        relays.append(subprocess.Popen(command, cwd=fresh.ROOT, stdout=subprocess.PIPE, text=True))
        assert relays[-1].stdout is not None
        return f"tls://127.0.0.1:{relays[-1].stdout.readline().strip()}"

    if seconds:
        Host.reach = slowly  # type: ignore[method-assign]
    try:
        yield
    finally:
        Host.reach = reach  # type: ignore[method-assign]
        for relay in relays:
            relay.kill()
            relay.wait()


def ours(nodes: int, kind: str, quick: bool) -> dict[str, Any]:
    """All operations on a pool of ours, and why they stopped, if they did; called in a process of its own."""
    if nodes >= QUICK_SIMULATED[0]:
        os.environ["SKY_TIMEOUTS_SCALE"] = _SLOW
    if kind == "real":
        # Up to 65 nodes the last agent has a process of its own, which can be killed as a node.
        os.environ["SKY_RANKS_PER_AGENT"] = str(min(nodes - 1, 64))
    from . import simulated

    with simulated.hosts() if kind == "simulated" else contextlib.nullcontext(), _far(_delay()):
        return _ours(nodes, kind == "simulated", CALLS // 20 if quick else CALLS)


def _ours(nodes: int, is_simulated: bool, calls: int) -> dict[str, Any]:
    import sky_jupyter as sky
    from sky_jupyter.capture.collect import collect

    clock, stopped = Clock(), dict[str, Any]()
    compute = sky.Compute(name=_NAME, keep=True, nodes=nodes, options=sky.Options(crowded=True, console=False))
    clock.take("start", compute.__enter__)
    pool = compute.live_pool
    if _delay() or is_simulated:
        # As on other machines. Simulated ranks would refuse each call of the short way, too.
        pool.control.direct = False

    def begin(code: str, values: dict[str, Any] | None = None, **more: Any) -> Any:
        return pool.submission.begin_cell(code, collect(code, values or {}, pool.ledger), **more)

    def run(code: str, values: dict[str, Any] | None = None, **more: Any) -> Any:
        # As a magic does.
        return pool.attend(begin(code, values, attended=True, **more))

    try:
        run("x = 1")
        clock.take("empty cell", lambda: run("x = 1"), TIMES)
        clock.figures["first byte"] = statistics.median(_first_byte(run, is_simulated) for _ in range(TIMES))
        memory = clock.memory
        flood = f"lines = {LINES}" if is_simulated else f"for n in range({LINES}): print('line', n)"
        result = clock.take("flood", lambda: run(flood), FLOODS)
        told = sum(len(result.stdout(rank).splitlines()) for rank in range(nodes))
        clock.figures |= {"flood: lines lost": LINES * nodes - told, "notebook's MB": clock.memory}
        clock.figures["flood: more MB"] = clock.memory - memory
        clock.take("status", lambda: _patiently(pool.status), TIMES)
        clock.take("broadcast of 1 MB", lambda: run("y = data", {"data": os.urandom(BYTES)}))
        call = sky.function(_echo)
        call(1) @ compute
        clock.take("f() @ pool", lambda: call(1) @ compute, TIMES)
        clock.take("1,000 calls >>", lambda: sky.gather(*(call(n) for n in range(calls // 10))) >> compute)
        if clock.figures["1,000 calls >>"] < _MUCH:
            clock.take("10,000 calls >>", lambda: sky.gather(*(call(n) for n in range(calls))) >> compute)
        clock.figures["a node's death named"] = _death(pool, begin, nodes, is_simulated)
        clock.take("resize by 10 %", lambda: compute.resize(nodes + max(1, nodes // 10)))
        clock.figures["a machine's silence named"] = _silence(pool, compute.live_pool.spec.nodes - 1)
        clock.figures |= fresh.call("scale", "attach", _PATIENCE)
    except Exception as error:
        # What was measured until then counts; the rest is left out of the figures.
        stopped[_STOPPED] = f"after {list(clock.figures)[-1]}: {type(error).__name__}: {error}"[:2000]
    finally:
        if "end" not in clock.figures:
            clock.take("end", compute.down)
    return {**clock.figures, **stopped}


def attach() -> dict[str, float]:
    """Take the pool over, as a notebook's new kernel does, and end it; called in a process of its own."""
    from sky_jupyter.capture.collect import collect
    from sky_jupyter.session.pools import attach_pool, end_pool

    clock = Clock()
    with _far(_delay()):
        pool = clock.take("attach", lambda: attach_pool(_NAME, take_over=True))
        pool.attend(pool.submission.begin_cell("x = 1", collect("x = 1", {}, pool.ledger)))
        clock.take("end", lambda: end_pool(pool))
    # The pool's processes are no children of this one.
    return {what: value for what, value in clock.figures.items() if _OTHERS not in what}


def _patiently(work: Callable[[], Any]) -> Any:
    """Repeat what a busy machine did not answer in its time; all of the time counts."""
    from sky_jupyter.errors import PoolError

    for _ in range(TIMES):
        with contextlib.suppress(PoolError):
            return work()
    return work()


def _echo(value: int) -> int:
    return value


def _first_byte(run: Callable[..., Any], is_simulated: bool) -> float:
    from sky_jupyter.pool.base.events import OutputEvent

    came: list[float] = []

    def hear(event: Any) -> None:
        if isinstance(event, OutputEvent) and event.event["kind"] == "stream":
            came.append(time.perf_counter())

    began = time.perf_counter()
    run("lines = 100" if is_simulated else "print('first')", listener=hear)
    return came[0] - began


def _death(pool: Any, begin: Callable[..., Any], nodes: int, is_simulated: bool) -> float:
    """Kill the agent of the last node while a cell runs; return the time until its rank is over."""
    from sky_jupyter.errors import SkyError

    last = nodes - 1
    current = begin("wait = 1" if is_simulated else "import time; time.sleep(600)")
    _patiently(pool.status)
    agent = _last_agent()
    began = time.perf_counter()
    os.kill(agent, signal.SIGKILL)
    _await(lambda: last not in current.left, "the end of the killed agent's rank")
    took = time.perf_counter() - began
    pool.interrupt()
    with contextlib.suppress(SkyError):
        pool.attend(current)
    _await(lambda: not pool.control.lost, "the return of the killed agent")
    return took


def _await(holds: Callable[[], bool], what: str) -> None:
    """Wait for what comes about by itself; raise TimeoutError where it does not."""
    end = time.monotonic() + _LONGEST_WAIT
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} has not come in {_LONGEST_WAIT:.0f} s")
        time.sleep(0.005)


def _last_agent() -> int:
    """Return the process of the last agent, which is the last node's, and of more where they share one."""
    found: dict[int, int] = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            for file in process.open_files():
                if match := _LOG.search(file.path):
                    found[int(match[1])] = process.pid
    return found[max(found)]


def _silence(pool: Any, last: int) -> float:
    """Stop the last agent with the process that would tell of it; return the time until its node is known as silent.

    So does a machine go of which nobody tells. It answers again in the end.
    """
    agent = _last_agent()
    stopped = [agent, psutil.Process(agent).ppid()]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        began = time.perf_counter()
        _await(lambda: last in pool.control.silent | pool.control.lost, "the silence of the stopped agent")
        return time.perf_counter() - began
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        _await(lambda: not (pool.control.silent or pool.control.lost), "the return of the stopped agent")


def ipyparallel(nodes: int, quick: bool) -> dict[str, float]:
    """The same as far as its broadcast and balanced views have it; called in a process of its own."""
    from .engines import Ipyparallel

    clock, engine = Clock(), Ipyparallel()
    clock.take("start", lambda: engine.start(nodes))
    try:
        view = engine.client.broadcast_view()
        view.execute("x = 1", block=True)
        clock.take("empty cell", lambda: view.execute("x = 1", block=True), TIMES)
        clock.take("flood", lambda: engine.run(f"for n in range({LINES}): print('line', n)"), FLOODS)
        clock.take("broadcast of 1 MB", lambda: view.push({"y": os.urandom(BYTES)}, block=True))
        clock.take("f() @ pool", lambda: view.apply_sync(_echo, 1), TIMES)
        count = CALLS // 20 if quick else CALLS
        clock.take("10,000 calls >>", lambda: engine.client.load_balanced_view().map_sync(_echo, range(count)))
    finally:
        clock.take("end", engine.close)
    return _elapsed(clock)


def dask(nodes: int, quick: bool) -> dict[str, float]:
    """The same as far as plain Dask has it; called in a process of its own."""
    import distributed

    clock = Clock()
    made: list[Any] = []

    def start() -> None:
        cluster = distributed.LocalCluster(
            n_workers=nodes, threads_per_worker=1, dashboard_address=None, silence_logs=50
        )
        made.extend((cluster, distributed.Client(cluster)))
        # It is there before all of its workers are.
        made[1].wait_for_workers(nodes)

    clock.take("start", start)
    cluster, client = made
    try:
        clock.take("f() @ pool", lambda: client.run(_echo, 1), TIMES)
        clock.take("broadcast of 1 MB", lambda: client.scatter(os.urandom(BYTES), broadcast=True))
        count = CALLS // 20 if quick else CALLS
        clock.take("10,000 calls >>", lambda: client.gather(client.map(_echo, range(count), pure=False)))
    finally:
        clock.take("end", lambda: (client.close(), cluster.close()))
    return _elapsed(clock)


def _elapsed(clock: Clock) -> dict[str, float]:
    return {what: value for what, value in clock.figures.items() if ":" not in what}
