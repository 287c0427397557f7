"""A pool of a cluster where nodes have homes of their own, and whose login host greets, and lets nobody dial them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pool.pools import run
from tests.pool.remote import MARKS
from tests.slurm.cluster import Cluster, on_hosts
from tests.slurm.pools import nothing_is_left, slurm_pool

pytestmark = [*MARKS, pytest.mark.slow, pytest.mark.usefixtures("config")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with on_hosts(2, shared_home=False) as made:
        made.forbid_dialling()
        made.login.write("/home/ada/.bashrc", "echo 'Welcome to the cluster'; echo 'It has news'\n")
        yield made


def test_a_pool_needs_neither_a_shared_home_nor_a_way_from_the_login_host(cluster: Cluster) -> None:
    with slurm_pool(cluster) as pool:
        namespace = {"large": bytes(9 << 20)}
        assert run(pool, "import socket\n(socket.gethostname(), len(large))", namespace).values == [
            (host.name, 9 << 20) for host in cluster.nodes
        ]
    nothing_is_left(cluster)
