"""Sky Jupyter as it was some commits ago, from this repository's history, and programs that run with it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def older(commits: int, place: Path) -> Path:
    """The package of so many commits ago, in a folder for PYTHONPATH; the test is skipped without the history."""
    git = ["git", "-C", str(ROOT)]
    try:
        archive = subprocess.run([*git, "archive", f"HEAD~{commits}", "sky_jupyter"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"needs this repository's last {commits} commits: git fetch --unshallow")
    subprocess.run(["tar", "-x", "-C", str(place)], input=archive.stdout, check=True)
    return place


def notebook(package: Path, cells: Sequence[str]) -> str:
    """Run cells in an IPython with the package of this folder, which is killed thereafter; what they printed."""
    code = "import os, sys\nfrom IPython.testing.globalipapp import start_ipython\nshell = start_ipython()\n"
    code += "for cell in sys.argv[1:]:\n    shell.run_cell(cell)\nsys.stdout.flush()\n"
    code += "os.unlink(shell.history_manager.hist_file)\nos.kill(os.getpid(), 9)\n"
    env = {**os.environ, "PYTHONPATH": str(package)}
    # (In a file: who keeps a pipe open could outlive the program.)
    said = package / "said.txt"
    with said.open("w") as file:
        subprocess.run(
            [sys.executable, "-c", code, *cells], env=env, cwd=package, stdin=-3, stdout=file, stderr=file, check=False
        )
    return said.read_text()
