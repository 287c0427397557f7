"""Pools of a real Slurm: cells, queues, GPUs, and how jobs end; and nothing of them is left on any host."""

from __future__ import annotations

import re
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sky_jupyter.errors import PoolError
from sky_jupyter.plugins import parse_plugins
from sky_jupyter.pool.base.events import PhaseEvent
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.pool.runs.result import CellError
from sky_jupyter.session.pools import renew_taken
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.magics.notebook import Cell, notebook
from tests.pool.pools import begin, run
from tests.pool.remote import MARKS, nothing_here, wait_until
from tests.slurm.cluster import Cluster
from tests.slurm.pools import a_dead_owner, nothing_is_left, provider, slurm_pool

pytestmark = [*MARKS, pytest.mark.usefixtures("config", "clean")]

WHERE = "import os, socket\n(socket.gethostname(), os.environ.get('CUDA_VISIBLE_DEVICES'))"

COUNT = """
import time
for number in range(200):
    print(number)
    time.sleep(0.05)
'through'
"""


@pytest.fixture
def clean(cluster: Cluster) -> Iterator[None]:
    """After each test nothing of it is there."""
    yield
    nothing_is_left(cluster)


def why_broken(pool: Pool) -> str:
    """What a cell's author is told, once the pool is broken."""
    wait_until(lambda: pool.state == "broken")
    with pytest.raises(PoolError) as caught:
        run(pool, "1")
    return str(caught.value)


def test_a_job_s_nodes_run_a_cell_and_ranks_see_nothing_of_slurm_that_frameworks_read(cluster: Cluster) -> None:
    with slurm_pool(cluster, gpus_per_node=1) as pool:
        (job,) = cluster.jobs()
        assert cluster.job(job)["NumNodes"] == "2"
        assert run(pool, WHERE).values == [(host.name, "0") for host in cluster.nodes]
        seen = run(pool, "sorted(name for name in os.environ if name.startswith(('SLURM_', 'PMI')))").values
        assert not {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_LOCALID"} & set(seen[0])
        assert pool.pricing is not None
        assert re.fullmatch(r"\d+ min of the allocation left", str(pool.pricing()))
        # Nothing of ours is where everybody logs in.
        commands = [command for _, _, command in cluster.login.processes("ada")]
        assert [one for one in commands if "python" in one.split()[0]] == []
    assert cluster.state(job) in ("CANCELLED", "COMPLETED", "COMPLETING")


@pytest.mark.slow
def test_two_pools_share_nodes_and_have_gpus_of_their_own(cluster: Cluster) -> None:
    def visible(name: str) -> list[tuple[str, str]]:
        with slurm_pool(cluster, name=name, gpus_per_node=1) as pool:
            both.wait(timeout=120)
            values = run(pool, WHERE).values
            both.wait(timeout=120)
            return values

    both = threading.Barrier(2)
    with ThreadPoolExecutor(2) as beside:
        one, other = beside.map(visible, ("one", "other"))
    assert [host for host, _ in one] == [host for host, _ in other] == [host.name for host in cluster.nodes]
    assert {(gpu, beside) for (_, gpu), (_, beside) in zip(one, other, strict=True)} in ({("0", "1")}, {("1", "0")})


@pytest.mark.slow
def test_the_gpus_of_a_job_s_step_are_shared_out_to_ranks(cluster: Cluster) -> None:
    # (It stands in for the driver's tool, which says what the node has.)
    rows = "".join(f"{number}, GPU-{number:08d}, NVIDIA A100-SXM4-80GB\\n" for number in range(2))
    for node in cluster.nodes:
        node.write("/usr/bin/nvidia-smi", f"#!/bin/sh\nprintf '{rows}'\n", mode=0o755)
    code = "import os; (os.environ['CUDA_VISIBLE_DEVICES'], sky.instance_info().accelerators)"
    try:
        with slurm_pool(cluster, ranks_per_node=2, gpus_per_node=2) as pool:
            assert run(pool, f"import sky_jupyter as sky\n{code}").values == [("0", 2), ("1", 2)] * 2
    finally:
        for node in cluster.nodes:
            node.run("rm /usr/bin/nvidia-smi")


@pytest.mark.slow
def test_a_job_that_waits_says_why_and_an_interrupt_takes_it_out_of_the_queue(cluster: Cluster) -> None:
    blocker = cluster.ada("sbatch --parsable -N2 --exclusive -o /dev/null --wrap 'sleep 600'")
    cluster.wait("the other job runs", lambda: cluster.state(blocker) == "RUNNING")
    lines: list[str] = []
    pressed = threading.Event()

    def hear(event: object) -> None:
        if isinstance(event, PhaseEvent) and event.phase == "queue" and not event.done:
            lines.append(event.text)

    def tick() -> None:
        if pressed.is_set():
            raise KeyboardInterrupt

    pool = Pool(PoolSpec(provider=provider(cluster), nodes=2))
    try:
        with ThreadPoolExecutor(1) as beside:
            start = beside.submit(pool.start, hear, tick)
            wait_until(lambda: any("pending" in line and "Resources" in line for line in lines))
            (job,) = set(cluster.jobs()) - {blocker}
            pressed.set()
            with pytest.raises(KeyboardInterrupt):
                start.result(timeout=60)
        assert cluster.state(job) == "CANCELLED"
    finally:
        cluster.ada(f"scancel {blocker}")


@pytest.mark.slow
def test_a_job_left_in_the_queue_is_attached_to_by_a_later_notebook_while_it_waits(
    cluster: Cluster, tmp_path: Path
) -> None:
    blocker = cluster.ada("sbatch --parsable -N2 --exclusive -o /dev/null --wrap 'sleep 600'")
    cluster.wait("the other job runs", lambda: cluster.state(blocker) == "RUNNING")
    try:
        line = f"%sky up --provider slurm --login {cluster.login.name} --offline --nodes 2 --time 10m --name later"
        with notebook(tmp_path) as first:
            first.run("%load_ext sky_jupyter")
            said = first.run(f"{line} --detach").stream()
            assert "`%sky attach later`" in said
        (job,) = set(cluster.jobs()) - {blocker}
        with notebook(tmp_path) as second:
            second.run("%load_ext sky_jupyter")
            freed = threading.Event()

            def free(cell: Cell) -> bool:
                if not freed.is_set() and any("pending (Resources)" in one for one in cell.updates):
                    freed.set()
                    cluster.ada(f"scancel {blocker}")
                return False

            attached = second.run("%sky attach later", until=free)
            assert attached.status == "ok", attached.outputs
            assert freed.is_set()
            assert cluster.jobs() == [job]
            second.run("%%sky --name later\n6 * 7")
            assert second.value("_sky.values") == [42, 42]
            second.run("%sky down")
    finally:
        cluster.ada(f"scancel {blocker}")


@pytest.mark.slow
def test_a_job_that_somebody_cancels_breaks_its_pool_which_says_so(cluster: Cluster) -> None:
    with slurm_pool(cluster) as pool:
        (job,) = cluster.jobs()
        cluster.ada(f"scancel {job}")
        assert "cancelled (scancel)" in why_broken(pool)


@pytest.mark.slow
def test_the_lease_ends_the_job_of_a_killed_notebook(cluster: Cluster) -> None:
    id = a_dead_owner(cluster, lease=10)
    (job,) = cluster.jobs()
    cluster.wait("its lease has ended the job", lambda: cluster.jobs() == [])
    assert cluster.state(job) == "COMPLETED"
    # Its link has seen it end.
    wait_until(lambda: nothing_here(id))


@pytest.mark.long
def test_the_link_of_a_killed_notebook_ends_with_its_job_before_the_lease_is_over(cluster: Cluster) -> None:
    id = a_dead_owner(cluster, lease=240)
    (job,) = cluster.jobs()
    cluster.ada(f"scancel {job}")
    wait_until(lambda: nothing_here(id))


@pytest.mark.long
def test_a_killed_notebook_s_pool_is_attached_to(cluster: Cluster) -> None:
    id = a_dead_owner(cluster, lease=600)
    registry = Registry()
    try:
        row = registry.pool(id)
    finally:
        registry.close()
    assert row is not None
    pool = Pool.attach(row)
    try:
        assert run(pool, "mine").values == [7, 7]
    finally:
        pool.down()


@pytest.mark.long
def test_a_run_goes_on_while_the_link_to_the_login_host_is_cut(cluster: Cluster) -> None:
    with slurm_pool(cluster) as pool:
        current = begin(
            pool, "import time\nfor number in range(200):\n    print(number)\n    time.sleep(0.05)\n'through'"
        )
        wait_until(lambda: all("3\n" in "".join(outcome.stdout) for outcome in current.outcomes.values()))
        cluster.world.cut()
        try:
            wait_until(lambda: len(pool.away) == 2)
        finally:
            cluster.world.mend()
        result = pool.attend(current)
        assert result.values == ["through"] * 2
        assert result.stdout(1).split() == [str(number) for number in range(200)]


@pytest.mark.long
def test_a_preempted_job_is_told_from_one_that_failed(cluster: Cluster) -> None:
    with slurm_pool(cluster, exclusive=True) as pool:
        urgent = cluster.ada("sbatch --parsable -p urgent -N2 --exclusive -o /dev/null --wrap 'sleep 5'")
        assert "preempted" in why_broken(pool)
        cluster.wait("the urgent job is through", lambda: cluster.state(urgent) == "COMPLETED")


@pytest.mark.long
@pytest.mark.timeout(500)  # Slurm starts no job again within two minutes
def test_a_preempted_job_is_queued_again_and_the_pool_is_ready_in_it_before_any_cell(cluster: Cluster) -> None:
    with slurm_pool(cluster, exclusive=True, requeue=True) as pool:
        told: list[str] = []
        pool.farewell = told.append
        run(pool, "mine = 7")
        (job,) = cluster.jobs()
        urgent = cluster.ada("sbatch --parsable -p urgent -N2 --exclusive -o /dev/null --wrap 'sleep 5'")
        cluster.wait("it waits by itself", lambda: pool.phases.line_of("queue"))
        assert pool.condition == "restarting"
        cluster.wait("the urgent job is through", lambda: cluster.state(urgent) == "COMPLETED")
        cluster.wait("the job is queued again", lambda: cluster.state(job) == "PENDING")
        cluster.wait("the pool is ready", lambda: pool.state == "ready", 300)
        assert cluster.jobs() == [job]
        assert cluster.job(job)["Restarts"] == "1"
        seen = run(pool, "import socket; socket.gethostname(), globals().get('mine')").values
        assert seen == [(host.name, None) for host in cluster.nodes]
        wait_until(lambda: "pool 'tried' is ready again, with new kernels on all ranks" in told)


@pytest.mark.long
def test_a_job_that_is_about_to_be_queued_again_ends_with_its_pool(cluster: Cluster) -> None:
    with slurm_pool(cluster, exclusive=True, requeue=True) as pool:
        cluster.ada("sbatch --parsable -p urgent -N2 --exclusive -o /dev/null --wrap 'sleep 5'")
        cluster.wait("it waits by itself", lambda: pool.phases.line_of("queue"))


@pytest.mark.long
def test_a_job_that_is_cancelled_while_it_is_queued_again_is_not_submitted_anew_by_itself(cluster: Cluster) -> None:
    with slurm_pool(cluster, exclusive=True, requeue=True) as pool:
        (job,) = cluster.jobs()
        cluster.ada("sbatch --parsable -p urgent -N2 --exclusive -o /dev/null --wrap 'sleep 5'")
        cluster.wait("it waits by itself", lambda: pool.phases.line_of("queue"))
        cluster.wait("the job is queued again", lambda: cluster.state(job) == "PENDING")
        cluster.ada(f"scancel {job}")
        wait_until(lambda: pool.state == "broken")
        assert "0 of 2 machines are there, and no other is made by itself" in pool.broken
        assert job not in cluster.jobs()
        # The next cell may.
        renew_taken(pool)
        assert run(pool, "1").values == [1, 1]


@pytest.mark.long
def test_a_node_that_loses_power_is_named_and_one_of_another_job_takes_its_place(cluster: Cluster) -> None:
    first, last = cluster.nodes
    with slurm_pool(cluster) as pool:
        (job,) = cluster.jobs()
        run(pool, "mine = 7")
        current = begin(pool, "import time; time.sleep(600)")
        cluster.kill(last)
        try:
            # The other node is asked whether it is there: that does not wait until Slurm has noticed.
            wait_until(lambda: 1 not in current.left)
            with pytest.raises(CellError) as caught:
                pool.attend(current)
            assert f"node 1 ({job}/1 ({last.name})) is lost" in str(caught.value.errors[1])
            assert "it is off, or cut off" in str(caught.value.errors[1])
            # Then Slurm takes it out of the job, which goes on.
            wait_until(lambda: cluster.job(job)["NodeList"] == first.name and len(cluster.jobs()) == 2)
            wait_until(lambda: pool.control.lost == set() and not pool.supervisor.repairs.mending)  # type: ignore[union-attr]
            assert run(pool, "import socket; socket.gethostname(), globals().get('mine')").values == [
                (first.name, 7),
                (first.name, None),
            ]
            wait_until(lambda: not pool.away)
        finally:
            cluster.start(last)


@pytest.mark.long
def test_a_first_node_that_loses_power_breaks_the_pool_which_a_restart_makes_anew(cluster: Cluster) -> None:
    first, last = cluster.nodes
    with slurm_pool(cluster) as pool:
        (job,) = cluster.jobs()
        cluster.kill(first)
        try:
            why = why_broken(pool)
            assert first.name in why
            assert "it is off, or cut off" in why
            wait_until(lambda: cluster.job(job)["NodeList"] == last.name)
            pool.restart()
            assert run(pool, "import socket; socket.gethostname()").values == [last.name] * 2
        finally:
            cluster.start(first)


@pytest.mark.long
def test_the_time_limit_is_told_from_other_ends(cluster: Cluster) -> None:
    with slurm_pool(cluster, time="1m") as pool:
        cluster.wait("its time is over", lambda: pool.state == "broken", 180)
        assert "time limit" in why_broken(pool)


@pytest.mark.long  # jax is sent there first
@pytest.mark.timeout(600)
def test_a_collective_of_jax_crosses_the_nodes(cluster: Cluster) -> None:
    with slurm_pool(cluster, plugins=parse_plugins("jax")) as pool:
        received = cluster.nodes[1].network_bytes()[0]
        code = """
        import jax, jax.numpy as jnp
        from jax.experimental import multihost_utils
        multihost_utils.process_allgather(jnp.full(1 << 20, 1.0 + jax.process_index())).sum(axis=1).tolist()
        """
        assert run(pool, textwrap.dedent(code)).values == [[float(1 << 20), float(2 << 20)]] * 2
        assert cluster.nodes[1].network_bytes()[0] - received > 4 << 20
