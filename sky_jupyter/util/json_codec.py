"""JSON for journals, by orjson, and by `json` for values that only it supports.

Those are lone surrogates, integers of more than 64 bits (which orjson reads as floats), and keys that are not strings.
Numbers that JSON does not have, such as NaN, become null. jupyter_client encodes kernels' messages in the same way.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

# Other types are refused, as Python's module does.
_PLAIN = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


def dumps(value: Any) -> bytes:
    """Return a value's compact JSON; may raise TypeError, ValueError, RecursionError."""
    try:
        return orjson.dumps(value, option=_PLAIN)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode()


def loads(text: bytes | str) -> Any:
    """Return the value of a JSON text; ValueError or RecursionError if it is invalid."""
    try:
        return orjson.loads(text)
    except ValueError:
        return json.loads(text)
