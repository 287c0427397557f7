"""An environment on hosts that have nothing but sshd and Python, made once, by one, and never trusted half-way."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import re
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path

import pytest

import sky_jupyter as sky
from sky_jupyter.bootstrap import remote_environment, source_archive, wheels
from sky_jupyter.bootstrap.uv import run_uv
from sky_jupyter.errors import BootstrapError
from sky_jupyter.providers.base import ConnectionSession
from sky_jupyter.spec.image import PipIndex
from sky_jupyter.spec.pool_spec import Image, PoolSpec
from tests.bootstrap.wheels import make_wheel
from tests.hosts.world import Kind, World, hosts, skip_unless_hosts_run

needs_paramiko = pytest.mark.skipif(
    importlib.util.find_spec("paramiko") is None, reason="needs paramiko (the `ssh` extra)"
)
MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="wheels here are looked at on Linux")
AIM = wheels.TargetPlatform(MINOR, "x86_64-manylinux_2_36")


def nothing(line: str) -> None:
    """Where lines go that nobody reads."""


@contextlib.contextmanager
def preparation(
    world: World, names: Sequence[str], *, offline: bool = True, **options: object
) -> Iterator[remote_environment.HostPreparation]:
    """Connections to some of a world's hosts."""
    provider = sky.SSH(names)
    machines = provider.connect(provider.hosts, ConnectionSession())
    try:
        spec = PoolSpec(provider=provider, nodes=len(names), **options)
        yield remote_environment.HostPreparation(machines, spec, offline=offline, stop=threading.Event())
    finally:
        for machine in machines:
            machine.close()


def prepare(one: remote_environment.HostPreparation, say: Callable[[str], None] = nothing) -> None:
    for _, _, work in one.phases:
        work(say)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    skip_unless_hosts_run(MINOR)
    with hosts(2, python=True) as made:
        yield made


@pytest.fixture(autouse=True)
def known(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if "world" in request.fixturenames:
        monkeypatch.setenv("SKY_SSH_CONFIG", str(request.getfixturevalue("world").ssh_config(tmp_path / "config")))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture
def fresh(world: World) -> World:
    """The hosts with nothing in their caches but what is sent to every pool."""
    for host in world:
        host.run("rm -rf ~/.cache/sky_jupyter/environments", user="ada")
    return world


@LINUX
def test_wheels_made_again_are_as_those_that_were_fetched(tmp_path: Path) -> None:
    lock = wheels.resolve(["py-spy", "cloudpickle", "psutil"], AIM)
    made = wheels.gather(lock, AIM, tmp_path / "cache")
    assert len(made) == len(lock) == 3
    names = {wheel.path.name.partition("-")[0]: wheel for wheel in made}
    assert "manylinux" in names["psutil"].path.name
    assert names["cloudpickle"].path.name.endswith("-py3-none-any.whl")
    again = wheels.gather(lock, AIM, tmp_path / "other")
    assert [wheel.path.read_bytes() for wheel in again] == [wheel.path.read_bytes() for wheel in made]
    venv = tmp_path / "venv"
    run_uv(["venv", "--python", sys.executable, str(venv)], phase="test", on_line=nothing)
    install = ["pip", "install", "--offline", "--no-index", "--no-deps", "--python", str(venv / "bin" / "python")]
    run_uv([*install, *(str(wheel.path) for wheel in made)], phase="test", on_line=nothing)
    # A program that is no entry point, and one with compiled code.
    assert subprocess.run([venv / "bin" / "py-spy", "--version"]).returncode == 0
    assert subprocess.run([venv / "bin" / "python", "-c", "import psutil, cloudpickle"]).returncode == 0
    with zipfile.ZipFile(names["psutil"].path) as archive:
        assert archive.testzip() is None
        assert not [name for name in archive.namelist() if name.endswith(("INSTALLER", "direct_url.json", ".pyc"))]


def test_what_has_no_wheels_for_the_hosts_is_told_with_uvs_words() -> None:
    with pytest.raises(BootstrapError) as caught:
        wheels.resolve(["no-such-distribution-of-anyone==1.0"], AIM)
    assert caught.value.phase == "environment"
    assert "no-such-distribution-of-anyone" in "\n".join(caught.value.lines)


def test_of_several_versions_that_would_do_the_notebooks_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for version in ("1.0", "1.1+cpu", "2.0"):
        make_wheel(tmp_path, "skyseveral", version)
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path))
    for prefer, asked, taken in [
        ([], "skyseveral", "2.0"),
        (["skyseveral==1.0"], "skyseveral", "1.0"),
        (["skyseveral==1.1+cpu", "something-else==3.0"], "skyseveral", "1.1+cpu"),
        (["skyseveral==1.0"], "skyseveral>1.5", "2.0"),
        (["skyseveral==1.5+nowhere"], "skyseveral", "2.0"),
    ]:
        assert wheels.resolve([asked], AIM, prefer) == [f"skyseveral=={taken}"]


def test_the_same_code_gives_the_same_archive() -> None:
    first = source_archive.own()
    source_archive.own.cache_clear()
    assert source_archive.own() == first


@pytest.mark.root
@pytest.mark.slow
@needs_paramiko
def test_two_pools_at_once_build_one_environment(fresh: World) -> None:
    told: list[str] = []
    nodes: set[tuple[int, str]] = set()

    def one(_: int) -> str:
        with preparation(fresh, ["host0"]) as mine:
            mine.on_node = lambda node, state, line: nodes.add((node, state if not line else line.partition(" ")[0]))
            prepare(mine, told.append)
            return mine.sites[0].environment

    with ThreadPoolExecutor(2) as several:
        environments = set(several.map(one, range(2)))
    assert len(environments) == 1
    assert {(0, "on"), (0, "done"), (0, "building"), (0, "waiting")} <= nodes
    assert len([line for line in told if "building" in line]) == 1
    assert len([line for line in told if "waiting for another pool" in line]) == 1
    listing = fresh[0].run("ls ~/.cache/sky_jupyter/environments ~/.cache/sky_jupyter", user="ada")
    assert ".tmp-" not in listing
    assert "incoming" not in listing


@pytest.mark.root
@pytest.mark.slow
@needs_paramiko
def test_a_bootstrap_that_was_killed_is_done_again(fresh: World) -> None:
    host = fresh[0]

    def building() -> str:
        return host.run("ls -d ~/.cache/sky_jupyter/environments/*.tmp-*/bin/python 2>/dev/null || :", user="ada")

    with preparation(fresh, ["host0"]) as mine:
        failed: list[BaseException] = []

        def work() -> None:
            try:
                prepare(mine)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        end = time.monotonic() + 120
        while not building():
            assert time.monotonic() < end
            time.sleep(0.05)
        mine.sites[0].machine.session.close()
        thread.join(60)
        assert isinstance(failed[0], BootstrapError)
    while [command for _, _, command in host.processes("ada")]:
        assert time.monotonic() < end
        time.sleep(0.1)
    with preparation(fresh, ["host0"]) as mine:
        told: list[str] = []
        prepare(mine, told.append)
        assert any("building" in line for line in told)
        # What had been sent is not sent again.
        assert not any("sending" in line for line in told)
        site = mine.sites[0]
        assert site.run(f"{site.interpreter} -c 'import distributed; print(1)'", "test", "no") == "1\n"
        assert not building()


@pytest.mark.root
@pytest.mark.slow
@needs_paramiko
def test_packages_of_the_image_are_there(fresh: World) -> None:
    with preparation(fresh, ["host0", "host1"], image=Image(pip=("tqdm",))) as mine:
        prepare(mine)
        for site in mine.sites:
            script = f"{site.interpreter} -c 'import tqdm, ipykernel; print(tqdm.__file__, ipykernel.__version__)'"
            path, version = site.run(script, "test", "no").split()
            assert path.startswith(f"{site.facts.cache}/environments/")
            assert version == metadata.version("ipykernel"), "as the notebook has it"


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Callable[[Sequence[wheels.Wheel]], int]]:
    """A package index that serves wheels over HTTP; called with them, it says at which port."""
    root = tmp_path / "index"
    root.mkdir()
    handler = functools.partial(QuietHandler, directory=str(root))
    server = ThreadingHTTPServer(("0.0.0.0", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def fill(made: Sequence[wheels.Wheel]) -> int:
        for wheel in made:
            name = re.sub(r"[-_.]+", "-", wheel.path.name.partition("-")[0]).lower()
            (root / "simple" / name).mkdir(parents=True, exist_ok=True)
            (root / "simple" / name / wheel.path.name).hardlink_to(wheel.path)
        return int(server.server_address[1])

    yield fill
    server.shutdown()
    thread.join()
    server.server_close()


class QuietHandler(SimpleHTTPRequestHandler):
    """Lists folders as a package index does, and prints nothing."""

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing."""


@pytest.mark.root
@pytest.mark.slow
@needs_paramiko
def test_hosts_that_reach_an_index_fetch_for_themselves(
    index: Callable[[Sequence[wheels.Wheel]], int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    skip_unless_hosts_run(MINOR)
    with hosts(1, python=True, open_laptop=True) as open_world:
        monkeypatch.setenv("SKY_SSH_CONFIG", str(open_world.ssh_config(tmp_path / "config")))
        with preparation(open_world, ["host0"]) as mine:
            mine.look(nothing)
            mine.find_python(nothing)
            port = index(mine.offline_bundle.bundle(mine._target(mine.sites[0]), nothing))
        url = f"http://{open_world.address}:{port}/simple"
        private = PipIndex(url.replace("//", "//me:s3cret@"), packages=["psutil"])
        image = Image(env={"UV_DEFAULT_INDEX": url}, pip_indexes=[private])
        with preparation(open_world, ["host0"], offline=False, image=image) as mine:
            told: list[str] = []
            prepare(mine, told.append)
            assert [line for line in told if line.startswith("sending")] == [
                line for line in told if line.startswith("sending uv (")
            ]
            site = mine.sites[0]
            assert site.run(f"{site.interpreter} -c 'import distributed, psutil; print(1)'", "test", "no") == "1\n"
            assert not [line for line in told if "s3cret" in line]
            found = open_world[0].run("grep -rl s3cret ~/.cache/sky_jupyter /tmp 2>/dev/null || :", user="ada")
            assert not found.strip()


@pytest.mark.root
@pytest.mark.slow
@needs_paramiko
def test_a_host_that_reaches_no_index_is_told_of_offline(fresh: World) -> None:
    with preparation(fresh, ["host0"], offline=False) as mine, pytest.raises(BootstrapError) as caught:
        prepare(mine)
    assert caught.value.phase == "environment"
    assert "--offline" in str(caught.value)
    assert ".tmp-" not in fresh[0].run("ls ~/.cache/sky_jupyter/environments", user="ada")


@pytest.mark.root
@needs_paramiko
def test_a_host_without_python_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "pythons"))
    monkeypatch.setenv("UV_PYTHON_INSTALL_MIRROR", f"file://{tmp_path}/nothing")
    with hosts(1) as bare:
        monkeypatch.setenv("SKY_SSH_CONFIG", str(bare.ssh_config(tmp_path / "config")))
        with preparation(bare, ["host0"]) as mine, pytest.raises(BootstrapError) as caught:
            prepare(mine)
    assert caught.value.phase == "python"
    assert f"no Python {MINOR} (it has none)" in str(caught.value)


@pytest.mark.root
@needs_paramiko
def test_hosts_of_two_architectures_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with hosts(Kind(python=True), Kind(python=True, machine="aarch64")) as mixed:
        monkeypatch.setenv("SKY_SSH_CONFIG", str(mixed.ssh_config(tmp_path / "config")))
        with preparation(mixed, ["host0", "host1"]) as mine, pytest.raises(BootstrapError) as caught:
            prepare(mine)
    assert (caught.value.phase, caught.value.node) == ("system", 1)
    assert "aarch64" in str(caught.value)


@pytest.mark.root
@needs_paramiko
def test_a_wrong_clock_is_told_and_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with hosts(Kind(python=True, clock=3600)) as late:
        monkeypatch.setenv("SKY_SSH_CONFIG", str(late.ssh_config(tmp_path / "config")))
        with preparation(late, ["host0"]) as mine:
            told: list[str] = []
            mine.look(told.append)
    assert len(told) == 1
    assert "s ahead of this machine's" in told[0]
