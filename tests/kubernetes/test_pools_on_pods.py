"""A pool on the pods of a TrainJob, as other pools are: what it does, and what it survives."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import sky_jupyter as sky
from sky_jupyter.plugins import parse_plugins
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.pool.runs.result import CellError
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.kubernetes import containers
from tests.pool.pools import run, underway, wait_until

if TYPE_CHECKING:
    from tests.kubernetes.cluster import Cluster
    from tests.kubernetes.space import Space

pytest.importorskip("kubeflow")
pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]

SETUP = """
import os, socket, time, jax, numpy, sky_jupyter as sky
from jax.experimental import multihost_utils
rank = sky.instance_info().rank
kept = f"kept by {rank}"
def reduce(): return float(multihost_utils.process_allgather(numpy.array([rank + 1.0])).sum())
def received(): return int(open("/proc/net/dev").read().partition("eth0:")[2].split()[0])
"""
OWNER = """
import sys, time, sky_jupyter as sky
from sky_jupyter.pool.pool import Pool
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.pool.pools import run, underway
pods = sky.Kubeflow(kubeconfig=sys.argv[1], image=sys.argv[2], resources={"cpu": "500m"}, offline=True)
pool = Pool(PoolSpec(provider=pods, nodes=1, name="kept", keep=True))
pool.start()
run(pool, "kept = 42")
underway(pool, "import time\\nfor n in range(60): print(n, flush=True); time.sleep(0.5)")
print("under way", flush=True)
time.sleep(3600)
"""


@pytest.fixture(scope="module")
def space(cluster: Cluster) -> Iterator[Space]:
    """A namespace with an API server of its own, which may be ended."""
    made = cluster.space()
    made.own_api()
    yield made
    made.close()


@pytest.fixture(scope="module")
def pool(space: Space) -> Iterator[Pool]:
    """Two pods with JAX; the user's credentials come from a program, as clouds' own do."""
    provider = sky.Kubeflow(
        kubeconfig=str(space.kubeconfig("ada", plugin=True)),  # type: ignore[arg-type]
        image=containers.JAX,
        resources={"cpu": "500m"},  # type: ignore[arg-type]
        offline=True,
    )
    made = Pool(PoolSpec(provider=provider, nodes=2, plugins=parse_plugins("jax")))
    made.start()
    try:
        run(made, SETUP)
        yield made
    finally:
        made.down()
    space.wait("all is gone", lambda: space.left() == [])


@pytest.mark.slow
def test_ranks_compute_together_and_each_is_in_its_own_pod(pool: Pool, space: Space) -> None:
    assert run(pool, "reduce()").values == [3.0, 3.0]
    names = [pod["spec"]["hostname"] for pod in space.pods()]
    assert run(pool, "socket.gethostname()").values == names


@pytest.mark.slow
def test_where_names_the_rank_that_is_not_where_the_others_are(pool: Pool) -> None:
    current = underway(pool, "time.sleep(3600) if rank else reduce()")
    try:
        wait_until(lambda: "sleep" in str(pool.where()) and "process_allgather" in str(pool.where()))
    finally:
        pool.interrupt(current)
        with pytest.raises(CellError):
            pool.attend(current)
        pool.settle()
    assert run(pool, "kept, reduce()").values == [("kept by 0", 3.0), ("kept by 1", 3.0)]


@pytest.mark.slow
def test_a_rank_that_fails_frees_the_others_from_their_collective_and_all_names_are_kept(pool: Pool) -> None:
    with pytest.raises(CellError, match="rank 1"):
        run(pool, "if rank == 1: raise ValueError('here')\nreduce()", grace=0.5)
    pool.settle()
    assert run(pool, "kept, reduce()").values == [("kept by 0", 3.0), ("kept by 1", 3.0)]


@pytest.mark.slow
def test_a_run_goes_on_while_the_api_server_restarts_and_loses_no_line(pool: Pool, space: Space) -> None:
    current = underway(pool, "for n in range(40): print(n, flush=True); time.sleep(0.25)")
    space.restart_api()
    result = pool.attend(current)
    for one in (0, 1):
        assert [int(line) for line in result.stdout(one).splitlines()[1:]] == list(range(40))


@pytest.mark.slow
def test_credentials_that_expire_are_asked_for_again(pool: Pool, space: Space) -> None:
    before = space.plugin_calls()
    space.expire()
    space.renew()
    space.restart_api()
    assert run(pool, "reduce()").values == [3.0, 3.0]
    assert space.plugin_calls() > before


@pytest.mark.long
def test_a_large_array_goes_up_once_and_then_from_pod_to_pod(pool: Pool) -> None:
    large = os.urandom(1 << 20) * 500
    before = run(pool, "received()").values
    assert run(pool, "len(large)", {"large": large}).values == [500 << 20] * 2
    came = [late - early for early, late in zip(before, run(pool, "received()").values, strict=True)]
    # What the API forwards does not come in by the pod's own card.
    assert came[0] < 100 << 20
    assert came[1] > 500 << 20


@pytest.mark.long
def test_a_cut_of_a_minute_loses_no_line(pool: Pool, space: Space) -> None:
    current = underway(pool, "for n in range(90): print(n, flush=True); time.sleep(1)")
    space.cut()
    threading.Timer(60, space.mend).start()
    result = pool.attend(current)
    for one in (0, 1):
        assert [int(line) for line in result.stdout(one).splitlines()[1:]] == list(range(90))


@pytest.mark.slow
def test_an_evicted_pod_is_prepared_again_while_the_other_keeps_its_names(pool: Pool, space: Space) -> None:
    current = underway(pool, "time.sleep(3600 if rank else 0)")
    space.evict(space.pods()[1]["metadata"]["name"])
    pool.wait(current)
    assert current.outcomes[0].status == "ok"
    assert current.outcomes[1].status == "lost"
    pool.settle()
    said = run(pool, "import sky_jupyter as sky\nglobals().get('kept'), sky.instance_info().rank").values
    assert said == [("kept by 0", 0), (None, 1)]
    run(pool, SETUP)
    assert run(pool, "reduce()").values == [3.0, 3.0]


@pytest.mark.long
def test_a_pool_grows_by_another_job_and_shrinks_again(pool: Pool, space: Space) -> None:
    pool.resize(3)
    variables = "import os\nos.environ['JAX_NUM_PROCESSES'], os.environ['JAX_PROCESS_ID']"
    assert run(pool, variables).values == [("3", "0"), ("3", "1"), ("3", "2")]
    assert len(space.all("trainjobs")) == 2
    pool.resize(2)
    assert run(pool, variables).values == [("2", "0"), ("2", "1")]
    space.wait("a pod is gone", lambda: len(space.pods("Running")) == 2)


@pytest.mark.long
def test_a_pool_outlives_a_killed_notebook_and_is_attached_to_with_all_output(cluster: Cluster) -> None:
    space = cluster.space()
    command = [sys.executable, "-c", OWNER, str(space.kubeconfig("ada")), containers.JAX]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": "."}) as owner:
        assert owner.stdout is not None
        assert any("under way" in line for line in iter(owner.stdout.readline, ""))
        owner.kill()
    registry = Registry()
    row = registry.pool("kept")
    registry.close()
    assert row is not None
    pool = Pool.attach(row)
    try:
        (running,) = [id for id, facts in pool.runs().items() if not facts["over"]]
        result = pool.attend(pool.adopt(running, lambda event: None))
        assert [int(line) for line in result.stdout(0).splitlines()[1:]] == list(range(60))
        assert run(pool, "kept").values == [42]
    finally:
        pool.down()
    space.wait("all is gone", lambda: space.left() == [])
    space.close()
