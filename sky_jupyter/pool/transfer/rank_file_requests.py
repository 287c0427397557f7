"""Files of ranks for the side panel: list a folder, show a file, fetch either."""

from __future__ import annotations

import base64
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from ...errors import PoolError, SkyError
from ...machines.local_machine import working_folder
from ...node.files.file_manifest import shown
from ...util.text import format_size
from ..base.event_loop import Tick
from ..base.events import Event, Listener, ProgressEvent
from ..base.timeouts import TIMEOUTS
from ..context import TransferContext
from . import browse
from .browse import FileFacts
from .transfer_job import Transfer

MOST_TEXT = 512 << 10
"""Bytes of a text that are shown at a time."""
MOST_PICTURE = 4 << 20
"""Bytes of a picture that is shown."""
# The number of first bytes that tell a file's kind.
_HEAD = 8192
_PICTURES = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))
# Limits: fetches at a time, and finished ones that are remembered.
_MOST_FETCHES = 4
_MOST_OVER = 20
_MOST_TRIES = 1000
_SHORT = TIMEOUTS.answers.calls / 4


class Fetchable(TransferContext, Protocol):
    """Pool that files are fetched from."""

    def get(
        self,
        remote: str,
        local: str | None = None,
        on: list[int] | None = None,
        listener: Listener = ...,
        tick: Tick = ...,
    ) -> Transfer:
        """Fetch a file or folder; see `Compute.get`."""
        ...


def list_files(pool: TransferContext, rank: int, path: str, after: str = "") -> dict[str, Any]:
    """Return a page of a folder in JSON, for the browser."""
    with _in_words(path):
        page = browse.list_folder(pool, rank, path, after)
    if page.own.kind != "directory":
        raise PoolError(f"{shown(path)} is not a folder")
    entries = [_row(entry) for entry in page.entries]
    found = {"path": shown(page.path), "ranks": pool.spec.world_size, "entries": entries, "more": page.more}
    return {**found, "last": shown(page.last)}


def show_file(pool: TransferContext, rank: int, path: str, start: int = 0) -> dict[str, Any]:
    """Return a file's picture, or its text from ``start`` (negative: from its end)."""
    with _in_words(path):
        own = browse.list_folder(pool, rank, path, most=0).own
        head = browse.read_range(pool, rank, path, 0, _HEAD)
        facts = {"size": own.size, "modified": own.mtime}
        kind = next((kind for begin, kind in _PICTURES if head.startswith(begin)), "")
        if not kind and path.lower().endswith(".svg"):
            kind = "image/svg+xml"
        if kind and own.size <= MOST_PICTURE:
            data = browse.read_range(pool, rank, path, 0, MOST_PICTURE)
            text = data.decode(errors="replace") if kind == "image/svg+xml" else base64.b64encode(data).decode()
            return {**facts, "kind": kind, "data": text}
        if kind or b"\0" in head:
            return {**facts, "kind": "other"}
        begin = min(start, own.size) if start >= 0 else max(0, own.size + start)
        data = browse.read_range(pool, rank, path, begin, MOST_TEXT)
    facts["size"] = max(own.size, begin + len(data))
    return {**facts, "kind": "text", "text": data.decode(errors="replace"), "from": begin, "next": begin + len(data)}


def _row(facts: FileFacts) -> dict[str, Any]:
    link = None if facts.to is None else shown(facts.to)
    return {"name": shown(facts.name), "kind": facts.kind, "size": facts.size, "modified": facts.mtime, "link": link}


@contextlib.contextmanager
def _in_words(path: str) -> Iterator[None]:
    """Convert an OSError in the block to a PoolError with a message for users."""
    try:
        yield
    except OSError as error:
        raise PoolError(f"{shown(path)}: {error.strerror or error}") from None


# -- fetching --------------------------------------------------------------------------------------


class _Stopped(Exception):
    """Signal to a fetch's thread that the user has stopped it."""


@dataclass
class _Fetch:
    name: str
    there: int = 0
    total: int = 0
    state: str = "on"
    message: str = ""
    stop: bool = False

    def status(self, id: str) -> dict[str, Any]:
        facts = {"fetch": id, "name": self.name, "there": self.there, "total": self.total}
        return {**facts, "state": self.state, "message": self.message}


class Fetches:
    """Fetches of this process that a page has begun. Thread-safe.

    The page polls the progress of each.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Fetch] = {}
        self._count = 0
        self._lock = threading.Lock()

    def begin(self, pool: Fetchable, rank: int, path: str) -> dict[str, Any]:
        """Begin to fetch into the working folder, overwriting nothing; return the status."""
        with _in_words(path):
            page = browse.list_folder(pool, rank, path, most=0)
        name = PurePosixPath(page.path).name
        if not name:
            raise PoolError("the root folder has no name here: fetch what is in it")
        with self._lock:
            if sum(one.state == "on" for one in self._known.values()) >= _MOST_FETCHES:
                raise PoolError(f"{_MOST_FETCHES} files are being fetched; wait for one of them, or stop it")
            # Neither the user's files nor those that another fetch is about to write are overwritten.
            taken = {one.name for one in self._known.values() if one.state == "on"}
            fetch = _Fetch(_free_name(working_folder(), name, taken))
            self._count += 1
            id = f"f{self._count}"
            self._known[id] = fetch
            over = [key for key, one in self._known.items() if one.state != "on"]
            for key in over[: max(0, len(over) - _MOST_OVER)]:
                del self._known[key]
        target = str(working_folder() / fetch.name)
        node = browse.node_of(pool, rank)
        # A daemon: a fetch that hangs does not keep the kernel from ending.
        work = threading.Thread(target=_run, args=(fetch, pool, page.path, target, node), name="sky-fetch", daemon=True)
        work.start()
        # Most files are small: the first answer is the last.
        work.join(_SHORT)
        return fetch.status(id)

    def status(self, id: str, *, stop: bool = False) -> dict[str, Any]:
        """Return a fetch's status; ``stop`` ends it first. Raises PoolError if unknown."""
        fetch = self._known.get(id)
        if fetch is None:
            raise PoolError(f"no fetch {id} is known; it may be over for long")
        fetch.stop = fetch.stop or stop
        return fetch.status(id)


def _run(fetch: _Fetch, pool: Fetchable, path: str, target: str, node: int) -> None:
    def listen(event: Event) -> None:
        if isinstance(event, ProgressEvent):
            fetch.there, fetch.total = event.there, event.total

    def tick() -> None:
        if fetch.stop:
            raise _Stopped

    try:
        moved = pool.get(path, target, on=[node], listener=listen, tick=tick)
        fetch.there = fetch.total = moved.size
        fetch.message = f"{fetch.name} is in {shown(str(Path(target).parent))} ({format_size(moved.size)})"
        fetch.state = "done"
    except _Stopped:
        fetch.message, fetch.state = f"the fetch of {fetch.name} was stopped; the next one resumes there", "stopped"
    except (SkyError, OSError) as error:
        fetch.message, fetch.state = f"{fetch.name} cannot be fetched: {error}", "failed"
    except BaseException as error:
        fetch.message, fetch.state = f"{fetch.name} cannot be fetched: {type(error).__name__}: {error}", "failed"


def _free_name(folder: Path, name: str, taken: set[str]) -> str:
    """Return a name that nothing in a folder has: the given one, or with a number."""
    stem, dot, ending = name.rpartition(".")
    if not stem:
        stem, dot, ending = name, "", ""
    for number in range(_MOST_TRIES):
        new = f"{stem} ({number}){dot}{ending}" if number else name
        if new not in taken and not (folder / new).is_symlink() and not (folder / new).exists():
            return new
    raise PoolError(f"{name} is here {_MOST_TRIES} times already")


fetches = Fetches()
"""The fetches of this process."""
