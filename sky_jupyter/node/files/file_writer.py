"""Receiver of a file or folder: each file completely or not at all.

Data is written to a staging folder under names derived from the content, and moved into place from there. Targets are
reached from an open folder, never through a link.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from . import staging
from .open_folder import Beneath

PART = ".part"
"""Suffix of incomplete files in any staging folder."""
_BLOCK = 1 << 16
_ZEROS = bytes(_BLOCK)


class Receiver:
    """Receiver of one transfer.

    Parameters
    ----------
    root : Path
        Target path. Links in it are followed: the user chose it.
    folder : bool
        Whether the target is a folder, or a file.
    spool : Path, optional
        The staging folder, on the same file system; one beside the root unless given.
    above : bool
        Whether to create the target's parent folder; otherwise FileNotFoundError is raised if that is missing.
    """

    def __init__(self, root: Path, *, folder: bool, spool: Path | None = None, above: bool = True) -> None:
        self.root = root
        self.spool = staging.beside(root) if spool is None else spool
        self._above = above
        if above:
            root.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if folder:
            root.mkdir(exist_ok=True, mode=0o700)
        self.place = Beneath(root) if folder else Beneath(root.parent, root.name)
        self._staged: Beneath | None = None

    def close(self, *, whole: bool = False) -> None:
        """Close both folders; with ``whole``, remove the staging folder too."""
        self.place.close()
        if self._staged is not None:
            self._staged.close()
        if whole:
            shutil.rmtree(self.spool, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                self.spool.rmdir()

    @property
    def staged(self) -> Beneath:
        """The staging folder, created on first use."""
        if self._staged is None:
            self._staged = staging.enter(self.spool, above=self._above)
        return self._staged

    def has_staged(self) -> bool:
        """Return True if the staging folder exists.

        An earlier transfer, or another transport, has left files in it.
        """
        return self._staged is not None or self.spool.is_dir()

    @contextlib.contextmanager
    def part(self, token: str, name: str) -> Iterator[IO[bytes]]:
        """Open a partial file for reading and writing, with its earlier content.

        It is kept if the transfer breaks, except on a full disk. Two transfers cannot write the same part.
        """
        try:
            with open(_own(self.staged, token + PART, self._path(name)), "r+b", buffering=0) as file:
                yield file
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                with contextlib.suppress(OSError):
                    self.staged.unlink(token + PART)
            raise

    def put_part(self, token: str, name: str, mode: int | None = None, mtime: int | None = None) -> None:
        """Move a complete partial file into place."""
        self._put(token + PART, name, mode, mtime)

    def put(self, token: str, name: str, content: bytes, mode: int | None = None, mtime: int | None = None) -> None:
        """Write a file with this content."""
        with self.part(token, name) as file:
            file.truncate(0)
            write(file, content)
        self.put_part(token, name, mode, mtime)

    def put_staged(self, token: str, name: str) -> None:
        """Move a file into place that came to the staging folder by another transport."""
        self._put(token, name, None, None)

    def link(self, name: str, to: str) -> None:
        """Create a symbolic link, replacing a link or file."""
        info = self.place.stat(name)
        if info is not None and stat.S_ISLNK(info.st_mode) and self.place.readlink(name) == to:
            return
        token = hashlib.sha256(os.fsencode(name)).hexdigest() + PART
        self.staged.unlink(token)
        self.staged.symlink(token, to)
        self.place.bring(self.staged, token, name)

    def _put(self, staged: str, name: str, mode: int | None, mtime: int | None) -> None:
        if mode is not None or mtime is not None:
            self.staged.settle(staged, mode, mtime)
        self.place.bring(self.staged, staged, name)

    def _path(self, name: str) -> str:
        return str(self.root / name) if name else str(self.root)


def write(file: IO[bytes], data: bytes | memoryview) -> None:
    """Write data to an unbuffered file; skip blocks of zeros (sparse file)."""
    view = memoryview(data)
    begun = 0
    for start in range(0, len(view), _BLOCK):
        end = min(start + _BLOCK, len(view))
        if view[start:end] == _ZEROS[: end - start]:
            _write(file, view[begun:start])
            file.seek(end - start, os.SEEK_CUR)
            begun = end
    _write(file, view[begun:])
    if view and begun == len(view) and os.fstat(file.fileno()).st_size < file.tell():
        file.truncate()


def _write(file: IO[bytes], view: memoryview) -> None:
    while view:
        view = view[file.write(view) :]


def _own(folder: Beneath, name: str, what: str) -> int:
    """Open and lock a file of the staging folder.

    Raises OSError (EBUSY) if another transfer writes it.
    """
    file = folder.create(name)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise OSError(errno.EBUSY, "another transfer is writing it", what) from None
    except OSError:
        # The file system has no locks.
        return file
    return file
