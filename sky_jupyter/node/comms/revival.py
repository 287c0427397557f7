"""Widgets that were let go and are shown again: their rank is asked for their state, which opens them anew."""

from __future__ import annotations

from collections.abc import Callable

from ..protocol.comm_messages import WIDGET, CommMessage
from .states import OpenComms, references

# So many are asked for at a time; one that has been closed never answers.
_MOST = 5000
# What ipywidgets says as it opens one.
_HEAD = {"target_name": WIDGET, "target_module": None, "metadata": {"version": "2.1.0"}}


class CommRevival:
    """Those of one rank; made by `Comms`.

    Parameters
    ----------
    held : OpenComms
        What the rank has open.
    ask : callable
        Asks the rank for the state of a widget.
    """

    def __init__(self, held: OpenComms, ask: Callable[[str], None]) -> None:
        self._held, self._ask = held, ask
        # What was asked for, and what opens it once that has come.
        self._found: dict[str, CommMessage | None] = {}

    def __contains__(self, id: object) -> bool:
        return id in self._found

    def want(self, id: str) -> None:
        """One is shown, or is a part of one, that is not open."""
        if id in self._found or self._held.get(id) is not None:
            return
        self._found[id] = None
        while len(self._found) > _MOST:
            del self._found[next(iter(self._found))]
        self._ask(id)

    def take(self, message: CommMessage) -> list[CommMessage]:
        """The rank answers; what opens now: those of which all that they refer to is open, or opens before them."""
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
        """The rank's kernel has ended."""
        self._found.clear()
