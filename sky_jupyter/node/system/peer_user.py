"""Unix sockets for this user's own processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
from collections.abc import Callable


def is_own(connection: socket.socket) -> bool:
    """Return whether the process at the other end of a Unix socket is this user's."""
    if sys.platform == "linux":
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return bool(struct.unpack("3i", data)[1] == os.geteuid())
    # struct xucred of the BSDs: its version, then the user.
    data = connection.getsockopt(0, 1, 128)
    return bool(struct.unpack_from("II", data)[1] == os.geteuid())


def listen(path: str, take: Callable[[socket.socket], object], backlog: int) -> socket.socket:
    """Listen on a socket for this user's processes; pass connections to ``take``.

    A file that an earlier process has left at ``path`` is replaced. If no socket can be created there, nobody connects.
    """
    listener = socket.socket(socket.AF_UNIX)
    listener.setblocking(False)

    def accept() -> None:
        with contextlib.suppress(OSError):
            connected = listener.accept()[0]
            if is_own(connected):
                take(connected)
            else:
                connected.close()

    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with contextlib.suppress(OSError):
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(backlog)
        asyncio.get_running_loop().add_reader(listener, accept)
    return listener
