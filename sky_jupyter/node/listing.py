"""What a file or folder consists of: a list that travels ahead of it, and that each copy is compared with."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path, PurePosixPath

FILE, FOLDER, LINK, OTHER = "file", "folder", "link", "other"
PART = ".sky-part"
"""Ends the name of a file that is not whole yet; the same as in ``machines.ssh.files``, so that either goes on."""

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Entry:
    """One thing below a root; the root itself has an empty name.

    Parameters
    ----------
    name : str
        Its path from the root, with slashes.
    kind : str
        ``"file"``, ``"folder"`` or ``"link"``.
    size : int
        Bytes of a file.
    mtime : int
        When it was changed, in nanoseconds.
    mode : int
        Who may do what with it.
    to : str
        Where a link leads.
    digest : str
        The SHA-256 of a file; empty where nobody has needed it.
    """

    name: str
    kind: str
    size: int = 0
    mtime: int = 0
    mode: int = 0
    to: str = ""
    digest: str = ""

    def below(self, root: Path) -> Path:
        """Its path below another root."""
        return root / self.name if self.name else root


def kind_of(mode: int) -> str:
    """What a file system's mode says that something is."""
    if stat.S_ISREG(mode):
        return FILE
    if stat.S_ISDIR(mode):
        return FOLDER
    return LINK if stat.S_ISLNK(mode) else OTHER


def walk(root: Path) -> list[Entry]:
    """A file, or a folder with all that is in it, folders before what they hold; links in it stay links.

    Raises
    ------
    OSError
        When something of it cannot be read, or can be neither file, folder nor link.
    """
    info = root.stat()
    if kind_of(info.st_mode) != FOLDER:
        return [_entry(root, "", info)]
    return [_entry(root, "", info), *_inside(root)]


def _inside(root: Path) -> Iterator[Entry]:
    def refuse(error: OSError) -> None:
        raise error

    for folder, folders, files in os.walk(root, onerror=refuse):
        folders.sort()
        for name in [*folders, *sorted(files)]:
            path = Path(folder, name)
            yield _entry(path, path.relative_to(root).as_posix(), path.lstat())


def _entry(path: Path, name: str, info: os.stat_result) -> Entry:
    kind = kind_of(info.st_mode)
    mode = stat.S_IMODE(info.st_mode) & 0o777
    if kind == OTHER:
        raise OSError(f"{path} is neither file nor folder nor symbolic link: it cannot be sent")
    if kind == LINK:
        return Entry(name, kind, to=os.readlink(path))
    if not os.access(path, os.R_OK):
        raise PermissionError(f"{path} cannot be read: permission denied")
    return Entry(name, kind, info.st_size if kind == FILE else 0, info.st_mtime_ns, mode)


def total(entries: Iterable[Entry]) -> int:
    """Bytes of all files."""
    return sum(entry.size for entry in entries)


def digest_of(path: Path, tell: Callable[[int], None] = lambda size: None) -> str:
    """The SHA-256 of a file; ``tell`` is given the size of each piece that has been read."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(_CHUNK):
            digest.update(data)
            tell(len(data))
    return digest.hexdigest()


def hashed(root: Path, entries: Sequence[Entry], wanted: Iterable[int], tell: Callable[[int], None]) -> list[Entry]:
    """The same entries, those at the wanted places with the hash of what is below ``root`` now.

    Raises
    ------
    OSError
        When a file cannot be read.
    """
    known = list(entries)
    for index in wanted:
        if known[index].kind == FILE:
            known[index] = replace(known[index], digest=digest_of(known[index].below(root), tell))
    return known


def pack(entries: Iterable[Entry]) -> bytes:
    """Entries as bytes for a message; names may be any that a file system has."""
    return zlib.compress(json.dumps([astuple(entry) for entry in entries]).encode(), 1)


def unpack(data: bytes) -> list[Entry]:
    """What `pack` was given.

    Raises
    ------
    ValueError
        When it is not that, or an entry's name leads out of the root.
    """
    entries = [Entry(*fields) for fields in json.loads(zlib.decompress(data))]
    for entry in entries:
        if entry.name.startswith("/") or ".." in PurePosixPath(entry.name).parts:
            raise ValueError(f"{entry.name!r} leads out of the folder")
    return entries
