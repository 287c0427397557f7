"""jedi's cache files: those that another process left half written are replaced."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from sky_jupyter.util import jedi_cache

jedi_cache.protect()
jedi_cache.protect()
import jedi

print([one.name for one in jedi.Interpreter("wonder", [{"wonderful": 1}]).complete()])
"""


def completed(folder: Path) -> str:
    """Return what a process of its own completes, with its cache in a folder."""
    env = {"XDG_CACHE_HOME": str(folder), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(importlib.util.find_spec("jedi") is None, reason="needs jedi")
def test_half_written_files_of_jedis_cache_are_replaced(tmp_path: Path) -> None:
    assert completed(tmp_path) == "['wonderful']\n"
    kept = {path: path.stat().st_size for path in tmp_path.rglob("*.pkl")}
    assert kept
    for path in kept:
        path.write_bytes(path.read_bytes()[:-5])
    assert completed(tmp_path) == "['wonderful']\n"
    assert {path: path.stat().st_size for path in tmp_path.rglob("*.pkl")} == kept
    assert not list(tmp_path.rglob(".part-*"))
