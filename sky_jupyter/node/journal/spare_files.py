"""Recycler of deleted journals' files.

After mass deletion, a file system may be slow to create files: ext4 skips inode numbers that were freed within the
last seconds. With hundreds of short runs in a row, the two files of each would cost the agent more than everything
else.
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
    """Recycler for one folder of journals; it removes an earlier agent's spares.

    Parameters
    ----------
    folder : Path
        Folder of the journals.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kept: deque[Path] = deque()
        self._numbers = itertools.count()
        for path in folder.glob(f"{_NAME}*"):
            with contextlib.suppress(OSError):
                path.unlink()

    def keep(self, path: Path) -> bool:
        """Empty a file and keep it as a spare; return False if it was not taken."""
        if len(self._kept) >= _MOST:
            return False
        spare = self.folder / f"{_NAME}{next(self._numbers)}"
        try:
            # Emptied before it is renamed: a file with the new name never has old content.
            os.truncate(path, 0)
            os.rename(path, spare)
        except OSError:
            return False
        self._kept.append(spare)
        return True

    def use(self, path: Path) -> None:
        """Move a spare file to a path, if there is one."""
        with contextlib.suppress(OSError, IndexError):
            os.rename(self._kept.popleft(), path)
