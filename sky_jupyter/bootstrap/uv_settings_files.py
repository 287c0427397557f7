"""Settings files that uv would read, and whether others may write one of them."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

_SETTINGS = ("uv.toml", "pyproject.toml")


def foreign_settings() -> Path | None:
    """Return a settings file that uv would find and that others may write.

    In a common parent of many users' folders, anybody can create one. The owner of the working folder is trusted: the
    notebook imports modules from it.
    """
    try:
        here = Path.cwd()
        owners = {0, os.geteuid(), here.stat().st_uid}
    except OSError:  # The folder is gone.
        return None
    for path in (folder / name for folder in (here, *here.parents) for name in _SETTINGS):
        with contextlib.suppress(OSError):
            # Of a link itself, and of its target.
            facts = (path.lstat(), path.stat())
            writable = facts[1].st_mode & stat.S_IWOTH
            if writable or not owners.issuperset(one.st_uid for one in facts):
                return path
    return None
