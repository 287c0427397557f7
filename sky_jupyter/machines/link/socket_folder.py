"""Folder of the link: permissions, files, and access to its socket."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...errors import PoolError

SOCKET, KEY, CONFIG, LOG = "link.sock", "link.key", "link.json", "link.log"
_MAX_CONFIG = 1 << 16
_KEY_BYTES = 32
# Length of a Unix socket's path that every system accepts.
_MAX_PATH = 100


def make(folder: Path, config: Mapping[str, Any]) -> bytes:
    """Make the folder, mode 0700, with configuration and a new key; return the key.

    Raise PoolError if the folder belongs to another user, or others may enter it.
    """
    made = True
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        made = False
    check(folder)
    clear(folder)
    key = secrets.token_bytes(_KEY_BYTES)
    _write(folder / KEY, key)
    _write(folder / CONFIG, json.dumps({**config, "made": made}).encode())
    return key


def check(folder: Path) -> None:
    """Raise PoolError for a folder that others may enter."""
    try:
        facts = folder.lstat()
    except OSError as error:
        raise PoolError(f"there is no link in {folder}: {error.strerror}") from None
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
        raise PoolError(f"{folder} is not a folder of this user's alone (mode 0700): no link is used in it")


def read_key(folder: Path) -> bytes:
    """Return the key that clients of the link prove to have."""
    check(folder)
    try:
        data = (folder / KEY).read_bytes()
    except OSError as error:
        raise PoolError(f"there is no link in {folder}: {error.strerror}") from None
    if len(data) != _KEY_BYTES:
        raise PoolError(f"there is no link in {folder}: its key is not one")
    return data


def read_config(folder: Path) -> dict[str, Any]:
    """Return the configuration that `make` has stored."""
    with open(folder / CONFIG, "rb") as file:
        found = json.loads(file.read(_MAX_CONFIG))
    assert isinstance(found, dict)
    return found


def sign(folder: Path) -> None:
    """Record that a client is connected, as the configuration file's time."""
    with contextlib.suppress(OSError):
        os.utime(folder / CONFIG)


def last_sign(folder: Path) -> tuple[float, float | None] | None:
    """Return the time of the last client, and the lease; None without a link."""
    try:
        when = (folder / CONFIG).stat().st_mtime
        lease = read_config(folder).get("lease")
    except (OSError, ValueError, AssertionError):
        return None
    return when, float(lease) if isinstance(lease, (int, float)) else None


def clear(folder: Path) -> None:
    """Remove a link's files from its folder."""
    for name in (SOCKET, KEY, CONFIG, LOG):
        with contextlib.suppress(OSError):
            (folder / name).unlink()


def listen(folder: Path) -> socket.socket:
    """Return the listening socket for clients."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _address(folder) as address:
        listener.bind(address)
    (folder / SOCKET).chmod(0o600)
    listener.listen(64)
    return listener


def dial(folder: Path) -> socket.socket:
    """Connect to the link of a folder; raise OSError if none listens."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _address(folder) as address:
            made.connect(address)
    except BaseException:
        made.close()
        raise
    return made


def answers(folder: Path) -> bool:
    """Return True if a link answers in a folder."""
    try:
        dial(folder).close()
    except (OSError, PoolError):
        return False
    return True


def has_sockets(folder: Path, prefix: str, *below: str) -> bool:
    """Return True if links work in new folders there: some file systems lack sockets.

    ``prefix`` begins the names of the new folders, and ``below`` is the path from them to the link's folder, which may
    be too long.
    """
    if not str(folder).isprintable():
        return False
    with contextlib.suppress(OSError, PoolError), tempfile.TemporaryDirectory(prefix=prefix, dir=folder) as made:
        inner = Path(made, *below)
        inner.mkdir(parents=True, exist_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as tried, _address(inner) as address:
            tried.bind(address)
        return True
    return False


@contextlib.contextmanager
def _address(folder: Path) -> Iterator[str]:
    """Yield the socket's path, or a shorter one that leads to it."""
    path = str(folder / SOCKET)
    if len(os.fsencode(path)) <= _MAX_PATH:
        yield path
        return
    if sys.platform != "linux":
        raise PoolError(f"{path} is too long for a unix socket: name a folder with a shorter path, or set TMPDIR")
    inside = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{inside}/{SOCKET}"
    finally:
        os.close(inside)


def _write(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
