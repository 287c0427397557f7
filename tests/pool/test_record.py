"""What a kept pool leaves for a later manager: read back only where it is whole and the user's own."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sky_jupyter.errors import PoolError
from sky_jupyter.machines.link import encoding
from sky_jupyter.machines.ssh.target import Target
from sky_jupyter.node.protocol.version import PROTOCOL
from sky_jupyter.plugins import Plugin
from sky_jupyter.pool.registry.pool_record import PoolRecord
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.pool.registry.rows import PoolRow
from sky_jupyter.providers import Local
from sky_jupyter.spec.pool_spec import PoolSpec

SPEC = PoolSpec(provider=Local(), nodes=2, keep=True, name="kept", plugins=(Plugin("own"),))
RECORD = PoolRecord(SPEC, "tls://127.0.0.1:1", ("local-0", "local-1"), ({"nodes": [0, 1]},), direct=True)


@pytest.fixture
def row(tmp_path: Path) -> PoolRow:
    """A row of a pool whose folder has a record."""
    folder = tmp_path / "sky-p1-x"
    folder.mkdir(mode=0o700)
    registry = Registry(tmp_path / "registry.sqlite")
    try:
        registry.intend("p1", "kept", "local", 2, True)
        registry.update("p1", "ready", (str(folder),))
        found = registry.pool("p1")
    finally:
        registry.close()
    assert found is not None
    RECORD.write(folder)
    return found


def path_of(row: PoolRow) -> Path:
    return Path(row.folders[0]) / "pool.record"


def test_a_record_comes_back_as_it_was_written_and_only_the_user_can_read_it(row: PoolRow) -> None:
    assert PoolRecord.read(row) == RECORD
    assert path_of(row).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in path_of(row).parent.iterdir()] == ["pool.record"]


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_record_that_others_could_have_changed_is_not_read(row: PoolRow, what: str) -> None:
    path = path_of(row)
    (path if what == "file" else path.parent).chmod(0o770)
    with pytest.raises(PoolError, match="is not this user's own, and is not read"):
        PoolRecord.read(row)


@pytest.mark.root
def test_a_record_of_another_user_is_not_read(row: PoolRow) -> None:
    if os.geteuid():
        pytest.skip("needs root, for a file of another user")
    os.chown(path_of(row), 12_345, 12_345)
    with pytest.raises(PoolError, match="is not this user's own, and is not read"):
        PoolRecord.read(row)


def test_a_pool_without_a_record_or_a_folder_is_told(row: PoolRow) -> None:
    path_of(row).unlink()
    with pytest.raises(PoolError, match="'kept' is gone, or was not made with --keep"):
        PoolRecord.read(row)
    with pytest.raises(PoolError, match="'kept' is not ready"):
        PoolRecord.read(replace(row, folders=()))


@pytest.mark.parametrize("value", [None, 5, [], {"spec": "x"}, {"protocol": "1"}])
def test_a_record_of_something_else_holds_no_pool(row: PoolRow, value: object) -> None:
    path_of(row).write_text(json.dumps(value))
    with pytest.raises(PoolError, match="holds no pool"):
        PoolRecord.read(row)
    with pytest.raises(PoolError, match="holds no pool"):
        PoolRecord.hosts_of(row)


class Trap:
    """Whoever unpickles it leaves a trace."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    ("number", "version"), [(PROTOCOL + 1, "a later"), (PROTOCOL - 1, "an earlier"), (None, "an earlier")]
)
def test_a_pool_of_another_version_is_refused_in_words_before_anything_is_unpickled(
    row: PoolRow, tmp_path: Path, number: int | None, version: str
) -> None:
    pickled = pickle.dumps(Trap(tmp_path / "sprung"))
    told = json.loads(path_of(row).read_text()) | {"protocol": number, "spec": base64.b64encode(pickled).decode()}
    path_of(row).write_bytes(pickled if number is None else json.dumps(told).encode())
    with pytest.raises(PoolError, match=rf"'kept' was made by {version} version .*`%sky down --name kept` ends it"):
        PoolRecord.read(row)
    assert not (tmp_path / "sprung").exists()


def test_a_spec_that_cannot_be_read_here_leaves_the_hosts_readable(row: PoolRow) -> None:
    told = json.loads(path_of(row).read_text()) | {"spec": base64.b64encode(b"\x80\x05cnosuch\nthing\n.").decode()}
    path_of(row).write_text(json.dumps(told))
    with pytest.raises(PoolError, match=r"pool.record cannot be read: ModuleNotFoundError: No module named 'nosuch'"):
        PoolRecord.read(row)
    assert PoolRecord.hosts_of(row) == list(RECORD.hosts)


def test_how_hosts_are_reached_comes_back_too(row: PoolRow) -> None:
    jump = Target("j", "10.0.0.1", "me", keys=("/k",))
    target = Target("gpu", "10.0.0.2", "me", jump=jump, known_hosts=("/a", "/b"))
    replace(RECORD, hosts=({"nodes": [0], "target": encoding.from_target(target), "apart": None},)).write(
        path_of(row).parent
    )
    assert PoolRecord.read(row).hosts[0]["target"] == target


def test_a_link_in_the_place_of_a_record_is_not_followed(row: PoolRow, tmp_path: Path) -> None:
    path_of(row).rename(tmp_path / "moved")
    path_of(row).symlink_to(tmp_path / "moved")
    with pytest.raises(PoolError, match="cannot be read"):
        PoolRecord.read(row)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 10_000), junk=st.binary(max_size=20))
def test_a_broken_record_is_told_and_breaks_nothing(row: PoolRow, cut: int, junk: bytes) -> None:
    path = path_of(row)
    RECORD.write(path.parent)
    whole = path.read_bytes()
    cut %= len(whole)
    path.write_bytes(whole[:cut])
    with pytest.raises(PoolError):
        PoolRecord.read(row)
    path.write_bytes(whole[:cut] + junk)
    # What happens to be a record is one; all else is told.
    with contextlib.suppress(PoolError):
        assert isinstance(PoolRecord.read(row), PoolRecord)
