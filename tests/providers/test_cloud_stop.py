"""Pools whose machines are stopped: the disks stay, and the pool goes on there."""

from __future__ import annotations

import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.errors import NoCapacity, PoolError
from sky_jupyter.magics import leftover_pools
from sky_jupyter.plugins import Plugin
from sky_jupyter.pool import end_without_manager
from sky_jupyter.pool.lifecycle import stop_start
from sky_jupyter.pool.lifecycle.lifecycle import PoolLifecycle
from sky_jupyter.pool.open_pools import pools
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.registry import cost_rows, machine_orders, stopped_pools
from sky_jupyter.pool.registry.machine_sweep import sweep_machines
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.providers.local import Local
from sky_jupyter.session.pools import start_stopped, stop_pool
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.hosts.world import World, hosts, skip_unless_hosts_run
from tests.pool.pools import run
from tests.pool.remote import MARKS, wait_until
from tests.providers.bought import buy, pool_of
from tests.providers.cloud import Cloud


def stopped(cloud: Cloud, *plugins: Plugin) -> Pool:
    """A pool that had machines, and has stopped them."""
    pool = pool_of(cloud, 2)
    pool.lifecycle.spec = replace(pool.spec, plugins=plugins)
    pool.lifecycle.ids = buy(pool)
    time.sleep(cloud.visible_within)
    stop_start.stop(pool.lifecycle, print)
    return pool


def test_sweeps_leave_a_stopped_pool_until_its_time_is_over(
    registry: Registry, tmp_path: Path, clock: Callable[[float], None]
) -> None:
    cloud = Cloud(str(tmp_path / "cloud.sqlite"))
    pool = stopped(cloud)
    assert [one.state for one in cloud.machines()] == ["stopped", "stopped"]
    (row,) = registry.pools()
    assert (row.state, row.owner, row.outlives) == ("stopped", 0, False)
    assert sweep_machines(registry).machines == 0
    (line,) = leftover_pools.nobodys()
    assert line.startswith("pool bought: 2 cloud machines, stopped; their disks stay and cost until ")
    assert "`%sky start bought` starts them" in line
    states = [(one.state, one.ended is None) for one in cost_rows.of(registry, pool.id)]
    assert sorted(states) == [("running", False)] * 2 + [("stopped", True)] * 2
    until = max(one.until or 0.0 for one in machine_orders.of(registry, pool.id))
    clock(until + 1)
    assert sweep_machines(registry).machines == 2
    assert cloud.alive() == []
    assert registry.pools() == []


def test_a_stop_ends_what_is_no_node_as_a_machine_that_is_prepared(registry: Registry, tmp_path: Path) -> None:
    cloud = Cloud(str(tmp_path / "cloud.sqlite"))
    pool = pool_of(cloud, 2)
    node, _ = buy(pool)
    pool.lifecycle.ids = [node]
    stop_start.stop(pool.lifecycle, print)
    assert {one.id: one.state for one in cloud.machines() if one.is_there} == {node: "stopped"}
    assert end_without_manager.end_named("bought") == "pool bought: ended"


def test_what_does_not_stop_is_said_and_stopped_by_a_sweep(registry: Registry, tmp_path: Path) -> None:
    cloud = Cloud(str(tmp_path / "cloud.sqlite"))
    pool = pool_of(cloud, 2, shutdown_timeout=0.5)
    pool.lifecycle.ids = buy(pool)
    for _ in range(20):
        cloud.plan("stop", "error")
    told: list[str] = []
    with pytest.raises(PoolError, match=r"not all .* were seen to stop.*`%sky start bought`"):
        stop_pool(pool, told.append)
    assert "could not be confirmed to stop" in told[-1]
    assert len(cloud.alive()) == 2
    (failed,) = sweep_machines(registry).failed.values()
    assert "are to be stopped: the connection broke" in failed
    cloud.calm()
    assert not sweep_machines(registry).failed
    assert {one.state for one in cloud.machines()} == {"stopped"}
    # Whoever started them has died before the pool was there.
    cloud.start(cloud.alive())
    sweep_machines(registry)
    assert {one.state for one in cloud.machines()} == {"stopped"}
    assert end_without_manager.end_named("bought") == "pool bought: ended"


def test_a_stopped_pool_is_ended_by_its_name(registry: Registry, tmp_path: Path) -> None:
    cloud = Cloud(str(tmp_path / "cloud.sqlite"))
    pool = stopped(cloud)
    assert end_without_manager.end_named("bought") == "pool bought: ended"
    assert cloud.alive() == []
    with pytest.raises(PoolError, match="cannot be started"):
        stopped_pools.read(pool.id, "bought")


def test_what_cannot_start_now_stays_stopped(registry: Registry, tmp_path: Path) -> None:
    cloud = Cloud(str(tmp_path / "cloud.sqlite"))
    stopped(cloud)
    cloud.plan("start", "refused")
    with pytest.raises(NoCapacity):
        start_stopped("bought")
    (row,) = registry.pools()
    assert (row.state, row.owner) == ("stopped", 0)
    assert {one.state for one in cloud.machines()} == {"stopped"}
    with pytest.raises(PoolError, match="no pool 'other' is stopped"):
        start_stopped("other")
    assert end_without_manager.end_named("bought") == "pool bought: ended"


@pytest.fixture
def busy(registry: Registry) -> Iterator[sqlite3.Connection]:
    """Another process that writes into the registry, from BEGIN IMMEDIATE to ROLLBACK."""
    with closing(sqlite3.connect(registry.path, isolation_level=None, check_same_thread=False)) as other:
        yield other


def after_a_lock(pool: PoolLifecycle, busy: sqlite3.Connection) -> None:
    """Have the registry be locked as the pool's end is to be recorded first, and free when it has ended."""
    leave_client, attend = pool.leave_client, pool.leaving.attend
    pool.registry.patience = 0.2
    pool.registry.close()

    def leave() -> None:
        busy.execute("BEGIN IMMEDIATE")
        leave_client()

    def attends(*arguments: Any) -> Any:
        busy.execute("ROLLBACK")
        return attend(*arguments)

    pool.leave_client, pool.leaving.attend = leave, attends  # type: ignore[method-assign]


def test_a_stop_that_cannot_be_recorded_is_refused_and_the_pool_goes_on(
    registry: Registry, busy: sqlite3.Connection, tmp_path: Path
) -> None:
    cloud = Cloud(str(tmp_path / "cloud.sqlite"))
    pool = pool_of(cloud, 2)
    pool.lifecycle.ids = buy(pool)
    pool.registry.close()
    pool.registry.patience = 0.2
    busy.execute("BEGIN IMMEDIATE")
    with pytest.raises(PoolError, match="database is locked"):
        stop_pool(pool, print)
    assert pool.state != "ended"
    assert len([one for one in cloud.machines() if one.is_usable]) == 2
    busy.execute("ROLLBACK")
    assert "starts them again" in stop_pool(pool, print)
    assert end_without_manager.end_named("bought") == "pool bought: ended"


def test_no_sweep_ends_a_pool_whose_stop_was_recorded_late(
    registry: Registry, busy: sqlite3.Connection, tmp_path: Path
) -> None:
    cloud = Cloud(str(tmp_path / "cloud.sqlite"))
    pool = pool_of(cloud, 2)
    pool.registry.update(pool.id, "ready", ["/tmp/no-such-folder/sky-x"])
    pool.lifecycle.ids = buy(pool)
    time.sleep(cloud.visible_within)
    after_a_lock(pool.lifecycle, busy)
    assert "starts them again" in stop_pool(pool, print)
    assert [(row.state, row.owner) for row in registry.pools()] == [("stopped", 0)]
    assert sweep_machines(registry).machines == 0
    assert {one.state for one in cloud.machines()} == {"stopped"}
    assert end_without_manager.end_named("bought") == "pool bought: ended"


@pytest.mark.parametrize("locked", [False, True])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_the_disks_stay_if_a_plugin_cannot_be_entered_in_the_notebook(
    error: type[BaseException],
    locked: bool,
    registry: Registry,
    busy: sqlite3.Connection,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def make_nodes(lifecycle: PoolLifecycle) -> None:
        """Light machines let nobody in: this step is left out."""
        if locked:
            after_a_lock(lifecycle, busy)

    def around_client(pool: Pool) -> AbstractContextManager[None]:
        raise error("the notebook lacks a package")

    monkeypatch.setattr(PoolLifecycle, "make_nodes", make_nodes)
    cloud = Cloud(str(tmp_path / "cloud.sqlite"))
    stopped(cloud, Plugin(name="broken", around_client=around_client))
    with pytest.raises(error, match="lacks a package"):
        start_stopped("bought")
    (row,) = registry.pools()
    assert (row.state, row.owner) == ("stopped", 0)
    assert {one.state for one in cloud.machines()} == {"stopped"}
    assert end_without_manager.end_named("bought") == "pool bought: ended"


def test_a_pool_whose_machines_are_not_made_cannot_be_stopped(registry: Registry) -> None:
    pool = Pool(PoolSpec(provider=Local(), nodes=1))
    with pytest.raises(PoolError, match="cannot be stopped"):
        stop_start.stop(pool.lifecycle, print)
    pool.down()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    with hosts(2, python=True, warm=True) as made:
        yield made


class TestHosts:
    """Machines that are hosts."""

    pytestmark = [*MARKS, pytest.mark.slow, pytest.mark.usefixtures("config")]

    def test_a_stopped_pool_goes_on_where_its_disks_are(self, world: World, registry: Registry, tmp_path: Path) -> None:
        cloud = Cloud(str(tmp_path / "cloud.sqlite"), hosts=tuple(host.name for host in world))
        with cloud.powered(world):
            pool = Pool(PoolSpec(provider=cloud, nodes=2, name="bought"))
            pool.start()
            ids = list(pool.ids)
            run(pool, "from pathlib import Path\nPath.home().joinpath('kept').write_text('here')")
            assert "`%sky start bought` starts them again" in stop_pool(pool, print)
            assert [host.pid for host in world] == [0, 0]
            gone = pools.gone("bought")
            assert gone is not None
            assert "was stopped. `%sky start bought` starts it again" in gone.refusal("%%sky --provider local")
            again = start_stopped("bought")
            try:
                assert (again.id, list(again.ids)) == (pool.id, ids)
                code = "from pathlib import Path\nPath.home().joinpath('kept').read_text()"
                assert run(again, code).values == ["here", "here"]
                assert len(cloud.machines()) == 2
            finally:
                again.down()
                pools.discard(again)
            assert cloud.alive() == []
            # What has ended with its machine is not said to have been missed.
            wait_until(lambda: "sky-end-hosts" not in {thread.name for thread in threading.enumerate()})
            assert again.unsure == []
            assert registry.pools() == []
