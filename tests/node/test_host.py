"""A host process whose maker has gone before it was told of its pool."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_host_that_is_told_nothing_ends_and_removes_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    folder.mkdir()
    (folder / "pool.key").write_text("secret")
    done = subprocess.run([sys.executable, "-m", "sky_jupyter.node.host", folder, "0.2"], timeout=280, check=False)
    assert done.returncode == 0
    assert not folder.exists()


def test_a_host_whose_folder_is_gone_ends(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sky_jupyter.node.host", tmp_path / "pool", "60"], timeout=280, check=False
    )
    assert done.returncode == 0
