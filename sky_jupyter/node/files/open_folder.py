"""Folder that is held open: entries are reached by name, never through links.

Whoever fills a folder chooses its names and links, and may change them during the work. A path is resolved again at
each use; an open folder stays the same one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
# A folder may be searchable, but not readable.
_REACH = getattr(os, "O_PATH", os.O_RDONLY)
_ENTER = _REACH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OF_LINKS = (errno.ELOOP, errno.EMLINK, errno.ENOTDIR)


class Beneath:
    """Open folder, or one file in it; safe to use and close from any thread.

    Parameters
    ----------
    path : Path
        The folder. The user chose it, so links in this path are followed, once.
    alone : str
        Restricts access to this one name, which the empty name then means (otherwise it means the folder).
    """

    def __init__(self, path: Path, alone: str = "") -> None:
        self._begin(path, alone, os.open(path, _REACH | os.O_DIRECTORY | os.O_CLOEXEC))

    def _begin(self, path: Path, alone: str, top: int) -> None:
        self.path, self.alone, self._top = path, alone, top
        # The folder that was used last: the next name is mostly in the same one.
        self._inner: tuple[tuple[str, ...], int] = ((), self._top)
        self._lock = threading.RLock()
        self._closed = False

    @classmethod
    def source(cls, path: Path) -> Beneath:
        """Open a user's path, a folder or a file, following links in the path.

        Raises OSError when it does not exist.
        """
        real = Path(os.path.realpath(path, strict=True))
        return cls(real) if real.is_dir() else cls(real.parent, real.name)

    @classmethod
    def opened(cls, path: Path, folder: int) -> Beneath:
        """Wrap a folder that is open already; it takes over the descriptor."""
        made = cls.__new__(cls)
        made._begin(path, "", folder)
        return made

    def close(self) -> None:
        """Close the folder; later calls raise OSError."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._leave()
                os.close(self._top)

    def __enter__(self) -> Beneath:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- reading -----------------------------------------------------------------------------------

    def stat(self, name: str = "") -> os.stat_result | None:
        """Return an entry's status without following a link; None if there is none.

        Raises OSError when the name leads through a link.
        """
        if not self._parts(name):
            return os.fstat(self._top)
        try:
            return self._at(name, lambda folder, last: os.stat(last, dir_fd=folder, follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def readlink(self, name: str) -> str:
        """Return a link's target."""
        return self._at(name, lambda folder, last: os.readlink(last, dir_fd=folder))

    def open(self, name: str = "") -> int:
        """Open a regular file for reading; OSError for anything else.

        Opening a pipe does not block.
        """

        def read(folder: int, last: str) -> int:
            return os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)

        try:
            file = self._at(name, read)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK):
                raise self._error(name, "it is a link now: what it leads to is not sent") from None
            raise
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise self._error(name, "it is no longer a file", errno.EINVAL)
        os.set_blocking(file, True)
        return file

    def walk(self) -> Iterator[tuple[str, os.stat_result, int]]:
        """Yield all entries, folders before their content.

        Each comes with its name, its status and the descriptor of its folder.
        """

        def refuse(error: OSError) -> None:
            raise error

        for folder, folders, files, opened in os.fwalk(".", dir_fd=self._top, onerror=refuse, follow_symlinks=False):
            folders.sort()
            for name in [*folders, *sorted(files)]:
                inner = f"{folder}/{name}"[2:]
                yield inner, os.stat(name, dir_fd=opened, follow_symlinks=False), opened

    # -- writing -----------------------------------------------------------------------------------

    def make(self, name: str) -> None:
        """Create a folder if there is none, for its user only."""

        def make(folder: int, last: str) -> None:
            try:
                os.mkdir(last, 0o700, dir_fd=folder)
            except FileExistsError:
                if not stat.S_ISDIR(os.stat(last, dir_fd=folder, follow_symlinks=False).st_mode):
                    raise self._error(name, "it should be a folder here, and is not", errno.ENOTDIR) from None

        self._at(name, make)

    def open_up(self, name: str) -> None:
        """Give a folder's owner all rights to it; `settle` sets its mode at the end."""
        found = self.stat(name)
        if found is not None and found.st_mode & stat.S_IRWXU != stat.S_IRWXU:
            with contextlib.suppress(PermissionError):
                self.settle(name, stat.S_IMODE(found.st_mode) | stat.S_IRWXU, None)

    def make_above(self, name: str) -> None:
        """Create the parent folders of a name."""
        parts = self._parts(name)
        for count in range(1, len(parts)):
            self.make("/".join(parts[:count]))

    def create(self, name: str, *, new: bool = False) -> int:
        """Open a file for reading and writing, created for its user only.

        With ``new``, fail if it exists.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_EXCL if new else 0)
        return self._at(name, lambda folder, last: os.open(last, flags, 0o600, dir_fd=folder))

    def symlink(self, name: str, to: str) -> None:
        """Create a symbolic link."""
        self._at(name, lambda folder, last: os.symlink(to, last, dir_fd=folder))

    def unlink(self, name: str) -> None:
        """Remove a file or link, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self._at(name, lambda folder, last: os.unlink(last, dir_fd=folder))

    def rmdir(self, name: str) -> None:
        """Remove an empty folder."""
        self._at(name, lambda folder, last: os.rmdir(last, dir_fd=folder))

    def bring(self, other: Beneath, its: str, name: str) -> None:
        """Move an entry of another folder into this one, replacing a file or link."""

        def move(source: int, old: str) -> None:
            self._at(name, lambda folder, last: _replace(source, old, folder, last))

        other._at(its, move)

    def settle(self, name: str, mode: int | None, mtime: int | None) -> None:
        """Set a file's or folder's mode and mtime (in ns); ignore links."""
        parts = self._parts(name)
        with self._lock:
            if not parts:
                _settle(os.dup(self._open_top()), mode, mtime)
            else:
                flags = _REACH | os.O_NOFOLLOW | os.O_CLOEXEC
                _settle(self._at(name, lambda folder, last: os.open(last, flags, dir_fd=folder)), mode, mtime)

    # -- parts -------------------------------------------------------------------------------------

    def _parts(self, name: str) -> Sequence[str]:
        if not name:
            return (self.alone,) if self.alone else ()
        parts = name.split("/")
        if self.alone or any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise self._error(name, "it leads out of the folder", errno.EINVAL)
        return parts

    def _open_top(self) -> int:
        if self._closed:
            raise OSError(errno.EBADF, "it was given up", str(self.path))
        return self._top

    def _at(self, name: str, do: Callable[[int, str], T]) -> T:
        """Run ``do`` in the open folder that holds a name.

        An OSError that it raises gets the whole path.
        """
        parts = self._parts(name)
        if not parts:
            raise self._error(name, "it is the folder itself", errno.EISDIR)
        with self._lock:
            folder = self._enter(tuple(parts[:-1]))
            try:
                return do(folder, parts[-1])
            except OSError as error:
                if not os.path.isabs(os.fsdecode(error.filename or "")):
                    error.filename, error.filename2 = str(self.path / "/".join(parts)), None
                raise

    def _enter(self, parts: tuple[str, ...]) -> int:
        top = self._open_top()
        if self._inner[0] == parts:
            return self._inner[1]
        self._leave()
        folder = top
        for count, part in enumerate(parts, 1):
            try:
                inner = os.open(part, _ENTER, dir_fd=folder)
            except OSError as error:
                if error.errno in _OF_LINKS and self._is_link(folder, part):
                    raise self._error("/".join(parts[:count]), "it is a link: nothing goes through it") from None
                error.filename = str(self.path / "/".join(parts[:count]))
                raise
            finally:
                if folder != top:
                    os.close(folder)
            folder = inner
        self._inner = (parts, folder)
        return folder

    def _leave(self) -> None:
        if self._inner[1] != self._top:
            os.close(self._inner[1])
        self._inner = ((), self._top)

    def _is_link(self, folder: int, part: str) -> bool:
        return stat.S_ISLNK(os.stat(part, dir_fd=folder, follow_symlinks=False).st_mode)

    def _error(self, name: str, why: str, number: int = errno.ELOOP) -> OSError:
        return OSError(number, why, str(self.path / (name or self.alone)))


def forget(folder: Beneath, names: Iterable[str]) -> None:
    """Remove a folder's files and links, and subfolders that are empty then."""
    for name in names:
        with contextlib.suppress(OSError):
            folder.unlink(name)
            above = name
            while above := above.rpartition("/")[0]:
                folder.rmdir(above)


def _replace(source: int, old: str, folder: int, last: str) -> None:
    """Rename a file; across file systems, copy it to a temporary name first."""
    try:
        os.rename(old, last, src_dir_fd=source, dst_dir_fd=folder)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    else:
        return
    between = f".sky-{secrets.token_hex(16)}"
    try:
        info = os.stat(old, dir_fd=source, follow_symlinks=False)
        if stat.S_ISLNK(info.st_mode):
            os.symlink(os.readlink(old, dir_fd=source), between, dir_fd=folder)
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            opened = os.open(old, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)
            with open(opened, "rb") as data, open(os.open(between, flags, 0o600, dir_fd=folder), "wb") as file:
                shutil.copyfileobj(data, file, 1 << 20)
                os.fchmod(file.fileno(), stat.S_IMODE(info.st_mode))
                file.flush()
                os.utime(file.fileno(), ns=(info.st_atime_ns, info.st_mtime_ns))
        os.rename(between, last, src_dir_fd=folder, dst_dir_fd=folder)
        os.unlink(old, dir_fd=source)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(between, dir_fd=folder)
        raise


def _settle(file: int, mode: int | None, mtime: int | None) -> None:
    """Set mode and mtime on an open descriptor and close it.

    With O_PATH, the file can only be changed through /proc.
    """
    try:
        info = os.fstat(file)
        if stat.S_ISLNK(info.st_mode):
            return
        where: int | str = f"/proc/self/fd/{file}" if hasattr(os, "O_PATH") else file
        if mode is not None and info.st_mode & 0o777 != mode:
            os.chmod(where, mode)
        if mtime is not None and info.st_mtime_ns != mtime:
            os.utime(where, ns=(mtime, mtime))
    finally:
        os.close(file)
