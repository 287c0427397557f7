"""Transfer of a file or folder in pieces, each file complete and verified.

Large files resume after a break. No content is accepted before its hash matches the manifest.
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

from . import file_writer, manifest_diff
from .file_manifest import FILE, FOLDER, LINK, ManifestEntry, batches, feed, shown, total
from .file_writer import Receiver
from .open_folder import Beneath

PIECE = 1 << 20
_MOST_IN_PIECE = 500
# Pieces that are requested ahead while one is written.
_AHEAD = 3
Want = tuple[str, int, int]
"""A part of a file: its name below the root, its offset and its length."""


class PieceSource(Protocol):
    """Source of a transfer's data."""

    async def pieces(self, wants: Sequence[Want]) -> bytes:
        """Read parts of files and return them concatenated."""

    async def close(self) -> None:
        """Release the source."""


class SourceFailed(Exception):
    """Raised when a source fails; another source may succeed."""


class LocalSource:
    """Source that reads this machine's files below a root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    async def pieces(self, wants: Sequence[Want]) -> bytes:
        """Read parts of files and return them concatenated."""
        return await asyncio.to_thread(read, self.root, wants)

    async def close(self) -> None:
        """Do nothing."""


def read(root: Path, wants: Sequence[Want]) -> bytes:
    """Read parts of files below a root; a part may be cut short."""
    parts = []
    with Beneath.source(root) as source:
        for name, start, length in wants:
            with open(source.open(name), "rb") as file:
                file.seek(start)
                parts.append(file.read(length))
    return b"".join(parts)


class FileTransfer:
    """Transfer of a file or folder to ``root``; `run` does it.

    Parameters
    ----------
    root : Path
        Target path.
    entries : sequence of ManifestEntry
        Its manifest, with the hashes of missing files.
    source : PieceSource or None
        Where the data comes from; None puts files of the staging folder in place.
    spool : Path or None
        The staging folder, which may hold files under their tokens; see `Receiver`.

    Attributes
    ----------
    state : str
        ``"on"``, ``"done"`` or ``"failed"``.
    kind, why : str
        Kind of a failure (``"source"``, ``"full"`` or ``"error"``), and what happened.
    there, total : int
        Bytes in place, and in all.
    got : int
        Bytes received from the source.
    missing : list of int
        Indices of entries that were not staged; only without a source, where that is no failure.
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
        """Return the progress as a dict for a message."""
        return {name: getattr(self, name) for name in ("state", "kind", "why", "there", "total", "missing")}

    async def run(self) -> None:
        """Run the transfer; errors are in `state`, only cancellation is raised."""
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
                # A complete transfer needs no staged files any more, not even those of an earlier broken one.
                self._to.close(whole=self.state == "done" and not self.missing)
            if self.source is not None:
                with contextlib.suppress(Exception):
                    await self.source.close()

    def _fail(self, kind: str, why: str) -> None:
        self.state, self.kind, self.why = "failed", kind, shown(why)

    # -- before and after --------------------------------------------------------------------------

    def _prepare(self) -> list[int]:
        """Create folders and links; return the indices of missing files."""
        to = self._to = Receiver(self.root, folder=self.entries[0].kind == FOLDER, spool=self.spool)
        absent = []
        for index, entry in enumerate(self.entries):
            if entry.kind == FOLDER:
                if entry.name:
                    to.place.make(entry.name)
                # An earlier transfer may have made it read-only, as its source is.
                to.place.open_up(entry.name)
            elif entry.kind == LINK:
                to.link(entry.name, entry.to)
            elif manifest_diff.is_same(to.place, entry.name, entry) or self._was_staged(entry):
                self.there += entry.size
            else:
                absent.append(index)
        return absent

    def _was_staged(self, entry: ManifestEntry) -> bool:
        to = self._receiver
        if not to.has_staged() or not manifest_diff.is_same(to.staged, entry.token, entry):
            return False
        to.put_staged(entry.token, entry.name)
        return True

    def _finish(self) -> None:
        """Set modes and times; folders last, since adding entries changes them."""
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
        """Fetch one file in many pieces; resume after an earlier attempt."""
        with self._receiver.part(entry.token, entry.name) as file:
            digest, start = await asyncio.to_thread(_left, file, entry.size)
            if not await self._append(file, digest, entry, start):
                if not start:
                    raise _changed(entry)
                # The partial file had other content.
                await asyncio.to_thread(file.truncate, 0)
                file.seek(0)
                if not await self._append(file, hashlib.sha256(), entry, 0):
                    raise _changed(entry)
            self._receiver.put_part(entry.token, entry.name)

    async def _append(self, file: Any, digest: Any, entry: ManifestEntry, start: int) -> bool:
        """Fetch a file from ``start`` on; return True if its hash is right."""
        before = self.there
        self.there += start

        def write(data: bytes) -> None:
            file_writer.write(file, data)
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
        """Yield pieces in order, requesting some of them ahead."""
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
    """Return the hash and length of a partial file; drop one that is too long."""
    digest = hashlib.sha256()
    length = feed(digest, file)
    if length > size:
        file.truncate(0)
        digest, length = hashlib.sha256(), 0
    file.seek(length)
    return digest, length
