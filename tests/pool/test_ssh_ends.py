"""What the end of a pool could not reach, or its start not confirm, is ended all the same; keys go with the lease."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sky_jupyter.errors import BootstrapError
from sky_jupyter.machines import remote_cleanup
from sky_jupyter.pool.registry import remote_leftovers
from sky_jupyter.pool.registry.registry import Registry
from tests.attacks.kills import START_LEASE
from tests.conftest import pool_folders
from tests.hosts.world import World, hosts, skip_unless_hosts_run
from tests.magics.notebook import notebook
from tests.pool.pools import run
from tests.pool.remote import MARKS, is_clean, links, nothing_here, ssh_pool, wait_until

pytestmark = MARKS


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    with hosts(2, python=True, warm=True) as made:
        yield made


@pytest.fixture(autouse=True)
def settings(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SKY_SSH_CONFIG", str(world.ssh_config(tmp_path / "config")))
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))
    monkeypatch.setenv("SSH_AUTH_SOCK", "")
    yield
    world.mend()


@contextlib.contextmanager
def registry() -> Iterator[Registry]:
    made = Registry()
    try:
        yield made
    finally:
        made.close()


def left_over() -> list[str]:
    with registry() as known:
        return [trace.host for trace in remote_leftovers.orphans(known)]


@pytest.mark.slow
def test_a_host_that_was_cut_off_when_its_pool_was_ended_is_ended_by_the_link_when_it_is_back(world: World) -> None:
    with ssh_pool() as pool:
        world.cut(world[1])
        pool.down()
        assert pool.unsure == ["host1"]
        wait_until(lambda: is_clean(world[0]))
        # The link has nothing here any more that would be worth having.
        assert links(pool.id)
        assert not [path for folder in pool_folders(pool.id) for path in folder.glob("pool.*")]
        assert left_over() == ["host1"]
    world.mend()
    wait_until(lambda: is_clean(world[1]) and nothing_here(pool.id))
    assert left_over() == []


@pytest.mark.slow
@pytest.mark.parametrize("how", ["load", pytest.param("down", marks=pytest.mark.long), "clean"])
def test_or_by_the_next_notebook(world: World, tmp_path: Path, how: str) -> None:
    with ssh_pool(name="cut") as pool:
        world.cut(world[1])
        pool.down()
    # This machine is switched off.
    for link in links(pool.id):
        link.kill()
        psutil.wait_procs([link], timeout=30)
    if how == "load":
        world.mend()
    with notebook(tmp_path) as book:
        told = book.run("%load_ext sky_jupyter").stream()
        assert "pool cut: what it left on host1 when its start or end was cut short is being ended" in told
        if how != "load":
            assert "there is no pool" not in book.run("%sky down --name cut").error
            world.mend()
        if how == "down":
            assert book.run("%sky down --name cut", timeout=120).stream().endswith("pool cut: ended on host1\n")
        if how == "clean":
            # (That removes the environments too: here only what comes before is of interest.)
            machine_told = book.run(CLEAN, timeout=120)
            assert machine_told.status == "ok", machine_told.outputs
            assert book.value("ended") == ["cut"]
        wait_until(lambda: is_clean(world[1]) and not left_over())
        wait_until(lambda: nothing_here(pool.id))
        assert "there is no pool" in book.run("%sky down").stream()


CLEAN = """
import sky_jupyter as sky
from sky_jupyter.magics import clean as cleaning
from sky_jupyter.providers.base import ConnectionSession
(machine,) = sky.SSH("host1").connect(["host1"], ConnectionSession())
ended = cleaning._end_left(machine)
machine.close()
"""
OWNER = """
import os, signal, sys
import sky_jupyter as sky
%load_ext sky_jupyter
%sky up --provider ssh --hosts host0,host1 --offline --name LEFT --idle-timeout 10s
"""


@pytest.mark.slow
def test_after_a_notebook_and_its_hosts_have_died_nothing_is_left_here(world: World, tmp_path: Path) -> None:
    with notebook(tmp_path) as book:
        assert book.run(OWNER, timeout=240).status == "ok"
        id = book.value("__import__('sky_jupyter.pool.open_pools', fromlist=['pools']).pools.current.id")
        folders = pool_folders(id)
        (folders[-1] / "value").write_bytes(b"x")
        os.kill(book.manager.provisioner.pid, signal.SIGKILL)
        for host in world:
            host.kill()
    try:
        wait_until(lambda: nothing_here(id))
    finally:
        for host in world:
            host.boot()


@pytest.mark.slow
def test_a_host_whose_login_is_too_loud_to_be_understood_is_ended_all_the_same(world: World) -> None:
    world[0].write("/home/ada/.bashrc", "head -c 20000000 /dev/zero | tr '\\0' x; echo\n", user="ada")
    try:
        with pytest.raises(BootstrapError, match="could not be started"), ssh_pool():
            pass
        wait_until(lambda: is_clean(world[0]) and is_clean(world[1]))
        assert left_over() == []
    finally:
        world[0].run("rm -f /home/ada/.bashrc")


@pytest.mark.slow
def test_a_banner_of_3_mb_is_read_over(world: World) -> None:
    world[0].write("/home/ada/.bashrc", "head -c 3000000 /dev/zero | tr '\\0' x; echo\n", user="ada")
    try:
        with ssh_pool() as pool:
            assert run(pool, "1 + 1").values == [2, 2]
    finally:
        world[0].run("rm -f /home/ada/.bashrc")


@pytest.mark.slow
def test_hosts_that_are_not_told_that_their_pool_is_ready_end_by_themselves(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that says so is what keeps them; a pool that is ready and idle for longer lives."""
    monkeypatch.setenv("SKY_START_LEASE", str(START_LEASE))
    with ssh_pool() as pool:
        folders = [host.run("ls -d /tmp/sky-*").strip() for host in world]
        assert [host.run(f"ls {folder}/ready").strip() for host, folder in zip(world, folders, strict=True)] == [
            f"{folder}/ready" for folder in folders
        ]
        with registry() as known:
            assert [trace.host for trace in remote_leftovers.of(known, pool.id)] == ["host0", "host1"]
            assert remote_leftovers.orphans(known) == []
    with registry() as known:
        assert remote_leftovers.of(known, pool.id) == []


@pytest.mark.slow
def test_the_script_ends_a_pool_by_its_id_and_no_other(world: World) -> None:
    with ssh_pool(name="one") as one, ssh_pool(name="two") as two:
        with registry() as known:
            there = {trace.host: trace for trace in remote_leftovers.of(known, one.id)}
        remote_cleanup.run(one.machines[0], there["host0"].script)
        commands = [command for _, _, command in world[0].processes("ada")]
        assert not [command for command in commands if f"/sky-{one.id}-" in command]
        assert [command for command in commands if f"/sky-{two.id}-" in command]
        assert run(two, "6 * 7").values == [42, 42]
        assert not [path for path in world[0].files() if f"/sky-{one.id}-" in path]
