"""Frames on the scheduler's socket: shared-object requests from its own machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

# The requester and the scheduler of this connection: [HELLO, requester, epoch]. There is no answer: a scheduler of
# another epoch closes the connection.
HELLO = 0
# [REQUEST, id, request, keys and values]. The answer is a dict, as that of `sky_shared_request`. Each request waits for
# the answer to the one before.
REQUEST = 1
# A request that is not wanted any more: [CANCEL, id]. There is no answer.
CANCEL = 2

MOST = 1 << 26
"""Most bytes of keys and values in a frame; more go through the agent."""


def socket_of(folder: str | os.PathLike[str]) -> str:
    """Return the path of the scheduler's socket, in a pool's folder."""
    return str(Path(folder, "names"))


def failed(error: BaseException) -> dict[str, Any]:
    """Return the answer to a request that has failed unexpectedly."""
    kind = type(error).__name__
    return {"status": "error", "kind": kind, "text": f"{kind}: {error}"}
