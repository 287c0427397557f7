"""What breaks around ranks that are in collectives, and does not concern them: they go on, and all is told."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import sky_jupyter as sky
from sky_jupyter.pool.base.events import OutputEvent
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.result import CellError, CellResult
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.faults.clocks import Clock
from tests.pool.pools import begin, run
from tests.pool.relay import Far, Relay, relay
from tests.pool.test_faults import eventually, scheduler_of
from tests.took import Took
from tests.worlds import some

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("separate_agents")]

DAY = 86_400
ALL = "everything"
# `reduce` is a collective of all ranks; `work` does it until a file is there, and tells of each step.
COMMON = """
import os, pathlib, time, sky_jupyter as sky
rank, n = sky.instance_info().rank, sky.instance_info().world_size
def work(path):
    step = 0
    while True:
        stop = rank == 0 and os.path.exists(path)
        total = reduce(1000.0 * stop + rank + 1)
        assert total in (n * (n + 1) / 2, n * (n + 1) / 2 + 1000), total
        print("step", step, flush=True)
        if total > 1000: return step, os.getpid()
        step += 1
        time.sleep(0.05)
"""
JAX = """
import jax, numpy
from jax.experimental import multihost_utils
def reduce(mine): return float(multihost_utils.process_allgather(numpy.array([mine])).sum())
"""
TORCH = """
import torch, torch.distributed as dist
def reduce(mine):
    total = torch.tensor([mine]); dist.all_reduce(total); return total.item()
"""
KERAS = """
import keras
keras.utils.set_random_seed(0)
model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
class Telling(keras.callbacks.Callback):
    def __init__(self, path): super().__init__(); self.path = path
    def on_epoch_end(self, epoch, logs=None):
        print("step", epoch, flush=True)
        self.model.stop_training = reduce(float(os.path.exists(self.path) and rank == 0)) > 0
        time.sleep(0.05)
def work(path):
    x = numpy.ones((16, 8), "float32")
    history = model.fit(x, x[:, :1], batch_size=8, epochs=1_000_000, verbose=0, callbacks=[Telling(path)])
    return history.epoch[-1], os.getpid()
"""
SETUP = {"jax": COMMON + JAX, "torch": COMMON + TORCH, "keras": COMMON + JAX + KERAS}
PLUGINS: dict[str, tuple[Callable[..., Any], ...]] = {
    "jax": (sky.plugins.jax,),
    "torch": (sky.plugins.torch,),
    "keras": (sky.plugins.jax, sky.plugins.keras),
}


class Steps:
    """A run's listener: how often each rank has said that it took a step."""

    def __init__(self) -> None:
        self.taken: dict[int, int] = {}

    def __call__(self, event: Any) -> None:
        if isinstance(event, OutputEvent) and event.event["kind"] == "stream":
            self.taken[event.rank] = self.taken.get(event.rank, 0) + event.event["text"].count("step")

    def go_on(self, world: int, seconds: float = 60.0) -> bool:
        """Whether all ranks take further steps."""
        before = dict(self.taken)
        return eventually(lambda: all(self.taken.get(r, 0) >= before.get(r, 0) + 3 for r in range(world)), seconds)


def assert_all_is_there(result: CellResult, pids: list[int]) -> None:
    """Every rank made the same steps, in the same process as before, and told of each."""
    steps = {value[0] for value in result.values}
    assert len(steps) == 1
    assert [value[1] for value in result.values] == pids
    whole = [f"step {number}" for number in range(steps.pop() + 1)]
    for rank in result.ranks:
        assert result.stdout(rank).splitlines() == whole


def need(kind: str) -> None:
    for module in ("jax", "keras") if kind == "keras" else (kind,):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"needs the extra {module}")


@pytest.fixture(scope="module", params=some([("jax", 2), ("torch", 4)]))
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Pool, Relay, Clock]]:
    """A pool that is reached through one port, whose processes have a clock that can be set."""
    kind, nodes = request.param
    need(kind)
    clock = Clock(tmp_path_factory.mktemp("clock"))
    with pytest.MonkeyPatch.context() as patch, relay(patch) as made:
        for variable, value in clock.environment.items():
            patch.setenv(variable, value)
        pool = Pool(PoolSpec(provider=Far(), nodes=nodes, plugins=tuple(make() for make in PLUGINS[kind])))
        pool.start()
        try:
            yield kind, pool, made, clock
        finally:
            pool.down()


def agent_of(pool: Pool, node: int) -> psutil.Process:
    return psutil.Process(pool.status()[node]["pid"])


def stand_still(process: psutil.Process, seconds: float) -> None:
    process.suspend()
    try:
        time.sleep(seconds)
    finally:
        process.resume()


def test_collectives_go_on_while_the_control_plane_breaks_and_the_clock_jumps(
    place: tuple[str, Pool, Relay, Clock], tmp_path: Path, took: Took
) -> None:
    kind, pool, link, clock = place
    world = pool.spec.world_size
    pids = run(pool, f"{SETUP[kind]}\nos.getpid()").values
    steps, path = Steps(), tmp_path / "stop"
    current = begin(pool, f"work({str(path)!r})", listener=steps)
    assert steps.go_on(world)

    def seen(what: str, see: str) -> None:
        """All ranks go on with their collectives, and all of it is shown."""
        began = time.monotonic()
        assert steps.go_on(world)
        took.row(what, see=see, kept=ALL, on=f"{kind}, {world} ranks in collectives", shown=time.monotonic() - began)

    scheduler_of(pool).kill()
    seen("the scheduler is killed", "nothing; a cell that is begun just then waits")
    stand_still(scheduler_of(pool), 6)
    seen("the scheduler stands still for 6 s", "`the pool does not answer; trying again`, then that it answers")
    stand_still(agent_of(pool, world - 1), 6)
    seen("an agent stands still for 6 s", "`node N does not answer; trying again`, then that it answers")
    link.cut()
    time.sleep(1)
    link.restore()
    seen("the connection to the pool is cut for 1 s", "nothing")
    link.freeze()
    time.sleep(1)
    link.thaw()
    seen("the connection to the pool is cut for 1 s", "nothing")
    # Never behind the right time: what gloo waits for in the kernel, which has that, would be over at once.
    for ahead in (DAY, 0):
        clock.set(ahead)
        seen("the clock is set a day ahead, or back again", "nothing")
        time.sleep(1)
    path.touch()
    assert_all_is_there(pool.attend(current), pids)
    assert run(pool, "reduce(rank + 1)").values == [world * (world + 1) / 2] * world
    assert pool.take_restarted() == set()


def test_a_killed_agent_costs_its_own_ranks_and_frees_the_others(
    place: tuple[str, Pool, Relay, Clock], tmp_path: Path, took: Took
) -> None:
    kind, pool, _, _ = place
    world = pool.spec.world_size
    pool.settle()
    run(pool, f"{SETUP[kind]}\nkept = rank")
    steps = Steps()
    current = begin(pool, f"work({str(tmp_path / 'never')!r})", listener=steps, grace=0.5)
    assert steps.go_on(world)
    agent_of(pool, world - 1).kill()
    killed = time.monotonic()
    with pytest.raises(CellError) as caught:
        pool.attend(current)
    freed = max(0.0, time.monotonic() - killed - 0.5)
    assert f"node {world - 1} is lost" in str(caught.value.errors[world - 1])
    begun = time.monotonic()
    pool.settle()
    assert pool.take_restarted() == {world - 1}
    assert run(pool, "globals().get('kept')").values == [*range(world - 1), None]
    took.row(
        "an agent is killed",
        see="`node N is lost: its agent ended (killed by SIGKILL (9))`; new kernels are told",
        kept="every name of the others, and the run's output on the nodes",
        on=f"{kind}, {world} ranks in collectives",
        freed=freed,
        back=time.monotonic() - begun,
    )
    assert run(pool, f"{SETUP[kind]}\nreduce(rank + 1)").values == [world * (world + 1) / 2] * world
