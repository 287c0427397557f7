"""A process of the pool that is killed on one host: that host is named, and the others lose nothing."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sky_jupyter.errors import SkyError
from sky_jupyter.pool.base.event_loop import loop
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.result import CellError, RankDied, RankInterrupted
from tests.hosts.world import Host, World, hosts, skip_unless_hosts_run
from tests.pool.pools import begin, run
from tests.pool.remote import MARKS, provider, ssh_pool, wait_until

pytestmark = MARKS


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    with hosts(2, python=True, warm=True) as made:
        yield made


@pytest.fixture(autouse=True)
def settings(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKY_SSH_CONFIG", str(world.ssh_config(tmp_path / "config")))
    monkeypatch.setenv("SSH_AUTH_SOCK", "")


def kill(host: Host, which: str) -> None:
    """SIGKILL for the pool's root process on a host, or its forkserver: the root's first child."""
    root = 'r=$(pgrep -o -u ada -f "python[^ ]* -m sky_jupyter.node.host")'
    host.run(f"{root}; kill -KILL " + ("$r" if which == "root" else "$(pgrep -o -P $r)"))


@pytest.mark.slow
@pytest.mark.parametrize("idle", [True, False])
def test_a_host_whose_forkserver_is_killed_gets_another_and_the_others_keep_their_names(
    world: World, idle: bool
) -> None:
    with ssh_pool() as pool:
        assert run(pool, "import socket\nmine = socket.gethostname()\nmine").values == ["host0", "host1"]
        if idle:
            kill(world[1], "forkserver")
            assert pool.control is not None
            wait_until(lambda: pool.take_restarted() == {1})
        else:
            on = threading.Event()
            current = begin(
                pool,
                "import time\nprint('on')\ntime.sleep(600)",
                grace=0,
                listener=lambda event: on.set() if getattr(event, "rank", 0) == 1 else None,
            )
            wait_until(on.is_set)
            kill(world[1], "forkserver")
            with pytest.raises(CellError) as caught:
                pool.attend(current)
            # The one is named, and the other one was only stopped for its sake.
            assert isinstance(caught.value.errors[1], RankDied)
            assert isinstance(caught.value.errors[0], RankInterrupted)
            assert "forkserver" in str(caught.value.errors[1])
        pool.settle()
        assert pool.state == "ready"
        assert run(pool, "globals().get('mine')").values == ["host0", None]
        # The new forkserver is as good as the old one.
        kill(world[1], "forkserver")
        wait_until(lambda: _answers(pool))
        assert run(pool, "globals().get('mine')").values == ["host0", None]


def _answers(pool: Pool) -> bool:
    try:
        pool.settle()
        return bool(run(pool, "1").values == [1, 1])
    except (CellError, SkyError):
        return False


@pytest.mark.slow
def test_a_repair_of_long_ago_is_not_made_again_when_the_pool_is_attached(world: World) -> None:
    with ssh_pool(provider=provider(hosts=["host0"]), nodes=1, keep=True, name="mended") as pool:
        kill(world[0], "forkserver")
        wait_until(lambda: pool.take_restarted() == {0})
        pool.settle()
        run(pool, "mine = 42")
        path = f"{pool.hosts[0].there}/host.events"
        pool.release()
        later = Pool.attach(pool.registry.pool(pool.id))
        try:
            (host,) = later.hosts
            said = world[0].run(f"cat {path}").splitlines()
            assert [line for line in said if "forkserver" in line]
            # All that it has said so far was heard, and handled.
            wait_until(lambda: host.heard >= len(said))
            loop().call(asyncio.sleep(0))
            later.settle()
            assert run(later, "mine").values == [42]
            assert later.take_restarted() == set()
            # What comes from now on is heard.
            world[0].run("pkill -KILL -o -u ada -f sky_jupyter.node.kernel.forkserver")
            wait_until(lambda: later.take_restarted() == {0})
        finally:
            later.down()


@pytest.mark.slow
def test_a_host_whose_root_process_is_killed_in_a_transfer_is_the_one_that_is_named(
    world: World, tmp_path: Path
) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(600 << 20)
    with ssh_pool() as pool:
        seen = threading.Event()

        def look(event: object) -> None:
            if not seen.is_set() and "node to node" in getattr(event, "text", ""):
                seen.set()
                threading.Thread(target=kill, args=(world[1], "root")).start()

        with pytest.raises(SkyError) as caught:
            pool.put(str(large), listener=look)
        assert seen.is_set(), "it was over before it could be broken"
        assert "host0" not in str(caught.value)
        assert "host1" in str(caught.value) or "node 1" in str(caught.value)
        large.unlink()
        world[0].run("rm -f /home/ada/large")
