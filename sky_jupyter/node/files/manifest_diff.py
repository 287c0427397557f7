"""Comparison of a manifest with the files at its target."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .file_manifest import FILE, FOLDER, LINK, OTHER, ManifestEntry, digest_in, kind_of
from .open_folder import Beneath

# File systems store times with different precision; some of them, and archives, in whole seconds.
_SAME_TIME, _SAME_SECOND = 1_000_000, 1_000_000_000


@dataclass
class ManifestDiff:
    """Result of `diff`.

    Attributes
    ----------
    absent : list of int
        Indices of manifest entries that are missing.
    doubtful : list of int
        Indices of files with the right size that may have another content.
    clash : str
        What blocks the transfer, in words; empty if nothing does.
    needs, free : int
        Bytes to write, and bytes free.
    """

    absent: list[int] = field(default_factory=list)
    doubtful: list[int] = field(default_factory=list)
    clash: str = ""
    needs: int = 0
    free: int = 0


def diff(root: Path, entries: Sequence[ManifestEntry], spool: Path | None = None) -> ManifestDiff:
    """Compare a manifest with the files at ``root``, by sizes and times.

    No content is read. Files that an earlier transfer has left in the staging folder ``spool`` count as written.
    """
    try:
        found = ManifestDiff(free=room_at(root), clash=_in_the_way(root, entries[0].kind if entries else FILE))
        if found.clash:
            return found
        with _opened(root, entries) as place:
            for index, entry in enumerate(entries):
                _compare(place, root, index, entry, found)
                if found.clash:
                    return found
    except OSError as error:
        return ManifestDiff(clash=f"{error.filename or root}: {error.strerror or error}")
    if spool is not None and found.needs:
        found.needs = max(0, found.needs - _left_in(spool))
    return found


def _opened(root: Path, entries: Sequence[ManifestEntry]) -> contextlib.AbstractContextManager[Beneath | None]:
    if entries and entries[0].kind != FOLDER:
        return Beneath(root.parent, root.name) if root.parent.is_dir() else contextlib.nullcontext()
    return Beneath(root) if root.is_dir() else contextlib.nullcontext()


def _compare(place: Beneath | None, root: Path, index: int, entry: ManifestEntry, found: ManifestDiff) -> None:
    info = place.stat(entry.name) if place is not None else None
    stands = kind_of(info.st_mode) if info is not None else ""
    if stands and (stands == OTHER or (stands == FOLDER) != (entry.kind == FOLDER)):
        what = "neither file nor folder" if stands == OTHER else f"a {stands}"
        path = root / entry.name if entry.name else root
        found.clash = f"{path} is {what}: a {entry.kind} cannot take its place"
    elif place is None or info is None or not _alike(place, info, entry):
        found.absent.append(index)
        found.needs += entry.size
    elif entry.kind == FILE and not _same_age(info, entry):
        found.doubtful.append(index)


def is_same(place: Beneath, name: str, entry: ManifestEntry) -> bool:
    """Return True if a file matches an entry.

    Size must match, and either mtime and mode or the content.
    """
    info = place.stat(name)
    if entry.kind != FILE or info is None or not _alike(place, info, entry):
        return False
    if _same_age(info, entry):
        return True
    if not entry.digest:
        return False
    with open(place.open(name), "rb") as file:
        return digest_in(file) == entry.digest


def has_come(place: Beneath, entry: ManifestEntry) -> bool:
    """Return True if an earlier transfer from the same source left a file whole.

    A file's time is set last. Times are compared in seconds, and modes are not compared: an archive or a file system
    may not keep them.
    """
    info = place.stat(entry.name)
    if info is None or entry.kind != FILE or kind_of(info.st_mode) != FILE:
        return False
    return info.st_size == entry.size and abs(info.st_mtime_ns - entry.mtime) < _SAME_SECOND


def room_at(path: Path) -> int:
    """Return the bytes free where ``path`` is, or would be."""
    return shutil.disk_usage(_nearest(path)).free


def _nearest(path: Path) -> Path:
    """Return the path, or its closest existing parent."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _in_the_way(root: Path, kind: str) -> str:
    """Return why nothing can be written at a path; empty if it can."""
    above = _nearest(root.parent)
    if not above.is_dir():
        return f"{above} is not a folder: nothing can be put into it"
    if root.is_dir():
        return "" if kind == FOLDER else f"{root} is a folder: a {kind} cannot take its place"
    return "" if os.access(above, os.W_OK | os.X_OK) else f"{above} may not be written"


def _alike(place: Beneath, info: os.stat_result, entry: ManifestEntry) -> bool:
    """Return True if kind, size and link target match an entry's."""
    if kind_of(info.st_mode) != entry.kind:
        return False
    if entry.kind == LINK:
        return place.readlink(entry.name) == entry.to
    return entry.kind == FOLDER or info.st_size == entry.size


def _same_age(info: os.stat_result, entry: ManifestEntry) -> bool:
    return abs(info.st_mtime_ns - entry.mtime) < _SAME_TIME and info.st_mode & 0o777 == entry.mode


def _left_in(spool: Path) -> int:
    """Return the disk usage of a staging folder in bytes."""
    size = 0
    with contextlib.suppress(OSError), os.scandir(spool) as found:
        for entry in found:
            with contextlib.suppress(OSError):
                size += entry.stat(follow_symlinks=False).st_blocks * 512
    return size
