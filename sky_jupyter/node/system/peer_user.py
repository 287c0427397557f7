"""Whose process is at the other end of a Unix socket."""

from __future__ import annotations

import os
import socket
import struct
import sys


def is_own(connection: socket.socket) -> bool:
    """Return whether the process at the other end of a Unix socket is this user's."""
    if sys.platform == "linux":
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return bool(struct.unpack("3i", data)[1] == os.geteuid())
    # struct xucred of the BSDs: its version, then the user.
    data = connection.getsockopt(0, 1, 128)
    return bool(struct.unpack_from("II", data)[1] == os.geteuid())
