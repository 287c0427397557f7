"""Staging folders: private folders for incomplete transfers.

The name is derived from the target and from a secret of this user on this machine, so that a later transfer finds it
again and no one else can predict it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path

from .open_folder import Beneath

_PREFIX = ".sky-"
_SECRET = 32


def beside(root: Path) -> Path:
    """Return the staging folder for ``root``, on the same file system.

    It lies beside the target, or inside if only that is writable.
    """
    real = Path(os.path.realpath(root))
    place = real.parent
    if os.path.isdir(real) and not (os.access(place, os.W_OK | os.X_OK) and real.stat().st_dev == place.stat().st_dev):
        place = real
    return place / name_for(str(real))


def name_for(place: str) -> str:
    """Return the name of a target's staging folder."""
    return _PREFIX + hmac.new(_secret(), place.encode("utf-8", "surrogateescape"), hashlib.sha256).hexdigest()[:32]


def enter(path: Path, *, above: bool = True) -> Beneath:
    """Open a staging folder; create it, with its parents if ``above``, if needed.

    Raises OSError when something else has its name, or another user could write there.
    """
    if above:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = False
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
        made = True
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        info = os.fstat(folder)
        if not made and (info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) & 0o022):
            raise PermissionError(1, "another user may write there: nothing is received in it", str(path))
        return Beneath.opened(path, os.dup(folder))
    finally:
        os.close(folder)


@functools.cache
def _secret() -> bytes:
    """Return a secret shared by this user's processes on this machine.

    If it cannot be stored, it is this process's own.
    """
    base = os.environ.get("XDG_CACHE_HOME") or ""
    cache = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~/.cache"))
    path = cache / "sky_jupyter" / "staging.key"
    with contextlib.suppress(OSError, RuntimeError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        between = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
        try:
            if not path.exists():
                with open(os.open(between, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(secrets.token_bytes(_SECRET))
                # If two processes create it at once, the first one wins.
                with contextlib.suppress(FileExistsError):
                    os.link(between, path)
        finally:
            between.unlink(missing_ok=True)
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
            info = os.fstat(file.fileno())
            found = file.read()
        if info.st_uid == os.geteuid() and not info.st_mode & 0o077 and len(found) == _SECRET:
            return found
    return secrets.token_bytes(_SECRET)
