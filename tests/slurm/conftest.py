"""Clusters for a file of tests, and how a provider finds them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hosts.world import World
from tests.slurm.cluster import Cluster, LocalCluster, on_hosts, on_this_machine


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A login host and two nodes with a shared /home, on which a plain pool has been."""
    with on_hosts(2) as made:
        yield made


@pytest.fixture(scope="module")
def world(cluster: Cluster) -> World:
    """The hosts of the cluster: the fixture `config` writes the user's SSH configuration for them."""
    return cluster.world


@pytest.fixture(scope="module")
def local_cluster() -> Iterator[LocalCluster]:
    """A cluster of two slurmds on this machine, which Slurm's commands find by themselves."""
    with on_this_machine(2) as made, pytest.MonkeyPatch.context() as patch:
        for name, value in made.env.items():
            patch.setenv(name, value)
        yield made
