r"""JSON for texts with lone surrogates, such as ``"\ud83d"``.

JSON and UTF-8 cannot represent them, but cut or wrongly decoded texts contain some. ipykernel raises when it sends one:
output, tracebacks and even the end of the cell would be lost, and the notebook would wait for ever.
"""

from __future__ import annotations

from typing import Any

from jupyter_client.session import json_packer


def pack(content: Any) -> bytes:
    r"""Serialize a message as JSON; write a lone surrogate as ``\ud83d``."""
    try:
        return json_packer(content)
    except UnicodeEncodeError:
        return json_packer(_written(content))


def _written(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_written(key): _written(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_written(item) for item in value]
    return value
