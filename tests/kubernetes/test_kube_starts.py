"""Whatever happens to a start of pods, no object of it is left in the cluster."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from sky_jupyter.pool.registry.registry import Registry
from tests.kubernetes import faulty_api
from tests.kubernetes.kube_starts import ADDRESS, Start
from tests.kubernetes.space import POD_RULES, Space
from tests.providers import starts
from tests.took import Took

# So many starts, and of many several beside each other: each row of them imports Kubernetes' clients once.
SLOW, LONG, BESIDE = 4, 200, 3


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))
    made = Registry()
    yield made
    made.close()


def strike(space: Space, registry: Registry, folder: Path, seed: int, count: int, beside: int) -> None:
    """Do the starts, sweep, and see that nothing is left."""
    space.allow("ada", POD_RULES)
    with faulty_api.serving(space.kubeconfig()) as way, pytest.MonkeyPatch.context() as patch:
        patch.setenv(ADDRESS, way.address)
        for number in range(count):
            way.kubeconfig(folder, Start.of(seed, number).name)
        starts.do_all(folder, registry.path, seed, count, beside, "tests.kubernetes.kube_starts")
        way.calm()
        starts.sweep_up(registry)
        # What deleted objects own is collected by the cluster.
        space.wait("nothing is left", lambda: not space.left())
        # Each makes what it has asked for, and one pod more, however often it had to ask.
        most = {f"start{number}": Start.of(seed, number).nodes + 1 for number in range(count)}
        assert {name: pods for name, pods in way.most.items() if pods > most[name]} == {}
        assert len(way.most) >= count / 2


@pytest.mark.root
@pytest.mark.slow
def test_nothing_is_left_in_the_cluster_whatever_happens_to_a_start(
    space: Space, registry: Registry, tmp_path: Path, took: Took
) -> None:
    took.row(
        "the notebook or its link is killed or interrupted, or the API refuses, cuts, loses or delays a call, while "
        "pods are made (TrainJobs of `sky.Kubeflow`, bare pods of `sky.Kubernetes`)",
        see="what went wrong",
        kept="no TrainJob, pod, Service or ConfigMap is left, and none was made twice",
    )
    strike(space, registry, tmp_path, int(os.environ.get("SKY_STARTS_SEED") or 2039), SLOW, beside=1)


@pytest.mark.root
@pytest.mark.long
@pytest.mark.timeout(7200)
def test_nothing_is_left_in_the_cluster_after_many_starts(space: Space, registry: Registry, tmp_path: Path) -> None:
    seed = int(os.environ.get("SKY_STARTS_SEED") or random.SystemRandom().randrange(1 << 30))
    strike(space, registry, tmp_path, seed, int(os.environ.get("SKY_STARTS") or LONG), BESIDE)
