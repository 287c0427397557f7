"""What of a listing stands at a place already, and whether the rest can go there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .listing import FILE, FOLDER, LINK, OTHER, PART, Entry, digest_of, kind_of

# File systems keep times more or less exactly.
_SAME_TIME = 1_000_000


@dataclass
class Standing:
    """What `look` found.

    Attributes
    ----------
    absent : list of int
        Places in the listing of what is not there.
    doubtful : list of int
        Places of files that are there with the right size, and may have another content.
    clash : str
        What stands in the way, in words; empty where nothing does.
    needs, free : int
        Bytes that are to be written, and that there is room for.
    """

    absent: list[int] = field(default_factory=list)
    doubtful: list[int] = field(default_factory=list)
    clash: str = ""
    needs: int = 0
    free: int = 0


def look(root: Path, entries: Sequence[Entry]) -> Standing:
    """Compare a listing with what stands at ``root``, by sizes and times: no content is read."""
    found = Standing(free=room_at(root), clash=_in_the_way(root))
    for index, entry in enumerate(entries):
        path = entry.below(root)
        stands = _stands(path, follow=not entry.name)
        if stands and (stands == OTHER or (stands == FOLDER) != (entry.kind == FOLDER)):
            what = "neither file nor folder" if stands == OTHER else f"a {stands}"
            found.clash = found.clash or f"{path} is {what}: a {entry.kind} cannot take its place"
        elif not stands or not _alike(path, entry):
            found.absent.append(index)
            found.needs += max(0, entry.size - _size(Path(f"{path}{PART}")))
        elif entry.kind == FILE and not _same_age(path, entry):
            found.doubtful.append(index)
    return found


def is_same(path: Path, entry: Entry) -> bool:
    """Whether a file is the entry's: by its size, and its time and mode or its content."""
    if _stands(path, follow=False) != FILE or not _alike(path, entry):
        return False
    return _same_age(path, entry) or (bool(entry.digest) and digest_of(path) == entry.digest)


def settle(path: Path, entry: Entry) -> None:
    """Give a file or folder the mode and time of its entry."""
    info = path.stat()
    if info.st_mode & 0o777 != entry.mode:
        path.chmod(entry.mode)
    if info.st_mtime_ns != entry.mtime:
        os.utime(path, ns=(entry.mtime, entry.mtime))


def room_at(path: Path) -> int:
    """Bytes free where ``path`` is, or would be."""
    return shutil.disk_usage(_nearest(path)).free


def _nearest(path: Path) -> Path:
    """The path, or what there is of the folders above it."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _in_the_way(root: Path) -> str:
    """Why nothing can be written at a place, where that is so."""
    above = _nearest(root.parent)
    if not above.is_dir():
        return f"{above} is no folder: nothing can be put into it"
    return "" if os.access(above, os.W_OK | os.X_OK) else f"{above} may not be written"


def _stands(path: Path, *, follow: bool) -> str:
    try:
        return kind_of((path.stat() if follow else path.lstat()).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _alike(path: Path, entry: Entry) -> bool:
    """Whether what stands there can be told from the entry by its content only."""
    info = path.stat() if not entry.name else path.lstat()
    if kind_of(info.st_mode) != entry.kind:
        return False
    if entry.kind == LINK:
        return os.readlink(path) == entry.to
    return entry.kind == FOLDER or info.st_size == entry.size


def _same_age(path: Path, entry: Entry) -> bool:
    info = path.stat()
    return abs(info.st_mtime_ns - entry.mtime) < _SAME_TIME and info.st_mode & 0o777 == entry.mode


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0
