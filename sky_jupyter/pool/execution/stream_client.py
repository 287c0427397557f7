"""Streams of a call on the manager: items of its rank, and its inputs.

The loop polls the rank's agent for items, by number, and puts them in a queue for the reader; see `stream_relay`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import NodeLost, PoolError
from ...node.protocol import rpc
from ...node.protocol.rpc import AgentCall
from ..base.event_loop import loop
from ..base.timed_queue import TimedQueue
from ..base.timeouts import TIMEOUTS
from ..context import PoolContext

if TYPE_CHECKING:
    from .supervisor import Supervisor
    from .tasks import TaskRun

_PAUSE = TIMEOUTS.polls.streams


class SupervisedContext(PoolContext, Protocol):
    """The pool with its supervisor."""

    @property
    def supervisor(self) -> Supervisor: ...


@dataclass(frozen=True)
class Yielded:
    """Item that the rank has yielded."""

    pickled: bytes


@dataclass(frozen=True)
class Wanted:
    """Request of the rank for items of one of the notebook's iterators."""

    index: int
    number: int
    most: int


class StreamClient:
    """Streams of one call, read by one thread.

    Parameters
    ----------
    pool : SupervisedContext
        The call's pool.
    run : TaskRun
        The call.
    """

    def __init__(self, pool: SupervisedContext, run: TaskRun) -> None:
        self._pool, self._run = pool, run
        self._news: TimedQueue[Yielded | Wanted | None] = TimedQueue()
        # The number of items read, and the number that was acknowledged.
        self._read = self._told = 0
        self._telling = False
        self._closed = False
        loop().submit(self._attend())

    # -- the reader --------------------------------------------------------------------------------

    def next(self, timeout: float) -> Yielded | Wanted | None:
        """Return the next event, or None after the last.

        Raises queue.Empty after ``timeout`` seconds without one.
        """
        return self._news.get(timeout)

    def note_read(self) -> None:
        """Acknowledge one more item, so that the rank can continue."""
        self._read += 1
        loop().loop.call_soon_threadsafe(self._tell_soon)

    def give(self, wanted: Wanted, items: Sequence[bytes], **answer: Any) -> None:
        """Send items that were wanted, with the ``end`` or an ``error``."""
        arguments = {"input": wanted.index, "number": wanted.number, "items": list(items), "answer": answer}
        loop().submit(self._ask(rpc.FEED_STREAM, **arguments))

    def close(self) -> None:
        """Stop reading; the generator is closed at its next yield."""
        if not self._closed:
            self._closed = True
            loop().submit(self._close())

    # -- the loop ----------------------------------------------------------------------------------

    async def _attend(self) -> None:
        """Read what the rank yields until its call is over."""
        try:
            if await self._placed():
                await self._take_all()
            await self._run.until(self._run.over.is_set, None)
        finally:
            self._news.put(None)

    async def _placed(self) -> bool:
        """Wait until a rank has begun the call; return False if none does."""
        while not self._run.placed or self._run.node < 0:
            if self._run.over.is_set():
                return False
            await asyncio.sleep(_PAUSE)
        return True

    async def _take_all(self) -> None:
        number = start = 0
        parts: list[bytes] = []
        wants: dict[int, int] = {}
        while not self._closed:
            known = [list(pair) for pair in wants.items()]
            answer = await self._ask(rpc.READ_STREAM, number=number, start=start, read=self._read, wants=known)
            if answer is None:
                return
            self._told = max(self._told, self._read)
            for at, size, offset, data in answer["parts"]:
                if (at, offset) != (number, start):
                    continue
                parts.append(bytes(data))
                start += len(data)
                if start >= size:
                    self._news.put(Yielded(b"".join(parts)))
                    number, start, parts = number + 1, 0, []
            for index, first, most in answer["wants"]:
                if wants.get(index) != first:
                    wants[index] = first
                    self._news.put(Wanted(index, first, most))
            if answer["over"] and number >= answer["count"]:
                return

    def _tell_soon(self) -> None:
        if not self._telling:
            self._telling = True
            self._pool.supervisor.do(self._tell_read())

    async def _tell_read(self) -> None:
        try:
            while self._told < self._read:
                read = self._told = self._read
                await self._ask(rpc.ACK_STREAM, read=read)
        finally:
            self._telling = False

    async def _close(self) -> None:
        if await self._placed():
            await self._ask(rpc.CLOSE_STREAM)

    async def _ask(self, call: AgentCall, **arguments: Any) -> Any:
        """Ask the agent of the call; return None if it is gone, or forgot the call."""
        with contextlib.suppress(LookupError, NodeLost, PoolError, OSError, TypeError):
            if self._run.node >= 0:
                node = self._run.node
                return (await self._pool.control.ask(call, [node], run=self._run.id, **arguments))[node]
        return None
