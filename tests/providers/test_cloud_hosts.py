"""Pools on machines that are made for them: hosts behind SSH, which lose their power when the machine ends."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sky_jupyter.errors import NoCapacity, SkyError
from sky_jupyter.plugins.core.plugin import Plugin
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.registry import machine_orders
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.providers.base import Provider
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.hosts.world import World, hosts, skip_unless_hosts_run
from tests.pool.pools import run
from tests.pool.remote import MARKS, links, nothing_here, wait_until
from tests.providers.cloud import Cloud
from tests.providers.conformance import ProviderConformance, ProvisionerConformance

pytestmark = [*MARKS, pytest.mark.usefixtures("config")]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Three hosts, of which a plain pool has been on."""
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    with hosts(3, python=True, warm=True) as made:
        yield made


@pytest.fixture
def cloud(world: World, tmp_path: Path) -> Iterator[Cloud]:
    made = Cloud(str(tmp_path / "cloud.sqlite"), hosts=tuple(host.name for host in world))
    with made.powered(world):
        yield made


class TestCloud(ProviderConformance, ProvisionerConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def provider(cls, world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
        made = Cloud(str(tmp_path_factory.mktemp("cloud") / "cloud.sqlite"), hosts=tuple(host.name for host in world))
        with made.powered(world):
            yield made


def gone(cloud: Cloud, pool: Pool) -> bool:
    registry = Registry()
    try:
        known = [row.id for row in registry.pools()], machine_orders.of(registry, pool.id)
    finally:
        registry.close()
    return cloud.alive() == [] and nothing_here(pool.id) and pool.id not in known[0] and not known[1]


@pytest.mark.slow
def test_a_restart_after_a_machine_vanished_buys_one_and_the_end_leaves_none(cloud: Cloud) -> None:
    pool = Pool(PoolSpec(provider=cloud, nodes=2, name="bought"))
    pool.start()
    try:
        names = "import socket\nsocket.gethostname()"
        assert run(pool, names).values == ["host0", "host1"]
        first = list(pool.ids)
        cloud.vanish(first[1:])
        wait_until(lambda: pool.control is not None and pool.control.lost)
        pool.restart()
        assert run(pool, names).values == ["host0", "host2"]
        assert pool.ids[0] == first[0]
        assert len(cloud.machines()) == 3
        assert sorted(cloud.alive()) == sorted(pool.ids)
    finally:
        pool.down()
    assert pool.unended == []
    wait_until(lambda: gone(cloud, pool))


@pytest.mark.slow
def test_a_pool_that_grows_buys_and_one_that_shrinks_ends_what_it_had(cloud: Cloud) -> None:
    pool = Pool(PoolSpec(provider=cloud, nodes=1, name="bought"))
    pool.start()
    try:
        first = list(pool.ids)
        cloud.plan("create", "refused")
        pool.resize(3)
        assert run(pool, "import socket\nsocket.gethostname()").values == ["host0", "host1", "host2"]
        assert sorted(cloud.alive()) == sorted(pool.ids)
        pool.resize(1)
        assert run(pool, "6 * 7").values == [42]
        assert cloud.alive() == first
    finally:
        pool.down()
    wait_until(lambda: gone(cloud, pool))


@pytest.mark.slow
def test_a_resize_that_has_no_machines_leaves_the_pool_as_it_was(cloud: Cloud) -> None:
    together = Plugin("together", collective=True)
    pool = Pool(PoolSpec(provider=cloud, nodes=1, name="bought", plugins=(together,)))
    pool.start()
    try:
        first = list(pool.ids)
        # Its zone has no more: it is not made elsewhere while it lives.
        cloud.plan("create", "refused")
        with pytest.raises(NoCapacity):
            pool.resize(2)
        assert cloud.alive() == first
        cloud.plan("connect", "vanish")
        with pytest.raises(SkyError):
            pool.resize(2)
        assert run(pool, "6 * 7").values == [42]
        assert cloud.alive() == first
    finally:
        pool.down()
    wait_until(lambda: gone(cloud, pool))


@pytest.mark.slow
def test_who_takes_a_pool_up_replaces_and_ends_its_machines_and_keeps_their_deadline(
    cloud: Cloud, world: World
) -> None:
    first = Pool(PoolSpec(provider=cloud, nodes=2, name="bought", keep=True))
    first.start()
    first.release()
    row = first.registry.pool(first.id)
    first.registry.close()
    assert row is not None
    pool = Pool.attach(row)
    try:
        cloud.vanish(pool.ids[1:])
        wait_until(lambda: pool.control is not None and pool.control.lost)
        pool.restart()
        assert run(pool, "6 * 7").values == [42, 42]
        assert len(cloud.machines()) == 3
        assert len({one.until for one in cloud.machines()}) == 1
        # The nodes see to it themselves as well, those that were recreated too.
        left = pool.expiry.left
        assert left is not None
        told = [json.loads(world[number].run("cat /tmp/sky-*/host.json"))["ttl"] for number in (0, 2)]
        assert left <= min(told)
        assert max(told) <= 24 * 3600
    finally:
        pool.down()
    wait_until(lambda: gone(cloud, pool))


@pytest.mark.slow
def test_the_machines_of_a_pool_whose_link_is_killed_are_ended(cloud: Cloud) -> None:
    pool = Pool(PoolSpec(provider=cloud, nodes=2, name="bought"))
    pool.start()
    (link,) = links(pool.id)
    os.kill(link.pid, signal.SIGKILL)
    pool.down()
    assert cloud.alive() == []
    wait_until(lambda: gone(cloud, pool))


@pytest.mark.slow
def test_a_start_that_loses_a_machine_as_it_connects_has_another(cloud: Cloud) -> None:
    cloud.plan("connect", "vanish")
    pool = Pool(PoolSpec(provider=cloud, nodes=2, name="bought"))
    pool.start()
    try:
        assert run(pool, "6 * 7").values == [42, 42]
        assert len(cloud.machines()) == 3
    finally:
        pool.down()
    wait_until(lambda: gone(cloud, pool))
