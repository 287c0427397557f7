"""Pools on pods from wherever a notebook is: in the cluster, behind a way that is cut, before an older Trainer."""

from __future__ import annotations

import time

import pytest

import sky_jupyter as sky
from sky_jupyter.errors import SkyError
from sky_jupyter.pool.pool import Pool
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.hosts.world import skip_unless_hosts_run
from tests.kubernetes import containers
from tests.kubernetes.admission import OLD_TRAINER
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.space import Space
from tests.pool.pools import begin, run, wait_until

pytestmark = pytest.mark.root

RESOURCES = {"cpu": "1", "memory": "1Gi"}


@pytest.fixture(autouse=True)
def _same_python() -> None:
    """The image's packages are this environment's, for Debian 12's Python."""
    skip_unless_hosts_run("3.11", "bookworm")


def provider(space: Space, **options: object) -> sky.Kubeflow:
    config = str(space.kubeconfig("ada"))
    more = {"image": containers.JAX, "resources": RESOURCES, "offline": True, **options}
    return sky.Kubeflow(namespace=space.name, kubeconfig=config, **more)


@pytest.mark.slow
def test_a_notebook_in_the_cluster_has_a_pool_by_its_service_account_alone(space: Space) -> None:
    notebook = space.notebook()
    said = notebook.run(f"""
import os
os.environ["SKY_REGISTRY"] = "/tmp/registry.sqlite"
import sky_jupyter as sky
made = sky.Kubeflow(namespace={space.name!r}, image={containers.JAX!r}, resources={RESOURCES!r}, offline=True)

@sky.function
def name() -> str:
    import socket
    return socket.gethostname()

with sky.Compute(provider=made, nodes=2) as pool:
    print("names:", *sorted(name() @ pool))
""")
    (line,) = [line for line in said.splitlines() if line.startswith("names:")]
    first, second = line.split()[1:]
    assert first.endswith("-node-0-0")
    assert second == first[:-1] + "1"
    space.wait("only the notebook is left", lambda: space.left() == [f"pods/{notebook.name}"])


@pytest.mark.long
def test_a_run_goes_on_while_the_laptops_way_to_the_api_server_is_cut_for_a_minute(space: Space) -> None:
    pool = Pool(PoolSpec(provider=provider(space), nodes=2))
    pool.start()
    try:
        pids = run(pool, "import os\nos.getpid()").values
        current = begin(
            pool, "import time\nfor i in range(150):\n    print(i, flush=True)\n    time.sleep(0.6)\nos.getpid()"
        )
        wait_until(lambda: all(outcome.stdout for outcome in current.outcomes.values()))
        space.cut()
        try:
            wait_until(lambda: pool.away, 120)
            time.sleep(60)
        finally:
            space.mend()
        result = pool.attend(current)
        assert result.values == pids
        assert [result.stdout(rank).split() for rank in (0, 1)] == [[str(number) for number in range(150)]] * 2
        assert run(pool, "len(data)", {"data": b"x" * (9 << 20)}).values == [9 << 20] * 2
    finally:
        pool.down()
    space.wait("nothing is left", lambda: space.left() == [])


@pytest.mark.slow
def test_an_older_trainer_is_refused_in_words_and_nothing_of_the_try_stays(cluster: Cluster) -> None:
    space = cluster.space(labels={OLD_TRAINER: "2.1"})
    pool = Pool(PoolSpec(provider=provider(space), nodes=1))
    with pytest.raises(SkyError, match=r"its Kubeflow Trainer is older than 2\.2"):
        pool.start()
    pool.down()
    space.wait("nothing is left", lambda: space.left() == [])
    space.close()
