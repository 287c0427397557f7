"""One run as an agent sees it: its journal, what is to be forwarded, and which ranks still work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .journal import Journal

_CHUNK = 1 << 20


class Run:
    """Made by the agent when a run begins; kept, with its journal, until it is forgotten."""

    def __init__(
        self, run: str, ranks: Iterable[int], path: Path, begin: dict[str, Any] | None = None, limit: int = 0
    ) -> None:
        self.id = run
        self.left = set(ranks)
        self.journal = Journal(path)
        self.begin = begin or {}
        self.unsent: list[tuple[int, int, bytes]] = []
        self.pending: list[dict[str, Any]] = []
        self.over = asyncio.Event()
        # While the first reply is still to be sent, batches wait for it.
        self.replied = False
        if begin:
            self.pending.append(begin)

    @classmethod
    def reopen(cls, run: str, path: Path, limit: int = 0) -> Run:
        raise ValueError

    def add(self, rank: int, event: dict[str, Any]) -> None:
        """Take in an event; text that continues the last event of the same stream is joined to it."""
        last = self.pending[-1] if self.pending else None
        if (
            last is not None
            and event["kind"] == "stream" == last["kind"]
            and (last["rank"], last["name"]) == (rank, event["name"])
            and len(last["text"]) < _CHUNK
        ):
            last["text"] += event["text"]
            return
        self.pending.append({"rank": rank, **event})
        if event["kind"] == "end":
            self.left.discard(rank)
            if not self.left:
                self.over.set()

    def settle(self) -> None:
        """Number what is pending and write it to the journal."""
        if self.pending:
            first = self.journal.next
            count = len(self.pending)
            self.unsent.append((first, count, self.journal.append(self.pending)))
            self.pending = []

    def take(self) -> tuple[int, int, bytes] | None:
        """The events to forward now: first number, how many, their lines."""
        self.settle()
        if not self.unsent:
            return None
        batch, self.unsent = self.unsent, []
        return batch[0][0], sum(count for _, count, _ in batch), b"".join(data for _, _, data in batch)
