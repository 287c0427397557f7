"""What the code of ranks and pages tell each other through comms, on its way: read, joined, and sent on.

A widget's state travels by key, as JSON text: two changes can be joined without either being read.
User code can send anything, and so can a page: what is none of these messages is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .events import MOST_EVENT

WIDGET = "jupyter.widget"
KINDS = ("open", "update", "echo", "custom", "close")
_METHODS = {"update": "update", "echo_update": "echo"}
COMM_TYPES = ("comm_open", "comm_msg", "comm_close")
_TYPES = {"open": "comm_open", "close": "comm_close"}
_MOST_NAME = 200
_MOST_PATHS = 10_000
# What cannot be joined waits up to this size; then the oldest of it is dropped.
MOST_CUSTOM = 8 << 20
Path = tuple["str | int", ...]


@dataclass
class CommMessage:
    """A comm's message: ``open``, ``update`` or ``echo`` of a widget's state, ``custom`` for all else, or ``close``.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    comm : str
        The comm's id, the same for the rank and all pages.
    rank : int
        Whose it is.
    parent : str
        The id of the message that it answers: a run's, or a page's.
    head : dict
        What else an opening says, as ``target_name``, and a message's ``metadata``.
    state : dict
        A widget's values as JSON, by key.
    binary : dict
        Its values that are bytes, by their path.
    data, buffers
        What a message holds that is no widget's state, as JSON, and its bytes.
    """

    kind: str
    comm: str
    rank: int = -1
    parent: str = ""
    head: dict[str, Any] = field(default_factory=dict)
    state: dict[str, str] = field(default_factory=dict)
    binary: dict[Path, bytes] = field(default_factory=dict)
    data: str = "{}"
    buffers: list[bytes] = field(default_factory=list)

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        texts = sum(len(key) + len(text) for key, text in self.state.items()) + len(self.data)
        return 200 + texts + sum(map(len, self.binary.values())) + sum(map(len, self.buffers))

    @property
    def keys(self) -> set[str | int]:
        """The keys of a widget's state that it says something of."""
        return {*self.state, *(path[0] for path in self.binary)}

    def jupyter(self) -> tuple[str, dict[str, Any], dict[str, Any], list[bytes]]:
        """It as Jupyter has it: type, content, metadata and buffers."""
        content: dict[str, Any] = {"comm_id": self.comm}
        head = dict(self.head)
        metadata = head.pop("metadata", {})
        if self.kind == "open":
            content |= head
        buffers = self.buffers
        if self.state or self.binary or self.kind in ("update", "echo"):
            method = {"update": "update", "echo": "echo_update"}.get(self.kind)
            content["data"] = {"method": method} if method else {}
            content["data"] |= {"state": self.values(), "buffer_paths": [list(path) for path in self.binary]}
            buffers = list(self.binary.values())
        else:
            content["data"] = json.loads(self.data)
        return _TYPES.get(self.kind, "comm_msg"), content, metadata, buffers

    def values(self) -> dict[str, Any]:
        """A widget's values, without those that are bytes."""
        return {key: json.loads(text) for key, text in self.state.items()}

    def wire(self) -> dict[str, Any]:
        """It as what a connection between machines takes."""
        paths = json.dumps([list(path) for path in self.binary])
        facts = {name: getattr(self, name) for name in ("kind", "comm", "rank", "parent", "state", "data", "buffers")}
        return {**facts, "head": json.dumps(self.head), "paths": paths, "binary": list(self.binary.values())}

    @classmethod
    def unwire(cls, facts: Any) -> CommMessage | None:
        """The message that another machine sent; None where it is none."""
        try:
            head, paths = json.loads(facts["head"]), json.loads(facts["paths"])
            state = {str(key): str(text) for key, text in facts["state"].items()}
            buffers, binary = [list(map(bytes, facts[name])) for name in ("buffers", "binary")]
            kind, comm, rank, parent, data = [facts[name] for name in ("kind", "comm", "rank", "parent", "data")]
            for text in (*state.values(), data):
                json.loads(text)
            fits = kind in KINDS and is_id(comm) and isinstance(parent, str) and type(rank) is int
            if not fits or not isinstance(head, dict) or not isinstance(data, str):
                return None
            return cls(kind, comm, rank, parent, head, state, _placed(paths, binary), data, buffers)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
            return None


def read(message: Mapping[str, Any], *, widget: bool, rank: int = -1) -> CommMessage | None:
    """A Jupyter message of a comm; None where it is none, or too large.

    Parameters
    ----------
    widget : bool
        Whether the comm is known to be a widget's.
    """
    content, kind = message.get("content"), message.get("msg_type") or message["header"].get("msg_type")
    if not isinstance(content, Mapping) or not is_id(content.get("comm_id")):
        return None
    raw = content.get("data")
    data: Mapping[str, Any] = raw if isinstance(raw, Mapping) else {}
    parent = (message.get("parent_header") or {}).get("msg_id")
    made = CommMessage("custom", content["comm_id"], rank, parent if isinstance(parent, str) else "")
    metadata = message.get("metadata")
    if isinstance(metadata, Mapping) and metadata:
        made.head["metadata"] = dict(metadata)
    if kind == "comm_open":
        made.kind, target = "open", content.get("target_name")
        if not isinstance(target, str) or not 0 < len(target) <= _MOST_NAME:
            return None
        made.head |= {"target_name": target, "target_module": content.get("target_module")}
        widget = target == WIDGET
    elif kind == "comm_close":
        made.kind = "close"
    elif kind != "comm_msg":
        return None
    elif widget:
        made.kind = _METHODS.get(str(data.get("method")), "custom")
    try:
        buffers = [bytes(one) for one in message.get("buffers") or ()]
        if widget and made.kind in ("open", "update", "echo") and isinstance(data.get("state"), Mapping):
            made.state = {key: json.dumps(value) for key, value in data["state"].items() if is_text(key)}
            made.binary = _placed(data.get("buffer_paths") or [], buffers)
        else:
            made.kind = "custom" if made.kind in ("update", "echo") else made.kind
            made.data, made.buffers = json.dumps(data), buffers
    except (TypeError, ValueError, RecursionError):
        return None
    return made if made.size <= MOST_EVENT else None


def is_id(value: Any) -> bool:
    """Whether a value can be a comm's id."""
    return isinstance(value, str) and 0 < len(value) <= _MOST_NAME and value.isascii() and value.isprintable()


def is_text(value: Any) -> bool:
    """Whether a value is text that can be sent."""
    return isinstance(value, str) and (value.isascii() or value.encode(errors="replace").decode() == value)


def _placed(paths: Any, buffers: Sequence[bytes]) -> dict[Path, bytes]:
    """Buffers by the paths that they belong to."""
    if not isinstance(paths, Iterable):
        raise TypeError
    done: dict[Path, bytes] = {}
    for path, buffer in zip(list(paths)[:_MOST_PATHS], buffers, strict=False):
        if not path or not all(is_text(step) or type(step) is int for step in path):
            raise TypeError
        done[tuple(path)] = buffer
    return done


def joined(first: CommMessage, second: CommMessage) -> CommMessage:
    """Two changes of one widget as one: what the second says of a key counts."""
    said = second.keys
    state = {key: text for key, text in first.state.items() if key not in said} | second.state
    binary = {path: data for path, data in first.binary.items() if path[0] not in said} | second.binary
    return CommMessage("update", second.comm, second.rank, second.parent, second.head, state, binary)


class CommQueue:
    """What waits to be sent, in order; changes of the same widget that follow each other are joined.

    Parameters
    ----------
    any_keys : bool
        Whether two changes are joined that say something of different keys. A page that has changed a
        value waits for the echo of that very change: its own are joined only where none is lost.
    """

    def __init__(self, *, any_keys: bool) -> None:
        self._any_keys = any_keys
        self._queue: dict[int, CommMessage] = {}
        # The place of the last message of each comm.
        self._last: dict[str, int] = {}
        self._next = 0
        self._custom = 0

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, message: CommMessage) -> None:
        """Let a message wait its turn."""
        place = self._last.get(message.comm)
        last = self._queue.get(place) if place is not None else None
        if place is not None and last is not None and last.kind == "update":
            if message.kind == "close":
                del self._queue[place]
            elif message.kind == "update" and (self._any_keys or last.keys <= message.keys):
                # At the end: what it refers to may have been opened since.
                del self._queue[place]
                message = joined(last, message)
        self._queue[self._next] = self._note(message, 1)
        self._last[message.comm] = self._next
        self._next += 1
        if self._custom > MOST_CUSTOM:
            self._drop()

    def take(self, most: int | None = None) -> list[CommMessage]:
        """The next ones, all unless told how many; they do not wait any more."""
        places = list(self._queue)[:most]
        taken = [self._note(self._queue.pop(place), -1) for place in places]
        if not self._queue:
            self._last.clear()
        return taken

    def forget_states(self) -> None:
        """Drop what is known from elsewhere: what is open, and its state."""
        for place in [place for place, item in self._queue.items() if item.kind not in ("custom", "echo")]:
            del self._queue[place]

    def _note(self, message: CommMessage, sign: int) -> CommMessage:
        if message.kind in ("custom", "echo"):
            self._custom += sign * message.size
        return message

    def _drop(self) -> None:
        for place in [place for place, item in self._queue.items() if item.kind in ("custom", "echo")]:
            if self._custom <= MOST_CUSTOM // 2:
                return
            self._note(self._queue.pop(place), -1)
