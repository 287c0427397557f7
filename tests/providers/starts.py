"""Starts of pools on a light cloud, each with a fault at a random point; and what is left of the machines.

    with starts.running(tmp_path, seed=7) as several:
        for number in range(1000):
            several.begin(number)

Each start is a process of its own, forked from one that has imported all, so that Ctrl-C and SIGKILL are what they
are in a notebook. What a start does follows from the seed and its number alone: `Start.of`.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sky_jupyter.errors import ProvisionError
from sky_jupyter.pool.registry import machine_orders
from sky_jupyter.pool.registry.machine_sweep import sweep_machines
from sky_jupyter.pool.registry.registry import Registry, sweep
from tests.programs import ROOT
from tests.providers.cloud import FAULTS, Cloud

if TYPE_CHECKING:
    from sky_jupyter.pool.pool import Pool

# What a notebook does: a pool whose machines let nobody in is started; one is made, loses a machine, is recreated
# and ended; one is made and left.
ACTS = ("start", "live", "leave")
_SWEEPS = 10


@dataclass(frozen=True)
class Start:
    """One start.

    Parameters
    ----------
    faults : tuple
        Each the call, the fault, and how many calls of the kind go well before it.
    """

    number: int
    act: str
    nodes: int
    faults: tuple[tuple[str, str, int], ...] = field(default=())

    @classmethod
    def of(cls, seed: int, number: int) -> Start:
        """What start this is."""
        chance = random.Random(f"{seed}/{number}")
        act = chance.choice(ACTS)
        calls = [call for call in FAULTS if call != "connect" or act == "start"]
        faults = []
        # One at least; often the cloud has a bad day.
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            call = chance.choice(["create", *calls])
            fault = chance.choice(FAULTS[call])
            faults.append((call, fault, chance.randrange(2) if call in ("list", "destroy") else 0))
        return cls(number, act, chance.randint(1, 4), tuple(faults))

    def name(self) -> str:
        """The pool's name."""
        return f"start{self.number}"

    def store(self, folder: Path) -> str:
        """Where its cloud is: each has its own, so that its faults are its own."""
        return str(folder / f"cloud{self.number}.sqlite")


class Starts:
    """Starts that are under way. Made by `running`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, number: int) -> str:
        """Do one start; how it ended, in a line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(f"start {number} "):
                return line.strip()
        raise AssertionError("the process that forks the starts has died")


@contextlib.contextmanager
def running(folder: Path, registry: Path, seed: int, module: str = __name__) -> Iterator[Starts]:
    """The process that forks the starts of a module: this one's unless given."""
    env = {**os.environ, "SKY_REGISTRY": str(registry), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", module, str(folder), str(seed)]
    with subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield Starts(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def do_all(folder: Path, registry: Path, seed: int, count: int, beside: int = 1, module: str = __name__) -> None:
    """Do the starts of a module, several beside each other, and print how each ended."""
    print(f"SKY_STARTS_SEED={seed}")

    def several(turn: int) -> list[str]:
        with running(folder, registry, seed, module) as made:
            return [made.run(number) for number in range(turn, count, beside)]

    with ThreadPoolExecutor(beside) as turns:
        print(*sorted(line for lines in turns.map(several, range(beside)) for line in lines), sep="\n")


def sweep_up(registry: Registry) -> None:
    """Sweep as notebooks do, until nothing that the starts have asked for is open; no pool is left then."""
    for _ in range(_SWEEPS):
        sweep(registry)
        sweep_machines(registry)
        if not machine_orders.every(registry):
            break
        time.sleep(0.2)
    assert machine_orders.every(registry) == []
    assert [row.name for row in registry.pools()] == []


def carry_out(start: Start, folder: Path) -> None:
    """Be the notebook."""
    from sky_jupyter.pool.pool import Pool
    from sky_jupyter.spec.options import Options
    from sky_jupyter.spec.pool_spec import PoolSpec

    # Half of the clouds keep something of machines that end by themselves.
    cloud = Cloud(start.store(folder), leaves=bool(start.number % 2))
    for call, fault, skip in start.faults:
        cloud.plan(call, fault, skip)
    # A call that hangs takes longer than the machines may.
    slow = any(fault in ("hang", "late") for _, fault, _ in start.faults)
    limits = {"provision_timeout": 0.8 if slow else 30.0, "ssh_timeout": 20.0, "shutdown_timeout": 5.0}
    options = Options(provision_retry_delay=0.01, console=False, **limits)
    pool = Pool(PoolSpec(provider=cloud, nodes=start.nodes, name=start.name(), options=options))
    if start.act == "start":
        pool.start()
        return
    pool.lifecycle.provisioning.plan(pool.spec)
    pool.registry.intend(pool.id, start.name(), cloud.kind, start.nodes, keep=False)
    pool.lifecycle.provisioning.begin()
    try:
        ids = acquire(pool, start.nodes)
        assert len(set(ids)) == start.nodes
        if start.act == "leave":
            return
        cloud.vanish(ids[:1])
        again = acquire(pool, start.nodes, ids)
        assert len(set(again)) == start.nodes
    except BaseException:
        pool.down()
        raise
    pool.down()


def acquire(pool: Pool, count: int, before: Sequence[str] = ()) -> list[str]:
    """Have machines as a start does: in several attempts."""
    for last in (False, False, True):
        try:
            return pool.lifecycle.provisioning.acquire(pool.spec, count, before)
        except ProvisionError as error:
            if last or not error.passing:
                raise
    raise AssertionError


def serve(of: Callable[[int, int], Any], carry_out: Callable[[Any, Path], None]) -> None:
    """Fork a start for each number that is read."""
    import sky_jupyter.pool.pool  # noqa: F401 - forked, it need not be imported again

    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    for line in sys.stdin:
        start = of(seed, int(line))
        began = time.monotonic()
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                sys.stdin.close()
            code = 0
            try:
                carry_out(start, folder)
            except BaseException as error:
                print(f"  {start}: {''.join(traceback.format_exception_only(error)).strip()}", file=sys.stderr)
                code = 1
            os._exit(code)
        _, status = os.waitpid(child, 0)
        print(
            f"start {start.number} {os.waitstatus_to_exitcode(status)} {time.monotonic() - began:.2f} {start}",
            flush=True,
        )


if __name__ == "__main__":
    serve(Start.of, carry_out)
