"""One run as an agent sees it: its journal, what is to be forwarded, and which ranks still work."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .journal import LIMIT, Journal
from .segments import is_number
from .spare_files import FileRecycler

# A text is one event up to this length, and up to this part of what the journal holds: one that is
# larger than a few of the journal's files could keep neither the beginning nor the end of a flood.
_CHUNK = 1 << 20
_PARTS = 64
# So much is gathered before it is written, whoever asks for it.
_MOST_PENDING = 2 << 20
# So many bytes of lines wait for whom they are forwarded to; the journal has what went before them.
_MOST_UNSENT = 8 << 20


class RunRecord:
    """Made by the agent when a run begins; kept, with its journal, until it is forgotten.

    Parameters
    ----------
    run : str
        Its id.
    ranks : iterable of int
        Those of this node that work on it.
    path : Path
        The journal's.
    limit : int
        The journal's.
    begin : dict, optional
        What event 0 shall say of the run; its ``"mine"`` are the ranks of this node.
    spares : FileRecycler, optional
        The journal's.
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
    ) -> None:
        self._set_up(run, ranks, Journal(path, limit, spares))
        if begin is not None:
            self._put({**begin, "kind": "begin"})
            self.settle()

    def _set_up(self, run: str, ranks: Iterable[int], journal: Journal) -> None:
        self.id = run
        self.left = set(ranks)
        self.journal = journal
        self._chunk = min(_CHUNK, max(1, journal.limit // _PARTS))
        # Batches that were not taken yet: first number, how many, their lines.
        self.unsent: deque[tuple[int, int, bytes]] = deque()
        self.pending: list[dict[str, Any]] = []
        self.over = asyncio.Event()
        # While the first reply is still to be sent, batches wait for it.
        self.replied = False
        self._gathered = 0
        self._waiting = 0

    @classmethod
    def reopen(cls, run: str, path: Path, *, limit: int = LIMIT) -> RunRecord:
        """The run of an agent that died, over: ranks that had not ended by then end as lost."""
        self = cls.__new__(cls)
        self._set_up(run, (), Journal.reopen(path, limit))
        mine = (self.journal.begin or {}).get("mine")
        ranks = {rank for rank in mine if is_number(rank)} if isinstance(mine, list) else set()
        self.left = ranks - self.journal.ended
        for rank in sorted(self.left):
            text = "the agent of its node had ended"
            self.add(rank, {"kind": "end", "status": "lost", "text": text, "t": time.time()})
        self.over.set()
        self.settle()
        self.replied = True
        return self

    def add(self, rank: int, event: dict[str, Any]) -> None:
        """Take in an event; text that continues the last event of the same stream is joined to it.

        What a rank says of its end counts once.
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
        if self._gathered > _MOST_PENDING:
            self.settle()

    @property
    def waits(self) -> bool:
        """Whether there is something to forward."""
        return bool(self.pending or self.unsent)

    def settle(self) -> None:
        """Number what is pending and write it to the journal."""
        if not self.pending:
            return
        first = self.journal.next
        data = self.journal.append(self.pending)
        self.pending, self._gathered = [], 0
        self.unsent.append((first, self.journal.next - first, data))
        self._waiting += len(data)
        # Kept by the disk or not: memory is what must last. Whoever comes late reads the journal,
        # which says of what it does not have that it has not.
        while self._waiting > _MOST_UNSENT and len(self.unsent) > 1:
            self._waiting -= len(self.unsent.popleft()[2])

    def take(self) -> tuple[int, int, bytes] | None:
        """The events to forward now: first number, how many, their lines.

        Where nobody took for long, they begin later than the last ones ended: the journal has those
        between.
        """
        self.settle()
        if not self.unsent:
            return None
        batch, self.unsent, self._waiting = self.unsent, deque(), 0
        return batch[0][0], sum(count for _, count, _ in batch), b"".join(data for _, _, data in batch)


def _pieces(event: dict[str, Any], most: int) -> Iterator[dict[str, Any]]:
    """The event, or several of them where its text is long."""
    if event["kind"] != "stream" or len(event["text"]) <= most:
        yield event
        return
    for start in range(0, len(event["text"]), most):
        yield {**event, "text": event["text"][start : start + most]}


def _size(event: dict[str, Any]) -> int:
    """About how much memory an event takes."""
    if event["kind"] == "stream":
        return len(event["text"]) + 100
    data = event.get("data")
    values = data.values() if isinstance(data, dict) else ()
    return 100 + sum(len(value) if isinstance(value, str) else _CHUNK // 16 for value in values)
