"""The cluster of a run of tests, and a namespace for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.kubernetes.cluster import missing, of_run

if TYPE_CHECKING:
    from tests.kubernetes.cluster import Cluster
    from tests.kubernetes.space import Space


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """The one cluster, which all workers share and which ends with the run."""
    if lacks := missing():
        pytest.skip(f"the tests on Kubernetes need {lacks}")
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        return of_run(base.parent, os.getppid())
    return of_run(base, os.getpid())


@pytest.fixture
def space(cluster: Cluster) -> Iterator[Space]:
    """A namespace of the test's own; ``ada`` may use it."""
    made = cluster.space()
    yield made
    made.close()
