"""Sockets below paramiko, and its channels, as this package uses them."""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import Any

import paramiko

# Data bytes of a packet that every server must accept.
PACKET = 1 << 15
# Bytes per read: paramiko asks for each packet in two parts.
_AHEAD = 1 << 18


class CountingSocket:
    """Socket or channel that counts received bytes and reads ahead."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.received = 0
        # paramiko reads this when it ends.
        self._closed = False
        self._ahead = memoryview(b"")

    def recv(self, size: int) -> bytes:
        """Return up to ``size`` bytes, as a socket does."""
        if not self._ahead:
            self._ahead = memoryview(self.inner.recv(_AHEAD))
            self.received += len(self._ahead)
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        return bytes(data)

    def send(self, data: bytes) -> int:
        """Send some of the bytes and return how many, as a socket does."""
        return int(self.inner.send(data))

    def settimeout(self, seconds: float | None) -> None:
        """Set the timeout, as a socket does."""
        self.inner.settimeout(seconds)

    def close(self) -> None:
        """Close it and wake up its readers."""
        self._closed = True
        if isinstance(self.inner, socket.socket):
            with contextlib.suppress(OSError):
                self.inner.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError, EOFError):
            self.inner.close()


class Channel(paramiko.Channel):
    """paramiko's channel; closing it is no error if the connection has just broken."""

    def close(self) -> None:
        """Close the channel."""
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            super().close()

    def send_some(self, data: memoryview) -> int:
        """Send at most one packet and return its size; wait for room in the window."""
        return int(self.send(bytes(data[:PACKET])))

    def send_all(self, data: bytes | memoryview) -> None:
        """Send all data.

        paramiko's own `sendall` copies the rest for each packet, and never ends after `shutdown_write`.
        """
        view = memoryview(data)
        while view:
            sent = self.send_some(view)
            if not sent:
                raise OSError(errno.EPIPE, "the channel is closed")
            view = view[sent:]
