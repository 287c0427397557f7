"""Blobs that stay on a machine after their run, so that what was sent is not sent again.

Each pool has a folder of them in each of its places, in shared memory and on the disk. A file there
has its content's name; a run that needs it gets a hard link to it in the run's own folder. A pool of
the same user on the same machine is given a link as well. So nobody has to count who uses a file: it
is gone when the last folder that has it is, and a pool's folders end with the pool.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from ..system import metrics

LEAST = 1 << 20
"""What is smaller is sent again: that is sooner than looking for it."""
STAMP = 1_000_000_000 * 10**9
"""When a blob was changed, as its file says it: never, so that copies of it are alike."""

_FOLDER = "kept"
_NAME = re.compile(r"[0-9a-f]{32,40}\Z")
# A run's folder has its id as its name.
_RUN = re.compile(r"[0-9a-f]{8}\Z")
_PART = 4


def places(folder: Path, blobs: str) -> tuple[Path, Path]:
    """Where blobs are: in shared memory where there is some, and on the disk."""
    return Path(blobs), folder / "blobs"


class BlobCache:
    """What a pool keeps on one machine.

    Parameters
    ----------
    places : sequence of Path
        Where its runs' folders are: in shared memory, where there is some, and on the disk.
    limit : int, optional
        How many bytes may be kept that no name holds; a quarter of what is free unless given.
    make : bool
        Whether to make a place that is not there. One that is not a pool's own may have ended with it.
    """

    def __init__(self, places: Sequence[Path], limit: int | None = None, *, make: bool = True) -> None:
        self.places = tuple(dict.fromkeys(places))
        self.limit, self._makes = limit, make
        self._machine: metrics.MachineMonitor | None = None

    def link_into_run(self, run: str, files: Mapping[str, int]) -> list[str]:
        """Have a run's folder hold those of the files that are on this machine; the names of the others.

        Parameters
        ----------
        files : mapping of str to int
            Their sizes.
        """
        return [name for name, size in files.items() if not self._hold(run, name, size)]

    def add(self, run: str, names: Iterable[str]) -> None:
        """Keep files of a run's folder, for later runs."""
        for place in self.places:
            for name in names:
                path = place / run / name
                if _NAME.match(name) and path.is_file():
                    # Not on a file system without links.
                    with contextlib.suppress(OSError):
                        self.make(place / _FOLDER)
                        _link(path, place / _FOLDER / name)
                        _touch(path)

    def evict(self, more: int = 0, place: Path | None = None) -> int:
        """Drop the oldest that no name on this machine holds, as far as they are too many.

        Parameters
        ----------
        more : int
            Bytes that something else needs ...
        place : Path, optional
            ... in this place; the others are left alone then.

        Returns
        -------
        int
            Bytes that were dropped.
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

    def stats(self) -> dict[str, int]:
        """How many bytes are kept, how many of them no name holds (``loose``), and how many of those may be."""
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
        """Make a folder in a place."""
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except FileNotFoundError:
            # That of the disk is made when it is needed, below the pool's folder.
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
                    # Not across file systems.
                    _link(source, place / run / name)
                    self.add(run, [name])
                    return True
        return False

    def _sources(self, name: str) -> Iterable[Path]:
        """Where it may be: in this pool's places, and in those of other ones."""
        for place in self.places:
            yield place / _FOLDER / name
        for parent in dict.fromkeys(above for place in self.places for above in (place.parent, place.parent.parent)):
            for pattern in (f"sky-*/{_FOLDER}/{name}", f"sky-*/blobs/{_FOLDER}/{name}"):
                yield from parent.glob(pattern)

    def _allowed(self, free: int) -> int:
        return free // _PART if self.limit is None else self.limit

    def _free(self, place: Path) -> int:
        """Bytes that are free in a place."""
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free
        if _is_memory(place):
            self._machine = self._machine or metrics.MachineMonitor()
            free = min(free, max(0, self._machine.memory - self._machine.used()))
        return free

    def _held(self) -> set[str]:
        """Names of files that a process of this pool has mapped, or a run is to map."""
        held: set[str] = set()
        for place in self.places:
            with contextlib.suppress(OSError):
                for run in place.iterdir():
                    if _RUN.match(run.name):
                        held.update(path.name for path in run.iterdir())
        # The agent's parent is the host, of which all ranks on this machine are descendants.
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(os.getppid()).children(recursive=True):
                held |= mapped_by(process.pid)
        return held


def mapped_by(pid: int) -> set[str]:
    """The names of blobs that a process has mapped."""
    found = set()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            name = line.rstrip().removesuffix(" (deleted)").rpartition("/")[2]
            if _NAME.match(name):
                found.add(name)
    return found


def _found(folder: Path) -> list[tuple[str, int, int]]:
    """What is in a folder of kept blobs: names, sizes, and when each was used last."""
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            with contextlib.suppress(OSError):
                info = entry.stat(follow_symlinks=False)
                found.append((entry.name, info.st_size, info.st_atime_ns))
    return found


def _is_ours(path: Path, size: int) -> bool:
    """Whether a blob is there that only this user can have written."""
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
    """It is used now; its own time stays."""
    os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))


def _is_memory(place: Path) -> bool:
    """Whether what is in a place takes memory."""
    shared = Path("/dev/shm")
    return sys.platform == "linux" and shared.exists() and place.stat().st_dev == shared.stat().st_dev
