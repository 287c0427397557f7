"""Pools that another version of Sky Jupyter made: refused in words, and ended all the same."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sky_jupyter.errors import PoolError
from sky_jupyter.node.protocol.version import PROTOCOL
from sky_jupyter.pool.end_without_manager import end_named
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.util import process_identity
from tests.attacks.older import ROOT, notebook, older
from tests.conftest import pool_folders
from tests.hosts.world import hosts, skip_unless_hosts_run
from tests.pool.pools import local_pool, wait_until
from tests.pool.remote import is_clean, nothing_here, ssh_pool

MAKE = ("%load_ext sky_jupyter", "%sky up --nodes 1 --keep --name kept", "%%sky\nx = 1")


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A registry for this test, of which no pool is left."""
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))
    yield
    registry = Registry()
    for row in registry.pools():
        end_named(row.id)
    registry.close()


def write_number(pool: Pool, number: int | None) -> None:
    path = pool.hosts[0].folder / "pool.record"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"protocol": number}))


@pytest.mark.parametrize("number", [PROTOCOL + 1, PROTOCOL - 1])
def test_a_pool_of_another_protocol_is_refused_and_ended_by_its_name(number: int) -> None:
    with local_pool(nodes=1, keep=True, name="kept") as pool:
        write_number(pool, number)
        host = process_identity.ProcessIdentity(*pool.hosts[0].command.identity)
        # Each version finds the processes of all others by this name.
        assert "sky_jupyter.node.host" in psutil.Process(host.pid).cmdline()
        pool.release()
        registry = Registry()
        (row,) = registry.pools()
        with (
            pytest.raises(PoolError, match=f"protocol {number}, this is {PROTOCOL}")
            if number
            else pytest.raises(PoolError, match="without a protocol's number")
        ):
            Pool.attach(row)
        assert process_identity.lives(*host)
        assert registry.pools() == [row]
        assert end_named("kept") == "pool kept: ended"
        assert not process_identity.lives(*host)
        assert pool_folders(pool.id) == []
        assert registry.pools() == []
        registry.close()


@pytest.mark.long
@pytest.mark.parametrize("commits", [60, 200])
def test_a_pool_of_a_version_before_is_refused_and_ended(commits: int) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        assert "ready" in notebook(older(commits, Path(place)), MAKE)
    registry = Registry()
    (row,) = registry.pools()
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        (Path(place) / "sky_jupyter").symlink_to(ROOT / "sky_jupyter")
        said = notebook(Path(place), ("%load_ext sky_jupyter", "%sky attach kept", "%sky down --name kept"))
    assert said.count("pool 'kept' was made by an earlier version of Sky Jupyter") >= 2
    assert "pool kept: ended" in said
    wait_until(lambda: pool_folders(row.id) == [])
    assert not row.host_lives
    assert registry.pools() == []
    registry.close()


@pytest.mark.long
def test_a_pool_of_this_version_is_ended_by_one_before() -> None:
    with local_pool(nodes=1, keep=True, name="kept") as pool, tempfile.TemporaryDirectory(dir="/tmp") as place:
        pool.release()
        before = older(60, Path(place))
        # What servers of that version run.
        names = ("end_without_manager", "end_pool", "ending")
        ends = next(name for name in names if (before / "sky_jupyter" / "pool" / f"{name}.py").exists())
        code = f"import subprocess\nsubprocess.run(['python', '-m', 'sky_jupyter.pool.{ends}', {pool.id!r}])"
        said = notebook(before, ("%load_ext sky_jupyter", "%sky attach kept", code))
        assert "pool.record cannot be read" in said or "by a later version" in said
        wait_until(lambda: pool_folders(pool.id) == [])


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_pool_of_hosts_of_another_protocol_is_refused_and_ended_on_the_hosts_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("paramiko", reason="needs paramiko (the `ssh` extra)")
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    with hosts(2, python=True, warm=True) as world:
        monkeypatch.setenv("SKY_SSH_CONFIG", str(world.ssh_config(tmp_path / "config")))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        with ssh_pool(name="kept") as pool:
            write_number(pool, PROTOCOL + 1)
            pool.release()
            registry = Registry()
            (row,) = registry.pools()
            with pytest.raises(PoolError, match="made by a later version"):
                Pool.attach(row)
            assert end_named("kept") == "pool kept: ended"
            assert registry.pools() == []
            registry.close()
            wait_until(lambda: all(is_clean(host) for host in (world[0], world[1])))
            wait_until(lambda: nothing_here(pool.id))
