"""Run of an agent: its journal, unsent batches, and unfinished ranks."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..protocol.journal_events import is_count
from .journal import LIMIT, Journal
from .spare_files import FileRecycler

# Limits of one text event: characters, and a fraction of the journal's limit. An event larger than a few of the
# journal's files would displace both the beginning and the end of a flood.
_CHUNK = 1 << 20
_PARTS = 64
# Most bytes that are gathered before they are written, and that wait for forwarding; the journal has earlier ones.
# Agents that share a process share these limits too.
_MOST_PENDING = 2 << 20
_MOST_UNSENT = 8 << 20
_LEAST = 1 << 18


def part_of(size: int, sharers: int) -> int:
    """Return one agent's part of a memory limit that a process's agents share."""
    return max(_LEAST, size // sharers)


class RunRecord:
    """Record of a run; made by the agent, kept until the run is forgotten.

    Parameters
    ----------
    run : str
        The run's id.
    ranks : iterable of int
        Ranks of this node that take part.
    path : Path
        The journal's path.
    limit : int
        The journal's limit.
    begin : dict, optional
        Content of event 0; its ``"mine"`` are the ranks of this node.
    spares : FileRecycler, optional
        Recycler of the journal's files.
    sharers : int
        Agents that share this process and its memory.
    """

    def __init__(
        self,
        run: str,
        ranks: Iterable[int],
        path: Path,
        *,
        limit: int = LIMIT,
        begin: dict[str, Any] | None = None,
        spares: FileRecycler | None = None,
        sharers: int = 1,
    ) -> None:
        self._set_up(run, ranks, Journal(path, limit, spares), sharers)
        if begin is not None:
            self._put({**begin, "kind": "begin"})
            self.settle()

    def _set_up(self, run: str, ranks: Iterable[int], journal: Journal, sharers: int = 1) -> None:
        self.id = run
        self.left = set(ranks)
        self.journal = journal
        self._chunk = min(_CHUNK, max(1, journal.limit // _PARTS))
        # Batches to forward: first number, count, lines.
        self.unsent: deque[tuple[int, int, bytes]] = deque()
        self.pending: list[dict[str, Any]] = []
        self.over = asyncio.Event()
        # Batches wait until the first reply has been sent.
        self.replied = False
        # The generation of the manager that answers questions of its code; None if nobody does.
        self.answered_by: int | None = None
        # The guest that has begun the run, and answers instead; "" for the manager.
        self.guest = ""
        self._most_pending, self._most_unsent = part_of(_MOST_PENDING, sharers), part_of(_MOST_UNSENT, sharers)
        self._gathered = 0
        self._waiting = 0

    @classmethod
    def reopen(cls, run: str, path: Path, *, limit: int = LIMIT) -> RunRecord:
        """Open the run of a dead agent; ranks without an end are lost."""
        self = cls.__new__(cls)
        self._set_up(run, (), Journal.reopen(path, limit))
        mine = (self.journal.begin or {}).get("mine")
        ranks = {rank for rank in mine if is_count(rank)} if isinstance(mine, list) else set()
        self.left = ranks - self.journal.ended
        for rank in sorted(self.left):
            text = "the agent of its node had ended"
            self.add(rank, {"kind": "end", "status": "lost", "text": text, "t": time.time()})
        self.over.set()
        self.settle()
        self.replied = True
        return self

    def add(self, rank: int, event: dict[str, Any]) -> None:
        """Add an event; text is merged with the last event of the same stream.

        Only the first end of a rank counts.
        """
        if event["kind"] == "end" and rank not in self.left:
            return
        for piece in _pieces(event, self._chunk):
            self._join(rank, piece)
        if event["kind"] == "end":
            self.left.discard(rank)
            if not self.left:
                self.over.set()

    def _join(self, rank: int, event: dict[str, Any]) -> None:
        last = self.pending[-1] if self.pending else None
        if (
            last is not None
            and event["kind"] == "stream" == last["kind"]
            and (last["rank"], last["name"]) == (rank, event["name"])
            and len(last["text"]) + len(event["text"]) <= self._chunk
        ):
            last["text"] += event["text"]
            self._gather(len(event["text"]))
            return
        self._put({"rank": rank, **event})

    def _put(self, event: dict[str, Any]) -> None:
        self.pending.append(event)
        self._gather(_size(event))

    def _gather(self, size: int) -> None:
        self._gathered += size
        if self._gathered > self._most_pending:
            self.settle()

    @property
    def waits(self) -> bool:
        """Whether there is something to forward."""
        return bool(self.pending or self.unsent)

    def settle(self) -> None:
        """Assign numbers to pending events and write them to the journal."""
        if not self.pending:
            return
        first = self.journal.next
        data = self.journal.append(self.pending)
        self.pending, self._gathered = [], 0
        self.unsent.append((first, self.journal.next - first, data))
        self._waiting += len(data)
        # Memory must stay bounded, even if the disk fails. A late reader gets the journal, or its gaps.
        while self._waiting > self._most_unsent and len(self.unsent) > 1:
            self._waiting -= len(self.unsent.popleft()[2])

    def pass_over_begin(self) -> None:
        """Do not forward the begin event, with which the journal has just begun.

        A notice may have followed it: that the disk cannot be written.
        """
        first, count, data = self.unsent.popleft()
        rest = data[data.index(b"\n") + 1 :]
        self._waiting -= len(data) - len(rest)
        if count > 1:
            self.unsent.appendleft((first + 1, count - 1, rest))

    def take(self) -> tuple[int, int, bytes] | None:
        """Return the events to forward: first number, count, lines; None if empty.

        After a long pause, the first events may be missing: the journal has them.
        """
        self.settle()
        if not self.unsent:
            return None
        batch, self.unsent, self._waiting = self.unsent, deque(), 0
        return batch[0][0], sum(count for _, count, _ in batch), b"".join(data for _, _, data in batch)


def _pieces(event: dict[str, Any], most: int) -> Iterator[dict[str, Any]]:
    """Split a long text event."""
    if event["kind"] != "stream" or len(event["text"]) <= most:
        yield event
        return
    for start in range(0, len(event["text"]), most):
        yield {**event, "text": event["text"][start : start + most]}


def _size(event: dict[str, Any]) -> int:
    """Return an event's approximate memory size."""
    if event["kind"] == "stream":
        return len(event["text"]) + 100
    data = event.get("data")
    values = data.values() if isinstance(data, dict) else ()
    return 100 + sum(len(value) if isinstance(value, str) else _CHUNK // 16 for value in values)


def kept_content(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is stored of a request: no settings, as they may hold secrets."""
    return {key: value for key, value in content.items() if key != "settings"}
