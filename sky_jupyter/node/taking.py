"""Taking a file or folder over from where it is, in pieces, each file whole and right or not at all.

What is large is written beside its place and goes on there after a break; no content is believed
before its hash is that of the listing.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from . import standing
from .listing import FILE, FOLDER, LINK, PART, Entry, total

PIECE = 1 << 20
_MOST_IN_PIECE = 500
# So many pieces are on their way while one is written.
_AHEAD = 3
Want = tuple[str, int, int]
"""A part of a file: its name below the root, where the part begins, and how long it is."""


class Source(Protocol):
    """Where a thing is taken from."""

    async def pieces(self, wants: Sequence[Want]) -> bytes:
        """Parts of files, one behind the other."""

    async def close(self) -> None:
        """Nothing more is wanted."""


class SourceFailed(Exception):
    """The source does not give what it should; another one may."""


class LocalSource:
    """Reads from this machine's own files; made with the root of what is taken."""

    def __init__(self, root: Path) -> None:
        self.root = root

    async def pieces(self, wants: Sequence[Want]) -> bytes:
        """Parts of files, one behind the other."""
        return await asyncio.to_thread(read, self.root, wants)

    async def close(self) -> None:
        """Nothing."""


def read(root: Path, wants: Sequence[Want]) -> bytes:
    """Parts of files below a root; one that is shorter than it was ends there."""
    parts = []
    for name, start, length in wants:
        with open(root / name if name else root, "rb") as file:
            file.seek(start)
            parts.append(file.read(length))
    return b"".join(parts)


class Take:
    """A file or folder on its way to ``root``; `run` does it, the rest tells how far it is.

    Parameters
    ----------
    root : Path
        Where it goes.
    entries : sequence of Entry
        Its listing, with the hashes of what is not there yet.
    source : Source or None
        Where it is taken from; with none, what came by another way is looked at and put in place.
    spool : Path or None
        A folder on the same file system where files may have come to under their names.

    Attributes
    ----------
    state : str
        ``"on"``, ``"done"`` or ``"failed"``.
    kind, why : str
        Of a failure: ``"source"``, ``"full"`` or ``"error"``, and what happened in words.
    there, total : int
        Bytes that are in place, of how many.
    got : int
        Bytes that came from the source.
    missing : list of int
        Places in the listing of what did not come; only without a source, where it is no failure.
    """

    def __init__(
        self, root: Path, entries: Sequence[Entry], source: Source | None = None, spool: Path | None = None
    ) -> None:
        self.root, self.entries, self.source, self.spool = root, entries, source, spool
        self.state, self.kind, self.why = "on", "", ""
        self.there, self.got, self.total = 0, 0, total(entries)
        self.missing: list[int] = []

    def facts(self) -> dict[str, Any]:
        """How it is, for a message."""
        return {name: getattr(self, name) for name in ("state", "kind", "why", "there", "total", "missing")}

    async def run(self) -> None:
        """Do it; what goes wrong is in `state`, and nothing is raised but a cancellation."""
        try:
            absent = await asyncio.to_thread(self._prepare)
            if self.source is None:
                self.missing = absent
            else:
                await self._fetch([self.entries[index] for index in absent])
            if not self.missing:
                await asyncio.to_thread(self._finish)
            self.state = "done"
        except SourceFailed as error:
            self._fail("source", str(error))
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            self._fail("full" if full else "error", f"{error.filename or self.root}: {error.strerror or error}")
        except Exception as error:
            self._fail("error", f"{type(error).__name__}: {error}")
        finally:
            if self.source is not None:
                with contextlib.suppress(Exception):
                    await self.source.close()

    def _fail(self, kind: str, why: str) -> None:
        self.state, self.kind, self.why = "failed", kind, why

    # -- before and after --------------------------------------------------------------------------

    def _prepare(self) -> list[int]:
        """Make folders and links; the places of the files that are not there."""
        self.root.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        absent = []
        for index, entry in enumerate(self.entries):
            path = entry.below(self.root)
            if entry.kind == FOLDER:
                path.mkdir(exist_ok=True, mode=0o700)
            elif entry.kind == LINK:
                _link(path, entry.to)
            elif standing.is_same(path, entry) or self._from_spool(path, entry):
                self.there += entry.size
            else:
                absent.append(index)
        return absent

    def _from_spool(self, path: Path, entry: Entry) -> bool:
        came = self.spool / entry.name if self.spool is not None else None
        if came is None or not standing.is_same(came, entry):
            return False
        os.replace(came, path)
        return True

    def _finish(self) -> None:
        """Modes and times as they are where it comes from; of folders last, since what is put into one changes it."""
        for entry in self.entries:
            if entry.kind == FILE:
                standing.settle(entry.below(self.root), entry)
        for entry in reversed(self.entries):
            if entry.kind == FOLDER:
                standing.settle(entry.below(self.root), entry)
        if self.spool is not None:
            # What a broken transfer has left is of no use once another one is whole.
            shutil.rmtree(self.spool, ignore_errors=True)

    # -- pieces ------------------------------------------------------------------------------------

    async def _fetch(self, entries: Sequence[Entry]) -> None:
        for group in _groups(entries):
            if len(group) == 1 and group[0].size > PIECE:
                await self._fetch_large(group[0])
            else:
                await self._fetch_small(group)

    async def _fetch_small(self, entries: Sequence[Entry]) -> None:
        data = b""
        if total(entries):
            wants = [(entry.name, 0, entry.size) for entry in entries if entry.size]
            data = await self._ask(wants)
        await asyncio.to_thread(self._write_small, entries, data)

    def _write_small(self, entries: Sequence[Entry], data: bytes) -> None:
        start = 0
        for entry in entries:
            content = data[start : start + entry.size]
            start += entry.size
            if hashlib.sha256(content).hexdigest() != entry.digest:
                raise _changed(entry)
            path = entry.below(self.root)
            part = Path(f"{path}{PART}")
            with _gone_when_full(part), open(_private(part), "r+b") as file:
                file.truncate(0)
                file.write(content)
            os.replace(part, path)
            self.there += entry.size

    async def _fetch_large(self, entry: Entry) -> None:
        """One file in many pieces; what an earlier attempt left of it is gone on with."""
        path = entry.below(self.root)
        part = Path(f"{path}{PART}")
        with _gone_when_full(part), os.fdopen(_private(part), "r+b") as file:
            digest, start = await asyncio.to_thread(_left, file, entry.size)
            if not await self._append(file, digest, entry, start):
                if not start:
                    raise _changed(entry)
                # What had been left was of something else.
                await asyncio.to_thread(file.truncate, 0)
                file.seek(0)
                if not await self._append(file, hashlib.sha256(), entry, 0):
                    raise _changed(entry)
            os.replace(part, path)

    async def _append(self, file: Any, digest: Any, entry: Entry, start: int) -> bool:
        """Fetch a file from ``start`` on; whether the whole is right then."""
        before = self.there
        self.there += start

        def write(data: bytes) -> None:
            file.write(data)
            digest.update(data)

        spans = [(entry.name, at, min(PIECE, entry.size - at)) for at in range(start, entry.size, PIECE)]
        async with contextlib.aclosing(self._ahead(spans)) as pieces:
            async for data in pieces:
                await asyncio.to_thread(write, data)
                self.there += len(data)
        await asyncio.to_thread(file.flush)
        right = digest.hexdigest() == entry.digest
        if not right:
            self.there = before
        return right

    async def _ahead(self, spans: Sequence[Want]) -> AsyncGenerator[bytes, None]:
        """Pieces in their order, some of them asked for ahead."""
        waiting: deque[asyncio.Task[bytes]] = deque()
        left = iter(spans)
        try:
            while True:
                for span in left:
                    waiting.append(asyncio.ensure_future(self._ask([span])))
                    if len(waiting) >= _AHEAD:
                        break
                if not waiting:
                    return
                yield await waiting[0]
                waiting.popleft()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _ask(self, wants: Sequence[Want]) -> bytes:
        assert self.source is not None
        try:
            data = await self.source.pieces(wants)
        except Exception as error:
            raise SourceFailed(str(error) or type(error).__name__) from None
        self.got += len(data)
        if len(data) != sum(length for _, _, length in wants):
            raise SourceFailed(f"{wants[0][0] or 'the file'} is not there as it was sent")
        return data


def _groups(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Large files by themselves, small ones as many as go into a piece."""
    group: list[Entry] = []
    size = 0
    for entry in entries:
        if group and (size + entry.size > PIECE or len(group) >= _MOST_IN_PIECE):
            yield group
            group, size = [], 0
        group.append(entry)
        size += entry.size
    if group:
        yield group


def _changed(entry: Entry) -> SourceFailed:
    return SourceFailed(f"{entry.name or 'the file'} has another hash than it was sent with")


def _link(path: Path, to: str) -> None:
    """Have a link lead where it should, in the place of a link or file that may be there."""
    if path.is_symlink() and os.readlink(path) == to:
        return
    part = Path(f"{path}{PART}")
    part.unlink(missing_ok=True)
    part.symlink_to(to)
    os.replace(part, path)


def _private(part: Path) -> int:
    """A file that only its user can read and nobody else takes now; never through a link that has its name."""
    file = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise OSError(errno.EBUSY, "another transfer is writing it", str(part)) from None
    except OSError:
        # A file system without locks.
        return file
    return file


@contextlib.contextmanager
def _gone_when_full(part: Path) -> Iterator[None]:
    """A part that the disk has no room for is not left to fill it."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            part.unlink(missing_ok=True)
        raise


def _left(file: Any, size: int) -> tuple[Any, int]:
    """The hash so far and the length of what an earlier attempt left; more than the whole is nothing."""
    digest, length = hashlib.sha256(), 0
    while data := file.read(PIECE):
        digest.update(data)
        length += len(data)
    if length > size:
        file.truncate(0)
        digest, length = hashlib.sha256(), 0
    file.seek(length)
    return digest, length
