"""Stamps of files and folders: while they hold, a cached answer is valid."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

# Nanoseconds. A file that changed so shortly before it was stamped may change again and keep the same stamp: a file
# system counts time in steps, and the clock of a file server differs from ours.
_DOUBT = 2_000_000_000

Stamp = tuple[int, int, int, int]


@dataclass
class FileStamps:
    """Stamps of all paths that were consulted.

    It is made before the first path is looked at, so that a change in between is detected.
    """

    began: int = field(default_factory=time.time_ns)
    stamps: dict[str, Stamp | None] = field(default_factory=dict)

    def add(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        """Stamp further paths, which need not exist."""
        for one in paths:
            path = os.fspath(one)
            if path not in self.stamps:
                self.stamps[path] = _stamp(path)

    @property
    def are_sure(self) -> bool:
        """False if a path changed so recently that another change might go unnoticed."""
        return all(stamp is None or stamp[0] < self.began - _DOUBT for stamp in self.stamps.values())

    def hold(self) -> bool:
        """Return True if all paths are unchanged."""
        return all(_stamp(path) == stamp for path, stamp in self.stamps.items())


def _stamp(path: str) -> Stamp | None:
    """Return a path's change times (nanoseconds), size and inode; None if missing."""
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return None
    # A change that keeps the modification time has another change time.
    return info.st_ctime_ns, info.st_mtime_ns, info.st_size, info.st_ino
