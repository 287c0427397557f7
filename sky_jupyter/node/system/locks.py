"""Locks that a process holds for as long as it lives, and that tell others so who cannot see it.

A lock of the kernel's on a file is seen from all containers of a machine that see the file. Where a
file is seen as another one (a copy, a layer above it), taking its lock says nothing: the file holds
which one it is to whoever holds its lock.
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
    """Take a lock and hold it until this process ends, or closes what is returned; None where it cannot be had."""
    try:
        held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(held, 0)
        os.write(held, _which(held))
    except OSError:
        # Some file systems have no locks; what cannot be locked is not judged by others.
        os.close(held)
        return None
    return held


def shield(folder: Path) -> int | None:
    """Keep a temporary folder from being cleaned up, until this process ends or closes what is returned.

    ``systemd-tmpfiles`` passes over a folder that somebody holds a lock on (tmpfiles.d(5), "Age").
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
    """Try a lock, and hold it meanwhile; whether nobody else has it. Where there is none, nobody has."""
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
