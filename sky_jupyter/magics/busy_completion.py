"""Tab and Shift-Tab while a cell runs: pages ask on the kernel's control channel, as docs/actions.md has it.

The kernel itself answers ``complete_request`` and ``inspect_request`` when its cell is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ..session.remote_completion import APART
from ..util import control_channel
from ..util.validate import is_whole
from .cell_completion import CellInspector

COMPLETE, INSPECT = "sky_complete_request", "sky_inspect_request"
_MOST_CODE = 1 << 20
_NOTHING: dict[str, Any] = {"status": "ok", "found": False}
Content = dict[str, Any]


def install(shell: Any, inspector: CellInspector) -> None:
    """Answer from now on, if the shell is a Jupyter kernel's."""

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

    def inspect(content: Content) -> Content:
        detail = int(content.get("detail_level") == 1)
        bundle = inspector.inspected(content["code"], content["cursor_pos"], detail, APART)
        return _NOTHING if bundle is None else {"status": "ok", "found": True, "data": bundle, "metadata": {}}

    kernel = getattr(shell, "kernel", None)
    control_channel.register(kernel, COMPLETE, lambda content, request: _answered(complete, content))
    control_channel.register(kernel, INSPECT, lambda content, request: _answered(inspect, content))


def remove(shell: Any) -> None:
    """Undo `install`."""
    for name in (COMPLETE, INSPECT):
        control_channel.unregister(getattr(shell, "kernel", None), name)


async def _answered(answer: Callable[[Content], Content], content: Content) -> control_channel.Reply:
    """Return the answer to a valid question, made in a thread: the control channel takes others meanwhile."""
    code, cursor = content.get("code"), content.get("cursor_pos")
    if not isinstance(code, str) or len(code) > _MOST_CODE:
        return control_channel.refusal(f"'code' is a text of at most {_MOST_CODE:,} letters")
    if not is_whole(cursor, 0, len(code)):
        return control_channel.refusal(f"'cursor_pos' is a number from 0 to {len(code)}, the length of 'code'")
    return await asyncio.to_thread(answer, content), ()
