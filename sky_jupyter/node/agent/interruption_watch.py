"""Watch for interruption notices of machines; see `node.runtime.interruption`.

Each agent calls the provider's function for its own machine, and tells all agents of the pool through the scheduler. So
the ranks learn of a notice even if no manager is connected.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ...util.background_tasks import BackgroundTasks
from ..protocol import rpc
from ..runtime.interruption import TOPIC, Interruption

if TYPE_CHECKING:
    from .kernel_client import RankKernel

# Seconds between two calls, as AWS recommends.
EVERY = 5.0


class InterruptionWatch:
    """Notices of an agent's own machine and of others; made by the agent.

    Parameters
    ----------
    source : str
        The provider's function, as ``"module:function"``; empty if there is none.
    node : int
        The agent's node.
    ranks : callable
        Returns the node's ranks.
    on_news : callable
        Called when the notice of its own machine has changed.
    """

    def __init__(
        self, source: str, node: int, ranks: Callable[[], Iterable[RankKernel]], on_news: Callable[[], None]
    ) -> None:
        self._source, self._node, self._ranks, self._on_news = source, node, ranks, on_news
        self.notice: Interruption | None = None
        # By node, the notices that ranks were told.
        self.known: dict[int, Interruption] = {}
        self._scheduler: Any = None
        # Set once the function has been called.
        self._asked = asyncio.Event()
        self._tasks = BackgroundTasks()

    @property
    def facts(self) -> list[Any] | None:
        """The machine's notice for the manager: action, and seconds left or None."""
        return None if self.notice is None else _told(self.notice)

    def connect(self, member: Any) -> None:
        """Use this Dask worker to reach the other agents; None if there is none."""
        self._scheduler = None if member is None else member.scheduler
        if self._scheduler is not None and self._source:
            self._tasks.start(self._spread_first())

    async def attend(self) -> None:
        """Poll the provider's function as long as the agent lives."""
        if not self._source:
            return
        ask = _Question(self._source)
        while True:
            notice = await asyncio.to_thread(ask)
            if notice != self.notice:
                self.notice = notice
                self._on_news()
                await self._spread()
            self._asked.set()
            await asyncio.sleep(EVERY)

    async def _spread_first(self) -> None:
        """Tell all agents of the machine's notice, once it is known.

        Also if there is none: this node's previous machine may have had one.
        """
        await self._asked.wait()
        await self._spread()

    async def _spread(self) -> None:
        """Tell all agents, this one too, of the machine's notice."""
        scheduler, notice = self._scheduler, self.notice
        told = None if notice is None or notice.is_risk else _told(notice)
        if told is not None:
            # Tell its own ranks, even if the scheduler does not answer.
            await self.sky_note_interruption(self._node, told)
        if scheduler is not None:
            message = {"op": rpc.NOTE_INTERRUPTION.op, "node": self._node, "notice": told}
            # An agent that does not answer is about to end; after a new connection, all are told again.
            with contextlib.suppress(Exception):
                await scheduler.broadcast(msg=message, on_error="ignore")

    async def sky_note_interruption(self, node: int, notice: list[Any] | None) -> None:
        """Record a node's interruption notice (None withdraws it); tell the ranks."""
        if notice is None and node not in self.known:
            return
        if notice is None:
            del self.known[node]
        elif node not in self.known or self.known[node].action != notice[0]:
            # In seconds from now, since clocks differ.
            action, left = notice
            self.known[node] = Interruption(str(action), None if left is None else time.time() + float(left))
        else:
            return
        for rank in self._ranks():
            self.tell(rank)

    def tell(self, rank: RankKernel) -> None:
        """Tell a rank of all notices."""
        rank.answer({"for": TOPIC, "nodes": [[node, one.action, one.at] for node, one in self.known.items()]})

    def tell_new(self, rank: RankKernel) -> None:
        """Tell a rank with a new kernel of all notices, if there are any."""
        if self.known:
            self.tell(rank)


class _Question:
    """Call of the provider's function; logs its first error, keeps the last notice."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._failed = False
        self._last: Interruption | None = None

    def __call__(self) -> Interruption | None:
        try:
            module, _, name = self._source.partition(":")
            notice = getattr(importlib.import_module(module), name)()
            self._last = notice if isinstance(notice, Interruption) else None
        except Exception:
            if not self._failed:
                self._failed = True
                print(f"{self._source} failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        return self._last


def _told(notice: Interruption) -> list[Any]:
    return [notice.action, None if notice.at is None else max(0.0, notice.at - time.time())]
