"""How single pods and whole jobs end: by their pool, by their lease and deadline, and by others; and what they say."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import pytest

from sky_jupyter.errors import ProvisionError
from sky_jupyter.pool.registry import orphaned_machines, provider_accounts
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.providers import Kubeflow
from sky_jupyter.providers.base import Order
from sky_jupyter.providers.provisioning_types import MachineRecord
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.kubernetes import containers
from tests.kubernetes.space import Space
from tests.took import Took

pytestmark = [pytest.mark.root, pytest.mark.slow]

ENDED = "its pool has ended, or does not have this node any more"


@pytest.fixture
def provider(space: Space) -> Kubeflow:
    """Of small pods, which need no Python."""
    config, small = str(space.kubeconfig()), {"cpu": "50m", "memory": "64Mi"}
    return Kubeflow(kubeconfig=config, image=containers.BARE, resources=small)  # type: ignore[arg-type]


def make(provider: Kubeflow, nodes: int, *, lasts: float = 3600.0, owner: str = "a test") -> Order:
    """Make a TrainJob; its order."""
    order = Order("0a1b2c3d", uuid.uuid4().hex, until=time.time() + lasts, owner=owner, name="small")
    provider.create(PoolSpec(provider=provider, nodes=nodes), nodes, order)
    return order


def states(provider: Kubeflow) -> list[str]:
    return [one.state for one in provider.list("0a1b2c3d")]


def running(space: Space, provider: Kubeflow, nodes: int) -> Sequence[MachineRecord]:
    """The machines, once all run."""
    space.wait("the pods run", lambda: states(provider) == ["running"] * nodes)
    return provider.list("0a1b2c3d")


def test_one_pod_of_a_job_ends_and_is_not_replaced_and_the_others_stay(space: Space, provider: Kubeflow) -> None:
    make(provider, 2)
    first, second = (one.id for one in running(space, provider, 2))
    provider.destroy([first])
    space.wait("its end is seen", lambda: states(provider) == ["ended", "running"])
    assert ENDED in provider.console(first)
    # Its job has had time to replace it, and replaces one that was evicted meanwhile.
    (pod,) = space.pods("Running")
    space.evict(pod["metadata"]["name"])
    back = space.wait("the pod is back", lambda: [one["metadata"] for one in space.pods("Running")])
    assert [one["uid"] for one in back] != [pod["metadata"]["uid"]]
    space.wait("it is seen", lambda: states(provider) == ["ended", "running"])
    provider.destroy([second])
    provider.destroy([first, second])
    space.wait("nothing is left", lambda: not space.left())


def test_a_pods_own_log_is_there_and_that_from_before_its_restart(space: Space, provider: Kubeflow) -> None:
    make(provider, 1)
    (machine,) = running(space, provider, 1)
    space.wait("its first word", lambda: provider.console(machine.id).startswith("sky: waiting for the pool"))
    assert provider.console(machine.id, lines=1).count("\n") == 1
    with pytest.raises(ProvisionError, match="has no earlier log"):
        provider.console(machine.id, previous=True)
    (pod,) = space.pods()
    space.kill_container(pod["metadata"]["name"])
    space.wait("the container is back", lambda: provider.list("0a1b2c3d")[0].incarnation.endswith("/1"))
    assert provider.console(machine.id, previous=True).startswith("sky: waiting for the pool")
    with pytest.raises(ProvisionError, match="has no pod"):
        provider.console(f"{machine.id}1")
    provider.destroy([machine.id])
    space.wait("nothing is left", lambda: not space.left())


def test_jobs_whose_time_is_over_end_by_themselves_and_a_sweep_removes_them(
    space: Space, provider: Kubeflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took: Took
) -> None:
    took.row(
        "pods end by their lease or their pool's time, and no notebook is there",
        see="`%sky logs --pod` says why; their TrainJob stays, finished, until `%load_ext`, `%sky sweep` or the server "
        "removes it",
        kept="-",
    )
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))
    registry = Registry()
    make(provider, 2, lasts=1.0, owner="another/1234abcd")
    other = make(provider, 1, owner="another/1234abcd")
    lost = make(provider, 1, owner=provider_accounts.owner(registry))
    space.wait("the first has ended", lambda: sorted(states(provider)) == ["ended", "ended", "running", "running"])
    assert {one.remains for one in provider.list(None) if one.state == "ended"} == {True}
    found = orphaned_machines.look(registry, provider, [])
    assert len([one for one in found if one.ends]) == 3
    assert orphaned_machines.end(provider, found, 30.0) == []
    assert [one.id for one in provider.list(None) if one.must_go] == [one.record.id for one in found if not one.ends]
    names = [job["metadata"]["name"] for job in space.all("trainjobs")]
    assert [other.token[:8] in name for name in names if lost.token[:8] not in name] == [True]
    registry.close()
    provider.destroy([one.id for one in provider.list(None)])
    space.wait("nothing is left", lambda: not space.left())
