"""Removing the folders of a pool that has ended, and no others: who names them may be mistaken or lie."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from ...node.system import locks as locking

# Of a remote pool: where its link is, below the pool's folder.
LINK = "link"
_MAX_CONFIG = 1 << 20


def places() -> list[Path]:
    """Where pools have their folders, unless TMPDIR was another when they were made."""
    named = [os.environ.get("XDG_RUNTIME_DIR") or "", tempfile.gettempdir(), "/tmp", "/dev/shm"]
    return [place for place in dict.fromkeys(map(Path, filter(None, named))) if place.is_dir()]


def remove(pool: str, named: Iterable[str]) -> list[str] | None:
    """Remove the named folders that are the pool's, and those of its that nobody named.

    Returns
    -------
    list of str, optional
        What was removed; None, and nothing was, where a host of the pool lives: whoever cannot take its lock
        may not see its process, and does not know better.
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
    """Whether a folder was made for this pool by this user: its name, its owner and its place say so."""
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
    """Whether the folder has this pool's own description: a place of which this process does not know."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        config = folder / "host.json"
        facts = config.lstat()
        if stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid() and facts.st_size <= _MAX_CONFIG:
            described = json.loads(config.read_text(encoding="utf-8"))
            return isinstance(described, dict) and described.get("pool") == pool
    return False
