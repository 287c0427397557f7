"""Files of journals that are gone, kept empty for those that come.

A file system that has just lost many files may take long to make others: ext4 passes over each number that
it has given back within the last seconds. Where hundreds of short runs follow each other, the two files of
each would cost more than all else that the agent does for it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import deque
from pathlib import Path

_MOST = 8
_NAME = "spare-"


class FileRecycler:
    """One a folder of journals, made by the agent; those that an agent before it left are removed.

    Parameters
    ----------
    folder : Path
        Where the journals are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kept: deque[Path] = deque()
        self._numbers = itertools.count()
        for path in folder.glob(f"{_NAME}*"):
            with contextlib.suppress(OSError):
                path.unlink()

    def keep(self, path: Path) -> bool:
        """Take a file that nobody needs any more, empty it, and keep it under another name; whether it was taken."""
        if len(self._kept) >= _MOST:
            return False
        spare = self.folder / f"{_NAME}{next(self._numbers)}"
        try:
            # Empty before it has a new name: whoever finds it under one finds nothing of the old.
            os.truncate(path, 0)
            os.rename(path, spare)
        except OSError:
            return False
        self._kept.append(spare)
        return True

    def use(self, path: Path) -> None:
        """Have an empty file at a path where there is none, if one is kept."""
        with contextlib.suppress(OSError, IndexError):
            os.rename(self._kept.popleft(), path)
