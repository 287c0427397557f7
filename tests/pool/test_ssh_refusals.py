"""What keeps a pool on hosts from coming up is told at once, in words that help, and nothing of it is left."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import sky_jupyter as sky
from sky_jupyter.errors import BootstrapError, HostKeyError, LoginRefused, SkyError, Unreachable
from sky_jupyter.pool.pool import Pool
from sky_jupyter.spec.pool_spec import Image, PoolSpec
from tests.bootstrap.wheels import make_wheel
from tests.hosts.traces import nothing_left
from tests.hosts.world import Host, Kind, World, hosts, skip_unless_hosts_run
from tests.pool.pools import run

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(importlib.util.find_spec("paramiko") is None, reason="needs paramiko (the `ssh` extra)"),
]

MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"
Configure = Callable[[World], Path]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Four hosts with Debian's Python, which know no package index."""
    with hosts(4, python=True) as made:
        yield made


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Configure:
    """Makes the user's SSH configuration, with all hosts of a world in it."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    # uv has no Python here to send, and no way to one.
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "pythons"))
    monkeypatch.setenv("UV_PYTHON_INSTALL_MIRROR", f"file://{tmp_path}/nothing")

    def write(world: World) -> Path:
        path = world.ssh_config(tmp_path / "config")
        monkeypatch.setenv("SKY_SSH_CONFIG", str(path))
        return path

    return write


@pytest.fixture
def config(world: World, configure: Configure) -> Path:
    """The configuration for the four hosts."""
    return configure(world)


@pytest.fixture
def fits() -> None:
    """The hosts' Python is of the notebook's minor version: what comes after that phase is looked at."""
    skip_unless_hosts_run(MINOR)


def refused(
    kind: type[SkyError], there: Sequence[Host], names: Sequence[str] = ("host0", "host1"), **options: Any
) -> str:
    """Why a pool does not start, told in time, with nothing left on hosts and here; without colours."""
    asked = {name: options.pop(name) for name in ("accept_host_keys", "offline") if name in options}
    provider = sky.SSH(names, **{"offline": True, **asked})
    pool = Pool(PoolSpec(provider=provider, nodes=len(names), **options))
    with nothing_left(there, [pool.id]):
        with pytest.raises(kind) as caught:
            pool.start()
        assert pool.state == "ended"
    print(f"\n--- {caught.value}")
    return str(caught.value)


def test_a_name_that_nobody_has(world: World, config: Path) -> None:
    text = refused(Unreachable, world, ["host0", "no-such-host"])
    assert "no host of the name 'no-such-host' is known here" in text
    assert "check its spelling" in text


def test_a_closed_port(world: World, config: Path) -> None:
    config.write_text(config.read_text().replace("Port 22", "Port 23", 2).replace("Port 23", "Port 22", 1))
    text = refused(Unreachable, world)
    assert text.startswith("host1: ")
    assert "23" in text


@pytest.mark.slow
def test_one_of_four_hosts_that_is_off(world: World, config: Path) -> None:
    world[2].kill()
    try:
        text = refused(Unreachable, world, ["host0", "host1", "host2", "host3"])
    finally:
        world[2].boot()
    assert text.startswith("host2: ")
    assert not [name for name in ("host0", "host1", "host3") if name in text]


def test_a_key_that_a_host_does_not_take(world: World, config: Path) -> None:
    before, mark, after = config.read_text().partition("Host host1\n")
    config.write_text(before + mark + after.replace(str(world.key), str(world.other_key), 1))
    text = refused(LoginRefused, world)
    assert text.startswith("host1: ")
    assert str(world.other_key) in text
    assert "ssh-copy-id ada@" in text


def test_a_host_that_takes_passwords_alone(configure: Configure) -> None:
    with hosts(Kind(python=True), Kind(python=True, login="password")) as mixed:
        configure(mixed)
        text = refused(LoginRefused, mixed)
    assert text.startswith("host1: ")
    assert "by password only, and passwords are not used here" in text
    assert "PubkeyAuthentication yes" in text


def test_a_host_that_nobody_knows(world: World, config: Path) -> None:
    known = config.with_name("known_hosts")
    known.write_text("".join(f"{line}\n" for line in known.read_text().splitlines() if world[1].host_key not in line))
    text = refused(HostKeyError, world)
    assert text.startswith("host1: ")
    assert "SHA256:" in text
    assert "--accept-host-keys" in text
    assert world[1].host_key not in known.read_text()


def test_a_host_that_has_another_key_now(world: World, config: Path) -> None:
    before = config.with_name("known_hosts").read_text()
    world[1].change_key()
    # To accept new keys is not to accept a changed one.
    text = refused(HostKeyError, world, accept_host_keys=True)
    assert text.startswith("host1: REMOTE HOST IDENTIFICATION HAS CHANGED")
    assert "ssh-keygen -f" in text
    assert config.with_name("known_hosts").read_text() == before


def test_a_home_without_room(world: World, config: Path) -> None:
    world[1].run("rm -rf ~/.cache", user="ada")
    world[1].fill_home()
    try:
        text = refused(BootstrapError, world)
    finally:
        world[1].empty_home()
    assert "host1" in text
    assert "/home/ada has no space left" in text
    assert "make room there" in text


@pytest.mark.slow
@pytest.mark.usefixtures("fits")
def test_a_home_with_room_for_less_than_an_environment(world: World, config: Path) -> None:
    world[1].run("rm -rf ~/.cache", user="ada")
    world[1].fill_home(left=30_000_000)
    try:
        text = refused(BootstrapError, world)
    finally:
        world[1].empty_home()
    assert "host1" in text
    assert "30 MB left" in text
    assert "make room there" in text


def test_a_home_where_nothing_may_be_run(world: World, config: Path) -> None:
    world[1].forbid_programs("/home")
    try:
        text = refused(BootstrapError, world)
    finally:
        world[1].kill()
        world[1].boot()
    assert "host1" in text
    assert "mount it without noexec" in text


@pytest.mark.slow
@pytest.mark.usefixtures("fits")
def test_where_nothing_may_be_run_in_tmp_a_pool_runs(configure: Configure) -> None:
    with hosts(2, python=True, warm=True) as strict:
        configure(strict)
        strict[0].forbid_programs("/tmp")
        strict[0].forbid_programs("/dev/shm")
        runs_on(strict, ["host0", "host1"])


@pytest.mark.slow
@pytest.mark.usefixtures("fits")
@pytest.mark.parametrize(
    "ahead",
    [pytest.param(7 * 3600, marks=pytest.mark.long), -7 * 3600, pytest.param(400 * 86400, marks=pytest.mark.long)],
)
def test_with_a_clock_that_is_wrong_a_pool_runs_and_it_is_told(ahead: int, configure: Configure) -> None:
    with hosts(Kind(clock=0), Kind(clock=ahead), python=True, warm=True) as wrong:
        configure(wrong)
        told = runs_on(wrong, ["host0", "host1"])
    (line,) = [line for line in told if "clock" in line]
    assert line.startswith("host1: its clock is ")
    assert f"{'ahead of' if ahead > 0 else 'behind'} this machine's" in line


@pytest.mark.slow
def test_a_python_that_is_too_old(configure: Configure) -> None:
    with hosts(Kind(python=True), Kind(python=True, release="bullseye")) as mixed:
        configure(mixed)
        text = refused(BootstrapError, mixed)
    assert "host1" in text
    assert f"no Python {MINOR} (it has 3.9.2), which the notebook runs" in text
    assert f"python{MINOR}" in text


def test_another_python_than_the_image_asks_for(world: World, config: Path) -> None:
    text = refused(BootstrapError, world, image=Image(python="3.14"))
    assert "no Python 3.14 (it has 3." in text
    assert "which the image asks for" in text
    assert "use the one that it has (sky.Image(python='3.1" in text


def test_no_python_at_all(configure: Configure) -> None:
    with hosts(2) as bare:
        configure(bare)
        text = refused(BootstrapError, bare)
    assert f"on node 0 (host0): no Python {MINOR} (it has none), which the notebook runs" in text
    assert "the same on host1" in text


@pytest.mark.usefixtures("fits")
def test_packages_that_need_a_newer_c_library(
    world: World, config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = make_wheel(tmp_path, "skynewer")
    with zipfile.ZipFile(plain) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    tag = "py3-none-manylinux_2_39_x86_64"
    name = f"skynewer-1.0-{tag}.whl"
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
        for inner, data in contents.items():
            archive.writestr(inner, data.replace(b"py3-none-any", tag.encode()))
    plain.unlink()
    monkeypatch.setenv("UV_FIND_LINKS", f"{tmp_path},/opt/wheels" if Path("/opt/wheels").is_dir() else str(tmp_path))
    text = refused(BootstrapError, world, image=Image(pip=("skynewer",)))
    assert "glibc 2.36" in text
    assert "host0" in text
    assert "skynewer" in text


def test_hosts_of_two_architectures(configure: Configure) -> None:
    with hosts(Kind(python=True), Kind(python=True, machine="aarch64")) as mixed:
        configure(mixed)
        text = refused(BootstrapError, mixed)
    assert "host1" in text
    assert "aarch64" in text
    assert "x86_64" in text
    assert "make two pools" in text


def runs_on(world: World, names: Sequence[str]) -> list[str]:
    """A pool runs a cell there; what its phases told."""
    pool = Pool(PoolSpec(provider=sky.SSH(names, offline=True), nodes=len(names)))
    told: list[str] = []
    with nothing_left(world, [pool.id]):
        pool.start(lambda event: told.append(getattr(event, "text", "")))
        try:
            assert run(pool, "6 * 7").values == [42] * len(names)
        finally:
            pool.down()
    return told
