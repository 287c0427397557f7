"""Streams as an agent passes them on: items of its ranks' generators, and of iterators of the notebook.

Items are data and no output: they are in no journal, and lie here until the notebook has read them. They
are numbered, and the notebook asks for them by number, so that a connection may break: none is lost, and
none comes twice. Where no notebook is heard of for a while, the streams are closed.
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

# So long a question stays without an answer; so much goes in one.
_LINGER = 2.0
_MOST = 8 << 20
# So long nobody is heard of before the streams are closed.
PATIENCE = 60.0
_LOOK = 0.5
Tell = Callable[[dict[str, Any], Sequence[bytes]], None]


@dataclass
class Item:
    """What a generator has yielded, pickled; a large one lies in a file."""

    size: int
    data: bytes = b""
    path: Path | None = None

    def part(self, start: int, most: int) -> bytes:
        """So much of it."""
        if self.path is None:
            return self.data[start : start + most]
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(most)

    def drop(self) -> None:
        """It has been read."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


@dataclass
class CallStreams:
    """The streams of one call.

    Attributes
    ----------
    items : dict
        What was yielded and is not read, by number.
    count, read : int
        How much was yielded, and read by the notebook.
    wants : dict
        What the rank waits for of each iterator: the number of the item, how many, and the question's id.
    """

    tell: Tell
    manager: int
    items: OrderedDict[int, Item] = field(default_factory=OrderedDict)
    count: int = 0
    read: int = 0
    wants: dict[int, tuple[int, int, str]] = field(default_factory=dict)
    # What was given last of each iterator, and from which number on: one that was interrupted asks anew.
    given: dict[int, tuple[int, list[bytes], dict[str, Any]]] = field(default_factory=dict)
    # Who waits until more is read, and how much was when it asked.
    room: tuple[str, int] | None = None
    closed: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    heard: float = field(default_factory=time.monotonic)

    def note_read(self, read: int) -> None:
        """The notebook has read so many items."""
        self.read = max(self.read, min(read, self.count))
        while self.items and next(iter(self.items)) < self.read:
            self.items.popitem(last=False)[1].drop()
        if self.room is not None and self.read > self.room[1]:
            id, self.room = self.room[0], None
            self.tell({"id": id, "read": self.read}, ())

    def want(self, index: int, number: int, most: int, id: str) -> None:
        """The rank waits for items of an iterator of the notebook, from a number on."""
        given = self.given.get(index)
        if given is not None and given[0] == number:
            self.tell({**given[2], "id": id}, given[1])
            return
        self.wants[index] = number, most, id
        self.changed.set()

    def give(self, index: int, number: int, items: list[bytes], answer: dict[str, Any]) -> None:
        """The notebook gives items of an iterator, from a number on."""
        self.given[index] = number, items, answer
        wanted = self.wants.get(index)
        if wanted is not None and wanted[0] == number:
            del self.wants[index]
            self.tell({**answer, "id": wanted[2]}, items)

    def close(self, run: str) -> None:
        """Nobody reads or gives any more."""
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
        """What was not read is not kept."""
        for item in self.items.values():
            item.drop()
        self.items.clear()
        self.changed.set()


class StreamRelay:
    """Made by the agent, one a node.

    Parameters
    ----------
    agent : AgentContext
        Whose runs they are of.
    """

    def __init__(self, agent: AgentContext) -> None:
        self._agent = agent
        self._passages: dict[str, CallStreams] = {}
        self._guard: asyncio.Task[None] | None = None
        idle = agent.config.idle_timeout
        self.patience = PATIENCE if idle is None else min(PATIENCE, idle / 2)

    # -- what the ranks say ------------------------------------------------------------------------

    def on_ask(self, tell: Tell, content: dict[str, Any], data: list[bytes]) -> None:
        """A rank's code yields an item, waits for room, or for an item of the notebook's."""
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
        """A file in the node's folder for values, and no other."""
        return None if name is None else self._agent.folder / "values" / Path(str(name)).name

    def _of(self, run: str, tell: Tell) -> CallStreams:
        if run not in self._passages:
            self._passages[run] = CallStreams(tell, self._agent.manager)
            if self._guard is None:
                self._guard = asyncio.ensure_future(self._watch())
        return self._passages[run]

    def on_over(self, run: str) -> None:
        """A call has ended: who waits for its items hears of it."""
        if run in self._passages:
            self._passages[run].changed.set()

    # -- what the manager asks ---------------------------------------------------------------------

    async def sky_read_stream(
        self, run: str, number: int, start: int, read: int, wants: Sequence[Sequence[int]] = ()
    ) -> dict[str, Any]:
        """What a call has yielded from item ``number`` on, the first from byte ``start``; waited for a while.

        Parameters
        ----------
        read : int
            How many items the notebook has read: those are not needed any more.
        wants : sequence of pairs
            What of the notebook's iterators is known to be wanted: which, and from which number on.

        Returns
        -------
        dict
            ``parts``, each an item's number, its size, where the part begins, and its bytes; ``wants``,
            each which iterator, from which number on, and how many; ``count`` and ``over``.
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
        """The notebook has read so many of a call's items."""
        passage = self._passages.get(run)
        if passage is not None:
            passage.heard = time.monotonic()
            passage.note_read(read)

    async def sky_feed_stream(
        self, run: str, input: int, number: int, items: Sequence[bytes], answer: dict[str, Any]
    ) -> None:
        """Items of an iterator of the notebook, from ``number`` on."""
        passage = self._passages.get(run)
        if passage is None or passage.closed:
            return
        passage.heard = time.monotonic()
        given = passage.given.get(input)
        if given is None or given[0] < number:
            passage.give(input, number, [bytes(item) for item in items], answer)

    async def sky_close_stream(self, run: str) -> None:
        """Nobody reads a call's items any more: its generator is closed as soon as it yields."""
        passage = self._passages.get(run)
        if passage is None and run in self._agent.runs and not self._agent.runs[run].over.is_set():
            # It has said nothing yet; what it says is answered so.
            passage = self._passages[run] = CallStreams(lambda content, data: None, self._agent.manager, closed=True)
        if passage is not None:
            passage.close(run)
            record = self._agent.runs.get(run)
            if record is None or record.over.is_set():
                del self._passages[run]

    # -- who is there ------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Close the streams of a notebook that is gone, and forget those of calls that are."""
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
