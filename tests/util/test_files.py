"""A file that is written for readers appears whole or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sky_jupyter.util.atomic_write import atomic_write


def test_a_file_appears_when_it_is_whole_and_replaces_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "record"
    path.write_bytes(b"old")
    with atomic_write(path, prefix=".half-") as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
        (part,) = tmp_path.glob(".half-*")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert not part.exists()


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "record"
    path.write_bytes(b"old")

    def write() -> None:
        with atomic_write(path) as file:
            file.write(b"half of it")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert [item.name for item in tmp_path.iterdir()] == ["record"]
    assert path.read_bytes() == b"old"


def test_the_error_is_the_writers_own_where_the_folder_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()

    def write() -> None:
        with atomic_write(folder / "record"):
            shutil.rmtree(folder)

    with pytest.raises(FileNotFoundError, match="record"):
        write()
