"""Who may judge a pool: only who sees its processes, whatever names, ids, clocks and numbers say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.registry.registry import Registry, sweep
from sky_jupyter.pool.registry.rows import PoolRow
from sky_jupyter.util import process_identity
from tests.attacks.namespaces import container
from tests.conftest import pool_folders
from tests.faults.clocks import Clock
from tests.pool.pools import local_pool, run, wait_until
from tests.pool.test_registry import ask, dead_pool
from tests.took import Took

OTHER_BOOT = "0f0f0f0f-1111-4222-8333-444444444444"
OTHER_MACHINE = "0123456789abcdef0123456789abcdef"
YEARS = 2 * 365 * 86_400
# What another process does that comes upon the pool: what loading the extension does, and more.
MEDDLE = """
import sys
from sky_jupyter.errors import PoolError
from sky_jupyter.magics import clean as cleaning; from sky_jupyter.magics import leftover_pools as runs
from sky_jupyter.pool.registry.registry import Registry, sweep
from sky_jupyter.pool.end_without_manager import end
from sky_jupyter.server.pool_list import Listing
print("swept", sweep(Registry()))
print(*runs.news(), sep="\\n")
for pool in Listing(Registry(), None)._read({}):
    print("listed", pool["name"], pool["here"], pool["manager"]["who"])
for id in sys.argv[1:]:
    for act in (lambda: end(Registry(), id), lambda: Registry().own(id, take_over=True), cleaning.here):
        try:
            print(act())
        except PoolError as error:
            print(error)
"""
# Where it comes from. That it is called the same makes it no nearer.
STRANGERS: dict[str, dict[str, Any]] = {
    "a_container_of_the_same_name": {},
    "a_container_of_another_name": {"host": "pod-2"},
    "a_container_with_its_own_temporary_folders": {"hide": True},
    "a_machine_of_the_same_name_with_the_same_home": {"boot": OTHER_BOOT, "pids": False},
    "a_machine_of_another_name_with_the_same_home": {"boot": OTHER_BOOT, "pids": False, "host": "gpu-2"},
    "a_container_whose_clock_is_two_years_ahead": {"ahead": YEARS},
    "a_machine_whose_clock_is_two_years_ahead": {"boot": OTHER_BOOT, "machine": OTHER_MACHINE, "ahead": YEARS},
}


@pytest.fixture
def place() -> Iterator[Path]:
    """Where pools have their folders meanwhile: a path that is short enough for their sockets."""
    with tempfile.TemporaryDirectory(prefix="sky-attack-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Pool]]:
    """A pool that is kept and one that is in use, with a registry and a place of their own."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="sky-attack-", dir="/tmp") as folder:
        patch.setenv("SKY_REGISTRY", str(tmp_path_factory.mktemp("attacked") / "registry.sqlite"))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("TMPDIR", folder)
        patch.delenv("XDG_RUNTIME_DIR", raising=False)
        patch.setattr(tempfile, "tempdir", None)
        with local_pool(nodes=1, keep=True, name="kept") as kept, local_pool(nodes=1, name="used") as used:
            run(kept, "here = 1")
            run(used, "here = 2")
            yield {"kept": kept, "used": used}


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("stranger", STRANGERS)
def test_who_does_not_see_a_pools_processes_touches_nothing_of_it(
    stranger: str, pools: dict[str, Pool], tmp_path: Path, took: Took
) -> None:
    how = dict(STRANGERS[stranger])
    environment = {}
    if ahead := how.pop("ahead", 0):
        clock = Clock(tmp_path)
        clock.set(ahead)
        environment = clock.environment
    hidden = [Path(tempfile.gettempdir()), Path("/dev/shm")] if how.pop("hide", False) else []
    registry = Registry()
    before = rows(registry), [pool_files(pool) for pool in pools.values()]
    with container(**how, hidden=hidden, environment=environment) as there:
        said = there.python(MEDDLE, *(pool.id for pool in pools.values()))
    assert "swept []" in said
    assert (rows(registry), [pool_files(pool) for pool in pools.values()]) == before
    assert [run(pool, "here").values for pool in pools.values()] == [[1], [2]]
    # Old news are no news; all else says where the pool is, and who has it.
    if not ahead:
        assert "pool kept: 1 local node, kept, " in said
        assert said.count(": it is taken up or ended there\n") == said.count("listed ") == 2
        assert said.count("only there can it be attached to") >= 4
        assert f"(process {os.getpid()}" in said
        assert "may use what would be removed: end it there" in said
    took.row(
        "a notebook in another container, or on another machine, that shares HOME, and the host's name too, "
        "loads the extension",
        see="there, that the pool is elsewhere, and where it can be taken up or ended",
        kept="everything",
    )
    registry.close()


@pytest.mark.root
@pytest.mark.slow
def test_a_notebook_in_a_container_says_where_a_kept_pool_is_and_has_its_own(pools: dict[str, Pool]) -> None:
    cells = (
        "%load_ext sky_jupyter",
        "%sky attach kept",
        "%sky down --name kept",
        "%%sky --nodes 1\n6 * 7",
        "%sky down",
    )
    with container() as there:
        said = there.notebook(*cells)
    assert "pool kept: 1 local node, kept, in another container of this machine: there `%sky attach kept`" in said
    assert "pool 'kept' runs in another container of this machine: only there can it be attached to" in said
    assert "42" in said
    assert [run(pool, "here").values for pool in pools.values()] == [[1], [2]]


def rows(registry: Registry) -> list[tuple[Any, ...]]:
    return ask(registry.path, "SELECT * FROM pools ORDER BY id")


def pool_files(pool: Pool) -> list[str]:
    """Files of a pool that do not come and go."""
    folders = [*pool_folders(pool.id), *Path(tempfile.gettempdir()).glob(f"sky-{pool.id}-*")]
    return sorted(str(path) for folder in folders for path in (folder, *folder.glob("*")) if path.is_dir())


# What is judged all the same.


def of_another_boot(row: PoolRow, machine: str) -> str:
    return process_identity.PidNamespace(row.machine, machine, OTHER_BOOT, process_identity.here().pids).text


@pytest.mark.parametrize("heard", ["before", "since"])
@pytest.mark.parametrize("machine", ["this", "another", "unknown"])
def test_what_this_machine_ran_before_it_was_started_again_has_ended(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch, machine: str, heard: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    if not process_identity.here().machine:
        pytest.skip("this machine has no id: /etc/machine-id is missing or empty")
    registry = Registry(tmp_path / "registry.sqlite")
    id = uuid.uuid4().hex[:8]
    folder = Path(tempfile.mkdtemp(prefix=f"sky-{id}-"))
    # (A process of that number, which began then, is there: it is another boot's.)
    me = process_identity.this()
    dead_pool(registry, id, owner=me.pid, owner_started=me.started, host_pid=me.pid, host_started=me.started)
    machine_id = {"this": process_identity.here().machine, "another": "0123456789abcdef", "unknown": ""}[machine]
    text = of_another_boot(registry.pools()[0], machine_id)
    ask(registry.path, "UPDATE pools SET owner_place = ?, machine_place = ?", text, text)
    if heard == "before":
        ask(registry.path, "UPDATE pools SET began = began - 1e9, owner_since = owner_since - 1e9")
    ask(registry.path, "UPDATE pools SET folders = ?", json.dumps([str(folder)]))
    gone = machine == "this" and heard == "before"
    assert sweep(registry) == (["dead"] if gone else [])
    assert folder.exists() is not gone
    registry.close()


MANAGE = """
import os, sys, tempfile
from pathlib import Path
from sky_jupyter.util import process_identity as identity
from sky_jupyter.node.system import file_locks as locking
from sky_jupyter.pool.registry.registry import Registry
id, keep, place = sys.argv[1], sys.argv[2] == "keep", Path(sys.argv[3])
registry = Registry()
registry.intend(id, "x", "local", 1, keep)
folder = place / f"sky-{id}-x"
folder.mkdir(mode=0o700)
(folder / "host.json").write_text('{"pool": "%s"}' % id)
host = locking.hold(folder / locking.HOST)
registry.update(id, "ready", [str(folder)], host=identity.this())
print("made", flush=True)
sys.stdin.readline()
if keep:
    registry.release(id)
    print("released", flush=True)
sys.stdin.read()
"""


@pytest.mark.root
@pytest.mark.parametrize("keep", ["keep", "not"])
@pytest.mark.parametrize("folder", ["shared", "its_own"])
def test_a_container_that_is_gone_takes_its_pools_with_it(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch, keep: str, folder: str
) -> None:
    monkeypatch.setenv("SKY_REGISTRY", str(tmp_path / "registry.sqlite"))
    registry, id = Registry(), uuid.uuid4().hex[:8]
    hidden = [] if folder == "shared" else [place]
    with container(hidden=hidden) as there, there.start("-c", MANAGE, id, keep, str(place)) as owner:
        try:
            assert owner.stdin is not None
            assert owner.stdout is not None
            for said in ("made\n", "released\n") if keep == "keep" else ("made\n",):
                assert owner.stdout.readline() == said
                before = rows(registry)
                assert sweep(registry) == []
                assert rows(registry) == before
                owner.stdin.write("\n")
                owner.stdin.flush()
        finally:
            owner.kill()
    assert owner.wait() == -signal.SIGKILL
    # Of a pool that outlives its owner, whose folder is not seen from here, nothing is known.
    known = keep == "not" or folder == "shared"
    wait_until(lambda: sweep(registry) == (["x"] if known else []))
    assert (list(place.iterdir()), len(registry.pools())) == ([], 0 if known else 1)
    owners = registry.owner_lock(id).parent
    assert list(owners.iterdir()) == []
    registry.close()


HOLD = "import sys\nfrom pathlib import Path\nfrom sky_jupyter.node.system import file_locks as locking\n"
HOLD += "assert locking.hold(Path(sys.argv[1]) / locking.HOST) is not None\nprint('held', flush=True)\nsys.stdin.read()"


def test_whoever_cannot_take_a_pools_lock_removes_nothing_of_it(tmp_path: Path, place: Path) -> None:
    registry = Registry(tmp_path / "registry.sqlite")
    id = uuid.uuid4().hex[:8]
    folder = place / f"sky-{id}-x"
    folder.mkdir(mode=0o700)
    (folder / "host.json").write_text(json.dumps({"pool": id}))
    dead_pool(registry, id, folders=json.dumps([str(folder)]))
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdin=-1, stdout=-1, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        assert sweep(registry) == []
        assert folder.exists()
        assert [row.id for row in registry.pools()] == [id]
        holder.stdin.close()
    assert sweep(registry) == ["dead"]
    assert not folder.exists()
    registry.close()


def test_a_copy_of_a_pools_folder_is_not_the_pools_folder(tmp_path: Path, place: Path) -> None:
    # As through another layer of a container's files: the lock of the copy is free, and says nothing.
    registry = Registry(tmp_path / "registry.sqlite")
    id = uuid.uuid4().hex[:8]
    folder = place / f"sky-{id}-x"
    folder.mkdir(mode=0o700)
    (folder / "host.json").write_text(json.dumps({"pool": id}))
    (folder / "host.lock").write_text("1:1")
    dead_pool(registry, id, folders=json.dumps([str(folder)]))
    assert sweep(registry) == []
    assert folder.exists()
    registry.close()


# Numbers of processes that are given out again.


@pytest.mark.root
def test_a_process_that_got_a_pools_number_is_neither_taken_for_it_nor_ended(tmp_path: Path) -> None:
    with container() as there:
        said = there.python(REUSED, str(tmp_path / "registry.sqlite"))
    assert json.loads(said.splitlines()[-1]) == {"before": [True, True], "swept": ["again"], "lives": True}


REUSED = """
import json, signal, sqlite3, subprocess, sys, time
from pathlib import Path
from sky_jupyter.util import process_identity as identity
from sky_jupyter.machines.local_machine import LocalProcess
from sky_jupyter.pool.registry.registry import Registry, sweep

def start():
    return subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)

path = Path(sys.argv[1])
registry = Registry(path)
first = start()
was = identity.ProcessIdentity(first.pid, identity.started(first.pid))
registry.intend("p1", "again", "local", 1, True)
registry.update("p1", "ready", host=was)
with sqlite3.connect(path) as file:
    file.execute("UPDATE pools SET owner = ?, owner_started = ?", was)
(row,) = registry.pools()
before = [row.owner_lives, row.host_lives]
first.kill()
first.wait()
while identity.started(1) and time.clock_gettime(time.CLOCK_BOOTTIME) - was.started < 0.05:
    time.sleep(0.01)
while True:
    Path("/proc/sys/kernel/ns_last_pid").write_text(str(was.pid - 1))
    second = start()
    if second.pid == was.pid:
        break
    second.kill()
    second.wait()
LocalProcess(*was).terminate()
LocalProcess(*was).kill()
identity.send(was, signal.SIGKILL)
swept = sweep(registry)
lives = identity.lives(second.pid, identity.started(second.pid))
second.kill()
second.wait()
registry.close()
print(json.dumps({"before": before, "swept": swept, "lives": lives}))
"""


@pytest.mark.root
def test_a_process_that_has_the_procfs_of_others_judges_nobody(pools: dict[str, Pool]) -> None:
    # `unshare --pid` alone: /proc shows processes of another namespace, under numbers that mean others here.
    with container(pids=False) as there:
        command = [*there.command, "unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", MEDDLE]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "swept []" in done.stdout, done.stderr
    assert [run(pool, "here").values for pool in pools.values()] == [[1], [2]]


def test_a_row_of_the_version_before_is_judged_where_all_processes_are_seen(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry.sqlite")
    dead_pool(registry, "old")
    ask(registry.path, "UPDATE pools SET owner_place = '', machine_place = ''")
    sees_all = sys.platform != "linux" or os.stat("/proc/self/ns/pid").st_ino == 0xEFFFFFFC
    assert sweep(registry) == (["dead"] if sees_all else [])
    registry.close()


@pytest.mark.root
def test_a_row_of_the_version_before_is_not_judged_in_a_container(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry.sqlite")
    dead_pool(registry, "old")
    ask(registry.path, "UPDATE pools SET owner_place = '', machine_place = ''")
    with container(environment={"SKY_REGISTRY": str(registry.path)}) as there:
        said = there.python(MEDDLE)
    assert "swept []" in said
    registry.close()
