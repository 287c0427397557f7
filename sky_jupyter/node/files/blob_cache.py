"""Blob cache of a machine: content that was sent once is not sent again.

Each pool has a cache folder in each of its places, in shared memory and on disk. A cached file is named by its
content's hash. A run that needs it gets a hard link in its own folder, and so does another pool of the same user on the
machine. No reference counts are needed: a file is gone once the last folder with a link to it is removed, and a pool's
folders are removed with the pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..system import metrics

LEAST = 1 << 20
"""Smaller blobs are not cached: sending them again is faster."""
STAMP = 1_000_000_000 * 10**9
"""Modification time of every blob: constant, so that copies are equal."""

# Pauses between evictions, in seconds: they grow while there is nothing to evict.
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 20.0
_FOLDER = "kept"
_NAME = re.compile(r"[0-9a-f]{32,40}\Z")
# A run's folder is named by its id.
_RUN = re.compile(r"[0-9a-f]{8}\Z")
_PART = 4


def places(folder: Path, blobs: str | Path) -> tuple[Path, Path]:
    """Return the folders for blobs: in shared memory, if any, and on disk."""
    return Path(blobs), folder / "blobs"


class BlobCache:
    """Blob cache of a pool on one machine.

    Parameters
    ----------
    places : sequence of Path
        Folders that hold the runs' folders: in shared memory, if any, and on disk.
    limit : int, optional
        Limit of unreferenced bytes; a quarter of the free space by default.
    make : bool
        Whether to create missing folders. Another pool's folders may have been removed with it.
    """

    def __init__(self, places: Sequence[Path], limit: int | None = None, *, make: bool = True) -> None:
        self.places = tuple(dict.fromkeys(places))
        self.limit, self._makes = limit, make
        self._machine: metrics.MachineMonitor | None = None

    def link_into_run(self, run: str, files: Mapping[str, int]) -> list[str]:
        """Link cached files into a run's folder; return the names that are missing.

        ``files`` maps names to sizes.
        """
        return [name for name, size in files.items() if not self._hold(run, name, size)]

    def add(self, run: str, names: Iterable[str]) -> None:
        """Cache files of a run's folder for later runs."""
        for place in self.places:
            for name in names:
                path = place / run / name
                if _NAME.match(name) and path.is_file():
                    # The file system may have no hard links.
                    with contextlib.suppress(OSError):
                        self.make(place / _FOLDER)
                        _link(path, place / _FOLDER / name)
                        _touch(path)

    def evict(self, more: int = 0, place: Path | None = None) -> int:
        """Evict the oldest unreferenced blobs beyond the limit.

        Parameters
        ----------
        more : int
            Bytes needed for something else.
        place : Path, optional
            Evict only from this place.

        Returns
        -------
        int
            Bytes evicted.
        """
        dropped = 0
        for folder in self.places if place is None else [place]:
            found = _found(folder / _FOLDER)
            if not found:
                continue
            free = self._free(folder)
            if not more and sum(size for _, size, _ in found) <= self._allowed(free):
                continue
            held = self._held()
            loose = sorted((used, size, name) for name, size, used in found if name not in held)
            left = sum(size for _, size, _ in loose)
            allowed = self._allowed(free + left)
            for _, size, name in loose:
                if left <= allowed and free >= more:
                    break
                (folder / _FOLDER / name).unlink(missing_ok=True)
                left, free, dropped = left - size, free + size, dropped + size
        return dropped

    async def evict_regularly(self) -> None:
        """Evict unreferenced blobs for as long as the agent lives."""
        pause = _FIRST_PAUSE
        while True:
            await asyncio.sleep(pause)
            with contextlib.suppress(OSError):
                dropped = await asyncio.to_thread(self.evict)
                pause = _FIRST_PAUSE if dropped else min(pause * 1.3, _LONGEST_PAUSE)

    def stats(self) -> dict[str, int]:
        """Return the bytes cached, unreferenced (``loose``), and ``allowed`` as such."""
        kept = loose = allowed = 0
        held = self._held()
        for place in self.places:
            found = _found(place / _FOLDER)
            kept += sum(size for _, size, _ in found)
            free = sum(size for name, size, _ in found if name not in held)
            loose += free
            if found or not allowed:
                allowed = max(allowed, self._allowed(self._free(place) + free))
        return {"kept": kept, "loose": loose, "allowed": allowed}

    def make(self, folder: Path) -> None:
        """Create a folder in a place."""
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except FileNotFoundError:
            # The folder on disk is created on demand, below the pool's folder.
            folder.parent.mkdir(mode=0o700, parents=self._makes, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)

    # -- parts -------------------------------------------------------------------------------------

    def _hold(self, run: str, name: str, size: int) -> bool:
        for place in self.places:
            if _is_ours(place / run / name, size):
                return True
        for source in self._sources(name):
            if not _is_ours(source, size):
                continue
            for place in self.places:
                with contextlib.suppress(OSError):
                    self.make(place / run)
                    # Fails across file systems.
                    _link(source, place / run / name)
                    self.add(run, [name])
                    return True
        return False

    def _sources(self, name: str) -> Iterable[Path]:
        """Yield the paths where a blob may be, in this pool's places and others'."""
        for place in self.places:
            yield place / _FOLDER / name
        for parent in dict.fromkeys(above for place in self.places for above in (place.parent, place.parent.parent)):
            for pattern in (f"sky-*/{_FOLDER}/{name}", f"sky-*/blobs/{_FOLDER}/{name}"):
                yield from parent.glob(pattern)

    def _allowed(self, free: int) -> int:
        return free // _PART if self.limit is None else self.limit

    def _free(self, place: Path) -> int:
        """Return the bytes free in a place."""
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free
        if _is_memory(place):
            from ..system import metrics

            self._machine = self._machine or metrics.MachineMonitor()
            free = min(free, max(0, self._machine.memory - self._machine.used()))
        return free

    def _held(self) -> set[str]:
        """Return the names of blobs that processes of this pool map, or runs hold."""
        held: set[str] = set()
        for place in self.places:
            with contextlib.suppress(OSError):
                for run in place.iterdir():
                    if _RUN.match(run.name):
                        held.update(path.name for path in run.iterdir())
        # Imported here, as `metrics` is: notebooks import this module for the names of its folders.
        import psutil

        # The agent's parent is the host, and all ranks on this machine are the host's descendants.
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(os.getppid()).children(recursive=True):
                held |= mapped_by(process.pid)
        return held


def mapped_by(pid: int) -> set[str]:
    """Return the names of blobs that a process has mapped."""
    found = set()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            name = line.rstrip().removesuffix(" (deleted)").rpartition("/")[2]
            if _NAME.match(name):
                found.add(name)
    return found


def _found(folder: Path) -> list[tuple[str, int, int]]:
    """Return the name, size and last use of each cached blob in a folder."""
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            with contextlib.suppress(OSError):
                info = entry.stat(follow_symlinks=False)
                found.append((entry.name, info.st_size, info.st_atime_ns))
    return found


def _is_ours(path: Path, size: int) -> bool:
    """Return True if a blob exists that only this user can have written."""
    try:
        info, above = path.lstat(), path.parent.stat()
    except OSError:
        return False
    mine = info.st_uid == above.st_uid == os.geteuid() and not (info.st_mode | above.st_mode) & 0o022
    return mine and stat.S_ISREG(info.st_mode) and info.st_size == size


def _link(source: Path, target: Path) -> None:
    with contextlib.suppress(FileExistsError):
        os.link(source, target)


def _touch(path: Path) -> None:
    """Set the access time to now; keep the modification time."""
    os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))


def _is_memory(place: Path) -> bool:
    """Return True if a place is in shared memory."""
    shared = Path("/dev/shm")
    return sys.platform == "linux" and shared.exists() and place.stat().st_dev == shared.stat().st_dev
