"""What the registry knows of pools on other machines: from before it is made until it is seen to have ended."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

import sky_jupyter as sky
from sky_jupyter.errors import SpecError
from sky_jupyter.machines import remote_cleanup
from sky_jupyter.pool.registry import remote_leftovers
from sky_jupyter.pool.registry.registry import Registry, sweep
from sky_jupyter.pool.registry.remote_leftovers import Traces
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.programs import ROOT

ID = "0123abcd"
FOLDERS = f"/tmp/sky-{ID}-1", f"/dev/shm/sky-{ID}-1"
SPEC = PoolSpec(provider=sky.SSH("ada@host0:2222,host1", user="bob", jump="door"), nodes=2, name="far")


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "registry.sqlite")


def test_a_host_is_known_from_before_anything_is_made_there_until_it_has_ended(registry: Registry) -> None:
    registry.intend(ID, "far", "ssh", 2, False)
    known = Traces(registry, ID, SPEC)
    known.note("ada@host0:2222", *FOLDERS)
    (trace,) = known.left()
    assert (trace.host, trace.name, trace.lease) == ("ada@host0:2222", "far", 1800.0)
    target = trace.reach()
    assert (target.user, target.port, target.name) == ("ada", 2222, "ada@host0:2222")
    assert target.jump is not None
    # Its owner lives.
    assert remote_leftovers.orphans(registry) == []
    registry.update(ID, "ended")
    assert remote_leftovers.orphans(registry) == [trace]
    known.forget(FOLDERS[0])
    assert known.left() == remote_leftovers.orphans(registry) == []


DEAD = """
import sys
from pathlib import Path
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.pool.registry.remote_leftovers import Traces
from tests.pool.test_traces import FOLDERS, ID, SPEC
registry = Registry(Path(sys.argv[1]))
registry.intend(ID, "far", "ssh", 2, sys.argv[2] == "kept")
Traces(registry, ID, SPEC).note("host1", *FOLDERS)
if sys.argv[3] != "starting":
    registry.update(ID, sys.argv[3], [sys.argv[4]])
"""


@pytest.mark.parametrize("kept", ["kept", "left"])
@pytest.mark.parametrize(("state", "orphaned"), [("starting", True), ("ending", True), ("ready", False)])
def test_what_a_dead_notebook_was_making_or_ending_is_nobodys(
    registry: Registry, tmp_path: Path, kept: str, state: str, orphaned: bool
) -> None:
    command = [sys.executable, "-c", DEAD, str(registry.path), kept, state, str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT)
    (row,) = registry.pools()
    assert row.unfinished is orphaned
    assert row.outlives is not orphaned
    assert [trace.host for trace in remote_leftovers.orphans(registry)] == ["host1"] * orphaned
    if orphaned:
        assert sweep(registry) == ["far"]
        assert [trace.host for trace in remote_leftovers.orphans(registry)] == ["host1"]


def test_what_was_not_reached_for_longer_than_its_lease_is_forgotten(registry: Registry) -> None:
    registry.intend(ID, "far", "ssh", 2, False)
    Traces(registry, ID, SPEC).note("host0", *FOLDERS)
    registry.update(ID, "ended")
    assert len(remote_leftovers.orphans(registry)) == 1
    with registry.transaction() as connection:
        connection.execute("UPDATE pools SET ended = ?", (time.time() - 2 * 86_400,))
    assert remote_leftovers.orphans(registry) == []
    assert Traces(registry, ID, SPEC).left() == []


@pytest.mark.parametrize("change", ["began = 0, owner_since = 0", "nodes = -1"], ids=["old", "damaged"])
def test_a_pool_of_another_machine_that_is_not_listed_is_not_taken_for_ended(registry: Registry, change: str) -> None:
    registry.intend(ID, "far", "ssh", 2, False)
    registry.update(ID, "ready")
    Traces(registry, ID, SPEC).note("host0", *FOLDERS)
    with registry.transaction() as connection:
        connection.execute(f"UPDATE pools SET machine = 'elsewhere', machine_place = 'm/b/p', {change}")
    assert registry.pools() == []
    assert remote_leftovers.orphans(registry) == []
    with registry.transaction() as connection:
        connection.execute("UPDATE pools SET state = 'ended', ended = ?", (time.time(),))
    assert [trace.host for trace in remote_leftovers.orphans(registry)] == ["host0"]


@pytest.mark.parametrize(
    "row",
    [
        ("0123abcd", "far", "/etc", "/dev/shm/sky-0123abcd-1", "{}", 1.0),
        ("0123abcd", "far", "/tmp/sky-0123abcd-1/../../etc", "/dev/shm/sky-0123abcd-1", "{}", 1.0),
        ("$(reboot)", "far", "/tmp/sky-$(reboot)-1", "/dev/shm/sky-$(reboot)-1", "{}", 1.0),
        ("0123abcd", "far", 7, "/dev/shm/sky-0123abcd-1", "{}", 1.0),
        ("0123abcd", "far", "/tmp/sky-0123abcd-1", "/dev/shm/sky-0123abcd-1", "{}", "soon"),
    ],
)
def test_a_row_that_cannot_be_ours_is_no_part_of_a_script(registry: Registry, row: tuple[object, ...]) -> None:
    Traces(registry, "ffffffff", SPEC).note("host0", "/tmp/sky-ffffffff-1", "/dev/shm/sky-ffffffff-1")
    with sqlite3.connect(registry.path) as connection:
        connection.execute(
            "INSERT INTO traces (pool, name, folder, blobs, target, lease, noted) VALUES (?, ?, ?, ?, ?, ?, 0)", row
        )
    assert [trace.pool for trace in remote_leftovers.orphans(registry)] == ["ffffffff"]


@pytest.mark.parametrize(
    "target", ["{}", "[]", "{", '{"name": "h", "keys": 7}', '{"name": "h", "keys": [], "port": "x"}']
)
def test_one_that_does_not_say_how_the_host_is_reached_is_refused(target: str) -> None:
    with pytest.raises(SpecError):
        remote_leftovers.RemotePart(ID, "far", *FOLDERS, target, 1.0).reach()


def test_the_registry_holds_no_secret_of_the_log_in(registry: Registry, tmp_path: Path) -> None:
    key = tmp_path / "id_secret"
    key.write_text("the key itself")
    spec = PoolSpec(provider=sky.SSH("host0", key=str(key)), image=sky.Image(env={"TOKEN": "abc123"}))
    trace = Traces(registry, ID, spec).note("host0", *FOLDERS)
    assert json.loads(trace.target) == {"name": "host0", "user": None, "port": None, "jump": None, "keys": [str(key)]}


def test_the_script_ends_nothing_where_there_is_nothing(tmp_path: Path) -> None:
    folder = tmp_path / f"sky-{ID}-1"
    folder.mkdir()
    done = subprocess.run(["sh"], input=remote_cleanup.script(ID, [str(folder)]), text=True, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not folder.exists()
