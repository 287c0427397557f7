"""The comms of a node's ranks, widgets above all: what their code tells pages, and what pages tell their code.

They outlive the run that opened them, so they are in no journal: the agent holds what is open, whole,
and forwards what changes in numbered batches. Whoever misses one asks for all that is open.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from ..protocol.comm_messages import CommMessage, CommQueue, read
from .output_widgets import Outputs
from .revival import CommRevival
from .states import OpenComms, shown

# So many messages go out as one.
_MOST = 200
# Brings a message to a rank's kernel.
Tell = Callable[[dict[str, Any], list[bytes]], None]


class CommHub:
    """Made by the agent, one a node.

    Parameters
    ----------
    tells : mapping
        How each of the node's ranks is told something.
    incarnation : str
        The agent's; another one has other comms.
    ready : callable
        Whether a batch can be forwarded now.
    forward : callable
        Takes a batch and its size.
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
        # The run that each rank was last at: what its callbacks open later is counted as that one's.
        self._latest: dict[int, str] = {}

    def held(self, rank: int) -> OpenComms:
        """What a rank has open."""
        if rank not in self._held:

            def drop(ids: list[str]) -> None:
                self._close(rank, ids)

            self._held[rank] = held = OpenComms(drop)
            self._revivals[rank] = CommRevival(held, functools.partial(self._ask_state, rank))
        return self._held[rank]

    # -- what the ranks say ------------------------------------------------------------------------

    def on_message(self, rank: int, message: Mapping[str, Any], run: str) -> None:
        """A comm's message of a rank's kernel; ``run`` is the run that it belongs to, empty where to none."""
        held = self.held(rank)
        content = message.get("content")
        id = content.get("comm_id") if isinstance(content, Mapping) else None
        comm = held.get(id) if isinstance(id, str) else None
        widget = comm.widget if comm is not None else id in self._revivals[rank]
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
        """A rank prints or shows something for a message; whether a widget takes it."""
        return self.outputs.take(rank, parent, event)

    def on_shown(self, rank: int, run: str, data: Any) -> None:
        """A run shows something: a widget's comm lives as long as the run is known."""
        id = shown(data)
        if id is not None:
            self._latest[rank] = run
            self.held(rank).use(id, run)
            self._revivals[rank].want(id)

    def _ask_state(self, rank: int, id: str) -> None:
        content = {"comm_id": id, "data": {"method": "request_state"}}
        self._tells[rank]({"msg_type": "comm_msg", "id": "", "content": content, "metadata": {}}, [])

    def on_end(self, rank: int) -> None:
        """A rank's kernel has ended, and with it what it had open."""
        if rank in self._held:
            self._close(rank, self._held[rank].clear())
            self._revivals[rank].clear()

    def forget(self, run: str) -> None:
        """A run is forgotten, and with it what no later one has used."""
        for held in self._held.values():
            held.forget(run)

    def _close(self, rank: int, ids: list[str]) -> None:
        for id in ids:
            message = CommMessage("close", id, rank)
            self.outputs.on_state(message)
            self._pending.add(message)

    def flush(self) -> None:
        """Forward what has gathered, as far as that can go now."""
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

    # -- what the manager asks ---------------------------------------------------------------------

    async def sky_open_comms(self) -> dict[str, Any]:
        """All that is open on this node, and the number of the last batch before that."""
        self._pending.forget_states()
        opened = [message.wire() for held in self._held.values() for message in held.openings()]
        return {"open": opened, **self._numbered()}

    async def sky_send_comms(self, messages: list[Any]) -> None:
        """What pages tell the node's ranks; what is not open any more is told nothing."""
        for facts in messages:
            message = CommMessage.unwire(facts)
            tell = None if message is None else self._tells.get(message.rank)
            if message is None or tell is None or self.held(message.rank).get(message.comm) is None:
                continue
            self.held(message.rank).use(message.comm, self._latest.get(message.rank, ""))
            kind, content, metadata, buffers = message.jupyter()
            tell({"msg_type": kind, "id": message.parent, "content": content, "metadata": metadata}, buffers)
            if message.kind == "close":
                # For the other pages.
                self.held(message.rank).take(message)
                self._close(message.rank, [message.comm])
                self.flush()
