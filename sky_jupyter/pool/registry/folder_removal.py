"""Removal of ended pools' folders, after a check that they are theirs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from ...node.system import file_locks as locking
from ...util.state_folder import registry_path

# The link's folder in that of a remote pool.
LINK = "link"
_MAX_CONFIG = 1 << 20


def places() -> list[Path]:
    """Return the parents of pools' folders, for the current TMPDIR."""
    named = [os.environ.get("XDG_RUNTIME_DIR") or "", tempfile.gettempdir(), "/tmp", "/dev/shm"]
    paths = dict.fromkeys([registry_path().parent, *map(Path, filter(None, named))])
    return [place for place in paths if place.is_dir()]


def remove(pool: str, named: Iterable[str]) -> list[str] | None:
    """Remove a pool's folders: those that are named, and any others found.

    Returns the removed folders; None, without removing any, if a host of the pool holds its lock. The lock also shows
    hosts whose process is not visible here, as in containers.
    """
    found = [str(path) for place in places() for path in place.glob(f"sky-{pool}-*")]
    ours = [folder for folder in dict.fromkeys([*named, *found]) if is_ours(pool, folder)]
    with contextlib.ExitStack() as locks:
        if not all(locks.enter_context(locking.taken(Path(folder) / locking.HOST)) for folder in ours):
            return None
        for folder in ours:
            shutil.rmtree(folder, ignore_errors=True)
    return ours


def is_ours(pool: str, folder: str) -> bool:
    """Return whether a folder is this pool's, by name, owner and parent."""
    path = Path(folder)
    if "\0" in folder or not path.is_absolute() or ".." in path.parts or not path.name.startswith(f"sky-{pool}-"):
        return False
    try:
        facts = path.lstat()
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
            return False
        parent = path.parent.resolve(strict=True)
        return parent in [place.resolve() for place in places()] or _holds_the_pool(pool, path)
    except (OSError, RuntimeError):
        return False


def _holds_the_pool(pool: str, folder: Path) -> bool:
    """Return whether the folder has this pool's host.json."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        config = folder / "host.json"
        facts = config.lstat()
        if stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid() and facts.st_size <= _MAX_CONFIG:
            described = json.loads(config.read_text(encoding="utf-8"))
            return isinstance(described, dict) and described.get("pool") == pool
    return False
