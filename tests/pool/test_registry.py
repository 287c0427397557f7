"""The registry under several processes, kills, hostile rows and files that cannot be used."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.registry import fill
from sky_jupyter.errors import PoolError, SpecError
from sky_jupyter.pool.registry import folder_removal, retention
from sky_jupyter.pool.registry import registry as registry_module
from sky_jupyter.pool.registry.database import VERSION
from sky_jupyter.pool.registry.registry import Registry, sweep
from sky_jupyter.pool.registry.retention import Retention
from sky_jupyter.pool.registry.rows import notebooks
from sky_jupyter.util import process_identity

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
SLEEP = "import time; time.sleep(600)"
# Of rows that were written on another machine.
FAR = process_identity.PidNamespace(
    "elsewhere", "0123456789abcdef", "e5fd4b44-0000-4000-8000-000000000000", "4026531836-1"
).text


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "own" / "registry.sqlite"


@pytest.fixture
def registry(path: Path) -> Iterator[Registry]:
    registry = Registry(path)
    yield registry
    registry.close()


@pytest.fixture
def start(path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a Python program with this registry; none outlives its test."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: str) -> subprocess.Popen[str]:
        env = {**os.environ, "SKY_REGISTRY": str(path), "PYTHONPATH": str(ROOT)}
        env.pop("JPY_SESSION_NAME", None)
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments],
            env=env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def kept(registry: Registry, start: Callable[..., subprocess.Popen[str]]) -> subprocess.Popen[str]:
    """A process that has made pool ``k``, kept and with a host of its own, and is there until it is killed."""
    owner = start(MAKE_KEPT)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "made\n"
    return owner


MAKE_KEPT = """
import subprocess, sys, time
from sky_jupyter.util import process_identity as identity
from sky_jupyter.pool.registry.registry import Registry
registry = Registry()
registry.intend("k", "kept", "local", 1, True)
host = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True,
                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
registry.update("k", "ready", host=(host.pid, identity.started(host.pid)))
print("made", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _no_host_is_left(path: Path) -> Iterator[None]:
    yield
    if path.is_file():
        for pid, began in ask(path, "SELECT host_pid, host_started FROM pools", fails=False):
            if isinstance(pid, int) and pid != os.getpid() and process_identity.lives(pid, began):
                os.kill(pid, signal.SIGKILL)


def ask(path: Path, statement: str, *values: Any, fails: bool = True) -> list[tuple[Any, ...]]:
    """Read or write the file behind the registry's back."""
    connection = sqlite3.connect(path, timeout=30, isolation_level=None)
    try:
        return connection.execute(statement, values).fetchall()
    except sqlite3.Error:
        if fails:
            raise
        return []
    finally:
        connection.close()


def end(process: subprocess.Popen[str] | int) -> None:
    """Kill a process and see that it is gone."""
    pid = process if isinstance(process, int) else process.pid
    os.kill(pid, signal.SIGKILL)
    limit = time.monotonic() + PATIENCE
    while process_identity.started(pid):
        assert time.monotonic() < limit
        time.sleep(0.01)


def dead_pool(registry: Registry, id: str = "dead", keep: bool = False, **columns: Any) -> None:
    """A pool of which neither owner nor host is there."""
    registry.intend(id, columns.pop("name", "dead"), columns.pop("provider", "local"), 1, keep)
    values = {"owner": 4_000_000, "owner_started": 1.0, **columns}
    for column, value in values.items():
        ask(registry.path, f"UPDATE pools SET {column} = ? WHERE id = ?", value, id)


# What is recorded.


def test_a_pool_is_known_from_its_intent_to_its_end(registry: Registry) -> None:
    assert registry.intend("p1", "trainers", "local", 2, False) == 1
    (row,) = registry.pools()
    assert (row.id, row.name, row.provider, row.nodes, row.state, row.keep) == (
        "p1",
        "trainers",
        "local",
        2,
        "starting",
        False,
    )
    assert row.is_mine
    assert row.owner_lives
    assert row.is_here
    assert (row.host_pid, row.host_lives, row.folders) == (0, False, ())
    registry.update("p1", "ready", ["/tmp/sky-p1-x"], host=process_identity.this())
    (row,) = registry.pools()
    assert (row.state, row.folders, row.host_lives) == ("ready", ("/tmp/sky-p1-x",), True)
    registry.update("p1", "ready")
    assert registry.pools() == [row]
    registry.update("p1", "ended")
    assert registry.pools() == []
    assert registry.pool("p1") is None


def test_runs_are_known_newest_first_by_id_or_the_beginning_of_one(registry: Registry) -> None:
    registry.intend("p1", "trainers", "local", 2, False)
    registry.run_began("aa11", "p1", "x = 1", range(4))
    registry.run_began("aa22", "p1", "print('\ud800')\x1b[31m\n", (0, 2, 3))
    registry.run_began("bb33", "p2", "y")
    registry.run_ended("aa11", "ok", 1.5)
    assert [row.id for row in registry.runs()] == ["bb33", "aa22", "aa11"]
    assert [row.id for row in registry.runs("p1", limit=1)] == ["aa22"]
    first = registry.run("aa1")
    assert first is not None
    assert (first.state, first.elapsed, first.ranks, first.pool_name) == ("ok", 1.5, (0, 1, 2, 3), "trainers")
    second = registry.run("aa22")
    assert second is not None
    assert (second.state, second.elapsed, second.ranks) == ("running", None, (0, 2, 3))
    assert second.code == "print('?')\ufffd[31m\n"
    with pytest.raises(PoolError, match="several runs begin with 'aa': aa22, aa11"):
        registry.run("aa")
    assert registry.run("ff") is None
    assert registry.run("") is None
    assert registry.take_warnings() == []


def test_runs_of_a_pool_that_ended_unseen_are_lost_and_one_seen_later_is_not(registry: Registry) -> None:
    registry.intend("p1", "trainers", "local", 2, False)
    registry.run_began("aa11", "p1", "")
    registry.run_began("aa22", "p1", "")
    registry.flush()
    registry.update("p1", "ended")
    registry.run_ended("aa22", "ok", 1.0)
    assert [row.state for row in registry.runs()] == ["ok", "lost"]


def test_a_pool_is_found_by_id_or_name_the_kept_and_newest_first(registry: Registry) -> None:
    registry.intend("p1", "x", "local", 1, True)
    registry.intend("p2", "x", "local", 1, False)
    registry.intend("p3", "p1", "local", 1, False)
    assert [getattr(registry.pool(name), "id", None) for name in ("x", "p1", "p2", "none")] == ["p1", "p1", "p2", None]
    registry.update("p1", "ended")
    registry.intend("p4", "x", "local", 1, False)
    assert [getattr(registry.pool(name), "id", None) for name in ("x", "p1")] == ["p4", "p3"]


def test_the_file_stays_small(registry: Registry) -> None:
    registry.intend("live", "live", "local", 1, False)
    for number in range(30):
        registry.intend(f"p{number}", "x", "local", 1, False)
        registry.update(f"p{number}", "ended")
        registry.run_began(f"r{number}", "live", "")
        if number:
            registry.run_ended(f"r{number}", "ok", 1.0)
    registry.flush()
    registry.retention = Retention(runs=10, pools=5)
    registry.forget_ended()
    assert [row.id for row in registry.runs()] == [*(f"r{n}" for n in range(29, 19, -1)), "r0"]
    assert [id for (id,) in ask(registry.path, "SELECT id FROM pools")] == ["live", *(f"p{n}" for n in range(25, 30))]


def test_a_long_notebook_forgets_by_itself(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    registry.retention = Retention(runs=20)
    monkeypatch.setattr(registry_module, "_TIDY_EVERY", 50)
    for number in range(200):
        registry.run_began(f"r{number}", "p", "")
        registry.run_ended(f"r{number}", "ok", 1.0)
    assert len(registry.runs(limit=1000)) == 20


def test_file_and_folder_are_the_users_alone(path: Path, registry: Registry) -> None:
    path.parent.mkdir(mode=0o755)
    path.touch(0o644)
    registry.intend("p1", "x", "local", 1, False)
    *files, owners = sorted(path.parent.iterdir(), key=lambda file: (file.is_dir(), file))
    assert [file.name for file in files] == ["registry.sqlite", "registry.sqlite-shm", "registry.sqlite-wal"]
    assert (stat.S_IMODE(owners.stat().st_mode), owners.name) == (0o700, "registry.sqlite.owners")
    files += owners.iterdir()
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    fresh = Registry(path.parent / "sky_jupyter" / "registry.sqlite")
    fresh.pools()
    assert stat.S_IMODE(fresh.path.parent.stat().st_mode) == 0o700
    fresh.close()


def test_a_registry_that_was_moved_away_is_made_anew(registry: Registry) -> None:
    registry.intend("p1", "x", "local", 1, False)
    for file in registry.path.parent.iterdir():
        file.rename(file.with_name(f"old-{file.name}"))
    registry.intend("p2", "x", "local", 1, False)
    assert [id for (id,) in ask(registry.path, "SELECT id FROM pools")] == ["p2"]


# Several processes, and kills.

WRITE = """
import sys
from sky_jupyter.pool.registry.registry import Registry
registry, mark, number = Registry(), sys.argv[1], 0
while True:
    number += 1
    id = f"{mark}-{number}"
    registry.intend(id, "x", "local", 1, False)
    print("pool", id, flush=True)
    registry.update(id, "ready", [f"/tmp/sky-{id}-" + "x" * 200])
    registry.run_began(id, id, "code " * 500)
    registry.run_ended(id, "ok", float(number))
    registry.flush()
    print("run", id, flush=True)
"""


def test_kills_in_the_middle_of_writes_lose_no_row_that_was_told(
    registry: Registry, start: Callable[..., subprocess.Popen[str]]
) -> None:
    registry.pools()
    chance = random.Random(3)
    told: list[str] = []
    for turn in range(6):
        writers = [start(WRITE, f"t{turn}w{number}") for number in range(3)]
        for writer in writers:
            assert writer.stdout is not None
            told.append(writer.stdout.readline())
        time.sleep(chance.uniform(0, 0.3))
        for writer in writers:
            writer.kill()
            assert writer.stdout is not None
            told += [line for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    pools = {id: (state, names) for id, state, names in ask(registry.path, "SELECT id, state, folders FROM pools")}
    runs = {id: (state, elapsed) for id, state, elapsed in ask(registry.path, "SELECT id, state, elapsed FROM runs")}
    assert len(told) > 18
    for line in told:
        kind, id = line.split()
        assert id in pools
        if kind == "run":
            assert runs[id] == ("ok", float(id.rpartition("-")[2]))
            assert pools[id] == ("ready", json.dumps([f"/tmp/sky-{id}-" + "x" * 200]))
    assert ask(registry.path, "PRAGMA integrity_check") == [("ok",)]
    assert ask(registry.path, "PRAGMA journal_mode") == [("wal",)]
    assert len(registry.pools()) == min(len(pools), 1000)


def test_processes_that_open_a_new_registry_at_the_same_time_all_can(
    path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    code = """
import sys
from sky_jupyter.pool.registry.registry import Registry
registry = Registry()
print("ready", flush=True)
sys.stdin.readline()
registry.intend(sys.argv[1], "x", "local", 1, False)
"""
    processes = [start(code, f"p{number}") for number in range(8)]
    together(processes)
    assert [process.wait(PATIENCE) for process in processes] == [0] * 8
    assert {id for (id,) in ask(path, "SELECT id FROM pools")} == {f"p{number}" for number in range(8)}


def test_a_second_connection_of_a_process_leaves_the_first_ones_locks(
    registry: Registry, start: Callable[..., subprocess.Popen[str]]
) -> None:
    registry.intend("p1", "x", "local", 1, False)
    second = Registry(registry.path)
    assert second.pools()
    other = start("from sky_jupyter.pool.registry.registry import Registry; r = Registry(); r.pools(); r.close()")
    assert other.wait(PATIENCE) == 0
    # Who closes the file last takes these away; that is still to come.
    assert registry.path.with_name("registry.sqlite-wal").exists()
    registry.intend("p2", "x", "local", 1, False)
    assert [row.id for row in Registry(registry.path).pools()] == ["p1", "p2"]
    second.close()


def together(processes: list[subprocess.Popen[str]], word: str = "") -> None:
    """Have processes go on at the same time, once each has said that it is ready."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(f"{word}\n")
        process.stdin.flush()


def test_what_was_told_before_the_interpreter_ends_is_written(
    registry: Registry, start: Callable[..., subprocess.Popen[str]]
) -> None:
    code = """
import atexit
from sky_jupyter.pool.registry.registry import Registry
registry = Registry()
atexit.register(lambda: registry.run_ended("r0", "ok", 1.0))
for number in range(100):
    registry.run_began(f"r{number}", "p", "x")
"""
    writer = start(code)
    assert writer.wait(PATIENCE) == 0, writer.communicate()
    assert len(registry.runs(limit=1000)) == 100
    assert getattr(registry.run("r0"), "state", "") == "ok"


# Who owns a pool.

RACE = """
import sys, time
from sky_jupyter.errors import PoolError
from sky_jupyter.pool.registry.registry import Registry
registry = Registry()
registry.pools()
print("ready", flush=True)
began = float(sys.stdin.readline())
for number in range(40):
    # All of them at the same moment, as far as the machine has processors.
    while time.monotonic() < began + number / 100:
        pass
    try:
        print("won", registry.own(f"p{number}"), flush=True)
    except PoolError as error:
        print("lost", error, flush=True)
print("done", flush=True)
sys.stdin.readline()
"""


def test_of_many_processes_exactly_one_gets_each_pool(
    registry: Registry, start: Callable[..., subprocess.Popen[str]]
) -> None:
    for number in range(40):
        dead_pool(registry, f"p{number}", keep=True, name=f"n{number}")
    for generation in (2, 3):
        racers = [start(RACE) for _ in range(6)]
        together(racers, str(time.monotonic() + 0.1))
        answers = {racer.pid: [racer.stdout.readline() for _ in range(41)] for racer in racers if racer.stdout}
        rows = {row.id: row for row in registry.pools()}
        for number in range(40):
            told = {pid: lines[number] for pid, lines in answers.items()}
            (winner,) = [pid for pid, line in told.items() if line.startswith("won")]
            assert told.pop(winner) == f"won {generation}\n"
            refusal = f"lost pool 'n{number}' is managed by python (process {winner} on host"
            assert all(line.startswith(refusal) for line in told.values()), told
            row = rows[f"p{number}"]
            assert (row.owner, row.generation) == (winner, generation)
        for racer in racers:
            end(racer)


def test_a_pool_of_another_live_process_is_refused_with_who_and_how(
    registry: Registry, kept: subprocess.Popen[str]
) -> None:
    with pytest.raises(PoolError) as caught:
        registry.own("k")
    who = rf"python \(process {kept.pid} on host {re.escape(process_identity.here().host)}, since \d\d:\d\d\)"
    assert re.fullmatch(
        rf"pool 'kept' is managed by {who}; `%sky attach kept --take-over` takes it over", str(caught.value)
    )
    with pytest.raises(PoolError, match="and no more by this process"):
        registry.update("k", "ended")
    registry.release("k")
    (row,) = registry.pools()
    assert (row.owner, row.generation, row.state) == (kept.pid, 1, "ready")
    assert not registry.owns("k", 1)
    assert registry.own("k", take_over=True) == 2
    assert registry.owns("k", 2)
    assert not registry.owns("k", 1)


def test_an_owner_has_the_same_generation_until_it_releases_the_pool(registry: Registry) -> None:
    assert registry.intend("p1", "x", "local", 1, True) == 1
    assert registry.own("p1") == registry.own("p1", take_over=True) == 1
    registry.release("p1")
    (row,) = registry.pools()
    assert (row.owner, row.owner_lives, row.is_mine, row.who) == (0, False, False, "nobody")
    assert not registry.owns("p1", 1)
    assert registry.own("p1") == 2
    registry.update("p1", "ended")
    assert not registry.owns("p1", 2)
    with pytest.raises(PoolError, match="there is no live pool 'p1'"):
        registry.own("p1")


def test_a_process_that_got_the_dead_owners_number_does_not_own_the_pool(registry: Registry) -> None:
    registry.intend("p1", "x", "local", 1, True)
    me = process_identity.this()
    ask(registry.path, "UPDATE pools SET owner_started = ?", me.started - 5)
    (row,) = registry.pools()
    assert row.owner == os.getpid()
    assert not row.is_mine
    assert not row.owner_lives
    assert registry.own("p1") == 2
    registry.update("p1", "ready", host=(me.pid, me.started - 5))
    assert not registry.pools()[0].host_lives


def test_an_owner_is_known_by_psutils_time_too_and_not_once_it_is_a_zombie(
    start: Callable[..., subprocess.Popen[str]],
) -> None:
    process = start(SLEEP)
    born, began = psutil.Process(process.pid).create_time(), process_identity.started(process.pid)
    assert process_identity.lives(process.pid, began)
    assert process_identity.lives(process.pid, born)
    assert not process_identity.lives(process.pid, born - 5)
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
    assert not process_identity.lives(process.pid, began)
    assert process_identity.started(process.pid) == 0


@pytest.mark.parametrize("pid", [0, -1, 1 << 40])
def test_numbers_that_no_process_has_do_not_live(pid: int) -> None:
    assert not process_identity.lives(pid, 0.0)


def test_a_second_kept_pool_of_a_name_is_refused_while_the_first_lives(
    registry: Registry, kept: subprocess.Popen[str]
) -> None:
    told = re.escape("`%sky attach kept`, or give another --name")
    with pytest.raises(PoolError, match=told):
        registry.intend("k2", "kept", "local", 1, True)
    assert registry.intend("k3", "kept", "local", 1, False) == 1
    end(kept)
    with pytest.raises(PoolError, match=told):
        registry.intend("k2", "kept", "local", 1, True)
    end(registry.pools()[0].host_pid)
    assert registry.intend("k2", "kept", "local", 1, True) == 1
    with pytest.raises(PoolError, match=told):
        registry.intend("k4", "kept", "local", 1, True)


def test_an_owner_on_another_machine_is_believed_to_live(registry: Registry) -> None:
    dead_pool(registry, provider="ssh", owner_host="elsewhere", owner_place=FAR, owner_name="a.ipynb", owner_since=0)
    with pytest.raises(PoolError, match=r"managed by a.ipynb \(process 4000000 on host elsewhere\)"):
        registry.own("dead")
    assert registry.own("dead", take_over=True) == 2
    there = {"owner_host": "elsewhere", "machine": "elsewhere", "owner_place": FAR, "machine_place": FAR}
    dead_pool(registry, "far", name="far", **there)
    with pytest.raises(PoolError, match="pool 'far' runs on machine elsewhere: only there can it be attached to"):
        registry.own("far", take_over=True)


@pytest.mark.parametrize(
    ("session", "program", "name"),
    [
        ("/data/x/analysis.ipynb", "ipykernel_launcher.py", "notebook /data/x/analysis.ipynb"),
        ("~/x/analysis.ipynb", "ipykernel_launcher.py", "notebook ~/x/analysis.ipynb"),
        ("", "/lib/ipykernel_launcher.py", "a notebook"),
        ("", "/x/train.py", "script train.py"),
        ("", "/usr/bin/ipython", "ipython"),
        ("", "-c", "python"),
        ("x\x1b[2J\n" + "y" * 500, "", "notebook x?[2J?" + "y" * 184 + "…"),
    ],
)
def test_an_owner_is_named_as_a_person_knows_it(
    monkeypatch: pytest.MonkeyPatch, session: str, program: str, name: str
) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", session.replace("~", str(Path.home())))
    monkeypatch.setattr(sys, "argv", [program])
    assert process_identity.own_name() == name


# What is left of pools whose processes are gone.


@pytest.fixture
def leftovers(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Make a pool's folder with a file in it, where pools have theirs."""
    made: list[Path] = []

    def make(pool: str, place: str | Path | None = None) -> Path:
        folder = Path(tempfile.mkdtemp(prefix=f"sky-{pool}-", dir=place or tempfile.gettempdir()))
        (folder / "file").touch()
        made.append(folder)
        return folder

    yield make
    for folder in made:
        for file in folder.glob("*"):
            file.unlink()
        if folder.is_dir():
            folder.rmdir()


@pytest.mark.parametrize("keep", [False, True])
def test_a_dead_pools_folders_go_those_that_nobody_named_too(
    registry: Registry, leftovers: Callable[..., Path], keep: bool
) -> None:
    id = uuid.uuid4().hex[:8]
    named, unnamed, other = leftovers(id), leftovers(id), leftovers(f"{id}0")
    dead_pool(registry, id, keep, folders=json.dumps([str(named)]))
    registry.run_began("aa11", id, "")
    registry.flush()
    assert sweep(registry) == ["dead"]
    assert [folder.exists() for folder in (named, unnamed, other)] == [False, False, True]
    assert registry.pools() == []
    assert registry.runs()[0].state == "lost"
    assert sweep(registry) == []


def test_a_folder_in_a_place_of_another_time_goes_by_its_own_description(
    registry: Registry, leftovers: Callable[..., Path], tmp_path: Path
) -> None:
    id = uuid.uuid4().hex[:8]
    place = tmp_path / "place"
    place.mkdir()
    ours, others, unknown = leftovers(id, place), leftovers(id, place), leftovers(id, place)
    (ours / "host.json").write_text(json.dumps({"pool": id}))
    (others / "host.json").write_text(json.dumps({"pool": "other"}))
    dead_pool(registry, id, folders=json.dumps([str(ours), str(others), str(unknown)]))
    sweep(registry)
    assert [folder.exists() for folder in (ours, others, unknown)] == [False, True, True]


@pytest.mark.parametrize(("state", "outlives"), [("starting", False), ("ready", True), ("ending", False)])
def test_a_kept_pool_whose_owner_died_amid_its_start_or_end_is_not_attached_to(
    registry: Registry, state: str, outlives: bool
) -> None:
    registry.intend("p1", "x", "local", 1, True)
    (row,) = registry.pools()
    assert replace(row, state=state).outlives
    assert replace(row, state=state, owner=4_000_000, owner_started=1.0).outlives is outlives


def test_a_pool_whose_owner_lives_is_left_alone(registry: Registry, leftovers: Callable[..., Path]) -> None:
    id = uuid.uuid4().hex[:8]
    folder = leftovers(id)
    for name, keep in ((id, False), (f"{id}k", True)):
        registry.intend(name, "x", "local", 1, keep)
        registry.update(name, "ready", [str(folder)], host=(4_000_000, 1.0))
    before = registry.pools()
    assert sweep(registry) == []
    assert registry.pools() == before
    assert folder.exists()


def test_a_kept_pool_whose_owner_died_has_no_owner_and_goes_with_its_host(
    registry: Registry, kept: subprocess.Popen[str], leftovers: Callable[..., Path]
) -> None:
    folder = leftovers("k")
    ask(registry.path, "UPDATE pools SET folders = ?", json.dumps([str(folder)]))
    end(kept)
    assert sweep(registry) == []
    (row,) = registry.pools()
    assert (row.owner, row.generation, row.state, row.host_lives) == (0, 1, "ready", True)
    assert folder.exists()
    end(row.host_pid)
    assert sweep(registry) == ["kept"]
    assert not folder.exists()


def test_a_host_that_nobody_could_record_is_found_and_its_pool_kept(
    registry: Registry, start: Callable[..., subprocess.Popen[str]], leftovers: Callable[..., Path], tmp_path: Path
) -> None:
    id = uuid.uuid4().hex[:8]
    folder = leftovers(id)
    # In place of the host, a process that says with its command that it is one.
    host = start(SLEEP, "-m", "sky_jupyter.node.host", str(folder))
    limit = time.monotonic() + PATIENCE
    while "sky_jupyter.node.host" not in psutil.Process(host.pid).cmdline():
        assert time.monotonic() < limit
    dead_pool(registry, id, keep=True)
    assert sweep(registry) == []
    (row,) = registry.pools()
    assert (row.host_pid, row.host_lives, row.owner) == (host.pid, True, 0)
    assert folder.exists()


def test_pools_of_other_machines_and_providers_are_not_ended_from_here(registry: Registry) -> None:
    there = {"owner_host": "elsewhere", "machine": "elsewhere", "owner_place": FAR, "machine_place": FAR}
    dead_pool(registry, "far", **there)
    dead_pool(registry, "old", began=1.0, owner_since=1.0, **there)
    dead_pool(registry, "cloud", provider="aws", began=1.0)
    assert sweep(registry) == []
    assert [(row.id, row.owner) for row in registry.pools()] == [("far", 4_000_000), ("cloud", 0)]
    # One that nobody has spoken of for a month is not listed here; only its own machine says that it has ended.
    assert ask(registry.path, "SELECT state FROM pools WHERE id = 'old'") == [("starting",)]


def test_two_sweeps_at_the_same_time_end_a_pool_once(
    registry: Registry, start: Callable[..., subprocess.Popen[str]], leftovers: Callable[..., Path]
) -> None:
    ids = [uuid.uuid4().hex[:8] for _ in range(10)]
    for id in ids:
        leftovers(id)
        dead_pool(registry, id, name=id)
    code = """
import sys
from sky_jupyter.pool.registry.registry import Registry, sweep
from sky_jupyter.pool.registry.retention import Retention
print("ready", flush=True)
sys.stdin.readline()
print(*sweep(Registry()))
"""
    sweepers = [start(code) for _ in range(3)]
    together(sweepers)
    swept = [name for sweeper in sweepers for name in sweeper.communicate(timeout=PATIENCE)[0].split()]
    assert sorted(swept) == sorted(ids)
    assert registry.pools() == []


# Rows and files from outside.

HOSTILE_FOLDERS = [
    "/",
    "",
    ".",
    "sky-p1-x",
    "../../etc",
    "/etc",
    "/home",
    "sky-x/../../home",
    "sky-p1-x/../../home",
    "/tmp/sky-p1-x/..",
    "/tmp/sky-p1-x/../../etc",
    "/tmp/../etc/sky-p1-x",
    "/proc/self",
    "/tmp/sky-p1-\0x",
    "/dev/shm",
    "~",
    "/" + "a/" * 5000,
]


@pytest.mark.parametrize("folder", HOSTILE_FOLDERS)
def test_a_folder_that_no_pool_makes_is_not_ours(folder: str) -> None:
    assert not folder_removal.is_ours("p1", folder)


@given(st.text(max_size=200))
def test_no_text_is_by_chance_a_folder_of_ours(folder: str) -> None:
    assert not folder_removal.is_ours("p1", folder)


def test_links_files_and_folders_of_other_pools_or_places_stay(
    registry: Registry, leftovers: Callable[..., Path], tmp_path: Path
) -> None:
    id = uuid.uuid4().hex[:8]
    precious = tmp_path / f"sky-{id}-precious"
    precious.mkdir()
    (precious / "thesis").touch()
    base = leftovers("base")
    link = Path(tempfile.gettempdir(), f"sky-{id}-link")
    file = Path(tempfile.gettempdir(), f"sky-{id}-file")
    other = leftovers("other")
    try:
        link.symlink_to(precious)
        file.touch()
        named = [link, file, other, precious, base / ".." / other.name, link / "thesis", *HOSTILE_FOLDERS]
        dead_pool(registry, id, folders=json.dumps([str(item) for item in named]))
        assert sweep(registry) == ["dead"]
        assert (precious / "thesis").exists()
        assert link.is_symlink()
        assert file.exists()
        assert other.exists()
    finally:
        link.unlink(missing_ok=True)
        file.unlink(missing_ok=True)


def test_a_folder_of_another_user_stays(leftovers: Callable[..., Path]) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    folder = leftovers("p1")
    assert folder_removal.is_ours("p1", str(folder))
    os.chown(folder, 12345, -1)
    assert not folder_removal.is_ours("p1", str(folder))


_VALUES = st.one_of(
    st.none(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(),
    st.text(max_size=80),
    st.binary(max_size=80),
    st.sampled_from(["[", "[1]", '["/"]', "{}", "[" * 20_000, "0-99999999", "3-1", "1,", "x" * 100_000, "\x1b[2J"]),
    st.lists(st.sampled_from([*HOSTILE_FOLDERS, "/tmp"])).map(json.dumps),
)
_TEXTS = [
    "id",
    "name",
    "provider",
    "state",
    "folders",
    "owner_name",
    "owner_host",
    "machine",
    "owner_place",
    "machine_place",
]
_NUMBERS = ["nodes", "owner", "owner_started", "keep", "began", "ended", "generation", "owner_since"]
_COLUMNS = {
    "pools": [*_TEXTS, *_NUMBERS, "host_pid", "host_started"],
    "runs": ["id", "pool", "state", "code", "began", "elapsed", "ranks"],
}


@pytest.fixture(scope="module")
def loose(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry in which every column takes any value; sweeping it must harm nothing."""
    path = tmp_path_factory.mktemp("loose") / "registry.sqlite"
    connection = sqlite3.connect(path)
    for table, columns in _COLUMNS.items():
        connection.execute(f"CREATE TABLE {table} ({', '.join(f'{name} DEFAULT 0' for name in columns)})")
    connection.execute(f"PRAGMA user_version={VERSION}")
    connection.close()
    return path


@pytest.mark.slow
@settings(max_examples=150)
@given(table=st.sampled_from(sorted(_COLUMNS)), data=st.data())
def test_whatever_a_row_holds_it_is_a_row_or_a_warning(loose: Path, table: str, data: st.DataObject) -> None:
    dead = {"owner": 4_000_000, "owner_started": 1.0, "began": 1.0, "owner_since": 1.0, "host_pid": 4_000_001}
    good = {"id": "bad1", "name": "x", "provider": "local", "nodes": 1, "state": "ready", "folders": "[]", "keep": 1}
    good |= {"owner_name": "", "owner_host": "", "machine": "", "generation": 1, "host_started": 1.0, **dead}
    good |= {"owner_place": "", "machine_place": process_identity.here().text}
    good |= {"pool": "bad1", "code": "x", "elapsed": None, "ranks": "0-3", "ended": None}
    changed = data.draw(st.dictionaries(st.sampled_from(_COLUMNS[table]), _VALUES, min_size=1))
    row = {**{name: good[name] for name in _COLUMNS[table]}, **changed}
    ask(loose, "DELETE FROM pools")
    ask(loose, "DELETE FROM runs")
    # Bytes go in as text that is no UTF-8, which SQLite itself would not give back.
    marks = ", ".join("CAST(? AS TEXT)" if isinstance(value, bytes) else "?" for value in row.values())
    ask(loose, f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", *row.values())
    registry = Registry(loose)
    registry.intend("good", "good", "local", 1, False)
    registry.run_began("goodrun", "good", "x")
    assert "good" in [item.id for item in registry.pools()]
    assert "goodrun" in [item.id for item in registry.runs()]
    for asked in ("bad1", "x", "good"):
        registry.pool(asked)
        registry.run(asked)
    assert all(text.isprintable() for item in registry.pools() for text in (item.name, item.who, item.state))
    for text in registry.take_warnings():
        assert "it is left out" in text
    sweep(registry)
    assert "good" in [item.id for item in registry.pools()]
    registry.close()


def test_a_row_that_cannot_be_read_is_told_once_and_the_others_are_there(registry: Registry) -> None:
    for id in ("p1", "p2"):
        registry.intend(id, "x", "local", 1, False)
    ask(registry.path, "UPDATE pools SET nodes = -1 WHERE id = 'p1'")
    assert [row.id for row in registry.pools()] == ["p2"]
    assert registry.pools()
    assert registry.take_warnings() == [
        f"the registry {registry.path} has a pool with an impossible nodes; it is left out"
    ]
    assert registry.take_warnings() == []


OLD = """
CREATE TABLE pools (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, provider TEXT NOT NULL, nodes INTEGER NOT NULL,
    state TEXT NOT NULL, folders TEXT NOT NULL, owner INTEGER NOT NULL, owner_started REAL NOT NULL,
    keep INTEGER NOT NULL, began REAL NOT NULL, ended REAL
);
CREATE TABLE runs (
    id TEXT PRIMARY KEY, pool TEXT NOT NULL, state TEXT NOT NULL, code TEXT NOT NULL,
    began REAL NOT NULL, elapsed REAL
);
INSERT INTO pools VALUES ('p1', 'old', 'local', 2, 'ready', '[]', {pid}, {born}, 0, 1.0, NULL);
INSERT INTO runs VALUES ('aa11', 'p1', 'ok', 'x', 1.0, 2.0);
"""


def test_a_file_of_the_first_version_gets_what_is_new_and_keeps_its_rows(path: Path) -> None:
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.executescript(OLD.format(pid=os.getpid(), born=psutil.Process().create_time()))
    connection.close()
    registries = [Registry(path) for _ in range(4)]
    threads = [threading.Thread(target=registry.pools) for registry in registries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (row,) = registries[0].pools()
    assert (row.id, row.name, row.generation, row.host_pid, row.owner_lives) == ("p1", "old", 1, 0, True)
    assert [(run.id, run.ranks, run.pool_name, run.notebook) for run in registries[0].runs()] == [
        ("aa11", (), "old", "")
    ]
    assert ask(path, "PRAGMA user_version") == [(VERSION,)]
    for registry in registries:
        registry.close()


def test_a_run_names_its_notebook_and_versions_that_know_of_none_use_the_same_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(path)
    registry.intend("p1", "trainers", "local", 2, False)
    for id, notebook in (("aa11", "/srv/books/train.ipynb"), ("aa22", "/srv/books/eval.ipynb")):
        monkeypatch.setenv("JPY_SESSION_NAME", notebook)
        registry.run_began(id, "p1", "x = 1")
    registry.run_began("aa33", "p1", "y", notebook="")
    registry.flush()
    # As an earlier version writes a run.
    ask(path, "INSERT INTO runs (id, pool, state, code, began, ranks, cell) VALUES ('aa44', 'p1', 'ok', 'z', 1, '', 3)")
    found = registry.runs()
    assert [(run.id, run.notebook) for run in found] == [
        ("aa44", ""),
        ("aa33", ""),
        ("aa22", "notebook /srv/books/eval.ipynb"),
        ("aa11", "notebook /srv/books/train.ipynb"),
    ]
    assert notebooks(found) == {
        "": "",
        "notebook /srv/books/eval.ipynb": "eval.ipynb",
        "notebook /srv/books/train.ipynb": "train.ipynb",
    }
    assert notebooks(found[:3]) == {}, "one is known: there is nothing to tell apart"
    twins = [replace(run, notebook=f"notebook /srv/{run.id}/a.ipynb") for run in found[:2]]
    assert list(notebooks(twins).values()) == ["/srv/aa44/a.ipynb", "/srv/aa33/a.ipynb"]
    registry.close()


def newer(path: Path) -> None:
    ask(path, f"PRAGMA user_version={VERSION + 6}")


def no_database(path: Path) -> None:
    path.write_bytes(b"not a database at all, and longer than a header of one " * 10)


def damaged(path: Path) -> None:
    registry = Registry(path)
    registry.intend("p1", "x", "local", 1, False)
    registry.close()
    with path.open("r+b") as file:
        file.seek(100)
        file.write(os.urandom(path.stat().st_size - 100))


def foreign(path: Path) -> None:
    ask(path, "CREATE TABLE moz_places (url)")


def without_tables(path: Path) -> None:
    ask(path, f"PRAGMA user_version={VERSION}")


def folder(path: Path) -> None:
    path.mkdir()


def pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (newer, rf"is from a later version of sky_jupyter \({VERSION + 6}; this one knows {VERSION}\); update"),
        (no_database, "file is not a database; move it away"),
        (damaged, "cannot be used: .*move it away"),
        (foreign, "is another program's database; set SKY_REGISTRY"),
        (without_tables, "is another program's database; set SKY_REGISTRY"),
        (folder, "cannot be used: it is not a file"),
        (pipe, "cannot be used: it is not a file"),
    ],
)
def test_a_file_that_is_no_registry_is_told_and_left_as_it_is(
    path: Path, spoil: Callable[[Path], None], told: str
) -> None:
    path.parent.mkdir()
    spoil(path)
    before = path.read_bytes() if path.is_file() else None
    registry = Registry(path)
    with pytest.raises(PoolError, match=told) as caught:
        registry.intend("p1", "x", "local", 1, False)
    assert str(path) in str(caught.value)
    # Neither a cell nor loading the extension breaks.
    registry.run_began("aa11", "p1", "x")
    registry.run_ended("aa11", "ok", 1.0)
    assert sweep(registry) == []
    registry.close()
    assert all(str(path) in text for text in registry.take_warnings())
    assert (path.read_bytes() if path.is_file() else None) == before


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where root may write everywhere, the kernel's own tree still takes nothing.
    place = Path("/proc/nowhere") if os.geteuid() == 0 else tmp_path / "closed"
    if os.geteuid():
        place.mkdir(mode=0o500)
    monkeypatch.setenv("SKY_REGISTRY", str(place / "registry.sqlite"))
    with pytest.raises(PoolError, match=f"the registry {place}/registry.sqlite cannot be used: .*SKY_REGISTRY"):
        Registry().intend("p1", "x", "local", 1, False)


def test_a_locked_file_holds_up_no_cell_and_refuses_a_pool(path: Path) -> None:
    registry = Registry(path, patience=0.2)
    registry.pools()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    # The lock is held until the test is over: a call that waited for it would not return.
    for number in range(1000):
        registry.run_began(f"r{number}", "p", "x")
    assert registry.pools() == []
    with pytest.raises(PoolError, match="database is locked; another process writes into it, try again"):
        registry.intend("p1", "x", "local", 1, False)
    assert registry.runs() == []
    (warning,) = registry.take_warnings()
    assert warning.startswith("what runs did is not recorded: the registry")
    other.close()
    assert registry.intend("p1", "x", "local", 1, False) == 1
    registry.run_began("later", "p1", "x")
    assert [row.id for row in registry.runs()] == ["later"]
    registry.close()


FULL = """
import resource
from sky_jupyter.errors import PoolError
from sky_jupyter.pool.registry.registry import Registry
registry = Registry()
registry.intend("p1", "x", "local", 1, False)
# No file may grow beyond this: the disk is full.
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
for number in range(200):
    registry.run_began(f"r{number}", "p1", "y" * 9000)
    registry.flush()
print(len(registry.take_warnings()))
try:
    for number in range(300):
        registry.intend(f"p{number + 2}", "x", "local", 1, False)
    print("all were written")
except PoolError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
registry.intend("last", "x", "local", 1, False)
print("written")
"""


def test_a_full_disk_breaks_no_cell_and_refuses_a_pool(path: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
    if resource.getrlimit(resource.RLIMIT_FSIZE)[1] != resource.RLIM_INFINITY:
        pytest.skip("files may not grow here in any case")
    out, errors = start(FULL).communicate(timeout=PATIENCE)
    assert errors == ""
    warnings, refusal, last = out.splitlines()
    assert int(warnings) >= 1
    assert f"the registry {path} cannot be used: " in refusal
    assert last == "written"
    assert ask(path, "PRAGMA integrity_check") == [("ok",)]
    assert {"p1", "last"} <= {id for (id,) in ask(path, "SELECT id FROM pools")}


# How long starts take.


def test_the_median_of_earlier_starts_of_a_kind_is_known(registry: Registry) -> None:
    assert registry.usual_phases("one") == {}
    for seconds in (10.0, 40.0, 12.0):
        registry.note_phases("one", {"environment": seconds, "agent": 2.0})
    registry.note_phases("other", {"environment": 500.0})
    assert registry.usual_phases("one") == {"environment": 12.0, "agent": 2.0}
    assert registry.usual_phases("other") == {"environment": 500.0}
    assert registry.take_warnings() == []


def test_only_the_newest_starts_count_and_the_file_stays_small(registry: Registry, path: Path) -> None:
    for number in range(2 * registry_module.KEPT_PHASES):
        registry.note_phases("one", {"agent": float(number)})
    for number in range(30 * registry_module.KEPT_PHASES):
        registry.note_phases(f"kind {number}", {"agent": 1.0})
    assert registry.usual_phases("one") == {}
    assert registry.usual_phases(f"kind {number}") == {"agent": 1.0}
    registry.flush()
    assert ask(path, "SELECT count(*) FROM phases")[0][0] <= 20 * registry_module.KEPT_PHASES


def test_what_else_the_table_of_phases_holds_is_passed_over(registry: Registry, path: Path) -> None:
    registry.note_phases("one", {"agent": 3.0})
    registry.flush()
    for phase, seconds in [("agent", "'x'"), ("agent", "-1.0"), ("agent", "1e300"), ("x" * 500, "1.0")]:
        ask(path, f"INSERT INTO phases VALUES ('one', '{phase}', {seconds})")
    assert registry.usual_phases("one") == {"agent": 3.0}


def test_a_file_with_phases_is_one_that_earlier_versions_use(registry: Registry, path: Path) -> None:
    registry.note_phases("one", {"agent": 3.0})
    registry.close()
    # What such a version looks at before it uses a file.
    assert ask(path, "PRAGMA user_version") == [(VERSION,)]
    assert {"pools", "runs"} <= {name for (name,) in ask(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}


# A registry after a year's use.


def steps(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return how many steps SQLite takes for what a cell, a page and loading the extension ask of a registry."""
    taken = 0

    def count() -> int:
        nonlocal taken
        taken += 1
        return 0

    def counted(path: Path, patience: float) -> sqlite3.Connection:
        connection = registry_module_connect(path, patience)
        connection.set_progress_handler(count, 1)
        return connection

    registry_module_connect = registry_module.connect
    monkeypatch.setattr(registry_module, "connect", counted)
    registry.pools()
    operations: dict[str, Callable[[], object]] = {
        "pools": registry.pools,
        "a live pool": lambda: registry.own("live"),
        "newest runs": lambda: registry.runs(limit=5),
        "runs of a pool": lambda: registry.runs("live", 5),
        "running runs": lambda: registry.running_runs("live"),
        "a run": lambda: registry.run("live3"),
        "a run by its beginning": lambda: registry.run("live3"[:4] + "4"),
        "a run of a pool": lambda: registry.run("live3", "live"),
        "numbers": lambda: registry.numbers(["live1", "live2", "none"]),
        "a cell's begin": lambda: registry.run_began("new", "live", "x"),
        "a cell's end": lambda: registry.run_ended("new", "ok", 1.0),
        "a sweep": lambda: sweep(registry),
        "a pool's end": lambda: registry.update("live", "ended"),
    }
    found = {}
    for name, operation in operations.items():
        taken = 0
        operation()
        registry.flush()
        found[name] = taken
    monkeypatch.undo()
    return found


def test_what_is_asked_of_a_registry_does_not_depend_on_how_many_runs_and_pools_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    for runs, pools in ((100, 10), (10_000, 200)):
        fill(tmp_path / f"{runs}.sqlite", runs, pools)
        registry = Registry(tmp_path / f"{runs}.sqlite")
        registry.retention = Retention(1_000_000, 1_000_000)
        taken.append(steps(registry, monkeypatch))
        registry.close()
    few, many = taken
    # A tree of pages that is one level higher costs no step.
    assert {name: (few[name], many[name]) for name in few if many[name] > few[name] + 10} == {}


def test_a_file_that_is_to_shrink_does_so_in_parts_that_hold_up_nobody(
    path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_AT_ONCE", 300)
    fill(path, 1000, 20)
    registry.retention = Retention(runs=200, pools=5)
    left = []
    for _ in range(4):
        registry.forget_ended()
        left += ask(path, "SELECT count(*) FROM runs")
    assert left == [(710,), (410,), (200,), (200,)]
    assert [row.id for row in registry.pools()] == ["live"]


def test_how_much_is_kept_is_set_in_the_environment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Registry(path).retention == Retention(1000, 200)
    monkeypatch.setenv("SKY_KEEP_RUNS", "100000")
    monkeypatch.setenv("SKY_KEEP_POOLS", " ")
    assert Registry(path).retention == Retention(100_000, 200)
    for wrong in ("0", "-1", "many", "1.5", "100000000"):
        monkeypatch.setenv("SKY_KEEP_POOLS", wrong)
        with pytest.raises(
            SpecError, match=f"SKY_KEEP_POOLS must be a whole number from 1 to 10,000,000, not '{wrong}'"
        ):
            Registry(path)


def test_rows_that_wait_are_seen_at_once_by_who_reads_in_this_process(registry: Registry) -> None:
    registry.run_began("aa11", "p1", "x = 1")
    registry.run_ended("aa11", "ok", 0.1)
    assert [(row.id, row.state) for row in Registry(registry.path).runs()] == [("aa11", "ok")]


def test_a_run_that_was_never_recorded_as_the_process_was_killed_leaves_the_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "registry.sqlite"
    code = (
        "import os, signal, sys; from pathlib import Path; from sky_jupyter.pool.registry.registry import Registry\n"
        "registry = Registry(Path(sys.argv[1])); registry.run_began('aa11', 'p1', 'x = 1'); registry.flush()\n"
        "registry.run_ended('aa11', 'ok', 0.1); registry.run_began('aa22', 'p1', 'x = 2')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    seen = Registry(path)
    assert "aa11" in {row.id for row in seen.runs()}
    # Whoever takes the pool over records what is missing.
    seen.run_began("aa22", "p1", "x = 2")
    seen.run_ended("aa22", "ok", 0.1)
    assert {row.id: row.state for row in seen.runs()}["aa22"] == "ok"
