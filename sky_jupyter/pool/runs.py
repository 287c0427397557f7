"""A run as the manager sees it: events that arrive, outcomes that fill, and when it is over."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ..capture.collect import Capture
from ..node.journal import lines_of
from .events import Listener, OutputEvent
from .results import Outcome


class Run:
    """One execution on a pool; made by the manager, fed on the loop, waited for anywhere.

    Parameters
    ----------
    id : str
        Made by the manager, known to the agents.
    nodes : dict
        Rank -> node of all ranks that take part; empty where the control plane chooses one.
    listener : callable
        Told every event, in order for each node.
    """

    def __init__(self, id: str, nodes: dict[int, int], listener: Listener) -> None:
        self.id = id
        self.outcomes = {rank: Outcome(rank, node) for rank, node in sorted(nodes.items())}
        self.listener = listener
        self.capture = Capture()
        # What it runs, as a person wrote it.
        self.code = ""
        # Where its blobs lie while it is on.
        self.folder = Path()
        self.elapsed = 0.0
        # Names that the ranks bound or deleted, and those of them that are modules.
        self.writes: set[str] = set()
        self.modules: set[str] = set()
        # For the main thread, and for the loop.
        self.over = threading.Event()
        self.changed = asyncio.Event()
        # The run's life on the loop, set by the manager; done when the outcomes are final.
        self.task: Future[None] = Future()
        # Why ranks were stopped, where the manager stopped them.
        self.why = ""
        # Ranks that were freed from a collective: what they raise then is our doing.
        self.aborted: set[int] = set()
        self._began = time.perf_counter()
        self._next: dict[int, int] = dict.fromkeys(nodes.values(), 0)
        self._anywhere = not nodes
        self._early: dict[int, dict[int, tuple[int, bytes]]] = {}

    @property
    def left(self) -> list[int]:
        """Ranks that still work."""
        return [rank for rank, outcome in self.outcomes.items() if outcome.status == "running"]

    @property
    def failed(self) -> list[int]:
        """Ranks that ended otherwise than well."""
        return [rank for rank, outcome in self.outcomes.items() if outcome.failed]

    def concerns(self, node: int) -> bool:
        """Whether a node takes part, as far as is known."""
        return node in self._next

    def start_clock(self) -> None:
        """The run's time begins now, and not while the pool is being mended."""
        self._began = time.perf_counter()

    def next(self, node: int) -> int:
        """The number of the event that is awaited from a node."""
        return self._next.setdefault(node, 0)

    def place(self, rank: int, node: int) -> None:
        """The control plane has chosen this rank."""
        self.outcomes.setdefault(rank, Outcome(rank, node))

    def take(self, node: int, first: int, count: int, data: bytes) -> int | None:
        """Take a batch in; returns the event number to ask the agent for, where one is missing.

        A batch that is known already is passed over; one that comes early waits for those before.
        """
        if self._anywhere:
            self._next.setdefault(node, 0)
        if not count or node not in self._next or first + count <= self._next[node]:
            return None
        if first > self._next[node]:
            self._early.setdefault(node, {})[first] = (count, data)
            return self._next[node]
        skip = self._next[node] - first
        self._next[node] = first + count
        for event in lines_of(data)[skip:]:
            self._on_event(event, node)
        early = self._early.get(node, {})
        for start in sorted(early):
            if start <= self._next[node]:
                self.take(node, start, *early.pop(start))
        return None

    def _on_event(self, event: dict[str, Any], node: int) -> None:
        if self._anywhere and not self.outcomes and "rank" in event:
            self.place(event["rank"], node)
        outcome = self.outcomes.get(event.get("rank", -1))
        if outcome is None:
            return
        kind = event.get("kind")
        if kind == "stream":
            (outcome.stdout if event["name"] == "stdout" else outcome.stderr).append(event["text"])
        elif kind == "end":
            if outcome.status != "running":
                return
            ours = event["status"] in ("interrupted", "died") or outcome.rank in self.aborted
            if self.why and ours and event["status"] != "ok":
                # We ended it ourselves: what matters is why.
                event = {**event, "status": "interrupted", "why": self.why}
            outcome.status, outcome.end = event["status"], event
            self.writes.update(event.get("writes", ()))
            self.modules.update(event.get("modules", ()))
        self.listener(OutputEvent(self.id, outcome.rank, event))
        if kind == "end":
            self._note_end()

    def lose(self, ranks: Iterable[int], text: str) -> None:
        """Give up ranks whose node is gone."""
        for rank in ranks:
            if self.outcomes[rank].status == "running":
                event = {"kind": "end", "rank": rank, "status": "lost", "text": text}
                self.outcomes[rank].status, self.outcomes[rank].end = "lost", event
                self.listener(OutputEvent(self.id, rank, event))
        self._note_end()

    def _note_end(self) -> None:
        self.changed.set()
        if not self.left:
            self.elapsed = time.perf_counter() - self._began
            self.over.set()

    async def until(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait on the loop until the condition holds; False when time is up."""
        end = None if timeout is None else time.monotonic() + timeout
        while not condition():
            self.changed.clear()
            wait = None if end is None else end - time.monotonic()
            if wait is not None and wait <= 0:
                return False
            try:
                await asyncio.wait_for(self.changed.wait(), wait)
            except asyncio.TimeoutError:
                return condition()
        return True
