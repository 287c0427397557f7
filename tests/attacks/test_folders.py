"""Folders that a pool is made in and that are not what they should be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import pool_folders

ROOT = Path(__file__).resolve().parents[2]
# Each thing that a notebook does whose working folder is gone, and whether a pool was made before that.
GONE = """
import json, os, shutil, sys
from sky_jupyter.api import start_pool
from sky_jupyter.capture.project_files import check_path
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.providers import Local
from sky_jupyter.spec.pool_spec import PoolSpec

def said(work):
    try:
        return str(work())
    except Exception as error:
        return f"{type(error).__name__}: {error}"

ids = []
intend = Registry.intend
Registry.intend = lambda self, id, *more: ids.append(id) or intend(self, id, *more)
live = start_pool(PoolSpec(provider=Local(), name="live"))
gone = sys.argv[1]
os.makedirs(gone)
os.chdir(gone)
shutil.rmtree(gone)
told = {
    "up": said(lambda: start_pool(PoolSpec(provider=Local(), name="other"))),
    "get": said(lambda: live.get("/etc/passwd")),
    "put": said(lambda: live.put("x")),
    "include": said(lambda: check_path("x")),
    "absolute": said(lambda: live.put("/etc/passwd", f"{gone}.put")),
}
live.down()
print(json.dumps({**told, "ids": ids}))
"""


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sky-attack-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def told(place: Path) -> dict[str, Any]:
    """What was said of each, with all of a pool's folders in one place."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(place)}
    env.pop("XDG_RUNTIME_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", GONE, str(place / "gone")], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    left = [str(path) for pool in answer["ids"] for path in [*place.glob(f"sky-{pool}-*"), *pool_folders(pool)]]
    assert left == []
    return answer


@pytest.mark.parametrize("what", ["up", "get", "put", "include"])
def test_a_working_folder_that_is_gone_is_named_and_nothing_is_left(
    told: dict[str, Any], place: Path, what: str
) -> None:
    assert told[what].startswith(f"PoolError: the working folder {place / 'gone'} is gone: make it again, or change to")


def test_what_needs_no_working_folder_goes_on_without_it(told: dict[str, Any]) -> None:
    assert "Error" not in told["absolute"]
