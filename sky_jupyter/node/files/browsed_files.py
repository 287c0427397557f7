"""Files of a node for browsing: a page of a folder, and a part of a file.

They are read as the pool's user: the system refuses what that account may not read. Links are followed, as everywhere
on that machine.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import Any

from .file_manifest import to_wire

MOST_ENTRIES = 1000
"""Most entries of a folder in one answer."""
MOST_BYTES = 4 << 20
"""Most bytes of a file in one answer."""
# A folder with more entries is refused: its names alone would fill the agent's memory.
_MOST_NAMES = 200_000


def page(path: str, after: str = "", most: int = MOST_ENTRIES) -> dict[str, Any]:
    """Return a path's facts and, of a folder, its entries by name.

    Parameters
    ----------
    path : str
        The absolute path.
    after : str
        The name after which the page begins; "" for the first page.
    most : int
        The number of entries at most; 0 for the facts of a folder alone.

    Returns
    -------
    dict
        ``self``, the path's facts; ``entries``; how many ``more`` come after them; and ``last``, the name after which
        the next page begins.

    Raises
    ------
    OSError
        If the path does not exist, or may not be read.
    """
    own = _facts(path, os.path.basename(path), os.lstat(path))
    if own["kind"] == "link":
        # A broken link is an entry of its folder, but not a file.
        os.stat(path)
    if own["kind"] != "directory" or not most:
        return {"self": own, "entries": [], "more": 0}
    names = sorted(name for name in _names(path) if name > after)
    chosen = names[: min(most, MOST_ENTRIES)]
    entries = []
    for name in chosen:
        # It may have been removed since.
        with contextlib.suppress(FileNotFoundError):
            inner = os.path.join(path, name)
            entries.append(_facts(inner, name, os.lstat(inner)))
    last = to_wire(chosen[-1]) if chosen else b""
    return {"self": own, "entries": entries, "more": len(names) - len(chosen), "last": last}


def read(path: str, start: int, length: int) -> bytes:
    """Return a part of a file; less at the file's end, and at most `MOST_BYTES`.

    Raises OSError if it is not a regular file, or may not be read.
    """
    # Opening a device may have effects. A pipe that has replaced the file must not be waited for.
    _check_regular(os.stat(path).st_mode, path)
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        _check_regular(os.fstat(file).st_mode, path)
        parts, at, left = [], start, min(length, MOST_BYTES)
        while left > 0 and (part := os.pread(file, left, at)):
            parts.append(part)
            at, left = at + len(part), left - len(part)
        return b"".join(parts)
    finally:
        os.close(file)


def _check_regular(mode: int, path: str) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file", path)


def _names(path: str) -> list[str]:
    names = []
    with os.scandir(path) as entries:
        for entry in entries:
            names.append(entry.name)
            if len(names) > _MOST_NAMES:
                raise OSError(errno.EOVERFLOW, f"the folder has more than {_MOST_NAMES:,} entries", path)
    return names


def _facts(path: str, name: str, info: os.stat_result) -> dict[str, Any]:
    """Return the facts of an entry; for a link, those of its target."""
    facts: dict[str, Any] = {"name": to_wire(name)}
    if stat.S_ISLNK(info.st_mode):
        with contextlib.suppress(OSError):
            facts["to"] = to_wire(os.readlink(path))
        # A broken link keeps its own facts.
        with contextlib.suppress(OSError):
            info = os.stat(path)
    facts |= {"kind": _kind(info.st_mode), "size": info.st_size, "mtime": info.st_mtime, "mode": info.st_mode}
    return facts


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "directory"
    if stat.S_ISREG(mode):
        return "file"
    return "link" if stat.S_ISLNK(mode) else "other"
