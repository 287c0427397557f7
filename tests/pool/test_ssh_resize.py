"""Hosts that are added to a pool and removed from it while it lives, and nothing of it on those that are not in it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from sky_jupyter.errors import MachineError, PoolError
from sky_jupyter.pool.base.events import PhaseEvent
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.registry.registry import Registry
from tests.hosts.world import World, hosts, skip_unless_hosts_run
from tests.pool.pools import run
from tests.pool.remote import MARKS, is_clean, links, nothing_here, provider, ssh_pool, wait_until

pytestmark = [*MARKS, pytest.mark.usefixtures("config"), pytest.mark.timeout(600)]
WHERE = """
import socket
from sky_jupyter import instance_info
info = instance_info()
socket.gethostname(), info.node, info.world_size, len(info.peers), 'kept' in globals()
"""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Three hosts that a pool has been on before."""
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    with hosts(3, python=True, warm=True) as made:
        yield made


def is_on(pool: Pool, *names: str) -> bool:
    """Whether a pool's ranks are on these hosts, in this order, with new kernels that know it."""
    expected = [(name, node, len(names), len(names), False) for node, name in enumerate(names)]
    return run(pool, WHERE).values == expected and pool.condition == "ready"


def no_host_is_added(pool: Pool, world: World) -> None:
    """A host that cannot be connected to, and a change that is given up: the pool and its names stay as they were."""
    with pytest.raises(MachineError, match="host9"):
        pool.resize(add=["host1", "host9"])
    assert pool.phases.facts()[-1]["state"] == "failed"
    failed: list[BaseException] = []

    def resize() -> None:
        try:
            pool.resize(add=["host1"])
        except BaseException as error:
            failed.append(error)

    changing = threading.Thread(target=resize)
    changing.start()
    # Its processes are on the new host, and the others do not know of it.
    wait_until(lambda: len(pool.phases.facts()) > 1 and pool.phases.facts()[-1]["phase"] == "agent")
    assert run(pool, "kept").values == [1]
    assert pool.stop_resizing()
    changing.join(90)
    assert failed
    assert isinstance(failed[0], PoolError)
    assert pool.condition == "ready"
    wait_until(lambda: is_clean(world[1]))
    assert len(pool.link.link.machines()) == 1


@pytest.mark.slow
def test_hosts_come_and_go_and_leave_nothing(world: World) -> None:
    with ssh_pool(provider=provider(hosts=["host0"]), nodes=1) as pool:
        (link,) = links(pool.id)
        run(pool, "kept = 1; print('before')")
        first, scheduler = pool.registry.runs(pool.id)[0].id, pool.scheduler_there
        no_host_is_added(pool, world)
        assert run(pool, "kept").values == [1]
        told: list[Any] = []
        pool.resize(add=["host1", "host2"], listener=told.append)
        phases = [event.phase for event in told if isinstance(event, PhaseEvent) and event.done]
        assert phases == ["connect", "system", "python", "environment", "files", "agent", "agent", "plugins"]
        assert is_on(pool, "host0", "host1", "host2")
        # What is sent goes to the new hosts too.
        pool.ledger.forget_nodes({})
        assert run(pool, "len(big)", {"big": bytes(2 << 20)}).values == [2 << 20] * 3
        pool.resize(remove=[1])
        assert is_on(pool, "host0", "host2")
        wait_until(lambda: is_clean(world[1]))
        assert [links(pool.id), pool.scheduler_there] == [[link], scheduler]
        assert pool.log(first).stdout(0) == "before\n"
        # A later notebook finds it as it is.
        pool.release()
        row = Registry().pool(pool.id)
        assert row.nodes == 2
        later = Pool.attach(row)
        try:
            assert run(later, "info.node").values == [0, 1]
            # A host that is off goes, and another one comes in its place.
            world[2].kill()
            wait_until(lambda: 1 not in later.control.there)
            with pytest.raises(PoolError, match=r"node 1 \(host2\) .* cannot be reached: remove what is gone"):
                later.resize(add=["host1"])
            later.resize(add=["host1"], remove=[1])
            assert is_on(later, "host0", "host1")
            assert later.unsure == ["host2"]
        finally:
            later.down()
            world[2].boot()
    for host in world:
        wait_until(lambda host=host: is_clean(host))
    wait_until(lambda: nothing_here(pool.id))
