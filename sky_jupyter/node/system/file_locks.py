"""File locks that a process holds for life, visible across containers.

A kernel lock on a file is visible in all containers of a machine that see the file. If a container sees another file (a
copy, an overlay), its lock has no meaning: so the holder writes the file's identity into it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

HOST = "host.lock"
_MOST = 100


def hold(path: Path) -> int | None:
    """Lock a file until this process ends; None if that fails.

    Closing the returned descriptor releases the lock.
    """
    try:
        held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(held, 0)
        os.write(held, _which(held))
    except OSError:
        # Some file systems have no locks; then others cannot tell whether the process lives.
        os.close(held)
        return None
    return held


def shield(folder: Path) -> int | None:
    """Protect a temporary folder from clean-up until this process ends.

    ``systemd-tmpfiles`` skips a folder that is locked (tmpfiles.d(5), "Age"). Closing the returned descriptor ends the
    protection.
    """
    try:
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        return None
    return held


@contextlib.contextmanager
def taken(path: Path) -> Iterator[bool]:
    """Try to lock a file; yield True if no one else holds the lock.

    The lock is held during the block. A missing file counts as not held.
    """
    try:
        held = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield True
        return
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = os.pread(held, _MOST, 0) in (b"", _which(held))
        except OSError:
            free = False
        yield free
    finally:
        os.close(held)


def _which(file: int) -> bytes:
    facts = os.fstat(file)
    return f"{facts.st_dev}:{facts.st_ino}".encode()
