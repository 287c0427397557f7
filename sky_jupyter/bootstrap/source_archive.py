"""Archive of our own code, named by its content, for hosts that lack it."""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import os
import shlex
import tarfile
from dataclasses import dataclass
from pathlib import Path

_LEFT_OUT = {"__pycache__", "labextension", "node_modules", "static"}


@dataclass(frozen=True)
class Package:
    """Archive (tar, gzip) and the hash of its content."""

    digest: str
    data: bytes


@functools.cache
def own() -> Package:
    """Return the code that this process runs; the same files give the same bytes."""
    root = Path(__file__).resolve().parents[1]
    files = sorted(
        path
        for path in root.rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".pyo") and not _LEFT_OUT & set(path.relative_to(root).parts)
    )
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in files:
            data = path.read_bytes()
            info = tarfile.TarInfo(f"{root.name}/{path.relative_to(root)}")
            # With real dates, the same code would look new; 1980 is the earliest date of a zip file.
            info.size, info.mode, info.mtime = len(data), 0o600, 315_532_800
            archive.addfile(info, io.BytesIO(data))
    plain = buffer.getvalue()
    return Package(hashlib.blake2b(plain, digest_size=12).hexdigest(), gzip.compress(plain, 6, mtime=0))


def unpack_script(folder: str, size: int) -> str:
    """Return shell text that unpacks an archive from stdin: all of it, or nothing.

    Parameters
    ----------
    folder : str
        Folder to make; another process may make it meanwhile.
    size : int
        Bytes of the archive. If fewer arrive because the connection breaks, tar may take them for the whole archive.

    Returns
    -------
    str
        The text; it reads standard input.
    """
    part, whole = shlex.quote(f"{folder}.tmp-{os.urandom(4).hex()}"), shlex.quote(folder)
    sent = f"{part}/.sent"
    return (
        f"umask 077; {{ mkdir -p -- {part} && head -c {size} >{sent} && [ $(wc -c <{sent}) -eq {size} ] && "
        f"gzip -dc <{sent} | tar -xof - -C {part} && rm -f -- {sent} && "
        f"{{ mv -T -- {part} {whole} 2>/dev/null || {{ rm -rf -- {part}; [ -d {whole} ]; }}; }}; }} || "
        f"{{ rm -rf -- {part}; exit 1; }}"
    )
