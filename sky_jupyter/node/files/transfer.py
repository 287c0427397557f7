"""Taking a file or folder over from where it is, in pieces, each file whole and right or not at all.

What is large goes on after a break where it was; no content is believed before its hash is that of the
listing.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any, Protocol

from . import compare, receiver
from .file_manifest import FILE, FOLDER, LINK, ManifestEntry, batches, feed, shown, total
from .open_folder import Beneath
from .receiver import Receiver

PIECE = 1 << 20
_MOST_IN_PIECE = 500
# So many pieces are on their way while one is written.
_AHEAD = 3
Want = tuple[str, int, int]
"""A part of a file: its name below the root, where the part begins, and how long it is."""


class PieceSource(Protocol):
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
    with Beneath.source(root) as source:
        for name, start, length in wants:
            with open(source.open(name), "rb") as file:
                file.seek(start)
                parts.append(file.read(length))
    return b"".join(parts)


class FileTransfer:
    """A file or folder on its way to ``root``; `run` does it, the rest tells how far it is.

    Parameters
    ----------
    root : Path
        Where it goes.
    entries : sequence of ManifestEntry
        Its listing, with the hashes of what is not there yet.
    source : PieceSource or None
        Where it is taken from; with none, what came by another way is looked at and put in place.
    spool : Path or None
        The staging folder, where files may have come to under their tokens; see `Receiver`.

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
        self, root: Path, entries: Sequence[ManifestEntry], source: PieceSource | None = None, spool: Path | None = None
    ) -> None:
        self.root, self.entries, self.source, self.spool = root, entries, source, spool
        self._to: Receiver | None = None
        self.state, self.kind, self.why = "on", "", ""
        self.there, self.got, self.total = 0, 0, total(entries)
        self.missing: list[int] = []

    def status(self) -> dict[str, Any]:
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
            where = f"{error.filename or self.root}: " if error.strerror else ""
            self._fail("full" if full else "error", f"{where}{error.strerror or error}")
        except Exception as error:
            self._fail("error", f"{type(error).__name__}: {error}")
        finally:
            if self._to is not None:
                # Nothing that is put in place later is wanted; what has been left of a broken transfer is
                # of no use once another one is whole.
                self._to.close(whole=self.state == "done" and not self.missing)
            if self.source is not None:
                with contextlib.suppress(Exception):
                    await self.source.close()

    def _fail(self, kind: str, why: str) -> None:
        self.state, self.kind, self.why = "failed", kind, shown(why)

    # -- before and after --------------------------------------------------------------------------

    def _prepare(self) -> list[int]:
        """Make folders and links; the places of the files that are not there."""
        to = self._to = Receiver(self.root, folder=self.entries[0].kind == FOLDER, spool=self.spool)
        absent = []
        for index, entry in enumerate(self.entries):
            if entry.kind == FOLDER:
                if entry.name:
                    to.place.make(entry.name)
            elif entry.kind == LINK:
                to.link(entry.name, entry.to)
            elif compare.is_same(to.place, entry.name, entry) or self._was_staged(entry):
                self.there += entry.size
            else:
                absent.append(index)
        return absent

    def _was_staged(self, entry: ManifestEntry) -> bool:
        to = self._receiver
        if not to.has_staged() or not compare.is_same(to.staged, entry.token, entry):
            return False
        to.put_staged(entry.token, entry.name)
        return True

    def _finish(self) -> None:
        """Modes and times as they are where it comes from; of folders last, since what is put into one changes it."""
        for kind, entries in ((FILE, self.entries), (FOLDER, self.entries[::-1])):
            for entry in entries:
                if entry.kind == kind:
                    self._receiver.place.settle(entry.name, entry.mode, entry.mtime)

    @property
    def _receiver(self) -> Receiver:
        assert self._to is not None
        return self._to

    # -- pieces ------------------------------------------------------------------------------------

    async def _fetch(self, entries: Sequence[ManifestEntry]) -> None:
        for group in batches(entries, PIECE, count=_MOST_IN_PIECE):
            if len(group) == 1 and group[0].size > PIECE:
                await self._fetch_large(group[0])
            else:
                await self._fetch_small(group)

    async def _fetch_small(self, entries: Sequence[ManifestEntry]) -> None:
        data = b""
        if total(entries):
            wants = [(entry.name, 0, entry.size) for entry in entries if entry.size]
            data = await self._ask(wants)
        await asyncio.to_thread(self._write_small, entries, data)

    def _write_small(self, entries: Sequence[ManifestEntry], data: bytes) -> None:
        start = 0
        for entry in entries:
            content = data[start : start + entry.size]
            start += entry.size
            if hashlib.sha256(content).hexdigest() != entry.digest:
                raise _changed(entry)
            self._receiver.put(entry.token, entry.name, content)
            self.there += entry.size

    async def _fetch_large(self, entry: ManifestEntry) -> None:
        """One file in many pieces; what an earlier attempt left of it is gone on with."""
        with self._receiver.part(entry.token, entry.name) as file:
            digest, start = await asyncio.to_thread(_left, file, entry.size)
            if not await self._append(file, digest, entry, start):
                if not start:
                    raise _changed(entry)
                # What had been left was of something else.
                await asyncio.to_thread(file.truncate, 0)
                file.seek(0)
                if not await self._append(file, hashlib.sha256(), entry, 0):
                    raise _changed(entry)
            self._receiver.put_part(entry.token, entry.name)

    async def _append(self, file: Any, digest: Any, entry: ManifestEntry, start: int) -> bool:
        """Fetch a file from ``start`` on; whether the whole is right then."""
        before = self.there
        self.there += start

        def write(data: bytes) -> None:
            receiver.write(file, data)
            digest.update(data)

        spans = [(entry.name, at, min(PIECE, entry.size - at)) for at in range(start, entry.size, PIECE)]
        async with contextlib.aclosing(self._ahead(spans)) as pieces:
            async for data in pieces:
                await asyncio.to_thread(write, data)
                self.there += len(data)
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


def _changed(entry: ManifestEntry) -> SourceFailed:
    return SourceFailed(f"{entry.name or 'the file'} has another hash than it was sent with")


def _left(file: Any, size: int) -> tuple[Any, int]:
    """The hash so far and the length of what an earlier attempt left; more than the whole is nothing."""
    digest = hashlib.sha256()
    length = feed(digest, file)
    if length > size:
        file.truncate(0)
        digest, length = hashlib.sha256(), 0
    file.seek(length)
    return digest, length
