"""Requests to a kernel on its control channel."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import PoolError

# Seconds to wait for an answer; stacks of all ranks take the longest.
PATIENCE = 15.0
# The same for requests that wait behind a cell, and may return values.
_SLOW = 32.0
_SILENT = "the kernel does not answer such requests; `%load_ext sky_jupyter` in its notebook makes it"
# How launchers name a kernel's connection file: as an option's value, or behind an equals sign.
_OPTIONS = ("-f", "--f", "--IPKernelApp.connection_file", "--KernelApp.connection_file")
_MOST_FILE = 64 << 10


async def ask(connection: Mapping[str, Any], content: Mapping[str, Any], patience: float = PATIENCE) -> dict[str, Any]:
    """Ask a kernel about its pools on its control channel, while a cell may run.

    Parameters
    ----------
    connection : mapping
        The content of the kernel's connection file.
    content : mapping
        The request; see docs/actions.md.
    patience : float
        Seconds to wait for the answer.

    Returns
    -------
    dict
        The answer's content.

    Raises
    ------
    PoolError
        When the kernel refuses, or does not answer.
    """
    from jupyter_client.asynchronous import AsyncKernelClient

    client = AsyncKernelClient()
    client.load_connection_info(dict(connection))
    client.start_channels(shell=False, iopub=False, stdin=False, hb=False, control=True)
    try:
        request = client.session.msg("sky_request", dict(content))
        client.control_channel.send(request)
        reply = await _message(client.control_channel, request["header"]["msg_id"], "sky_reply", patience)
    finally:
        client.stop_channels()
    if reply is None:
        raise PoolError(_SILENT)
    if reply.get("status") != "ok":
        raise PoolError(str(reply.get("message") or reply.get("evalue") or "the kernel refused"))
    return reply


async def evaluate(
    connection: Mapping[str, Any], request: Mapping[str, Any], patience: float = _SLOW
) -> dict[str, Any]:
    """Evaluate a request in a kernel's main thread, after the cells sent before it.

    Parameters
    ----------
    connection : mapping
        The content of the kernel's connection file.
    request : mapping
        The request; see `magics.mcp_requests`.
    patience : float
        Seconds to wait for the answer. A request that has not begun within a quarter of this time is refused.

    Returns
    -------
    dict
        The answer's content.

    Raises
    ------
    PoolError
        When the kernel refuses, or does not answer in time.
    """
    from jupyter_client.asynchronous import AsyncKernelClient

    text = json.dumps({**request, "until": time.time() + patience / 4})
    expression = f"__import__('sky_jupyter.magics.mcp_requests', fromlist=['answer']).answer({text!r})"
    content = {"code": "", "silent": True, "store_history": False, "allow_stdin": False}
    client = AsyncKernelClient()
    client.load_connection_info(dict(connection))
    client.start_channels(shell=True, iopub=False, stdin=False, hb=False, control=False)
    try:
        asked = client.session.msg("execute_request", {**content, "user_expressions": {"answer": expression}})
        client.shell_channel.send(asked)
        reply = await _message(client.shell_channel, asked["header"]["msg_id"], "execute_reply", patience)
    finally:
        client.stop_channels()
    if reply is None:
        raise PoolError("the notebook is busy with a cell of its own; nothing was begun, or it goes on: see its runs")
    shown = (reply.get("user_expressions") or {}).get("answer") or {}
    found = (shown.get("data") or {}).get("application/json")
    if not isinstance(found, dict) or found.get("status") != "ok":
        why = found.get("message") if isinstance(found, dict) else shown.get("evalue") or reply.get("evalue")
        raise PoolError(str(why or "the kernel refused"))
    return found


async def _message(channel: Any, id: str, kind: str, patience: float) -> dict[str, Any] | None:
    """Return the content of the reply to a message; None if none comes in time."""
    import queue

    end = time.monotonic() + patience
    while (left := end - time.monotonic()) > 0:
        try:
            message = await channel.get_msg(timeout=left)
        except (queue.Empty, TimeoutError):
            break
        if message["parent_header"].get("msg_id") == id and message["msg_type"] == kind:
            content: dict[str, Any] = message["content"]
            return content
    return None


def connection_of(pid: int) -> dict[str, Any] | None:
    """Return the connection file's content of a kernel's process; None without one.

    Only its user can read the file: whoever can read it may send requests to the kernel.
    """
    import psutil

    try:
        process = psutil.Process(pid)
        name = connection_file(process.cmdline())
        folder = process.cwd() if name is not None and not os.path.isabs(name) else "/"
    except psutil.Error:
        return None
    if name is None:
        return None
    with contextlib.suppress(OSError, ValueError):
        path = Path(folder, name)
        # Another user's file would lead to another user's kernel.
        if path.stat().st_uid == os.getuid() and path.stat().st_size <= _MOST_FILE:
            found = json.loads(path.read_text(encoding="utf-8"))
            return found if isinstance(found, dict) and "control_port" in found else None
    return None


def connection_file(command: Sequence[str]) -> str | None:
    """Return the connection file that a kernel's command line names."""
    for at, word in enumerate(command):
        option, equals, value = word.partition("=")
        if option in _OPTIONS:
            value = value if equals else next(iter(command[at + 1 : at + 2]), "")
            if value.endswith(".json"):
                return value
    return None
