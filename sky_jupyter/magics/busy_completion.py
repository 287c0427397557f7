"""Tab and Shift-Tab while a cell runs, asked on the kernel's control channel.

docs/actions.md has the messages.

The kernel itself answers ``complete_request`` and ``inspect_request`` only when its cell is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ..session.remote_completion import APART
from ..util import control_channel
from ..util.control_channel import Handler
from ..util.validate import is_whole
from .cell_completion import CellInspector

_MOST_CODE = 1 << 20
_NOTHING: dict[str, Any] = {"status": "ok", "found": False}
Content = dict[str, Any]


def completer(inspector: CellInspector) -> Handler:
    """Return the handler of a page's requests for completions."""

    def complete(content: Content) -> Content:
        code, cursor = content["code"], content["cursor_pos"]
        found = inspector.busy_completions(code, cursor)
        if found is None:
            return _NOTHING
        kinds = [
            {"start": found.start, "end": cursor, "text": text, "type": kind, "signature": ""}
            for text, kind in found.matches
        ]
        return {
            "status": "ok",
            "found": True,
            "matches": [text for text, _ in found.matches],
            "cursor_start": found.start,
            "cursor_end": cursor,
            "metadata": {"_jupyter_types_experimental": kinds},
        }

    return lambda content, request: _answered(complete, content)


def describer(inspector: CellInspector) -> Handler:
    """Return the handler of a page's requests that ask what a name is."""

    def inspect(content: Content) -> Content:
        detail = int(content.get("detail_level") == 1)
        bundle = inspector.inspected(content["code"], content["cursor_pos"], detail, APART)
        return _NOTHING if bundle is None else {"status": "ok", "found": True, "data": bundle, "metadata": {}}

    return lambda content, request: _answered(inspect, content)


async def _answered(answer: Callable[[Content], Content], content: Content) -> control_channel.Reply:
    """Answer a valid request in a thread, so that the control channel stays free."""
    code, cursor = content.get("code"), content.get("cursor_pos")
    if not isinstance(code, str) or len(code) > _MOST_CODE:
        return control_channel.refusal(f"'code' is a text of at most {_MOST_CODE:,} letters")
    if not is_whole(cursor, 0, len(code)):
        return control_channel.refusal(f"'cursor_pos' is a number from 0 to {len(code)}, the length of 'code'")
    return await asyncio.to_thread(answer, content), ()
