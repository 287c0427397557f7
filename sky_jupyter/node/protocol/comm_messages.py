"""Comm messages in transit between ranks and pages: parse, merge, queue.

A widget's state is stored per key, as JSON text, so two updates can be merged without parsing either. Both user code
and pages can send anything: messages of any other form are dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .journal_events import MOST_EVENT

WIDGET = "jupyter.widget"
KINDS = ("open", "update", "echo", "custom", "close")
_METHODS = {"update": "update", "echo_update": "echo"}
COMM_TYPES = ("comm_open", "comm_msg", "comm_close")
_TYPES = {"open": "comm_open", "close": "comm_close"}
_MOST_NAME = 200
_MOST_PATHS = 10_000
# Upper bound in bytes for queued messages that cannot be merged; beyond it the oldest are dropped.
MOST_CUSTOM = 8 << 20
Path = tuple["str | int", ...]


@dataclass
class CommMessage:
    """Comm message: ``open``, ``update``, ``echo``, ``custom`` or ``close``.

    ``open``, ``update`` and ``echo`` carry a widget's state; everything else is ``custom``.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    comm : str
        The comm's id, the same on the rank and on all pages.
    rank : int
        Rank that owns the comm.
    parent : str
        The id of the message, a run's or a page's, that it answers.
    head : dict
        Other fields of a ``comm_open``, such as ``target_name``, and the message's ``metadata``.
    state : dict
        A widget's values as JSON, by key.
    binary : dict
        Binary values of the state, by path.
    data, buffers
        JSON content and buffers of a message that is not widget state.
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
        """Approximate size in bytes."""
        texts = sum(len(key) + len(text) for key, text in self.state.items()) + len(self.data)
        return 200 + texts + sum(map(len, self.binary.values())) + sum(map(len, self.buffers))

    @property
    def keys(self) -> set[str | int]:
        """Keys of the widget's state that this message sets."""
        return {*self.state, *(path[0] for path in self.binary)}

    def jupyter(self) -> tuple[str, dict[str, Any], dict[str, Any], list[bytes]]:
        """Return the Jupyter message: type, content, metadata and buffers."""
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
        """Return the widget's values without the binary ones."""
        return {key: json.loads(text) for key, text in self.state.items()}

    def wire(self) -> dict[str, Any]:
        """Serialize to plain types, which Dask's connections can carry."""
        paths = json.dumps([list(path) for path in self.binary])
        facts = {name: getattr(self, name) for name in ("kind", "comm", "rank", "parent", "state", "data", "buffers")}
        return {**facts, "head": json.dumps(self.head), "paths": paths, "binary": list(self.binary.values())}

    @classmethod
    def unwire(cls, facts: Any) -> CommMessage | None:
        """Parse the result of `wire`; return None if it is malformed."""
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
    """Parse a Jupyter comm message; None if it has another type or is too large.

    Parameters
    ----------
    message : mapping
        The Jupyter message.
    widget : bool
        Whether the comm is known to be a widget's.
    rank : int
        Rank that sent it; -1 for a page.

    Returns
    -------
    CommMessage or None
        The parsed message.
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
    """Return True if a value can be a comm's id."""
    return isinstance(value, str) and 0 < len(value) <= _MOST_NAME and value.isascii() and value.isprintable()


def is_text(value: Any) -> bool:
    """Return True if a value is text that can be encoded as UTF-8."""
    return isinstance(value, str) and (value.isascii() or value.encode(errors="replace").decode() == value)


def _placed(paths: Any, buffers: Sequence[bytes]) -> dict[Path, bytes]:
    """Map paths to their buffers; raise TypeError for an invalid path."""
    if not isinstance(paths, Iterable):
        raise TypeError
    done: dict[Path, bytes] = {}
    for path, buffer in zip(list(paths)[:_MOST_PATHS], buffers, strict=False):
        if not path or not all(is_text(step) or type(step) is int for step in path):
            raise TypeError
        done[tuple(path)] = buffer
    return done


def joined(first: CommMessage, second: CommMessage) -> CommMessage:
    """Merge two updates of one widget; the second wins for each key."""
    said = second.keys
    state = {key: text for key, text in first.state.items() if key not in said} | second.state
    binary = {path: data for path, data in first.binary.items() if path[0] not in said} | second.binary
    return CommMessage("update", second.comm, second.rank, second.parent, second.head, state, binary)


class CommQueue:
    """Queue of comm messages; merges consecutive updates of a widget.

    Parameters
    ----------
    any_keys : bool
        Whether updates of different keys are merged. A page waits for the echo of each value that it
        changed, so its own updates are merged only if no key is lost.
    """

    def __init__(self, *, any_keys: bool) -> None:
        self._any_keys = any_keys
        self._queue: dict[int, CommMessage] = {}
        # Position of each comm's newest message.
        self._last: dict[str, int] = {}
        self._next = 0
        self._custom = 0

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, message: CommMessage) -> None:
        """Append a message, or merge it with the comm's last one."""
        place = self._last.get(message.comm)
        last = self._queue.get(place) if place is not None else None
        if place is not None and last is not None and last.kind == "update":
            if message.kind == "close":
                del self._queue[place]
            elif message.kind == "update" and (self._any_keys or last.keys <= message.keys):
                # Requeued at the end: it may refer to a widget that was opened since.
                del self._queue[place]
                message = joined(last, message)
        self._queue[self._next] = self._note(message, 1)
        self._last[message.comm] = self._next
        self._next += 1
        if self._custom > MOST_CUSTOM:
            self._drop()

    def take(self, most: int | None = None) -> list[CommMessage]:
        """Remove and return the next ``most`` messages; all by default."""
        places = list(self._queue)[:most]
        taken = [self._note(self._queue.pop(place), -1) for place in places]
        if not self._queue:
            self._last.clear()
        return taken

    def forget_states(self) -> None:
        """Drop ``open``, ``update`` and ``close`` messages.

        The receiver gets these states from a snapshot instead.
        """
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
