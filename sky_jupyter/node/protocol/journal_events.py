"""Journal events: creation, parsing, validation, and gaps for missing ones.

User code can send any message, and a foreign agent any event. So each field either has the type that its readers rely
on, or is left out. Values that are too large are cut or replaced by a note.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from ...util import json_codec
from ...util.text import cleaned, format_size
from ...util.validate import is_number

# Limit of an event's number; anything beyond is corrupt.
MAX_NUMBER = 1 << 53
# Limits of one event: its size as JSON and its nesting depth.
MOST_EVENT = 64_000_000
MOST_DEPTH = 100
# Limits of a text and a list in an ``end`` event, and of a name.
_MOST_TEXT = 1 << 20
_MOST_ITEMS = 100_000
_MOST_NAME = 1000
# A pickled value or exception in an ``end`` event is at most 1 MB, before base64.
_MOST_VALUE = 2 << 20
_KINDS = {"display_data": "display", "update_display_data": "update", "execute_result": "result"}
# The text of a question, in characters.
_MOST_PROMPT = 4000
_RICH = ("display", "update", "result")
# Statuses that a kernel may report, and those that an agent adds.
_STATUSES = ("ok", "error", "interrupted")
_AGENT_STATUSES = (*_STATUSES, "died", "lost")
Tally = dict[tuple[int, str], int]
"""Bytes of lines by rank and stream; ``""`` for events without a stream."""


@dataclass
class Gap:
    """Events that are not stored, and the reason."""

    first: int
    next: int
    size: int
    why: str
    tally: Tally = field(default_factory=dict)

    def read(self, start: int, most: int) -> tuple[bytes, int]:
        """Return one line that stands for all events from ``start`` on."""
        return json_codec.dumps(self.clipped(start, self.next).to_json()) + b"\n", self.next

    def clipped(self, first: int, next: int) -> Gap:
        """Return the part between two numbers, with an estimated size."""
        first, next = max(first, self.first), min(next, self.next)
        share = (next - first) / (self.next - self.first)
        tally = {key: max(1, round(size * share)) for key, size in self.tally.items()}
        return Gap(first, next, round(self.size * share), self.why, tally)

    def add(self, other: Gap) -> None:
        """Merge the gap that follows; the larger one's reason wins."""
        self.why = self.why if self.size >= other.size else other.why
        self.next, self.size = other.next, self.size + other.size
        for key, size in other.tally.items():
            self.tally[key] = self.tally.get(key, 0) + size

    def to_json(self) -> dict[str, Any]:
        """Return the event for readers."""
        streams = [[rank, name, size] for (rank, name), size in sorted(self.tally.items())]
        count = self.next - self.first
        return {
            "kind": "gap", "seq": self.first, "count": count, "bytes": self.size, "why": self.why, "streams": streams
        }  # fmt: skip

    @classmethod
    def from_json(cls, event: Mapping[str, Any]) -> Gap | None:
        """Parse a gap event; None if it is malformed."""
        first, count, size = event.get("seq"), event.get("count"), event.get("bytes", 0)
        if not (is_count(first) and is_count(count) and is_count(size) and count and is_count(first + count)):
            return None
        why = event.get("why")
        return cls(first, first + count, size, why[:200] if isinstance(why, str) else "", _tally(event.get("streams")))


def _tally(streams: Any) -> Tally:
    """Parse a gap event's streams; skip malformed items."""
    tally: Tally = {}
    for item in streams[:4096] if isinstance(streams, list) else ():
        if isinstance(item, list) and len(item) == 3:
            rank, name, size = item
            if is_count(rank) and name in ("stdout", "stderr", "") and is_count(size):
                tally[rank, name] = size
    return tally


def parse(line: bytes | str) -> dict[str, Any] | None:
    """Parse a line; None if it is no JSON object."""
    try:
        event = json_codec.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def is_count(value: Any) -> TypeGuard[int]:
    """Return True if a value can be an event's number, or a count."""
    return type(value) is int and 0 <= value < MAX_NUMBER


def parts_of(message: Mapping[str, Any]) -> tuple[str, str, Any]:
    """Return a kernel message's type, its run's id and its content.

    Type and id are empty where the message has none.
    """
    kind, parent = message.get("msg_type"), message.get("parent_header")
    run = parent.get("msg_id") if isinstance(parent, Mapping) else None
    return kind if isinstance(kind, str) else "", run if isinstance(run, str) else "", message.get("content")


def event_of(kind: str, content: Any) -> dict[str, Any] | None:
    """Convert a kernel message to a journal event; None if it is no output."""
    if not isinstance(content, dict):
        return None
    if kind == "stream":
        return checked({"kind": "stream", "name": content.get("name"), "text": content.get("text")})
    if kind == "error":
        return _shown_error(content)
    if kind == "clear_output":
        return {"kind": "clear", "wait": content.get("wait") is True}
    if kind not in _KINDS:
        return None
    event = {"kind": _KINDS[kind], "data": content.get("data"), "metadata": content.get("metadata")}
    if kind != "execute_result":
        transient = content.get("transient")
        event["display_id"] = transient.get("display_id") if isinstance(transient, dict) else None
    return checked(event)


def _shown_error(content: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the event of a displayed exception; None if it is malformed."""
    lines = _lines(content.get("traceback"))
    if lines is None:
        return None
    names = {name: str(content.get(name)) for name in ("ename", "evalue")}
    return {"kind": "error", **names, "traceback": lines, "own": content.get("sky_own") is True}


def end_of(content: Any) -> dict[str, Any]:
    """Convert a kernel's ``sky_end`` message to a journal event."""
    content = content if isinstance(content, dict) else {}
    fields = {name: value for name, value in content.items() if name not in _OURS}
    return _end(fields, _STATUSES)


def error_text(event: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a displayed exception to stderr output."""
    return {"kind": "stream", "name": "stderr", "text": "\n".join(event["traceback"]) + "\n", "t": event.get("t")}


def text_of(event: Mapping[str, Any]) -> str:
    """Return an event as plain text; empty if it has none or ended well."""
    kind = event.get("kind")
    if kind == "stream":
        return str(event.get("text") or "")
    if kind == "gap":
        gap = Gap.from_json(event)
        return "" if gap is None else gap_text(gap.size, gap.why)
    if kind in ("display", "result"):
        data = event.get("data")
        plain = data.get("text/plain") if isinstance(data, Mapping) else None
        return f"{plain}\n" if isinstance(plain, str) else ""
    if kind == "end" and event.get("status") != "ok":
        return "\n".join(map(str, event.get("traceback") or [_why(event)])) + "\n"
    return ""


def gap_text(size: int, why: str) -> str:
    """Return the line that stands for dropped output."""
    return f"… {format_size(size)} of output dropped ({why}) …\n"


def _why(event: Mapping[str, Any]) -> str:
    """Return the reason for an end without a traceback."""
    return str(event.get("text") or event.get("evalue") or event.get("status"))


def checked(event: dict[str, Any]) -> dict[str, Any] | None:
    """Validate an event of a rank, read from JSON; None if it is malformed.

    The result has every field of its kind, with the right type. An event of an unknown kind is returned as it is.
    """
    kind = event.get("kind")
    if kind == "stream":
        text = event.get("text")
        if not isinstance(text, str):
            return None
        name = event.get("name")
        if name in ("stdout", "stderr") and text.isascii():
            return event
        return {**_common(event), "name": "stderr" if name == "stderr" else "stdout", "text": _printable(text)}
    if kind == "end":
        return _end(event, _AGENT_STATUSES)
    if kind == "clear":
        return {**_common(event), "wait": event.get("wait") is True}
    if isinstance(kind, str) and kind in _RICH:
        return _rich(event)
    if kind in ("ask", "asked", "stopped"):
        return _question(event)
    return event if isinstance(kind, str) else None


def _common(event: Mapping[str, Any]) -> dict[str, Any]:
    return {name: event[name] for name in ("kind", "rank", "seq", "t") if name in event}


# Questions.


def question_of(id: str, prompt: Any, *, password: bool) -> dict[str, Any]:
    """Return the event of a question to the user; the answer's event has no text."""
    return {"kind": "ask", "id": id, "prompt": str(prompt)[:_MOST_PROMPT], "password": password}


def stop_of(id: str) -> dict[str, Any]:
    """Return the event of a rank that a debugger stopped; an answer's event ends it."""
    return {"kind": "stopped", "id": id}


def _question(event: Mapping[str, Any]) -> dict[str, Any] | None:
    id, prompt = event.get("id"), event.get("prompt", "")
    if not isinstance(id, str) or len(id) > _MOST_NAME or not isinstance(prompt, str):
        return None
    text = cleaned(_printable(prompt[:_MOST_PROMPT]))
    return {**_common(event), "id": id, "prompt": text, "password": event.get("password") is True}


# Rich items.


def _rich(event: Mapping[str, Any]) -> dict[str, Any] | None:
    data, metadata = event.get("data"), event.get("metadata")
    if not isinstance(data, dict):
        return None
    data, out, left = _fitting(data, MOST_EVENT)
    metadata, _, _ = _fitting(metadata if isinstance(metadata, dict) else {}, left)
    if out and "text/plain" not in data:
        more = f" and {len(out) - 10} more" if len(out) > 10 else ""
        what = "; ".join(out[:10]) + more
        data["text/plain"] = f"(not shown: {what}. Save it to a file on the node, or return it as the cell's value)"
    done = {**_common(event), "data": data, "metadata": metadata}
    if event["kind"] != "result":
        display_id = event.get("display_id")
        if isinstance(display_id, str) and len(display_id) <= _MOST_NAME:
            done["display_id"] = _printable(display_id)
        else:
            done["display_id"] = None
    return done


def _fitting(values: Mapping[Any, Any], left: int) -> tuple[dict[str, Any], list[str], int]:
    """Select the entries of a MIME bundle that fit into ``left`` bytes.

    Returns the entries, why others were left out, and how many bytes remain.
    """
    done: dict[str, Any] = {}
    out: list[str] = []
    for name, value in values.items():
        if not isinstance(name, str) or len(name) > _MOST_NAME or len(done) >= _MOST_NAME:
            continue
        name, size = _printable(name), _size(value)
        if size is None:
            out.append(f"{name}, nested too deep or no JSON")
        elif size > left:
            out.append(f"{name} of {size / 1e6:.1f} MB, where one output can have {MOST_EVENT / 1e6:.0f} MB")
        else:
            done[name] = _printable(value) if isinstance(value, str) else value
            left -= size
    return done, out, left


def _size(value: Any) -> int | None:
    """Return a value's size as JSON; None if it cannot be serialized.

    A value that is nested too deep for its readers also counts as such.
    """
    if type(value) is int:
        # The event's number and rank.
        return len(str(value))
    try:
        return len(json_codec.dumps(value)) if _is_flat(value) else None
    except (TypeError, ValueError, RecursionError):
        return None


def _is_flat(value: Any) -> bool:
    """Return True if lists and dicts are nested no deeper than allowed."""
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [inner for item in level for inner in _inner(item)]
        if not level:
            return True
    return False


def _inner(item: Any) -> list[Any]:
    values = item.values() if isinstance(item, dict) else item if isinstance(item, (list, tuple)) else ()
    return [value for value in values if isinstance(value, (dict, list, tuple))]


def _printable(text: str) -> str:
    """Replace lone surrogates, which no stream or notebook can encode."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text


# Ends.


def _text(value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    if len(value) > _MOST_TEXT:
        value = f"{value[:_MOST_TEXT]}… ({len(value) - _MOST_TEXT:,} more characters)"
    return _printable(value)


def _words(value: Any) -> str | None:
    """Return a text without terminal control sequences.

    They are shown in messages and tracebacks.
    """
    text = _text(value)
    return None if text is None else cleaned(text)


def _lines(value: Any) -> list[str] | None:
    texts = _texts(value)
    return None if texts is None else [cleaned(text) for text in texts]


def _texts(value: Any) -> list[str] | None:
    if not isinstance(value, list):
        return None
    done: list[str] = []
    left = 4 * _MOST_TEXT
    for item in value[:_MOST_ITEMS]:
        text = _text(item)
        if text is not None and left > 0:
            done.append(text)
            left -= len(text)
    return done


def _encoded(value: Any) -> str | None:
    return value if isinstance(value, str) and len(value) <= _MOST_VALUE and value.isascii() else None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _seconds(value: Any) -> float | None:
    return value if is_number(value, -1e12, 1e12) else None


def _sizes(value: Any) -> dict[str, int | None] | None:
    if not isinstance(value, dict):
        return None
    sound = {name: size for name, size in itertools.islice(value.items(), _MOST_ITEMS) if _text(name) == name}
    return {name: size if type(size) is int and 0 <= size < 1 << 60 else None for name, size in sound.items()}


def _uses(value: Any) -> dict[str, list[str]] | None:
    if not isinstance(value, dict):
        return None
    sound = {name: _texts(found) for name, found in itertools.islice(value.items(), _MOST_ITEMS) if _text(name) == name}
    return {name: found for name, found in sound.items() if found}


_FIELDS: dict[str, Callable[[Any], Any]] = {
    "bound": _flag,
    "writes": _texts,
    "modules": _texts,
    "sizes": _sizes,
    "uses": _uses,
    "imports": _uses,
    "members": _uses,
    "elapsed": _seconds,
    "ename": _words,
    "evalue": _words,
    "at": _words,
    "traceback": _lines,
    "exception": _encoded,
    "type": _words,
    "value": _encoded,
    "large": _flag,
    "unpicklable": _words,
    "repr": _words,
    "text": _words,
    "tail": _lines,
    "ended": _words,
    "why": _words,
    "t": _seconds,
}
# Fields of an ``end`` event that only agents and the manager set.
_OURS = ("kind", "rank", "seq", "run", "t", "text", "tail", "why")


def _end(event: Mapping[str, Any], statuses: tuple[str, ...]) -> dict[str, Any]:
    done: dict[str, Any] = {}
    left = MOST_EVENT
    for name, value in event.items():
        if name in _FIELDS:
            value = _FIELDS[name](value)
            if value is not None:
                done[name] = value
        elif name in ("kind", "status"):
            continue
        elif isinstance(name, str) and len(name) <= _MOST_NAME and len(done) <= _MOST_NAME:
            # Unknown fields, for example of a later version.
            size = _size(value)
            if size is not None and size <= left:
                done[name] = value
                left -= size
    if "value" in event and "value" not in done:
        done.setdefault("unpicklable", "what the rank sent of it cannot be read")
    done["kind"], done["status"] = "end", event.get("status")
    if not isinstance(done["status"], str) or done["status"] not in statuses:
        done["status"] = "error"
        done.setdefault("ename", "ValueError")
        done.setdefault("evalue", "the rank did not say how it ended")
    return done
