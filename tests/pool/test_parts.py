"""A pool has its parts; they know a context of it, and not the pool."""

from __future__ import annotations

import ast
from pathlib import Path

import sky_jupyter
from sky_jupyter.pool.lifecycle.lifecycle import PoolLifecycle
from sky_jupyter.pool.pool import Pool

ROOT = Path(sky_jupyter.__file__).parent / "pool"
# Who has pools, who attaches to one, and who stops and starts one.
ALLOWED = {
    "pool.py",
    "open_pools.py",
    "frontend_requests.py",
    "end_without_manager.py",
    "lifecycle/attach.py",
    "lifecycle/join_as_guest.py",
    "lifecycle/stop_start.py",
}


def test_neither_the_pool_nor_its_lifecycle_inherits_from_anything() -> None:
    assert Pool.__bases__ == PoolLifecycle.__bases__ == (object,)


def test_parts_import_no_pool() -> None:
    found = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and {"Pool", "PoolLifecycle"} & {item.name for item in node.names}:
                found.add(path.relative_to(ROOT).as_posix())
    assert found == ALLOWED


def test_nothing_in_the_pool_asserts_that_it_has_a_control_plane() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}
    assert [path.name for path, text in texts.items() if "control is not None" in text] == ["lifecycle.py"]
