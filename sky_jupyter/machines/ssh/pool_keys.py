"""SSH keys of a pool's machines: client key, first host key and known_hosts.

They are in a folder of the pool beside the registry, from before its first machine is ordered until all have ended. A
machine gets the first host key at its creation, so that the first connection to it is verified.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import SpecError
from ...util.atomic_write import atomic_write
from ...util.state_folder import machine_keys
from .target import Target

_POOL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")
_CLIENT, _HOST, _KNOWN = "client_key", "first_host_key", "known_hosts"
_TIMEOUT = 10.0


@dataclass(frozen=True)
class PoolKeys:
    """Keys of one pool, made by `make` and read by `of`."""

    folder: Path

    @property
    def client(self) -> str:
        """Public key to log in with, as ``ssh-ed25519 AAAA…``."""
        return self._text(f"{_CLIENT}.pub")

    @property
    def first_host(self) -> tuple[str, str]:
        """Private and public host key of new machines."""
        return self._text(_HOST), self._text(f"{_HOST}.pub")

    def trusted(self, id: str) -> list[str]:
        """Return the public host keys that are trusted for a machine."""
        return [key for name, key in self._known() if name == id]

    def trust(self, id: str, *keys: str) -> None:
        """Replace the host keys that are trusted for a machine."""
        with self._locked():
            lines = [*((name, key) for name, key in self._known() if name != id), *((id, key) for key in keys)]
            with atomic_write(self.folder / _KNOWN) as file:
                file.write("".join(f"{name} {key}\n" for name, key in lines).encode("ascii"))

    def note(self, name: str, text: str = "") -> str:
        """Write a provider's note if ``text`` is given; return the note, empty if none."""
        if text:
            with atomic_write(self.folder / name) as file:
                file.write(text.encode())
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / name).read_text(encoding="utf-8")
        return ""

    def target(self, id: str, host: str, user: str, jump: Target | None = None) -> Target:
        """Return a machine's target; ``~/.ssh`` counts only for the jump host."""
        if not self.trusted(id):
            self.trust(id, self.first_host[1])
        return Target(
            *(id, host, user),
            keys=(str(self.folder / _CLIENT),),
            identities_only=True,
            agent=None,
            jump=jump,
            known_hosts=(str(self.folder / _KNOWN),),
            host_key_alias=id,
            strict="yes",
            timeout=_TIMEOUT,
        )

    def _text(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="ascii").strip() + ("" if name.endswith(".pub") else "\n")

    def _known(self) -> list[tuple[str, str]]:
        with contextlib.suppress(FileNotFoundError):
            lines = (self.folder / _KNOWN).read_text(encoding="ascii").splitlines()
            return [(name, key) for name, space, key in (line.partition(" ") for line in lines) if space]
        return []

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        # Closing the folder releases the lock.
        handle = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def make(pool: str) -> PoolKeys:
    """Return a pool's keys; make them if there are none."""
    keys = PoolKeys(_folder(pool))
    if (keys.folder / _HOST).exists():
        return keys
    keys.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=".part-", dir=keys.folder.parent))
    try:
        for name in (_CLIENT, _HOST):
            _write_pair(part, name)
        with contextlib.suppress(OSError):
            # Another process may have made them first: its folder is not empty.
            os.rename(part, keys.folder)
        keys.first_host  # noqa: B018 - raise unless they are there
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return keys


def of(pool: str) -> PoolKeys | None:
    """Return a pool's keys; None if they are not on this machine."""
    keys = PoolKeys(_folder(pool))
    return keys if (keys.folder / _HOST).exists() else None


def forget(pool: str) -> None:
    """Remove a pool's keys."""
    shutil.rmtree(_folder(pool), ignore_errors=True)


def _folder(pool: str) -> Path:
    if not _POOL.match(pool):
        raise SpecError(f"{pool!r} is no pool's id")
    return machine_keys() / pool


def _write_pair(folder: Path, name: str) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key, form = Ed25519PrivateKey.generate(), serialization.Encoding
    private = key.private_bytes(form.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    public = key.public_key().public_bytes(form.OpenSSH, serialization.PublicFormat.OpenSSH)
    for file, data in ((name, private), (f"{name}.pub", public + b"\n")):
        with atomic_write(folder / file) as written:
            written.write(data)
