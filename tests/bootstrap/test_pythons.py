"""A Python of uv's own, sent to hosts that have none."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from pathlib import Path

import pytest

import sky_jupyter as sky
from sky_jupyter.bootstrap import standalone_python
from sky_jupyter.errors import BootstrapError
from sky_jupyter.pool.pool import Pool
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.hosts import images
from tests.hosts.traces import wait_until_clean
from tests.hosts.world import hosts, skip_unless_hosts_run
from tests.pool.pools import run

MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"


def nothing(line: str) -> None:
    """Where lines go that nobody reads."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where uv keeps its Pythons, with no way to others."""
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "pythons"))
    monkeypatch.setenv("UV_PYTHON_INSTALL_MIRROR", f"file://{tmp_path}/nothing")
    return tmp_path / "pythons"


def make(place: Path, version: str, machine: str = "x86_64") -> Path:
    """Something in the place of one of uv's Pythons."""
    folder = place / f"cpython-{version}-linux-{machine}-gnu"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / f"python{version.rpartition('.')[0]}").touch()
    return folder


def test_the_newest_that_fits_is_found(place: Path) -> None:
    newest = make(place, "3.12.10")
    make(place, "3.12.9")
    make(place, "3.12.11", "aarch64")
    make(place, "3.13.1")
    found = standalone_python.standalone("3.12", "x86_64", on_line=nothing)
    assert (found.folder, found.version, found.program) == (newest, "3.12.10", "bin/python3.12")
    assert standalone_python.standalone("3.12.9", "x86_64", on_line=nothing).version == "3.12.9"


def test_one_that_uv_cannot_fetch_is_told_with_uvs_words(place: Path) -> None:
    make(place, "3.12.9")
    with pytest.raises(BootstrapError) as caught:
        standalone_python.standalone("3.13", "x86_64", on_line=nothing)
    assert caught.value.phase == "python"
    assert "python install" in caught.value.command


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("paramiko") is None, reason="needs paramiko (the `ssh` extra)")
def test_hosts_without_python_are_sent_one(place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    skip_unless_hosts_run(MINOR)
    # Debian's, put where uv would have its own: it runs wherever it is, too, beside the same libraries.
    image = images.image(python=True)
    version = _micro(image)
    folder = place / f"cpython-{version}-linux-{platform.machine()}-gnu"
    (folder / "bin").mkdir(parents=True)
    shutil.copy(image / "usr" / "bin" / f"python{MINOR}", folder / "bin")
    shutil.copytree(image / "usr" / "lib" / f"python{MINOR}", folder / "lib" / f"python{MINOR}", symlinks=True)
    with hosts(2, python=True) as world:
        for host in world:
            host.run(f"rm -rf /usr/bin/python3* /usr/lib/python3 /usr/lib/python{MINOR}")
        monkeypatch.setenv("SKY_SSH_CONFIG", str(world.ssh_config(tmp_path / "config")))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        for sent in (True, False):
            told: list[str] = []
            pool = Pool(PoolSpec(provider=sky.SSH("host0,host1", offline=True), nodes=2))
            pool.start(lambda event, told=told: told.append(getattr(event, "text", "")))
            try:
                prefixes = run(pool, "import sys; sys.base_prefix").values
                assert prefixes == [f"/home/ada/.cache/sky_jupyter/python/{folder.name}"] * 2
            finally:
                pool.down()
            assert any(": sending " in line and f"Python {version}" in line for line in told) is sent
        wait_until_clean(world)


def _micro(image: Path) -> str:
    """The whole version of the Python in an image."""
    status = (image / "var" / "lib" / "dpkg" / "status").read_text()
    entry = status.partition(f"Package: python{MINOR}-minimal\n")[2]
    return entry.partition("Version: ")[2].partition("-")[0]


def test_an_archive_is_made_once(place: Path, tmp_path: Path) -> None:
    folder = make(place, "3.12.9")
    for name in ("lib/python3.12/os.py", "lib/python3.12/__pycache__/os.pyc", "lib/python3.12/test/test_os.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    first = standalone_python.archive(standalone_python.Standalone(folder), tmp_path / "cache")
    made = os.stat(first).st_mtime_ns
    assert standalone_python.archive(standalone_python.Standalone(folder), tmp_path / "cache") == first
    assert os.stat(first).st_mtime_ns == made
    shutil.unpack_archive(first, tmp_path / "there")
    files = {str(path.relative_to(tmp_path / "there")) for path in (tmp_path / "there").rglob("*") if path.is_file()}
    assert files == {"bin/python3.12", "lib/python3.12/os.py"}
