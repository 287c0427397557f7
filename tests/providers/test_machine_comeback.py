"""Machines that are taken away and come back under their ids: their nodes begin anew, and the others go on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sky_jupyter.pool.base.events import Event, NoticeEvent, PhaseEvent
from sky_jupyter.pool.lifecycle import status
from sky_jupyter.pool.pool import Pool
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.hosts.world import World, hosts, skip_unless_hosts_run
from tests.pool.pools import run, underway
from tests.pool.remote import MARKS, wait_until
from tests.providers.cloud import Cloud

pytestmark = [*MARKS, pytest.mark.usefixtures("config")]
LOW = "Evicted: the node was low on memory"
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


class Started:
    """A started pool with a name on each rank, and what its views were told."""

    def __init__(self, cloud: Cloud, nodes: int = 2) -> None:
        self.told: list[str] = []
        self.pool = Pool(PoolSpec(provider=cloud, nodes=nodes, name="pods"))
        self.pool.start(self.hear)
        run(self.pool, "import socket\nmine = socket.gethostname()")

    def hear(self, event: Event) -> None:
        if isinstance(event, NoticeEvent) or (isinstance(event, PhaseEvent) and event.phase == "queue"):
            self.told.append(event.text)

    def troubled(self, text: str) -> bool:
        return text in "; ".join(self.pool.watchdog.troubles.values())

    def says(self, text: str) -> bool:
        return any(text in line for line in [*self.told, *self.pool.supervisor.news])


@pytest.mark.slow
def test_a_machine_that_comes_back_is_prepared_again_while_the_others_keep_their_kernels(cloud: Cloud) -> None:
    started = Started(cloud)
    pool = started.pool
    try:
        ids = list(pool.ids)
        running = underway(pool, "import time\ntime.sleep(3600 if mine == 'host1' else 0)", listener=started.hear)
        # As a pod of another name and address, with nothing on its disk.
        cloud.evict(ids[1], LOW, host="host2")
        pool.wait(running)
        assert running.outcomes[0].status == "ok"
        assert running.outcomes[1].status == "lost"
        wait_until(lambda: started.troubled(f"0 of 1 running, node 1: {LOW}"))
        assert started.says(f"node 1 (host1): its machine was taken away ({LOW})")
        assert status.of(pool)["nodes"][1]["state"] == "lost"
        # What does not need it does not wait.
        pool.settle(ranks=[0])
        assert run(pool, NAMES, ranks=[0]).values == [("host0", "host0")]
        cloud.admit()
        pool.settle(started.hear)
        assert run(pool, NAMES).values == [("host0", "host0"), ("host2", None)]
        assert started.says("node 1 has restarted")
        # The same machine, restarted in place: its files are there, its processes are not.
        cloud.evict(ids[1], "OOMKilled")
        cloud.admit()
        wait_until(lambda: pool.control.lost)
        pool.settle(started.hear)
        assert run(pool, NAMES).values == [("host0", "host0"), ("host2", None)]
        assert started.says("its machine has restarted (OOMKilled)")
        assert list(pool.ids) == ids
        assert sorted(one.id for one in cloud.machines()) == sorted(ids)
        assert not status.of(pool, 0)["away"]
    finally:
        pool.down()
    wait_until(lambda: cloud.alive() == [])


@pytest.mark.long
def test_a_machine_that_is_taken_away_again_while_it_is_prepared_is_waited_for_again(cloud: Cloud) -> None:
    started = Started(cloud)
    pool = started.pool
    try:
        ids = list(pool.ids)
        cloud.evict(ids[1], LOW, host="host2")
        cloud.admit()
        wait_until(lambda: started.troubled("preparing node 1"))
        cloud.evict(ids[1], "Evicted: again", host="host1")
        wait_until(lambda: started.troubled("Evicted: again"))
        cloud.admit()
        pool.settle(started.hear)
        assert run(pool, NAMES).values == [("host0", "host0"), ("host1", None)]
        assert sorted(one.id for one in cloud.machines()) == sorted(ids)
    finally:
        pool.down()
    wait_until(lambda: cloud.alive() == [])


@pytest.mark.long
def test_a_machine_that_does_not_come_back_after_all_is_replaced_by_another(cloud: Cloud) -> None:
    started = Started(cloud)
    pool = started.pool
    try:
        ids = list(pool.ids)
        cloud.evict(ids[1], LOW)
        wait_until(lambda: started.troubled(f"0 of 1 running, node 1: {LOW}"))
        cloud.vanish(ids[1:])
        pool.settle(started.hear)
        assert run(pool, NAMES).values == [("host0", "host0"), ("host2", None)]
        assert pool.ids[0] == ids[0]
        assert sorted(cloud.alive()) == sorted(pool.ids)
    finally:
        pool.down()
    wait_until(lambda: cloud.alive() == [])


@pytest.mark.long
def test_of_two_machines_the_one_that_is_back_first_does_not_wait_for_the_other(cloud: Cloud) -> None:
    started = Started(cloud, nodes=3)
    pool = started.pool
    try:
        ids = list(pool.ids)
        for id in ids[1:]:
            cloud.evict(id, LOW)
        wait_until(lambda: started.troubled(f"0 of 2 running, nodes 1-2: {LOW}"))
        cloud.admit(ids[2:])
        pool.settle(ranks=[0, 2])
        wait_until(lambda: 2 not in pool.control.lost)
        pool.settle(ranks=[0, 2])
        assert run(pool, NAMES, ranks=[0, 2]).values == [("host0", "host0"), ("host2", None)]
        cloud.admit()
        pool.settle(started.hear)
        assert run(pool, NAMES).values == [("host0", "host0"), ("host1", None), ("host2", None)]
    finally:
        pool.down()
    wait_until(lambda: cloud.alive() == [])
