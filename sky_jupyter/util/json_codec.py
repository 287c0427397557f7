"""JSON for journals: by orjson, and by Python's own module for what only that can read or write.

Those are lone surrogates, integers of more than 64 bits (which orjson reads as floats) and keys that are no strings.
Numbers that JSON does not have, such as NaN, become null. jupyter_client encodes kernels' messages in the same way.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

# What is no plain JSON is refused, as Python's module does.
_PLAIN = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


def dumps(value: Any) -> bytes:
    """Return a value as JSON without spaces; TypeError, ValueError or RecursionError if it is none."""
    try:
        return orjson.dumps(value, option=_PLAIN)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode()


def loads(text: bytes | str) -> Any:
    """Return the value of a JSON text; ValueError or RecursionError if it cannot be read."""
    try:
        return orjson.loads(text)
    except ValueError:
        return json.loads(text)
