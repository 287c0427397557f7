"""Machines that end themselves: nobody uses them any more, and whoever had made them is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from sky_jupyter.pool.registry.machine_sweep import end_pool_machines
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.providers.base import Order
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.hosts.world import World, hosts, skip_unless_hosts_run
from tests.pool.remote import MARKS, links, wait_until
from tests.programs import ROOT
from tests.providers.cloud import HOSTS, STORE, Cloud

pytestmark = [*MARKS, pytest.mark.slow, pytest.mark.usefixtures("config")]

# A notebook that has a pool, and does nothing more.
NOTEBOOK = """
from sky_jupyter.pool.pool import Pool
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.providers.cloud import Cloud

pool = Pool(PoolSpec(provider=Cloud(), nodes=1, name="left", idle_timeout=10.0))
pool.start()
print(pool.id, flush=True)
input()
"""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    with hosts(2, python=True, warm=True) as made:
        yield made


def cloud_of(world: World, folder: Path) -> Cloud:
    return Cloud(str(folder / "cloud.sqlite"), hosts=tuple(host.name for host in world))


def ended_by_nobody(cloud: Cloud, pool: str) -> bool:
    """Whether its machines are gone though nobody told them to."""
    return not cloud.alive(pool) and "destroy" not in [call for call, _ in cloud.calls(pool)]


def test_a_machine_ends_by_itself_when_its_notebook_and_link_are_killed(world: World, tmp_path: Path) -> None:
    cloud = cloud_of(world, tmp_path)
    env = {**os.environ, STORE: cloud.store, HOSTS: " ".join(cloud.hosts), "PYTHONPATH": str(ROOT)}
    with cloud.powered(world):
        command = [sys.executable, "-c", NOTEBOOK]
        with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as notebook:
            assert notebook.stdout is not None
            pool = notebook.stdout.readline().strip()
            assert len(cloud.alive(pool)) == 1
            (link,) = links(pool)
            notebook.kill()
            os.kill(link.pid, signal.SIGKILL)
        wait_until(lambda: ended_by_nobody(cloud, pool))
    registry = Registry()
    try:
        # What they have left here.
        registry.own(pool)
        assert end_pool_machines(registry, pool) == []
    finally:
        registry.close()


def test_a_machine_that_nobody_has_come_to_ends_by_itself(world: World, tmp_path: Path) -> None:
    cloud = cloud_of(world, tmp_path)
    with cloud.powered(world, grace=2.0):
        spec, pool = PoolSpec(provider=cloud), uuid.uuid4().hex[:8]
        cloud.create(spec, 1, Order(pool, uuid.uuid4().hex, zone="here-a", until=time.time() + 3600))
        wait_until(lambda: ended_by_nobody(cloud, pool))


def test_a_machine_ends_by_itself_at_its_deadline(world: World, tmp_path: Path) -> None:
    cloud = cloud_of(world, tmp_path)
    with cloud.powered(world):
        spec, pool = PoolSpec(provider=cloud), uuid.uuid4().hex[:8]
        cloud.create(spec, 1, Order(pool, uuid.uuid4().hex, zone="here-a", until=time.time() + 2))
        wait_until(lambda: ended_by_nobody(cloud, pool))
