"""``%sky logs --pod``: the own logs of nodes' machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from sky_jupyter.errors import PoolError, ProvisionError
from sky_jupyter.magics import logs
from sky_jupyter.pool.pool import Pool
from sky_jupyter.providers import Local
from sky_jupyter.providers.base import Order
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.providers.cloud import Cloud


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pool:
    """A pool of two machines, the second of which has been restarted."""
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))
    cloud = Cloud(str(tmp_path / "cloud.sqlite"))
    made = Pool(PoolSpec(provider=cloud, nodes=2, name="night"))
    made.lifecycle.ids = cloud.create(made.spec, 2, Order(made.id, token="one", zone="here-a"))
    for id in made.ids:
        cloud.say(id, "waiting\nfor the pool\n")
    cloud.say(made.ids[1], "out of memory\n", previous=True)
    return made


def test_a_nodes_machine_has_a_log_of_its_own_and_an_earlier_one(pool: Pool) -> None:
    assert logs.of_machines(pool, [0]) == "waiting\nfor the pool"
    assert logs.of_machines(pool, [1], last=1) == "for the pool"
    assert logs.of_machines(pool, [1], previous=True) == "out of memory"
    with pytest.raises(ProvisionError, match="has no earlier log"):
        logs.of_machines(pool, [0], previous=True)


def test_logs_of_several_machines_are_told_apart(pool: Pool) -> None:
    first, second = pool.ids
    said = logs.of_machines(pool, [0, 1], previous=True)
    no = f"(machine {first} has no earlier log)"
    assert said == f"── node 0: {first}\n{no}\n── node 1: {second}\nout of memory"


def test_machines_logs_are_written_to_files(pool: Pool, tmp_path: Path) -> None:
    assert "nodes 0, 1 written to" in logs.of_machines(pool, [0, 1], to=str(tmp_path / "own"))
    assert [path.name for path in sorted((tmp_path / "own").iterdir())] == ["node0.log", "node1.log"]
    logs.of_machines(pool, [1], to=str(tmp_path / "one.log"))
    assert (tmp_path / "one.log").read_text() == "waiting\nfor the pool\n"


def test_a_node_or_a_log_that_is_not_there_is_said(pool: Pool) -> None:
    with pytest.raises(PoolError, match="has no node 2: it has 2"):
        logs.of_machines(pool, [2])
    with pytest.raises(PoolError, match="no log of their own"):
        logs.of_machines(Pool(PoolSpec(provider=Local(), nodes=1)), [0])
