"""Pools whose machines were all taken away and come back by themselves: nobody has to run a cell for it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sky_jupyter.errors import PoolError
from sky_jupyter.pool import frontend_requests
from sky_jupyter.pool.base.events import Event, PhaseEvent
from sky_jupyter.pool.lifecycle.state_machine import PoolState
from sky_jupyter.pool.pool import Pool
from sky_jupyter.session.pools import renew_taken
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.hosts.world import World, hosts, skip_unless_hosts_run
from tests.pool.pools import run
from tests.pool.remote import MARKS, wait_until
from tests.providers.cloud import Cloud
from tests.took import Took

pytestmark = [*MARKS, pytest.mark.usefixtures("config")]
WHY = "preempted by a job of higher priority"
NAMES = "import socket\nsocket.gethostname(), globals().get('mine')"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Three hosts, of which a plain pool has been on."""
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    with hosts(3, python=True, warm=True) as made:
        yield made


@pytest.fixture
def cloud(world: World, tmp_path: Path) -> Iterator[Cloud]:
    made = Cloud(str(tmp_path / "cloud.sqlite"), hosts=tuple(host.name for host in world), queues=True)
    with made.powered(world):
        yield made


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as made:
        yield made


class Preempted:
    """A pool whose machines were all taken away, which waits for them by itself; and what the notebook was told."""

    def __init__(self, cloud: Cloud) -> None:
        self.told: list[str] = []
        self.pool = pool = Pool(PoolSpec(provider=cloud, nodes=2, name="job"))
        pool.start()
        pool.farewell = self.told.append
        run(pool, "mine = 7")
        self.ids = list(pool.ids)
        for id in self.ids:
            cloud.evict(id, WHY)
        wait_until(lambda: WHY in pool.phases.line_of("queue"))

    def says(self, text: str) -> bool:
        return any(text in line for line in self.told)


def connections(cloud: Cloud, pool: Pool) -> int:
    return sum(call == "connect" for call, _ in cloud.calls(pool.id))


def test_a_pool_comes_back_by_itself_and_cells_that_come_meanwhile_wait_for_it(
    cloud: Cloud, beside: ThreadPoolExecutor, took: Took
) -> None:
    took.row(
        "a scheduler takes all machines of a pool, or node 0's, and gives them back later (a preempted job of Slurm "
        "with `--requeue`, or of Kueue)",
        see="that they were taken away and why, and that the pool starts again by itself; then that it is ready again",
        kept="values in the notebook only; cells that come meanwhile wait for it",
    )
    preempted = Preempted(cloud)
    pool = preempted.pool
    try:
        said, again = preempted.told
        assert said.endswith(f"its machine was taken away ({WHY}); it restarts as soon as it is back")
        assert again == "pool 'job' starts again by itself as soon as its machines are back; `%sky down` ends it"
        assert pool.condition == "restarting"
        assert WHY in pool.lifecycle.failure.taken_away()
        # An interrupt of a cell that waits ends its waiting alone.
        with pytest.raises(KeyboardInterrupt):
            pool.lifecycle.pool_restart.renew(tick=_press)
        heard: list[Event] = []
        cell = beside.submit(pool.lifecycle.pool_restart.renew, heard.append)
        again = beside.submit(pool.restart, heard.append)
        # Each is told how far it is.
        wait_until(lambda: sum(_queues(event) for event in heard) == 2)
        with pytest.raises(PoolError, match="pool 'job' is being restarted just now"):
            pool.restart(ranks=[0])
        cloud.admit()
        cell.result()
        again.result()
        assert run(pool, NAMES).values == [("host0", None), ("host1", None)]
        assert sorted(one.id for one in cloud.machines()) == sorted(preempted.ids)
        assert connections(cloud, pool) == 2
        renew_taken(pool)
        assert connections(cloud, pool) == 2
    finally:
        pool.down()
    wait_until(lambda: cloud.alive() == [])


@pytest.mark.slow
def test_a_pool_is_ready_again_without_any_cell(cloud: Cloud) -> None:
    preempted = Preempted(cloud)
    pool = preempted.pool
    try:
        cloud.admit()
        wait_until(lambda: preempted.says("pool 'job' is ready again, with new kernels on all ranks"))
        assert pool.state is PoolState.READY
        # Taken away again, and again.
        for id in preempted.ids:
            cloud.evict(id, "preempted again")
        wait_until(lambda: "preempted again" in pool.phases.line_of("queue"))
        cloud.admit()
        wait_until(lambda: not pool.lifecycle.comeback.is_on)
        assert run(pool, NAMES).values == [("host0", None), ("host1", None)]
    finally:
        pool.down()
    wait_until(lambda: cloud.alive() == [])


@pytest.mark.slow
@pytest.mark.parametrize("end", ["cell", "panel"])
def test_the_end_of_the_pool_ends_its_waiting_and_leaves_nothing(
    end: str, cloud: Cloud, beside: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    preempted = Preempted(cloud)
    pool = preempted.pool
    heard: list[Event] = []
    cell = beside.submit(pool.lifecycle.pool_restart.renew, heard.append)
    wait_until(lambda: heard)
    if end == "panel":
        monkeypatch.setattr(frontend_requests, "_need", lambda name: pool)
        assert frontend_requests.answer({"action": "down"})["status"] == "ok"
    else:
        pool.down()
    with pytest.raises(PoolError, match=r"pool 'job' (has ended|is broken|is being ended)"):
        cell.result()
    wait_until(lambda: pool.state is PoolState.ENDED)
    assert not pool.lifecycle.comeback.is_on
    wait_until(lambda: cloud.alive() == [])
    assert not [thread for thread in threading.enumerate() if thread.name == "sky-comeback"]


@pytest.mark.slow
def test_no_other_machines_are_made_until_somebody_asks(cloud: Cloud, beside: ThreadPoolExecutor) -> None:
    preempted = Preempted(cloud)
    pool = preempted.pool
    try:
        heard: list[Event] = []
        cell = beside.submit(pool.lifecycle.pool_restart.renew, heard.append)
        wait_until(lambda: heard)
        cloud.vanish(preempted.ids[:1])
        with pytest.raises(PoolError, match="1 of 2 machines are there, and no other is made by itself"):
            cell.result()
        assert pool.state is PoolState.BROKEN
        assert len(cloud.machines()) == 2
        # The next cell may.
        cloud.admit()
        renew_taken(pool)
        assert run(pool, NAMES).values == [("host2", None), ("host1", None)]
    finally:
        pool.down()
    wait_until(lambda: cloud.alive() == [])


def _press() -> None:
    raise KeyboardInterrupt


def _queues(event: Event) -> bool:
    return isinstance(event, PhaseEvent) and event.phase == "queue"
