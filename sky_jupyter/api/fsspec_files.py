"""Files of a rank's node as an `fsspec` file system: `RankFiles`."""

from __future__ import annotations

import contextlib
import errno
import posixpath
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from fsspec.utils import stringify_path

from ..errors import CaptureError
from ..node.files.browsed_files import MOST_BYTES
from ..pool.base.events import ProgressEvent
from ..pool.pool import Pool
from ..pool.transfer import browse
from ..pool.transfer.browse import FileFacts
from ..pool.transfer.fetch_values import ValueView
from ..util.text import format_size

_BLOCK = 1 << 20
# The limit of entries for one `ls`: more would take minutes, and hundreds of megabytes here.
_MOST_ENTRIES = 100_000
# The limit of bytes of a file that does not tell its size: some in `/proc` have no end.
_MOST_UNSIZED = 1 << 26
# The progress of a file is shown once its reads have taken so many seconds: libraries also read small parts only.
_LATE = 0.4


class RankFiles(AbstractFileSystem):
    """File system of a rank's node, for reading; `files` returns it.

    The node's agent reads the files, as the pool's user on that machine, also while the rank computes. Only blocks of
    open files are cached: what is added to a file is seen when it is opened again.

    Parameters
    ----------
    pool : Pool
        The pool.
    rank : int
        The rank.
    **options
        The options that fsspec passes to each file system.
    """

    protocol = "skyrank"
    root_marker = ""
    # A new object for each pool and rank is cheap, and a cached one would keep its pool alive.
    cachable = False

    def __init__(self, pool: Pool, rank: int, **options: Any) -> None:
        super().__init__(**{**options, "use_listings_cache": False})
        self.pool, self.rank = pool, rank
        self.blocksize = _BLOCK

    def __repr__(self) -> str:
        return f"<files of rank {self.rank} of pool {self.pool.spec.name}>"

    def __reduce__(self) -> NoReturn:
        raise CaptureError(f"{self!r} are the notebook's: on the ranks, open the files by their paths")

    @property
    def fsid(self) -> str:
        """The id that distinguishes it from other file systems."""
        return f"skyrank-{self.pool.id}-{self.rank}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        """Return a path as the node takes it: relative, absolute, or below ``~``.

        Relative ones begin in the ranks' working folder.
        """
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        text = stringify_path(path).removeprefix("skyrank://")
        # What `~` stands for is known there only: `~/..` is no part of a relative path.
        home, slash, inner = text.partition("/") if text.startswith("~") else ("", "", text)
        plain = posixpath.normpath(inner) if inner else ""
        if home:
            return home if plain in ("", ".") else home + slash + plain.lstrip("/")
        # POSIX lets the system interpret two leading slashes; here they are one.
        return "/" + plain.lstrip("/") if plain.startswith("/") else "" if plain == "." else plain

    @classmethod
    def _parent(cls, path: Any) -> str:
        return posixpath.dirname(cls._strip_protocol(path))

    # -- what is there -----------------------------------------------------------------------------

    def ls(self, path: Any, detail: bool = True, **kwargs: Any) -> list[Any]:
        """List a folder; a file is listed by itself.

        Parameters
        ----------
        path : str
            The folder.
        detail : bool
            Whether to return the entries' facts instead of only their names.
        **kwargs
            ``follow=False`` gives links to folders the type ``"link"``.

        Returns
        -------
        list of dict or str
            The entries, by name.

        Raises
        ------
        OSError
            If it does not exist, may not be read, or has more than 100,000 entries.
        """
        path = self._strip_protocol(path)
        follow = kwargs.get("follow", True)
        found = list(self._entries(path, follow=follow))
        return found if detail else [entry["name"] for entry in found]

    def _entries(self, path: str, *, follow: bool) -> Iterator[dict[str, Any]]:
        after, count = "", 0
        while True:
            page = browse.list_folder(self.pool, self.rank, path, after)
            if page.own.kind != "directory":
                yield _info(path, page.own, follow=follow)
                return
            count += len(page.entries)
            if count + page.more > _MOST_ENTRIES:
                why = f"the folder has more than {_MOST_ENTRIES:,} entries; list it on the rank"
                raise OSError(errno.EOVERFLOW, why, path)
            for entry in page.entries:
                yield _info(posixpath.join(path, entry.name), entry, follow=follow)
            if not page.more or page.last <= after:
                return
            after = page.last

    def info(self, path: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the facts of a path: its name, size, type and more.

        Parameters
        ----------
        path : str
            The path.
        **kwargs
            Not used.

        Returns
        -------
        dict
            ``name``, ``size``, ``type`` (``"file"``, ``"directory"``, ``"other"``), ``mtime``, ``mode``, ``islink``
            and a link's ``destination``.

        Raises
        ------
        OSError
            If it does not exist, or is not accessible.
        """
        path = self._strip_protocol(path)
        return _info(path, browse.list_folder(self.pool, self.rank, path, most=0).own)

    def modified(self, path: Any) -> Any:
        """Return when a file was changed, as a `datetime` in UTC."""
        from datetime import datetime, timezone

        return datetime.fromtimestamp(self.info(path)["mtime"], tz=timezone.utc)

    def walk(self, path: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Walk a folder as fsspec does; links to folders are listed, and not entered."""
        yield from super().walk(path, *args, **{**kwargs, "follow": False})

    # -- content -----------------------------------------------------------------------------------

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **kwargs: Any) -> RankFile:
        if mode != "rb":
            self._refuse(path)
        info = self.info(path)
        if info["type"] == "directory":
            raise IsADirectoryError(errno.EISDIR, f"it is a folder (on rank {self.rank})", path)
        if info["type"] == "other":
            raise OSError(errno.EINVAL, f"it is not a regular file (on rank {self.rank})", path)
        kwargs = {name: value for name, value in kwargs.items() if name in ("cache_type", "cache_options")}
        if not info["size"] and (data := self._unsized(path)):
            info["size"], kwargs = len(data), {"cache_type": "all", "cache_options": {"data": data}}
        return RankFile(self, path, mode, block_size or self.blocksize, size=info["size"], **kwargs)

    def _unsized(self, path: str) -> bytes:
        """Return what a file has that says that it is empty, as those in ``/proc`` do."""
        data = b""
        while part := browse.read_range(self.pool, self.rank, path, len(data), MOST_BYTES):
            data += part
            if len(data) > _MOST_UNSIZED:
                raise OSError(errno.EFBIG, f"it does not tell its size, and has over {_MOST_UNSIZED:,} bytes", path)
        return data

    def _refuse(self, path: Any, *_: Any, **__: Any) -> NoReturn:
        why = "the files of ranks are only read here; `%sky put` sends files, and a cell changes them"
        raise OSError(errno.EROFS, why, str(path))

    put_file = pipe_file = cp_file = mkdir = makedirs = rmdir = rm = rm_file = _rm = mv = touch = _refuse


class RankFile(AbstractBufferedFile):
    """File on a rank's node, open for reading; a slow read shows its progress."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._read_bytes, self._spent, self._ended = 0, 0.0, False
        self._shown = contextlib.ExitStack()
        self._view: ValueView | None = None
        super().__init__(*args, **options)

    def _fetch_range(self, start: int, end: int) -> bytes:
        files: RankFiles = self.fs
        parts: list[bytes] = []
        for at in range(start, end, MOST_BYTES):
            began = time.monotonic()
            parts.append(browse.read_range(files.pool, files.rank, self.path, at, min(MOST_BYTES, end - at)))
            self._spent += time.monotonic() - began
            self._show(len(parts[-1]))
        return b"".join(parts)

    def _show(self, size: int) -> None:
        """Add to the bytes that were read, and show the progress; any thread."""
        self._read_bytes += size
        if self._spent < _LATE or self.closed or self._ended:
            return
        if self._view is None:
            self._view = self._shown.enter_context(self.fs.pool.shows(f"read {self.path}", "done"))
        # Parts may be read again, so that the sum may exceed the file's size.
        there = min(self._read_bytes, self.size)
        text = f"{format_size(there)} of {format_size(self.size)}"
        self._view.on_event(ProgressEvent("read", text, there, self.size))
        if threading.current_thread() is threading.main_thread():
            self._view.refresh()
        if there == self.size:
            # Not every reader closes the file.
            self._end()

    def _end(self) -> None:
        self._ended = True
        self._shown.close()

    def close(self) -> None:
        """Close the file, and end the view of its progress."""
        super().close()
        self._end()

    def __reduce__(self) -> NoReturn:
        raise CaptureError(f"{self.path} is open in the notebook: on the ranks, open it by its path")


def _info(path: str, facts: FileFacts, *, follow: bool = True) -> dict[str, Any]:
    is_link = facts.to is not None
    kind = "link" if is_link and not follow and facts.kind == "directory" else facts.kind
    info = {"name": path, "size": facts.size, "type": kind, "mtime": facts.mtime, "mode": facts.mode}
    return {**info, "islink": is_link, **({"destination": facts.to} if is_link else {})}
