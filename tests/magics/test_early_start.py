"""The host of a local pool begins while the notebook imports the rest, and is gone where no pool takes it over."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import sky_jupyter as sky
from sky_jupyter.magics.early_start import is_local_start
from sky_jupyter.node.protocol.host_config import VARIABLES
from sky_jupyter.node.protocol.version import HOST_PROCESS
from sky_jupyter.pool.hosts.early_host import EarlyHosts, early_hosts
from sky_jupyter.pool.pool import Pool
from sky_jupyter.spec.image import Image
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.magics.notebook import Notebook, notebook

# What the notebook's hosts were started with, and which of them came before the package's other modules.
WATCH = f"""
import subprocess, sys
started, start = [], subprocess.Popen.__init__
def init(self, argv, *more, **given):
    if {HOST_PROCESS!r} in argv:
        started.append((argv[-1] == str(__import__("os").getpid()), "sky_jupyter.pool.pool" in sys.modules))
    start(self, argv, *more, **given)
subprocess.Popen.__init__ = init
"""


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Notebook]:
    with notebook(tmp_path) as made:
        made.run("%load_ext sky_jupyter")
        made.run(WATCH)
        yield made


def hosts_below(pid: int) -> list[psutil.Process]:
    return [one for one in psutil.Process(pid).children() if HOST_PROCESS in one.cmdline()]


def early_host_of(pid: int) -> psutil.Process:
    """Return the host that a process has just begun; its command line can be read a moment after it was started."""
    while not (found := [one for one in hosts_below(pid) if one.cmdline()[-1] == str(pid)]):
        time.sleep(0.01)
    (host,) = found
    return host


@pytest.fixture(autouse=True)
def none_is_left() -> Iterator[None]:
    yield
    early_hosts.discard()


def kernel_of(book: Notebook) -> int:
    return int(book.value("__import__('os').getpid()"))


def test_the_first_cell_s_host_begins_before_the_manager_is_imported_and_is_the_pool_s(book: Notebook) -> None:
    cell = book.run("%%sky --nodes 2\nprint('here')")
    assert cell.status == "ok"
    assert book.value("started") == [(True, False)]
    assert len(hosts_below(kernel_of(book))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "%%sky --nodes 0\nx = 1",
        "%%sky --on 7\nx = 1",
        "%%sky\nx = (",
        "%sky up --nodes two",
        "%%sky --plugins no\nx = 1",
    ],
)
def test_a_line_that_is_wrong_leaves_no_host_and_no_folder(book: Notebook, line: str) -> None:
    cell = book.run(line)
    assert cell.status == "error" or cell.outputs
    assert book.value("started") == [(True, False)]
    assert hosts_below(kernel_of(book)) == []
    # The next one starts a pool.
    assert book.run("%%sky\nprint('here')").status == "ok"


def test_a_host_that_waits_ends_with_a_notebook_that_is_killed(tmp_path: Path) -> None:
    with notebook(tmp_path) as book:
        pid = kernel_of(book)
        book.run("from sky_jupyter.pool.hosts.early_host import early_hosts\nearly_hosts.begin()")
        host = early_host_of(pid)
        folder = Path(host.cmdline()[-3])
        family = [host, *host.children(recursive=True)]
        assert folder.is_dir()
        os.kill(pid, signal.SIGKILL)
        _, alive = psutil.wait_procs(family, timeout=120)
        assert not alive
        assert not folder.exists()


def test_what_plugins_add_to_the_variables_reaches_the_ranks_of_a_host_that_began_before(book: Notebook) -> None:
    code = "import keras, os, pathlib\n"
    code += "print('backend', keras.backend.backend(), os.environ['KERAS_BACKEND'])"
    cell = book.run(f"%%sky --nodes 2 --plugins jax,keras\n{code}")
    assert cell.body == ["[0-1] backend jax jax"]
    assert book.value("started") == [(True, False)]
    (host,) = hosts_below(kernel_of(book))
    assert not (Path(host.cmdline()[-3]) / VARIABLES).exists()


def test_a_pool_that_lacks_a_variable_starts_a_host_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GONE", "1")
    early_hosts.begin()
    monkeypatch.delenv("GONE")
    pool = Pool(PoolSpec(provider=sky.Local()))
    pool.start()
    try:
        assert "GONE" not in psutil.Process(pool.hosts[0].command.identity[0]).environ()
    finally:
        pool.down()


def test_a_pool_with_variables_of_the_user_starts_a_host_of_its_own() -> None:
    early_hosts.begin()
    host = early_host_of(os.getpid())
    pool = Pool(PoolSpec(provider=sky.Local(), image=Image(env={"MINE": "1"})))
    pool.start()
    try:
        assert pool.hosts[0].command.identity[0] != host.pid
    finally:
        pool.down()
        early_hosts.discard()
    assert not host.is_running()


def test_a_pool_that_is_kept_is_not_given_one() -> None:
    hosts = EarlyHosts()
    hosts.begin()
    try:
        assert hosts.claim(PoolSpec(provider=sky.Local(), keep=True)) is None
        assert hosts.claim(PoolSpec(provider=sky.SSH(("gpu1",)))) is None
        assert (id := hosts.claim(PoolSpec(provider=sky.Local()))) is not None
        assert hosts.claim(PoolSpec(provider=sky.Local())) is None, "two pools had one id"
        assert len(id) == 8
    finally:
        hosts.discard()
    assert hosts.claim(PoolSpec(provider=sky.Local())) is None


def test_a_host_that_ended_meanwhile_is_not_taken() -> None:
    early_hosts.begin()
    pool = Pool(PoolSpec(provider=sky.Local()))
    host = early_host_of(os.getpid())
    assert f"/sky-{pool.id}-" in host.cmdline()[-3]
    host.kill()
    while host.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    pool.start()
    try:
        assert pool.hosts[0].command.identity[0] != host.pid
    finally:
        pool.down()


@pytest.mark.parametrize(
    ("line", "is_cell", "expected"),
    [
        ("", True, True),
        ("--nodes 2 --plugins jax,keras", True, True),
        ("--nodes=4 --quiet", True, True),
        ("up --nodes 2", False, True),
        ("up", False, True),
        ("", False, False),
        ("status", False, False),
        ("down", False, False),
        ("run train.py", False, False),
        ("up --provider ssh --hosts a", False, False),
        ("--provider aws", True, False),
        ("--hosts gpu1,gpu2", True, False),
        ("--config pools.toml#lab", True, False),
        ("--pip numpy", True, False),
        ("--keep", True, False),
        ("--python=3.12", True, False),
        ("up --help", False, False),
    ],
)
def test_only_lines_that_start_a_pool_here_are_seen_to(line: str, is_cell: bool, expected: bool) -> None:
    assert is_local_start(line, is_cell=is_cell) is expected
