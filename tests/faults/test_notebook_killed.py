"""The notebook's kernel is killed while its pool's ranks are in collectives."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.pool.runs.run import Run
from tests.conftest import marked_processes, pool_folders
from tests.faults.test_collectives_go_on import Steps, assert_all_is_there, need
from tests.pool.pools import run
from tests.pool.test_faults import eventually
from tests.took import Took
from tests.worlds import World, some

pytestmark = pytest.mark.slow

OWNER = """
import sys, time
import sky_jupyter as sky
from sky_jupyter.pool.pool import Pool
from sky_jupyter.providers import Local
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.faults.test_collectives_go_on import PLUGINS, SETUP, Steps
from tests.pool.pools import begin, run
kind, nodes, name, path = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
plugins = tuple(make() for make in PLUGINS[kind])
pool = Pool(PoolSpec(provider=Local(), nodes=nodes, plugins=plugins, name=name, keep=path != "-"))
pool.start()
print(run(pool, SETUP[kind] + "\\nos.getpid()").values, flush=True)
steps = Steps()
begin(pool, f"work({path!r})", listener=steps)
print(steps.go_on(nodes), pool.id, flush=True)
time.sleep(600)
"""


def an_owner(kind: str, nodes: int, name: str, path: str, mark: str) -> tuple[subprocess.Popen[str], list[int], str]:
    """A process with a pool whose ranks are in collectives; their process ids, and the pool's."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, kind, str(nodes), name, path],
        stdout=subprocess.PIPE,
        env={**os.environ, "SKY_TEST": mark},
        cwd=Path(__file__).parents[2],
        text=True,
    )
    assert owner.stdout is not None
    with owner.stdout:
        pids = [int(word) for word in owner.stdout.readline().strip(" []\n").split(",")]
        began, pool = owner.stdout.readline().split()
    assert began == "True"
    return owner, pids, pool


@pytest.mark.parametrize("world", some([("jax", 2), ("torch", 4), ("keras", 2)]))
def test_a_pool_in_a_collective_ends_with_its_notebook(world: World, took: Took) -> None:
    kind, nodes = world
    need(kind)
    mark = f"{os.environ['SKY_TEST']}-{kind}-{nodes}"
    owner, _, pool = an_owner(kind, nodes, "ends", "-", mark)
    assert len(marked_processes(mark)) >= 4 + nodes
    owner.kill()
    killed = time.monotonic()
    owner.wait(60)
    assert eventually(lambda: not marked_processes(mark))
    assert eventually(lambda: not pool_folders(pool))
    took.row(
        "the notebook's kernel is killed, and the pool was made without `--keep`",
        see="nothing: no process and no file of the pool is left",
        kept="the history of runs",
        on=f"{kind}, {nodes} ranks in collectives",
        ended=time.monotonic() - killed,
    )


@pytest.mark.parametrize("world", some([("jax", 4), ("torch", 2), ("keras", 4)]))
def test_a_kept_pool_in_a_collective_outlives_its_notebook(world: World, tmp_path: Path, took: Took) -> None:
    kind, nodes = world
    need(kind)
    path, name = tmp_path / "stop", f"outlives-{kind}-{nodes}"
    owner, pids, id = an_owner(kind, nodes, name, str(path), os.environ["SKY_TEST"])
    owner.kill()
    owner.wait(60)
    registry = Registry()
    row = registry.pool(name)
    registry.close()
    assert row is not None
    began = time.monotonic()
    pool = Pool.attach(row)
    try:
        (running,) = [run for run, facts in pool.runs().items() if not facts["over"]]
        steps = Steps()
        current: Run = pool.adopt(running, steps)
        assert eventually(functools.partial(steps.taken.get, nodes - 1, False))
        assert steps.go_on(nodes)
        took.row(
            "the notebook's kernel is killed, and the pool was made with `--keep`",
            see="in the next kernel, that the pool lives and what runs; `%sky attach` shows all of it",
            kept="everything on the nodes, all output, all results",
            on=f"{kind}, {nodes} ranks in collectives",
            shown=time.monotonic() - began,
        )
        path.touch()
        assert_all_is_there(pool.attend(current), pids)
        assert run(pool, "reduce(rank + 1)").values == [nodes * (nodes + 1) / 2] * nodes
    finally:
        pool.down()
    assert eventually(lambda: pool_folders(id) == [])
