"""Who cleans temporary folders up leaves those of pools that live."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from sky_jupyter.node.system import file_locks
from tests.pool.pools import local_pool, run


def clean(folder: Path, config: Path) -> None:
    """Remove whatever is in a folder, as ``systemd-tmpfiles`` does each day with what is old."""
    tool = shutil.which("systemd-tmpfiles")
    if tool is None:
        pytest.skip("needs systemd-tmpfiles (apt-get install systemd)")
    config.write_text(f"e {folder} - - - 0\n")
    subprocess.run([tool, "--clean", str(config)], check=True)


@pytest.mark.slow
def test_the_folders_of_a_pool_outlive_the_daily_cleaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A short name: a pool's sockets must fit below it.
    with tempfile.TemporaryDirectory(prefix="cleaned-", dir="/tmp") as name:
        place = Path(name)
        (place / "old").write_text("")
        monkeypatch.setenv("TMPDIR", name)
        monkeypatch.setattr("tempfile.tempdir", None)
        outlives(place, tmp_path / "cleaning.conf")


def outlives(place: Path, config: Path) -> None:
    """Start a pool in a folder, clean that, and see that the pool goes on."""
    with local_pool() as pool:
        folder = pool.hosts[0].folder
        assert folder.is_relative_to(place)
        before = sorted(path.name for path in folder.iterdir())
        clean(place, config)
        assert [path.name for path in place.iterdir()] == [folder.name]
        assert sorted(path.name for path in folder.iterdir()) == before
        pool.restart()
        assert run(pool, "1").values == [1, 1]


@pytest.mark.slow
def test_a_restart_makes_a_pool_anew_whose_folder_was_removed() -> None:
    with local_pool() as pool:
        run(pool, "lost = 1")
        shutil.rmtree(pool.hosts[0].folder)
        told: list[str] = []
        pool.restart(lambda event: told.append(getattr(event, "text", "")))
        assert "somebody has removed the pool's folder on node 0, node 1: the pool is recreated" in told
        assert run(pool, "'lost' in globals()").values == [False, False]
        pool.restart()
        assert run(pool, "1").values == [1, 1]


def test_a_folder_is_shielded_until_its_process_lets_it_go(tmp_path: Path) -> None:
    folder = tmp_path / "cleaned" / "pool"
    folder.mkdir(parents=True)
    (folder / "file").write_text("")
    held = file_locks.shield(folder)
    assert held is not None
    clean(folder.parent, tmp_path / "cleaning.conf")
    assert (folder / "file").exists()
    os.close(held)
    clean(folder.parent, tmp_path / "cleaning.conf")
    assert not folder.exists()
