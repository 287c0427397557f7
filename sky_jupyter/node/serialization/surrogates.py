r"""Texts with half of a surrogate pair, such as ``"\ud83d"``: JSON and UTF-8 have no place for them.

Cut or wrongly decoded texts have such halves. ipykernel raises where it is to send one: what is printed, a
traceback, and the word that the cell has ended are lost, and whoever waits for that waits for ever.
"""

from __future__ import annotations

from typing import Any

from jupyter_client.session import json_packer


def pack(content: Any) -> bytes:
    r"""Make a message's JSON; a half stands in it as a person would write it, ``\ud83d``."""
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
