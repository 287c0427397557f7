"""Stamps of files and folders: while they hold, a cached answer is valid."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

# What changed so shortly before it was looked at may have changed again with the same stamp: a file system counts in
# steps, and the clock of a file server differs from ours.
_DOUBT = 2_000_000_000

Stamp = tuple[int, int, int, int]


@dataclass
class FileStamps:
    """What was consulted, with how it was.

    It is made before the first path is looked at, so that a change meanwhile is seen as one.
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
        """False while one of them is so new that a further change might not be seen."""
        return all(stamp is None or stamp[0] < self.began - _DOUBT for stamp in self.stamps.values())

    def hold(self) -> bool:
        """Tell whether all are as they were."""
        return all(_stamp(path) == stamp for path, stamp in self.stamps.items())


def _stamp(path: str) -> Stamp | None:
    """Return a path's change times (nanoseconds), size and inode; None if missing."""
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return None
    # A change that keeps the modification time has another change time.
    return info.st_ctime_ns, info.st_mtime_ns, info.st_size, info.st_ino
