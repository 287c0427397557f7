"""Where a pool on other machines has its folders on this one."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sky_jupyter.machines.link import socket_folder
from sky_jupyter.pool.hosts.host_places import make_folders
from sky_jupyter.pool.registry import folder_removal

ID = "0123abcd"


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the registry."""
    # (A path of a test may be longer than that of a socket.)
    made = Path(tempfile.mkdtemp(prefix="s-", dir="/tmp"))
    monkeypatch.setenv("SKY_REGISTRY", str(made / "registry.sqlite"))
    yield made
    folder_removal.remove(ID, [])
    shutil.rmtree(made, ignore_errors=True)


def test_a_lasting_pool_s_folder_is_beside_the_registry(state: Path) -> None:
    folder, _ = make_folders(ID, lasting=True)
    assert folder.parent == state
    # Nothing else stays there.
    assert list(state.iterdir()) == [folder]


def test_it_is_where_a_restart_empties_it_if_its_sockets_would_have_too_long_paths(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    name = f"sky-{ID}-12345678/{folder_removal.LINK}/{socket_folder.SOCKET}"
    for room in (0, 1):
        inner = state / ("d" * (100 - len(f"{state}//{name}") + room))
        inner.mkdir()
        monkeypatch.setenv("SKY_REGISTRY", str(inner / "registry.sqlite"))
        folder, _ = make_folders(ID, lasting=True)
        assert (folder.parent == inner) is (room == 0)
        # A link can be started there.
        (folder / folder_removal.LINK).mkdir()
        socket_folder.listen(folder / folder_removal.LINK).close()


def test_a_registry_named_by_a_relative_path_has_folders_that_are_found_from_everywhere(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(state)
    monkeypatch.setenv("SKY_REGISTRY", "registry.sqlite")
    folder, blobs = make_folders(ID, lasting=True)
    assert folder.parent == state
    assert os.path.isabs(folder)
    assert set(folder_removal.remove(ID, [str(folder)]) or ()) == {str(folder), str(blobs)}
