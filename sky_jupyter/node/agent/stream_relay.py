"""Relay of streams: items of ranks' generators and of notebook iterators.

Items are data, not output: they are in no journal, and wait here until the notebook has read them. They are numbered,
and the notebook requests them by number. So a broken connection neither loses nor repeats an item. Without a sign of a
notebook for a while, the streams are closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .context import AgentContext

# Seconds until an empty answer is sent, and bytes in one answer.
_LINGER = 2.0
_MOST = 8 << 20
# Seconds without a notebook after which the streams are closed.
PATIENCE = 60.0
_LOOK = 0.5
Tell = Callable[[dict[str, Any], Sequence[bytes]], None]


@dataclass
class Item:
    """Pickled item of a generator; a large one is in a file."""

    size: int
    data: bytes = b""
    path: Path | None = None

    def part(self, start: int, most: int) -> bytes:
        """Return up to ``most`` bytes from ``start`` on."""
        if self.path is None:
            return self.data[start : start + most]
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(most)

    def drop(self) -> None:
        """Remove the item's file, if any."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


@dataclass
class CallStreams:
    """Streams of one call.

    Attributes
    ----------
    items : dict
        Yielded items that have not been read, by number.
    count, read : int
        How many items were yielded, and how many the notebook has read.
    wants : dict
        Requests of the rank by iterator: first item number, most items, and the request's id.
    """

    tell: Tell
    manager: int
    items: OrderedDict[int, Item] = field(default_factory=OrderedDict)
    count: int = 0
    read: int = 0
    wants: dict[int, tuple[int, int, str]] = field(default_factory=dict)
    # Latest answer for each iterator, with its first number: an interrupted rank asks again.
    given: dict[int, tuple[int, list[bytes], dict[str, Any]]] = field(default_factory=dict)
    # Request that waits until more is read, and the number of items that had been read when it came.
    room: tuple[str, int] | None = None
    closed: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    heard: float = field(default_factory=time.monotonic)

    def note_read(self, read: int) -> None:
        """Drop the items that the notebook has read; resume a waiting generator."""
        self.read = max(self.read, min(read, self.count))
        while self.items and next(iter(self.items)) < self.read:
            self.items.popitem(last=False)[1].drop()
        if self.room is not None and self.read > self.room[1]:
            id, self.room = self.room[0], None
            self.tell({"id": id, "read": self.read}, ())

    def want(self, index: int, number: int, most: int, id: str) -> None:
        """Answer a rank's request for iterator items, or let it wait."""
        given = self.given.get(index)
        if given is not None and given[0] == number:
            self.tell({**given[2], "id": id}, given[1])
            return
        self.wants[index] = number, most, id
        self.changed.set()

    def give(self, index: int, number: int, items: list[bytes], answer: dict[str, Any]) -> None:
        """Hand items of a notebook iterator to the rank that awaits them."""
        self.given[index] = number, items, answer
        wanted = self.wants.get(index)
        if wanted is not None and wanted[0] == number:
            del self.wants[index]
            self.tell({**answer, "id": wanted[2]}, items)

    def close(self, run: str) -> None:
        """Close the streams and answer all waiting requests."""
        if not self.closed:
            self.closed = True
            self.tell({"for": run, "closed": True}, ())
        if self.room is not None:
            self.tell({"id": self.room[0], "closed": True}, ())
        for _, _, id in self.wants.values():
            self.tell({"id": id, "closed": True}, ())
        self.room, self.wants, self.given = None, {}, {}
        self.drop()

    def drop(self) -> None:
        """Drop all unread items."""
        for item in self.items.values():
            item.drop()
        self.items.clear()
        self.changed.set()


class StreamRelay:
    """Relay for the streams of a node's calls; made by the agent.

    Parameters
    ----------
    agent : AgentContext
        The agent whose runs have the streams.
    """

    def __init__(self, agent: AgentContext) -> None:
        self._agent = agent
        self._passages: dict[str, CallStreams] = {}
        self._guard: asyncio.Task[None] | None = None
        idle = agent.config.idle_timeout
        self.patience = PATIENCE if idle is None else min(PATIENCE, idle / 2)

    # -- messages of the ranks ---------------------------------------------------------------------

    def on_ask(self, tell: Tell, content: dict[str, Any], data: list[bytes]) -> None:
        """Handle a rank's request: an item, a wait for room, or a pull."""
        what, id = content.get("what"), content.get("id")
        if content.get("drop"):
            for passage in self._passages.values():
                passage.wants = {index: want for index, want in passage.wants.items() if want[2] != id}
            return
        if not isinstance(what, dict) or what.get("run") not in self._agent.runs:
            return
        passage = self._of(str(what["run"]), tell)
        if passage.closed:
            if isinstance(id, str):
                tell({"id": id, "closed": True}, ())
            elif "path" in what:
                Path(what["path"]).unlink(missing_ok=True)
        elif what["op"] == "item":
            path = self._path(what.get("path"))
            item = Item(int(what["size"]), data[0] if data else b"", path)
            passage.items[passage.count] = item
            passage.count += 1
            passage.changed.set()
        elif what["op"] == "room" and isinstance(id, str):
            passage.room = id, int(what["read"])
            passage.note_read(passage.read)
        elif what["op"] == "pull" and isinstance(id, str):
            passage.want(int(what["input"]), int(what["number"]), int(what["most"]), id)

    def _path(self, name: Any) -> Path | None:
        """Return a path inside the node's folder for values, whatever the name contains."""
        return None if name is None else self._agent.folder / "values" / Path(str(name)).name

    def _of(self, run: str, tell: Tell) -> CallStreams:
        if run not in self._passages:
            self._passages[run] = CallStreams(tell, self._agent.manager)
            if self._guard is None:
                self._guard = asyncio.ensure_future(self._watch())
        return self._passages[run]

    def on_over(self, run: str) -> None:
        """Wake up readers of a call that has ended."""
        if run in self._passages:
            self._passages[run].changed.set()

    # -- calls of the manager ----------------------------------------------------------------------

    async def sky_read_stream(
        self, run: str, number: int, start: int, read: int, wants: Sequence[Sequence[int]] = ()
    ) -> dict[str, Any]:
        """Return a call's items from ``number`` on, waiting a while for them.

        The first item is read from byte ``start`` on.

        Parameters
        ----------
        run : str
            The call's attempt.
        number : int
            The first item.
        start : int
            First byte of that item.
        read : int
            The number of items that the notebook has read; they are dropped.
        wants : sequence of pairs
            Requests for iterator items that the notebook knows already: iterator, and first number.

        Returns
        -------
        dict
            ``parts``, each an item's number, its size, the part's first byte, and its bytes; ``wants``, each an
            iterator, its first number, and how many; ``count`` and ``over``.
        """
        record = self._agent.known(run)
        end = time.monotonic() + _LINGER
        known = {tuple(one) for one in wants}
        while True:
            passage = self._passages.get(run)
            over = record.over.is_set()
            if passage is None:
                if over:
                    return {"parts": [], "wants": [], "count": 0, "over": True}
                await self._wait(record.over, min(0.02, _LINGER))
            else:
                passage.heard = time.monotonic()
                passage.note_read(read)
                fresh = [(i, n, most) for i, (n, most, _) in passage.wants.items() if (i, n) not in known]
                passage.changed.clear()
                if passage.count > number or fresh or over or passage.closed:
                    parts = await self._parts(passage, number, start)
                    return {"parts": parts, "wants": fresh, "count": passage.count, "over": over}
                await self._wait(passage.changed, max(0.0, end - time.monotonic()))
            if time.monotonic() > end:
                return {"parts": [], "wants": [], "count": passage.count if passage else 0, "over": False}

    async def _wait(self, event: asyncio.Event, timeout: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(event.wait(), timeout)

    async def _parts(self, passage: CallStreams, number: int, start: int) -> list[tuple[int, int, int, bytes]]:
        parts: list[tuple[int, int, int, bytes]] = []
        left = _MOST
        while left > 0 and number in passage.items:
            item = passage.items[number]
            if item.path is None:
                data = item.part(start, left)
            else:
                data = await asyncio.to_thread(item.part, start, left)
            parts.append((number, item.size, start, data))
            left -= len(data)
            if start + len(data) < item.size:
                break
            number, start = number + 1, 0
        return parts

    async def sky_ack_stream(self, run: str, read: int) -> None:
        """Note how many of a call's items the notebook has read."""
        passage = self._passages.get(run)
        if passage is not None:
            passage.heard = time.monotonic()
            passage.note_read(read)

    async def sky_feed_stream(
        self, run: str, input: int, number: int, items: Sequence[bytes], answer: dict[str, Any]
    ) -> None:
        """Pass on items of a notebook iterator, from ``number`` on."""
        passage = self._passages.get(run)
        if passage is None or passage.closed:
            return
        passage.heard = time.monotonic()
        given = passage.given.get(input)
        if given is None or given[0] < number:
            passage.give(input, number, [bytes(item) for item in items], answer)

    async def sky_close_stream(self, run: str) -> None:
        """Close a call's streams; its generator is closed at its next yield."""
        passage = self._passages.get(run)
        if passage is None and run in self._agent.runs and not self._agent.runs[run].over.is_set():
            # The call has sent nothing yet; its first item will be refused.
            passage = self._passages[run] = CallStreams(lambda content, data: None, self._agent.manager, closed=True)
        if passage is not None:
            passage.close(run)
            record = self._agent.runs.get(run)
            if record is None or record.over.is_set():
                del self._passages[run]

    # -- idle streams ------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Close the streams of a notebook that is gone; drop those of old calls."""
        while self._passages:
            await asyncio.sleep(_LOOK)
            for run, passage in list(self._passages.items()):
                heard = max(passage.heard, self._agent.heard)
                gone = passage.manager != self._agent.manager or time.monotonic() - heard > self.patience
                if gone and not passage.closed:
                    passage.close(run)
                record = self._agent.runs.get(run)
                if record is None or (record.over.is_set() and passage.closed):
                    passage.drop()
                    del self._passages[run]
        self._guard = None
