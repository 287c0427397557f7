"""File manifest: content of a file or folder, sent ahead and compared."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any

from .open_folder import Beneath

FILE, FOLDER, LINK, OTHER = "file", "folder", "link", "other"
MOST_BYTES = 128 << 20
"""Limit of a manifest as text: about 700,000 files."""

_CHUNK = 1 << 20
_ANY = ("utf-8", "surrogateescape")


@dataclass(frozen=True)
class ManifestEntry:
    """Entry of a manifest; the root has an empty name.

    Parameters
    ----------
    name : str
        Path from the root, with slashes.
    kind : str
        ``"file"``, ``"folder"`` or ``"link"``.
    size : int
        Size of a file in bytes.
    mtime : int
        Modification time in nanoseconds.
    mode : int
        Permission bits.
    to : str
        Target of a link.
    digest : str
        SHA-256 of a file; empty if not computed.
    """

    name: str
    kind: str
    size: int = 0
    mtime: int = 0
    mode: int = 0
    to: str = ""
    digest: str = ""

    @property
    def token(self) -> str:
        """Name in staging folders, from the path and the hash, or size and time."""
        content = self.digest or f"{self.size}\0{self.mtime}"
        return hashlib.blake2b(f"{self.name}\0{content}".encode(*_ANY), digest_size=20).hexdigest()


def kind_of(mode: int) -> str:
    """Return the kind of a file from its mode."""
    if stat.S_ISREG(mode):
        return FILE
    if stat.S_ISDIR(mode):
        return FOLDER
    return LINK if stat.S_ISLNK(mode) else OTHER


def walk(root: Path) -> list[ManifestEntry]:
    """Return the manifest of a file or folder, folders before their content.

    Links stay links. Raises OSError when an entry cannot be read, or is neither file, folder nor link.
    """
    with Beneath.source(root) as source:
        return walk_opened(source, root)


def walk_opened(source: Beneath, root: Path) -> list[ManifestEntry]:
    """Return the manifest of an open root; ``root`` is its path for messages."""
    info = source.stat()
    assert info is not None
    if kind_of(info.st_mode) != FOLDER:
        if not os.access(root, os.R_OK):
            raise _unreadable(root)
        return [_entry(root, "", info)]
    entries = [_entry(root, "", info)]
    for name, inner, folder in source.walk():
        last = name.rpartition("/")[2]
        if kind_of(inner.st_mode) == LINK:
            entries.append(ManifestEntry(name, LINK, to=os.readlink(last, dir_fd=folder)))
            continue
        if not os.access(last, os.R_OK, dir_fd=folder):
            raise _unreadable(root / name)
        entries.append(_entry(root / name, name, inner))
    return entries


def file_at(source: Beneath, root: Path, name: str) -> ManifestEntry:
    """Return the entry of one file of an open root.

    Raises OSError when it is not a file.
    """
    info = source.stat(name)
    if info is None or kind_of(info.st_mode) != FILE:
        raise OSError(f"{shown(str(root / name))} is no longer a file: it cannot be sent")
    return _entry(root / name, name, info)


def _unreadable(path: Path) -> PermissionError:
    return PermissionError(f"{shown(str(path))} cannot be read: permission denied")


def _entry(path: Path, name: str, info: os.stat_result) -> ManifestEntry:
    kind = kind_of(info.st_mode)
    if kind == OTHER:
        raise OSError(f"{shown(str(path))} is neither file nor folder nor symbolic link: it cannot be sent")
    mode = stat.S_IMODE(info.st_mode) & 0o777
    return ManifestEntry(name, kind, info.st_size if kind == FILE else 0, info.st_mtime_ns, mode)


def total(entries: Iterable[ManifestEntry]) -> int:
    """Return the size of all files in bytes."""
    return sum(entry.size for entry in entries)


def digest_of(path: Path) -> str:
    """Return a file's SHA-256."""
    with open(path, "rb") as file:
        return digest_in(file)


def digest_in(file: IO[bytes], tell: Callable[[int], None] = lambda size: None, most: int | None = None) -> str:
    """Return the SHA-256 of an open file, or of its first ``most`` bytes.

    ``tell`` is called with the size of each piece.
    """
    file.seek(0)
    digest = hashlib.sha256()
    feed(digest, file, tell, most)
    return digest.hexdigest()


def feed(digest: Any, file: IO[bytes], tell: Callable[[int], None] = lambda size: None, most: int | None = None) -> int:
    """Add the rest of a file, or ``most`` bytes, to a hash; return the count."""
    done = 0
    while data := file.read(_CHUNK if most is None else min(_CHUNK, most - done)):
        digest.update(data)
        done += len(data)
        tell(len(data))
    return done


def batches(
    entries: Iterable[ManifestEntry],
    most: int,
    *,
    count: int | None = None,
    alone: int | None = None,
    measure: Callable[[ManifestEntry], int] = lambda entry: entry.size,
) -> Iterator[list[ManifestEntry]]:
    """Group entries into lists of at most ``most`` bytes.

    An entry larger than that is a list by itself, as is one larger than ``alone``. A list has at most ``count``
    entries. ``measure`` returns an entry's size, by default its bytes.
    """
    batch: list[ManifestEntry] = []
    size = 0
    for entry in entries:
        more = measure(entry)
        if alone is not None and more > alone:
            yield [entry]
            continue
        if batch and (size + more > most or len(batch) == count):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += more
    if batch:
        yield batch


def hashed(
    root: Path, entries: Sequence[ManifestEntry], wanted: Iterable[int], tell: Callable[[int], None]
) -> list[ManifestEntry]:
    """Return the entries, with current hashes at the wanted indices.

    Raises OSError when a file cannot be read.
    """
    known = list(entries)
    with Beneath.source(root) as source:
        for index in wanted:
            entry = known[index]
            if entry.kind != FILE:
                continue
            try:
                with open(source.open(entry.name), "rb") as file:
                    known[index] = replace(entry, digest=digest_in(file, tell))
            except OSError as error:
                # An error while reading does not name the file.
                error.filename = error.filename or str(root / entry.name)
                raise
    return known


def pack(entries: Iterable[ManifestEntry]) -> bytes:
    """Serialize entries for a message; names may be any bytes.

    Raises OSError when there are too many.
    """
    text = json.dumps([astuple(entry) for entry in entries]).encode()
    if len(text) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"its list of files is {len(text)} bytes, and {MOST_BYTES} is the most: pack them")
    return zlib.compress(text, 1)


def unpack(data: bytes) -> list[ManifestEntry]:
    """Parse what `pack` returned.

    Raises ValueError when it is malformed or too large, or when a name leads out of the root.
    """
    stream = zlib.decompressobj()
    text = stream.decompress(data, MOST_BYTES)
    if not stream.eof:
        more = "more than" if stream.unconsumed_tail else "cut off after"
        raise ValueError(f"a list of files is {more} {len(text)} bytes: it is not unpacked")
    entries = [ManifestEntry(*fields) for fields in json.loads(text)]
    for entry in entries:
        if entry.name and leads_out(entry.name):
            raise ValueError(f"{shown(entry.name)!r} leads out of the folder")
    return entries


def leads_out(name: str) -> bool:
    """Return True if a foreign name is not a path below a folder."""
    path = PurePosixPath(name)
    return not path.parts or path.is_absolute() or ".." in path.parts


def shown(text: str) -> str:
    """Return a name as printable text, with undecodable bytes escaped."""
    return text.encode(*_ANY).decode("utf-8", "backslashreplace")


def to_wire(text: str) -> bytes:
    """Encode a path for a message, which allows only valid text as text."""
    return text.encode(*_ANY)


def from_wire(text: str | bytes) -> str:
    """Decode what `to_wire` returned."""
    return text if isinstance(text, str) else bytes(text).decode(*_ANY)
