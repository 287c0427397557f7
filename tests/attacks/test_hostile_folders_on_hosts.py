"""Folders of somebody hostile on real hosts, over their sshd: to them, from them, and from one to the other."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import sky_jupyter as sky
from sky_jupyter.errors import TransferError
from sky_jupyter.pool.pool import Pool
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.attacks.hostile_folders import ENDS, LARGE, Victim, fill, tree, victim
from tests.hosts.world import Host, World, hosts
from tests.pool.pools import run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(importlib.util.find_spec("paramiko") is None, reason="needs paramiko (the `ssh` extra)"),
]
# What says nothing of files, and what a put or get says besides.
MESSAGES = 400_000
HOME = "/home/ada"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with hosts(2, python=True, warm=True) as made:
        yield made


@pytest.fixture(scope="module")
def pool(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SKY_SSH_CONFIG", str(world.ssh_config(tmp_path_factory.mktemp("ssh") / "config")))
        patch.delenv("SSH_AUTH_SOCK", raising=False)
        made = Pool(PoolSpec(provider=sky.SSH(["host0", "host1"], offline=True), nodes=2))
        made.start()
        try:
            yield made
        finally:
            made.down()


@pytest.fixture
def hostage(tmp_path: Path) -> Iterator[Victim]:
    with victim(tmp_path / "home") as made:
        yield made


@pytest.fixture(autouse=True)
def _hostages_there(world: World) -> Iterator[None]:
    """A file on each host that stays as it is, and nothing that lies about beside what comes."""
    for host in world:
        host.run("printf precious >victim && chmod 604 victim && touch -d @1000000000 victim", user="ada")
    yield
    for host in world:
        assert host.run("cat victim && stat -c ' %a %Y %h' victim", user="ada").split() == (
            ["precious", "604", "1000000000", "1"]
        )
        assert host.run("find . -path './.sky-*' -not -path './.cache/*'", user="ada").split() == []


def names(host: Host, folder: str) -> list[bytes]:
    """All names in a folder of a host, as they are."""
    code = f"import os; print([os.path.join(a, n) for a, d, f in os.walk({os.fsencode(folder)!r}) for n in d + f])"
    return list(eval(host.run(["python3", "-c", code], user="ada")))


def test_a_hostile_folder_of_a_host_arrives_here_and_touches_nothing(
    world: World, pool: Pool, hostage: Victim, tmp_path: Path
) -> None:
    # It names a file of the notebook's machine, which the host's user could not see.
    make = f"""
import os
os.makedirs("evil/deep", exist_ok=True)
for name in ("evil/weights.bin", "evil/deep/weights.bin"):
    open(name, "wb").write(b"echo OWNED" + b"#" * {LARGE})
    for end in {ENDS!r}:
        os.symlink({str(hostage.file)!r}, name + end)
os.symlink({str(hostage.folder)!r}, "evil/out")
"""
    run(pool, make, ranks=[0])
    pool.get("evil", tmp_path / "got")
    assert (tmp_path / "got" / "weights.bin").read_bytes().startswith(b"echo OWNED#")
    assert not (tmp_path / "got" / "weights.bin").is_symlink()
    assert os.readlink(tmp_path / "got" / "out") == str(hostage.folder)
    assert not list(tmp_path.glob(".sky-*"))


def test_a_hostile_folder_goes_to_all_hosts_over_the_link_once_and_touches_nothing_there(
    world: World, pool: Pool, hostage: Victim, tmp_path: Path
) -> None:
    source = fill(tmp_path / "hostile", hostage)
    for end in ENDS:
        Path(f"{source}/model.bin{end}").unlink()
        Path(f"{source}/model.bin{end}").symlink_to(f"{HOME}/victim")
    # Zeros are as much on the way as anything else.
    (source / "sparse").unlink()
    before = [host.wire_bytes() for host in world]
    done = pool.put(source, "e")
    # Names that are no text too go from host to host.
    assert (done.sent, done.alone) == (done.size, ())
    assert world[1].wire_bytes() - before[1] < MESSAGES
    # What has changed goes where links were made meanwhile.
    (source / "model.bin").unlink()
    (source / "model.bin").write_bytes(os.urandom(LARGE + 1))
    assert pool.put(source, "e").sent == LARGE + 1
    top = os.fsencode(f"{HOME}/e")
    for host in world:
        assert sorted(names(host, f"{HOME}/e")) == sorted(os.path.join(top, name) for name in tree(source))
    pool.get("e", tmp_path / "back", on=[0, 1])
    for node in (0, 1):
        assert tree(tmp_path / "back" / f"node-{node}" / "e") == tree(source)


def test_links_that_stand_on_a_host_are_replaced_or_named(world: World, pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "new" / "deep").mkdir(parents=True)
    (tmp_path / "new" / "file").write_bytes(os.urandom(LARGE))
    (tmp_path / "new" / "deep" / "file").write_text("x")
    for host in world:
        host.run("mkdir -p new/deep && ln -s ../victim new/file && ln -s ../../victim new/deep/file", user="ada")
    pool.put(tmp_path / "new")
    for host in world:
        assert host.run("[ ! -L new/file ] && [ ! -L new/deep/file ] && wc -c <new/file", user="ada").strip() == str(
            LARGE
        )
    world[1].run("rm -r new/deep && mkdir -p elsewhere && ln -s ../elsewhere new/deep", user="ada")
    with pytest.raises(TransferError, match=r"node 1 \(host1\): .*/new/deep is a link: a folder cannot take its place"):
        pool.put(tmp_path / "new")
    assert world[1].run("ls elsewhere", user="ada") == ""


def test_a_home_of_another_user_is_refused_in_words(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "src").write_text("x")
    with pytest.raises(TransferError, match=r"node 0 \(host0\): /root.* (Permission denied|may not be written)"):
        pool.put(tmp_path / "src", "~root/x")
