"""Messages of the Debug Adapter Protocol that manager, agent and rank exchange."""

from __future__ import annotations

from typing import Any

# Topic of the debugger's messages between agent and rank, and of the batches of its events.
TOPIC = "debug"
Message = dict[str, Any]


def response(request: Message, body: Message | None = None) -> Message:
    """Return the response to a request that succeeded."""
    return {**_facts(request), "success": True, "body": body or {}}


def failure(request: Message, why: str) -> Message:
    """Return the response to a request that failed."""
    return {**_facts(request), "success": False, "message": why, "body": {}}


def _facts(request: Message) -> Message:
    return {"type": "response", "request_seq": request.get("seq", 0), "command": request.get("command", "")}
