"""Terminal requests to nodes, answered on the control channel while a cell runs.

The message `sky_terminal_request` has an ``action``: `open`, `read`, `write`, `resize` or `close`; see docs/actions.md.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from ..errors import PoolError, SkyError, SpecError
from ..node.protocol import rpc
from ..util import control_channel
from ..util.control_channel import Reply
from ..util.validate import Check, whole
from .base.event_loop import loop
from .context import PoolContext
from .open_pools import pools

# The limit of requests at a time; each terminal has two.
_MOST_AT_A_TIME = 64
_MOST_DATA, _MOST_COMMAND, _MOST_NUMBER = 128 << 10, 64 << 10, 1 << 53
_ID, _TERM = re.compile(r"[0-9a-f]{8,64}\Z"), re.compile(r"[\w.+-]{1,64}\Z")
_OLD = "node {} runs an agent of an earlier version, which has no terminals: a new pool has them"
Answer = dict[str, Any]


def _is_size(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(whole(1, 9999), value))


def _is_text(most: int) -> Check:
    return lambda value: isinstance(value, str) and 0 < len(value) <= most and "\0" not in value


_IS_MARK = whole(0, _MOST_NUMBER)
# Parameters: the check of a value, and its description for messages.
_FIELDS: Mapping[str, tuple[Check, str]] = {
    "id": (lambda value: isinstance(value, str) and bool(_ID.match(value)), "8 to 64 hexadecimal digits"),
    "rank": (whole(0, 1 << 20), "a rank's number"),
    "size": (_is_size, "rows and columns, from 1 to 9999"),
    "term": (lambda value: isinstance(value, str) and bool(_TERM.match(value)), "a kind of terminal such as xterm"),
    "command": (_is_text(_MOST_COMMAND), "a command"),
    "after": (_IS_MARK, "how many bytes have been read"),
    "at": (_IS_MARK, "how many bytes have been sent"),
    "data": (_is_text(_MOST_DATA), "bytes in base64"),
}
_ACTIONS: Mapping[str, tuple[rpc.AgentCall, tuple[str, ...], tuple[str, ...]]] = {
    "open": (rpc.OPEN_TERMINAL, ("id", "rank", "size", "term"), ("command",)),
    "read": (rpc.READ_TERMINAL, ("id", "after"), ()),
    "write": (rpc.WRITE_TERMINAL, ("id", "at", "data"), ()),
    "resize": (rpc.RESIZE_TERMINAL, ("id", "size"), ()),
    "close": (rpc.CLOSE_TERMINAL, ("id",), ()),
}


async def answer(pool: PoolContext, content: Mapping[str, Any]) -> Answer:
    """Pass a request to the node's agent; return its answer as JSON. Loop only.

    Parameters
    ----------
    pool : PoolContext
        The pool.
    content : mapping
        The request.

    Returns
    -------
    dict
        For `read`, ``data`` in base64 and ``exit``, None before its end; for `write`, ``taken``.

    Raises
    ------
    SpecError
        When the request is not valid.
    PoolError
        When there is no such terminal, or the node cannot have one.
    """
    call, arguments = _read(content)
    rank = content.get("rank")
    if not whole(0, pool.spec.world_size - 1)(rank):
        raise SpecError(f"pool {pool.spec.name!r} has ranks 0 to {pool.spec.world_size - 1}, not {rank!r}")
    node = int(rank or 0) // pool.spec.ranks_per_node
    pool.require_live(restarting=True)
    found = (await pool.control.ask(call, [node], **arguments))[node]
    if call is rpc.OPEN_TERMINAL and not isinstance(found, dict):
        # This is how a node answers a call that it does not know.
        raise PoolError(_OLD.format(node))
    if call is rpc.READ_TERMINAL:
        return {"data": base64.b64encode(found["data"]).decode(), "exit": found["exit"]}
    return {"taken": found} if call is rpc.WRITE_TERMINAL else {}


def _read(content: Mapping[str, Any]) -> tuple[rpc.AgentCall, dict[str, Any]]:
    """Return a request's call and arguments."""
    action = content.get("action")
    if not isinstance(action, str) or action not in _ACTIONS:
        raise SpecError(f"no action {str(action)[:64]!r}; there are {', '.join(_ACTIONS)}")
    call, needed, optional = _ACTIONS[action]
    arguments: dict[str, Any] = {}
    for name in (*needed, *optional):
        value = content.get(name)
        if value is None and name in optional:
            continue
        is_good, allowed = _FIELDS[name]
        if not is_good(value):
            raise SpecError(f"{action}: {name!r} must be {allowed}")
        arguments[name] = value
    if "data" in arguments:
        try:
            arguments["data"] = base64.b64decode(arguments["data"], validate=True)
        except binascii.Error:
            raise SpecError(f"{action}: 'data' must be {_FIELDS['data'][1]}") from None
    return call, arguments


class TerminalRequestHandler:
    """Handler of these requests; the kernel keeps it from the first one on."""

    def __init__(self) -> None:
        self._worked_on = 0

    async def __call__(self, content: dict[str, Any], request: dict[str, Any]) -> Reply:
        self._worked_on += 1
        try:
            if self._worked_on > _MOST_AT_A_TIME:
                return control_channel.refusal("too many requests at a time; wait for their answers")
            name = content.get("pool")
            pool = pools.need(name if isinstance(name, str) else None)
            return {"status": "ok", **await asyncio.wrap_future(loop().submit(answer(pool, content)))}, ()
        except FutureTimeout:
            return control_channel.refusal("the pool did not answer in time; it may be unreachable just now")
        except SkyError as error:
            return control_channel.refusal(str(error))
        finally:
            self._worked_on -= 1


__all__ = ["TerminalRequestHandler", "answer"]
