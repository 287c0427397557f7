"""Open comms with the state of their widgets, up to a size limit.

The agent holds the comms of its ranks, so that a later manager finds them complete; the notebook's side holds all of
them for its pages.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..node.protocol.comm_messages import WIDGET, CommMessage, joined

VIEW = "application/vnd.jupyter.widget-view+json"
# Limits of one rank; the least recently used comms are evicted first.
MOST = 5000
MOST_BYTES = 128 << 20
_REFERENCE = re.compile(r"IPY_MODEL_([\w-]+)")


class Comm:
    """Open comm; made by `OpenComms`.

    Parameters
    ----------
    opening : CommMessage
        Message that opens it, with its current state.
    run : str
        The last run that opened, changed or displayed it.
    """

    def __init__(self, opening: CommMessage, run: str) -> None:
        self.opening, self.run = opening, run
        self.size = opening.size
        # Ids of the widgets that its state refers to.
        self.refers = references(opening)

    @property
    def target(self) -> str:
        """Target name, such as ``jupyter.widget``."""
        return str(self.opening.head.get("target_name"))

    @property
    def widget(self) -> bool:
        """Whether it belongs to a widget."""
        return self.target == WIDGET

    def change(self, message: CommMessage) -> None:
        """Apply an update of its state."""
        may_refer = [*message.state.values(), *(self.opening.state.get(key, "") for key in message.state)]
        whole = joined(self.opening, message)
        self.opening.state, self.opening.binary = whole.state, whole.binary
        self.size = self.opening.size
        if any("IPY_MODEL_" in text for text in may_refer):
            self.refers = references(self.opening)


class OpenComms:
    """Open comms of one rank, least recently used first.

    Parameters
    ----------
    on_drop : callable
        Called with the ids of comms that were evicted, or whose run was forgotten.
    most : int
        Limit of their number.
    most_bytes : int
        Limit of their total size.
    """

    def __init__(self, on_drop: Callable[[list[str]], None], most: int = MOST, most_bytes: int = MOST_BYTES) -> None:
        self._on_drop, self._most, self._most_bytes = on_drop, most, most_bytes
        self._comms: OrderedDict[str, Comm] = OrderedDict()
        # Ids of the widgets that refer to each one.
        self._users: dict[str, set[str]] = {}
        self._size = 0

    def __len__(self) -> int:
        return len(self._comms)

    def get(self, id: str) -> Comm | None:
        """Return an open comm; None if there is none."""
        return self._comms.get(id)

    def take(self, message: CommMessage, run: str = "") -> bool:
        """Apply a message; return True if its comm is open and it must be forwarded."""
        comm = self._comms.get(message.comm)
        before: frozenset[str] = frozenset()
        if message.kind == "open":
            if comm is not None:
                self._remove(message.comm)
            # A copy: the original may still be queued with its former state.
            kept = CommMessage("open", message.comm, message.rank, head=message.head, data=message.data)
            kept.state, kept.binary, kept.buffers = dict(message.state), dict(message.binary), message.buffers
            self._comms[message.comm] = comm = Comm(kept, run)
            self._size += comm.size
            self._link(message.comm, before, comm.refers)
        elif comm is None:
            return False
        elif message.kind == "close":
            self._remove(message.comm)
            return True
        elif message.kind in ("update", "echo"):
            self._size -= comm.size
            before = comm.refers
            comm.change(message)
            self._size += comm.size
            self._link(message.comm, before, comm.refers)
        else:
            before = comm.refers
        self.use(message.comm, run, anew=comm.refers != before)
        self._make_room()
        return message.comm in self._comms

    def use(self, id: str, run: str = "", *, anew: bool = False) -> None:
        """Mark a comm as used, with all that it refers to and all that contain it.

        This is done once per run, unless its references are new (``anew``).
        """
        comm = self._comms.get(id)
        if comm is not None and not anew and run in ("", comm.run):
            self._comms.move_to_end(id)
            return
        seen: set[str] = set()
        up, down = [id], [id]
        while up:
            for user in self._users.get(up.pop(), ()):
                if user not in seen:
                    seen.add(user)
                    up.append(user)
                    down.append(user)
        seen.clear()
        while down:
            id = down.pop()
            comm = self._comms.get(id)
            if comm is None or id in seen:
                continue
            seen.add(id)
            self._comms.move_to_end(id)
            comm.run = run or comm.run
            down += comm.refers

    def _link(self, id: str, before: frozenset[str], after: frozenset[str]) -> None:
        for other in before - after:
            users = self._users.get(other, set())
            users.discard(id)
            if not users:
                self._users.pop(other, None)
        for other in after - before:
            self._users.setdefault(other, set()).add(id)

    def forget(self, run: str) -> None:
        """Close the comms that no run after this one has used."""
        gone = [id for id, comm in self._comms.items() if comm.run == run]
        for id in gone:
            self._remove(id)
        if gone:
            self._on_drop(gone)

    def clear(self) -> list[str]:
        """Drop all comms of a kernel that has ended; return their ids."""
        gone = list(self._comms)
        self._comms.clear()
        self._users.clear()
        self._size = 0
        return gone

    def openings(self) -> list[CommMessage]:
        """Return messages that open all comms; referenced ones come first."""
        done: dict[str, CommMessage] = {}
        for id in self._comms:
            self._put(id, done)
        return list(done.values())

    def with_references(self, ids: Iterable[str]) -> list[CommMessage]:
        """Return messages that open some comms and all that they refer to."""
        done: dict[str, CommMessage] = {}
        for id in ids:
            self._put(id, done)
        return list(done.values())

    def _put(self, root: str, done: dict[str, CommMessage]) -> None:
        stack: list[tuple[str, bool]] = [(root, False)]
        on_the_way: set[str] = set()
        while stack:
            id, left = stack.pop()
            comm = self._comms.get(id)
            if comm is None or id in done:
                continue
            if left:
                done[id] = comm.opening
            elif id not in on_the_way:
                on_the_way.add(id)
                stack.append((id, True))
                stack += [(other, False) for other in sorted(comm.refers)]

    def _make_room(self) -> None:
        gone = []
        while len(self._comms) > self._most or (self._size > self._most_bytes and self._comms):
            gone.append(next(iter(self._comms)))
            self._remove(gone[-1])
        if gone:
            self._on_drop(gone)

    def _remove(self, id: str) -> None:
        comm = self._comms.pop(id)
        self._size -= comm.size
        self._link(id, comm.refers, frozenset())


def references(message: CommMessage) -> frozenset[str]:
    """Return the ids of the widgets that a state refers to."""
    texts = (text for text in message.state.values() if "IPY_MODEL_" in text)
    return frozenset(id for text in texts for id in _REFERENCE.findall(text))


def shown(data: Any) -> str | None:
    """Return the id of the widget that an output displays; None if none."""
    view = data.get(VIEW) if isinstance(data, Mapping) else None
    id = view.get("model_id") if isinstance(view, Mapping) else None
    return id if isinstance(id, str) else None
