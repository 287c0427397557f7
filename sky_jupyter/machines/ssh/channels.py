"""What paramiko reads from and writes to, and its channels, as this package uses them."""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import Any

import paramiko

# Bytes of data in a packet, which every server has to take.
PACKET = 1 << 15
# Bytes that are read at once: paramiko asks for each packet in two parts.
_AHEAD = 1 << 18


class Wire:
    """A socket, or a channel of another connection, that counts what comes in and reads ahead."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.received = 0
        # paramiko looks at this as it ends.
        self._closed = False
        self._ahead = memoryview(b"")

    def recv(self, size: int) -> bytes:
        """Up to ``size`` bytes, as a socket gives them."""
        if not self._ahead:
            self._ahead = memoryview(self.inner.recv(_AHEAD))
            self.received += len(self._ahead)
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        return bytes(data)

    def send(self, data: bytes) -> int:
        """Some of the bytes, as a socket does."""
        return int(self.inner.send(data))

    def settimeout(self, seconds: float | None) -> None:
        """As a socket's."""
        self.inner.settimeout(seconds)

    def close(self) -> None:
        """End it; what waits for it wakes up."""
        self._closed = True
        if isinstance(self.inner, socket.socket):
            with contextlib.suppress(OSError):
                self.inner.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError, EOFError):
            self.inner.close()


class Channel(paramiko.Channel):
    """paramiko's channel; to close it is no error where the connection has just broken."""

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            super().close()

    def send_some(self, data: memoryview) -> int:
        """Send a packet's data at most, as much of it as the other side takes; waits for some room."""
        return int(self.send(bytes(data[:PACKET])))

    def send_all(self, data: bytes | memoryview) -> None:
        """Send all; paramiko's own `sendall` copies the rest for each packet, and never ends after `shutdown_write`."""
        view = memoryview(data)
        while view:
            sent = self.send_some(view)
            if not sent:
                raise OSError(errno.EPIPE, "the channel is closed")
            view = view[sent:]
