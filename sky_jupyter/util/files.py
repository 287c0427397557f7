"""Write files that others read at the same time."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


@contextlib.contextmanager
def atomic_write(path: Path, *, prefix: str = ".part-", buffering: int = -1) -> Iterator[IO[Any]]:
    """Open a file that appears at `path` whole or not at all; only its owner may read it.

    Parameters
    ----------
    path : Path
        Where the file appears when the block has ended; what is there is replaced. Its folder exists.
    prefix : str
        How the name begins under which it is written, in the same folder. A block that raises removes that file.
    buffering : int
        As `open` takes it; the file is a binary one.
    """
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=prefix)  # mode 0600
    try:
        with open(handle, "w+b", buffering=buffering) as file:
            yield file
        os.replace(part, path)
    except BaseException:
        # It may be gone with its folder.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        raise
