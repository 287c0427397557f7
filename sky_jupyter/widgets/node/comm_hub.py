"""Hub for the comms of a node's ranks, between their code and the pages.

Comms outlive the run that opened them, so they are in no journal. The agent holds the state of all open comms, and
forwards changes in numbered batches. A receiver that misses a batch requests all open comms.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from ...node.protocol.comm_messages import CommMessage, CommQueue, read
from ..open_comms import OpenComms, shown
from .output_widgets import Outputs
from .revival import CommRevival

# Most messages in one batch.
_MOST = 200
# Sends a message to a rank's kernel.
Tell = Callable[[dict[str, Any], list[bytes]], None]


class CommHub:
    """Comm hub of a node; made by the agent.

    Parameters
    ----------
    tells : mapping
        Sends a message to each of the node's ranks.
    incarnation : str
        The agent's incarnation; another one has other comms.
    ready : callable
        Whether a batch can be forwarded now.
    forward : callable
        Forwards a batch, with its size.
    """

    def __init__(
        self,
        tells: Mapping[int, Tell],
        incarnation: str,
        ready: Callable[[], bool],
        forward: Callable[[dict[str, Any], int], None],
    ) -> None:
        self._tells, self._incarnation = tells, incarnation
        self._ready, self._forward = ready, forward
        self._pending = CommQueue(any_keys=True)
        self.outputs = Outputs()
        self._number = 0
        self._held: dict[int, OpenComms] = {}
        self._revivals: dict[int, CommRevival] = {}
        # Latest run of each rank: comms that callbacks open later belong to it.
        self._latest: dict[int, str] = {}

    def held(self, rank: int) -> OpenComms:
        """Return a rank's open comms."""
        if rank not in self._held:

            def drop(ids: list[str]) -> None:
                self._close(rank, ids)

            self._held[rank] = held = OpenComms(drop)
            self._revivals[rank] = CommRevival(held, functools.partial(self._ask_state, rank))
        return self._held[rank]

    # -- messages of the ranks ---------------------------------------------------------------------

    def on_message(self, rank: int, message: Mapping[str, Any], run: str) -> None:
        """Handle a comm message of a rank's kernel.

        ``run`` is the run that it belongs to; empty if it belongs to none.
        """
        held = self.held(rank)
        content = message.get("content")
        id = content.get("comm_id") if isinstance(content, Mapping) else None
        comm = held.get(id) if isinstance(id, str) else None
        widget = comm.widget if comm is not None else isinstance(id, str) and id in self._revivals[rank]
        told = read(message, widget=widget, rank=rank)
        if run:
            self._latest[rank] = run
        elif told is not None and told.kind == "open":
            run = self._latest.get(rank, "")
        if told is None:
            return
        revived = self._revivals[rank].take(told) if told.comm in self._revivals[rank] else []
        if revived:
            run = run or self._latest.get(rank, "")
        for one in revived or [told]:
            if held.take(one, run):
                self.outputs.on_state(one)
                self._pending.add(one)

    def on_output(self, rank: int, parent: str, event: dict[str, Any]) -> bool:
        """Offer a rank's output to its `Output` widgets; return True if one captures it."""
        return self.outputs.take(rank, parent, event)

    def on_shown(self, rank: int, run: str, data: Any) -> None:
        """Note that a run displays a widget: its comm lives as long as the run."""
        id = shown(data)
        if id is not None:
            self._latest[rank] = run
            self.held(rank).use(id, run)
            self._revivals[rank].want(id)

    def _ask_state(self, rank: int, id: str) -> None:
        content = {"comm_id": id, "data": {"method": "request_state"}}
        self._tells[rank]({"msg_type": "comm_msg", "id": "", "content": content, "metadata": {}}, [])

    def on_end(self, rank: int) -> None:
        """Close the comms of a rank whose kernel has ended."""
        if rank in self._held:
            self._close(rank, self._held[rank].clear())
            self._revivals[rank].clear()

    def forget(self, run: str) -> None:
        """Close the comms that no later run has used."""
        for held in self._held.values():
            held.forget(run)

    def _close(self, rank: int, ids: list[str]) -> None:
        for id in ids:
            message = CommMessage("close", id, rank)
            self.outputs.on_state(message)
            self._pending.add(message)

    def flush(self) -> None:
        """Forward pending messages as long as the manager is ready."""
        for change in self.outputs.changes() if self._ready() else ():
            self.held(change.rank).take(change)
            self._pending.add(change)
        while self._pending and self._ready():
            messages = self._pending.take(_MOST)
            self._number += 1
            batch = {"comms": [message.wire() for message in messages], **self._numbered()}
            self._forward(batch, sum(message.size for message in messages))

    def _numbered(self) -> dict[str, Any]:
        return {"incarnation": self._incarnation, "number": self._number}

    # -- calls of the manager ----------------------------------------------------------------------

    async def sky_open_comms(self) -> dict[str, Any]:
        """Return all open comms of this node, and the number of the last batch."""
        self._pending.forget_states()
        opened = [message.wire() for held in self._held.values() for message in held.openings()]
        return {"open": opened, **self._numbered()}

    async def sky_send_comms(self, messages: list[Any]) -> None:
        """Pass messages of pages on to the ranks; ignore closed comms."""
        for facts in messages:
            message = CommMessage.unwire(facts)
            tell = None if message is None else self._tells.get(message.rank)
            if message is None or tell is None or self.held(message.rank).get(message.comm) is None:
                continue
            self.held(message.rank).use(message.comm, self._latest.get(message.rank, ""))
            kind, content, metadata, buffers = message.jupyter()
            tell({"msg_type": kind, "id": message.parent, "content": content, "metadata": metadata}, buffers)
            if message.kind == "close":
                # Record it for the other pages.
                self.held(message.rank).take(message)
                self._close(message.rank, [message.comm])
                self.flush()
