"""Which pools on other machines are over, as their folders here tell: nobody is asked."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sky_jupyter.machines.link import socket_folder
from sky_jupyter.pool.registry.folder_removal import LINK
from sky_jupyter.pool.registry.lease_expiry import has_ended
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.pool.registry.rows import PoolRow

RowOf = Callable[[], PoolRow]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A pool's folder with what a link keeps in its own; nobody answers there."""
    made = tmp_path / "sky-p1-x"
    (made / LINK).mkdir(mode=0o700, parents=True)
    (made / LINK / socket_folder.CONFIG).write_text(json.dumps({"lease": 600.0}))
    return made


@pytest.fixture
def row(tmp_path: Path, folder: Path) -> RowOf:
    registry = Registry(tmp_path / "registry.sqlite")
    registry.intend("p1", "far", "ssh", 2, False)

    def read() -> PoolRow:
        (found,) = registry.pools()
        return found

    registry.update("p1", "ready", [str(folder)])
    return read


def old(folder: Path, seconds: float) -> None:
    """The link's last client was there so long ago."""
    when = time.time() - seconds
    os.utime(folder / LINK / socket_folder.CONFIG, (when, when))


def test_a_pool_that_was_heard_of_within_its_lease_lives(row: RowOf, folder: Path) -> None:
    old(folder, 500)
    assert not has_ended(row(), running=False)


def test_one_that_was_not_has_ended_unless_a_run_was_on(row: RowOf, folder: Path) -> None:
    old(folder, 800)
    assert has_ended(row(), running=False)
    assert not has_ended(row(), running=True)


def test_a_link_that_ended_in_order_saw_the_lease_pass(row: RowOf, folder: Path) -> None:
    (folder / LINK / socket_folder.CONFIG).unlink()
    assert has_ended(row(), running=False)
    assert not has_ended(row(), running=True)


def test_a_pool_without_its_folder_has_ended(row: RowOf, folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    assert has_ended(row(), running=True)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"lease": "x"}', '{"lease": null}'])
def test_what_a_link_left_in_pieces_decides_nothing_for_a_new_pool(row: RowOf, folder: Path, text: str) -> None:
    (folder / LINK / socket_folder.CONFIG).write_text(text)
    assert not has_ended(row(), running=True)


def test_a_link_that_answers_has_the_last_word(row: RowOf, folder: Path) -> None:
    old(folder, 10_000)
    with socket.socket(socket.AF_UNIX) as listener, socket_folder._address(folder / LINK) as address:
        listener.bind(address)
        listener.listen()
        assert not has_ended(row(), running=False)
    assert has_ended(row(), running=False)
