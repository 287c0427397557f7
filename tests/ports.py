"""Ports for servers that are told theirs beforehand, because they cannot say which one the system gave them."""

from __future__ import annotations

import contextlib
import random
import socket

# Below those that the system gives by itself: a connection that is made meanwhile takes none of these.
_FIRST, _LAST = 10_000, 32_000


def free_port() -> int:
    """Draw a port of the loopback interface that nobody has, and that nobody is likely to get by chance."""
    draw = random.SystemRandom()
    while True:
        port = draw.randint(_FIRST, _LAST)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
