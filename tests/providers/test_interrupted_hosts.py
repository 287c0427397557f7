"""Machines that their cloud takes away: the nodes read the notice, and the pool goes on with others."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from sky_jupyter.plugins.core.plugin import Plugin
from sky_jupyter.pool.base.events import NoticeEvent
from sky_jupyter.pool.lifecycle import status
from sky_jupyter.pool.pool import Pool
from sky_jupyter.session.pools import renew_taken
from sky_jupyter.spec.pool_spec import Image, PoolSpec
from tests.hosts.world import Host, World, hosts, skip_unless_hosts_run
from tests.pool import notices
from tests.pool.pools import run, underway
from tests.pool.remote import MARKS, wait_until
from tests.providers import instance_metadata
from tests.providers.cloud import Cloud

pytestmark = [*MARKS, pytest.mark.usefixtures("config")]
# On the hosts: the service of each, and what it has.
PORT, FOLDER = 1696, "/run/metadata"
IMAGE = Image(env={"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{PORT}"})


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Four hosts, of which a plain pool has been on."""
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    with hosts(4, python=True, warm=True) as made:
        yield made


@pytest.fixture
def cloud(world: World, tmp_path: Path) -> Iterator[Cloud]:
    made = Cloud(
        str(tmp_path / "cloud.sqlite"),
        hosts=tuple(host.name for host in world),
        notice="sky_jupyter.providers.aws.spot_notice:read",
    )
    with made.powered(world):
        for host in world:
            serve(host)
        yield made
        for host in world:
            if host.pid:
                host.kill()


def serve(host: Host) -> None:
    """Start a host's metadata service; it ends with the host's power."""
    host.write(f"{FOLDER}/service.py", Path(instance_metadata.__file__).read_bytes())
    command = shlex.join(["python3", f"{FOLDER}/service.py", "127.0.0.1", str(PORT), FOLDER])
    host.run(f"setsid {command} >/dev/null 2>&1 </dev/null & sleep 0")
    wait_until(lambda: PORT in host.ports())


def announce(host: Host, within: float) -> None:
    """Have a host's service say when it is terminated."""
    at = datetime.fromtimestamp(time.time() + within, timezone.utc)
    text = f'{{"action": "terminate", "time": "{at:%Y-%m-%dT%H:%M:%SZ}"}}'
    host.write(f"{FOLDER}/spot/instance-action", text)


def started(cloud: Cloud, nodes: int = 2, plugins: tuple[Plugin, ...] = ()) -> Pool:
    pool = Pool(PoolSpec(provider=cloud, nodes=nodes, name="spot", image=IMAGE, plugins=plugins))
    pool.start()
    return pool


WAITING = """
import socket, time
import sky_jupyter as sky
mine = socket.gethostname()
sky.on_interruption(lambda: print("saved on", socket.gethostname()))
while not sky.interruption():
    time.sleep(0.05)
time.sleep(0.3)
"""


@pytest.mark.slow
def test_a_machine_that_is_taken_away_is_replaced_while_the_others_keep_their_kernels(
    cloud: Cloud, world: World
) -> None:
    pool = started(cloud)
    told: list[str] = []
    try:
        first = list(pool.ids)
        zone = cloud.machines()[0].zone
        running = underway(pool, WAITING, listener=lambda event: _note(told, event))
        announce(world[1], 60.0)
        pool.attend(running)
        assert [text for text in told if "the machine of node 1 (host1) is taken away in " in text]
        printed = {rank: "".join(outcome.stdout) for rank, outcome in running.outcomes.items()}
        assert "saved on host0" in printed[0]
        assert "saved on host1" in printed[1]
        # Another machine is made meanwhile, where the others are.
        calls = [pool.submit(notices.wait_elsewhere, listener=lambda event: _note(told, event)) for _ in range(2)]
        wait_until(lambda: calls[0].done() and len(pool.supervisor.working) == 1)
        wait_until(lambda: len(cloud.alive()) == 3)
        assert {one.zone for one in cloud.machines()} == {zone}
        wait_until(lambda: "another machine is ready" in " ".join(pool.watchdog.troubles.values()))
        cloud.vanish(first[1:])
        # What ran there is begun again on another machine.
        assert calls[0].result(timeout=90) == "host0"
        assert calls[1].result(timeout=90) in ("host0", "host2")
        pool.settle()
        assert run(pool, "import socket\nsocket.gethostname(), globals().get('mine')").values == [
            ("host0", "host0"),
            ("host2", None),
        ]
        assert run(pool, "import sky_jupyter as sky\nrepr(sky.interruption())").values == ["<no interruption>"] * 2
        assert run(pool, "sky.instance_info().node", ranks=[1]).values == [1]
        assert pool.ids[0] == first[0]
        assert sorted(cloud.alive()) == sorted(pool.ids)
        assert not status.of(pool, 0)["away"]
        assert "node 1 (host1): its provider has taken the machine away (terminate)" in told
    finally:
        pool.down()
    wait_until(lambda: cloud.alive() == [])


def _note(told: list[str], event: object) -> None:
    if isinstance(event, NoticeEvent):
        told.append(event.text)


@pytest.mark.long
def test_a_machine_that_ends_without_a_notice_is_replaced_too(cloud: Cloud) -> None:
    pool = started(cloud)
    try:
        cloud.vanish(pool.ids[1:])
        wait_until(lambda: pool.supervisor.repairs.replacing() is not None)
        pool.settle()
        assert run(pool, "import socket\nsocket.gethostname()").values == ["host0", "host2"]
    finally:
        pool.down()
    wait_until(lambda: cloud.alive() == [])


@pytest.mark.slow
def test_the_next_cell_makes_a_pool_anew_whose_head_was_taken_away(cloud: Cloud, world: World) -> None:
    pool = started(cloud)
    try:
        first = list(pool.ids)
        announce(world[0], 1.0)
        wait_until(lambda: 0 in pool.supervisor.interruptions.nodes)
        cloud.vanish(first[:1])
        wait_until(lambda: pool.state == "broken")
        renew_taken(pool)
        assert run(pool, "import socket\nsocket.gethostname()").values == ["host2", "host1"]
        assert pool.ids[1] == first[1]
    finally:
        pool.down()
    wait_until(lambda: cloud.alive() == [])


@pytest.mark.long
def test_a_pool_with_collectives_moves_where_its_zone_has_no_more_machines(cloud: Cloud, world: World) -> None:
    pool = started(cloud, plugins=(Plugin("together", collective=True),))
    try:
        first = list(pool.ids)
        zone = cloud.machines()[0].zone
        announce(world[1], 30.0)
        # One for the machine that is prepared, one as the old one is gone, one as the pool is recreated.
        for _ in range(3):
            cloud.plan("create", "refused")
        wait_until(lambda: ("create", "refused") in cloud.calls(pool.id))
        cloud.vanish(first[1:])
        wait_until(lambda: pool.state == "broken")
        assert "no machine could be made in place of node 1" in pool.broken
        renew_taken(pool)
        assert run(pool, "import socket\nsocket.gethostname()").values == ["host2", "host3"]
        assert zone not in {one.zone for one in cloud.machines() if one.is_there}
        assert sorted(cloud.alive()) == sorted(pool.ids)
    finally:
        pool.down()
    wait_until(lambda: cloud.alive() == [])
