"""Comms of a pool's ranks, mostly widgets: relayed between nodes and frontend.

Nodes number their batches. After a gap the manager requests the state of all open comms. Messages from nodes are
validated.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from ...errors import SkyError
from ...node.protocol import rpc
from ...node.protocol.comm_messages import CommMessage, CommQueue
from ...node.protocol.journal_events import is_count
from ...pool.base.event_loop import loop
from ...pool.base.timeouts import TIMEOUTS
from ...spec.pool_spec import PoolSpec
from ...util.background_tasks import BackgroundTasks

# Messages to the ranks that arrive within this time are sent as one.
_PACE = TIMEOUTS.polls.widgets
_MOST = 200
Ask = Callable[..., Awaitable[dict[int, Any]]]


class CommReceiver(Protocol):
    """Receiver of the ranks' comms; called on the loop, and must return at once."""

    def take(self, messages: Sequence[CommMessage]) -> None:
        """Handle new messages."""

    def reset(self, ranks: Sequence[int], messages: Sequence[CommMessage]) -> None:
        """Replace the state of these ranks' comms by ``messages``."""


class Comms:
    """Comms of one pool, an extension of its supervisor; used on the loop.

    `listen` and `send` are thread-safe.

    Parameters
    ----------
    ask : callable
        ``await ask(call, nodes, **arguments)`` calls agents.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._nodes, self._per_node = 0, 1
        self._mirror: CommReceiver | None = None
        # Each node's incarnation, and the number of its last batch.
        self._heard: dict[int, tuple[str, int]] = {}
        # Batches that came during the request of a node's state.
        self._early: dict[int, list[dict[str, Any]]] = {}
        self._outgoing: dict[int, CommQueue] = {}
        self._tasks = BackgroundTasks()

    def listen(self, mirror: CommReceiver) -> None:
        """Set the receiver and request the state, not from the loop."""

        def begin() -> None:
            self._mirror = mirror
            for node in range(self._nodes):
                self.look(node)

        loop().loop.call_soon_threadsafe(begin)

    def suit(self, spec: PoolSpec) -> None:
        """Adopt the spec of a new or resized pool; its comms are closed."""
        self._nodes, self._per_node = spec.nodes, spec.ranks_per_node

    def _ranks(self, node: int) -> range:
        return range(node * self._per_node, (node + 1) * self._per_node)

    # -- from the ranks ----------------------------------------------------------------------------

    def on_batch(self, batch: dict[str, Any]) -> None:
        """Handle a batch of messages that an agent forwards."""
        node: Any
        number: Any
        node, number, incarnation = batch.get("node"), batch.get("number"), batch.get("incarnation")
        known = is_count(node) and node < self._nodes and is_count(number)
        if self._mirror is None or not known or not isinstance(incarnation, str):
            return
        if node in self._early:
            self._early[node].append(batch)
            del self._early[node][:-_MOST]
        elif self._heard.get(node, (incarnation, 0)) == (incarnation, number - 1):
            self._heard[node] = incarnation, number
            self._mirror.take(self._read(node, batch.get("comms")))
        elif self._heard.get(node, ("", 0))[0] != incarnation or number > self._heard[node][1]:
            self.look(node)

    def _read(self, node: int, found: Any) -> list[CommMessage]:
        """Return the valid messages of the node's own ranks."""
        messages = map(CommMessage.unwire, found if isinstance(found, (list, tuple)) else ())
        return [message for message in messages if message is not None and message.rank in self._ranks(node)]

    def look(self, node: int) -> None:
        """Request the state of a node's open comms."""
        if self._mirror is not None and node not in self._early:
            early = self._early[node] = []
            self._tasks.start(self._look(node, early))

    async def _look(self, node: int, early: list[dict[str, Any]]) -> None:
        try:
            with contextlib.suppress(SkyError, OSError, KeyError):
                answer = (await self._ask(rpc.OPEN_COMMS, [node]))[node]
                self._heard[node] = str(answer["incarnation"]), int(answer["number"])
                if self._mirror is not None:
                    self._mirror.reset(self._ranks(node), self._read(node, answer["open"]))
        finally:
            if self._early.get(node) is early:
                del self._early[node]
        for batch in early:
            self.on_batch(batch)

    def lose(self, node: int) -> None:
        """Close a lost node's comms."""
        self._heard.pop(node, None)
        self._outgoing.pop(node, None)
        if self._mirror is not None:
            self._mirror.reset(self._ranks(node), ())

    def close(self) -> None:
        """Close all comms."""
        for task in list(self._tasks):
            task.cancel()
        self._early.clear()
        for node in range(self._nodes):
            self.lose(node)

    # -- to the ranks ------------------------------------------------------------------------------

    def send(self, message: CommMessage) -> None:
        """Send a message to a rank, coalesced with others. Thread-safe."""
        loop().loop.call_soon_threadsafe(self._put, message)

    def _put(self, message: CommMessage) -> None:
        node = message.rank // self._per_node
        waiting = self._outgoing.get(node)
        if waiting is None:
            waiting = self._outgoing[node] = CommQueue(any_keys=False)
            self._tasks.start(self._deliver(node, waiting))
        waiting.add(message)

    async def _deliver(self, node: int, waiting: CommQueue) -> None:
        # Messages to an unreachable node are lost, as with any dead kernel; it sends its whole state when it is back.
        with contextlib.suppress(SkyError, OSError):
            while waiting:
                messages = [message.wire() for message in waiting.take(_MOST)]
                await self._ask(rpc.SEND_COMMS, [node], messages=messages)
                await asyncio.sleep(_PACE)
        if self._outgoing.get(node) is waiting:
            del self._outgoing[node]
