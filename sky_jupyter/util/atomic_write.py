"""Atomic writes of files that others read at the same time."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


@contextlib.contextmanager
def atomic_write(path: Path, *, prefix: str = ".part-", buffering: int = -1) -> Iterator[IO[Any]]:
    """Open a binary file that appears at `path` atomically, mode 0600.

    It replaces an existing file. It is written under a name that begins with ``prefix``, in the same folder, which must
    exist; if the block raises, it is removed. ``buffering`` is that of `open`.
    """
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=prefix)  # mode 0600
    try:
        with open(handle, "w+b", buffering=buffering) as file:
            yield file
        os.replace(part, path)
    except BaseException:
        # It may have been removed with its folder.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        raise
