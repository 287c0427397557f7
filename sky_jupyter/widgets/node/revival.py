"""Revival of evicted widgets that are shown again, from their rank's state."""

from __future__ import annotations

from collections.abc import Callable

from ...node.protocol.comm_messages import WIDGET, CommMessage
from ..open_comms import OpenComms, references

# Limit of pending requests; a closed widget never answers.
_MOST = 5000
# Header of ipywidgets' own comm_open.
_HEAD = {"target_name": WIDGET, "target_module": None, "metadata": {"version": "2.1.0"}}


class CommRevival:
    """Revivals of one rank's widgets; made by `CommHub`.

    Parameters
    ----------
    held : OpenComms
        The rank's open comms.
    ask : callable
        Requests a widget's state from the rank.
    """

    def __init__(self, held: OpenComms, ask: Callable[[str], None]) -> None:
        self._held, self._ask = held, ask
        # Requested widgets, with the message that opens each once its state has come.
        self._found: dict[str, CommMessage | None] = {}

    def __contains__(self, id: object) -> bool:
        return id in self._found

    def want(self, id: str) -> None:
        """Request the state of a displayed widget that is not open."""
        if id in self._found or self._held.get(id) is not None:
            return
        self._found[id] = None
        while len(self._found) > _MOST:
            del self._found[next(iter(self._found))]
        self._ask(id)

    def take(self, message: CommMessage) -> list[CommMessage]:
        """Handle a rank's answer; return the messages that can be opened now.

        A widget is opened once all widgets that it refers to are open.
        """
        if message.kind != "update" or "_model_name" not in message.state:
            return []
        opening = CommMessage("open", message.comm, message.rank, head=dict(_HEAD))
        opening.state, opening.binary = message.state, message.binary
        self._found[message.comm] = opening
        for other in references(opening):
            self.want(other)
        done: list[CommMessage] = []
        while ready := [one for one in self._found.values() if one is not None and self._is_ready(one, done)]:
            for one in ready:
                del self._found[one.comm]
            done += ready
        return done

    def _is_ready(self, opening: CommMessage, done: list[CommMessage]) -> bool:
        there = {one.comm for one in done}
        return all(id in there or self._held.get(id) is not None for id in references(opening))

    def clear(self) -> None:
        """Drop all requests: the rank's kernel has ended."""
        self._found.clear()
