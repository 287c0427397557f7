"""Sockets below paramiko, and its channels, as this package uses them."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections import deque
from typing import Any, cast

import paramiko
from paramiko.buffered_pipe import PipeTimeout
from paramiko.common import cMSG_CHANNEL_CLOSE as _CLOSE
from paramiko.message import Message

# Data bytes of a packet that every server must accept.
PACKET = 1 << 15
# Bytes per read: paramiko asks for each packet in two parts.
_AHEAD = 1 << 18
# Number of received packets that are joined into one: packets of one byte each would take a hundred times as much
# memory.
_LOOSE = 1024


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


class PacketPipe:
    """Received bytes of a channel, kept as the packets that brought them.

    It has the methods of paramiko's `BufferedPipe`. That one moves all remaining bytes in its array at each read: to
    read 4 MB in parts of 256 KB, it copies 32 MB.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._packets: deque[memoryview] = deque()
        # Bytes in the pipe; number of the latest packets, which are not joined yet.
        self._size = self._loose = 0
        self._closed = False
        self._event: threading.Event | None = None

    def __len__(self) -> int:
        return self._size

    def feed(self, data: bytes) -> None:
        """Add a packet's data."""
        with self._changed:
            self._packets.append(memoryview(data))
            self._size += len(data)
            self._loose += 1
            if self._loose == _LOOSE:
                self._join()
            self._notify()

    def read(self, nbytes: int, timeout: float | None = None) -> bytes:
        """Return up to ``nbytes`` bytes, and none at the end; wait for the first.

        Raise PipeTimeout if none arrives within ``timeout`` seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._size and not self._closed:
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise PipeTimeout()
                self._changed.wait(left)
            return self._take(nbytes)

    def read_ready(self) -> bool:
        """Return True if data is there."""
        return self._size > 0

    def empty(self) -> bytes:
        """Return all data that is there."""
        with self._changed:
            return self._take(self._size)

    def close(self) -> None:
        """End the data; what is left can still be read."""
        with self._changed:
            self._closed = True
            self._notify()

    def set_event(self, event: threading.Event) -> None:
        """Keep an event set while data is there, and after the end."""
        with self._changed:
            self._event = event
            if self._size or self._closed:
                event.set()
            else:
                event.clear()

    def _notify(self) -> None:
        self._changed.notify_all()
        if self._event is not None:
            self._event.set()

    def _join(self) -> None:
        latest = [self._packets.pop() for _ in range(min(self._loose, len(self._packets)))]
        self._packets.append(memoryview(b"".join(reversed(latest))))
        self._loose = 0

    def _take(self, nbytes: int) -> bytes:
        parts: list[memoryview] = []
        left = nbytes
        while left and self._packets:
            packet = self._packets.popleft()
            if len(packet) > left:
                self._packets.appendleft(packet[left:])
                packet = packet[:left]
            parts.append(packet)
            left -= len(packet)
        self._size -= nbytes - left
        if not self._size and not self._closed and self._event is not None:
            self._event.clear()
        return b"".join(parts)


class _OrderedTransport:
    """A channel's transport, which sends nothing for it after its CLOSE.

    paramiko makes a message under a lock, and sends it later. If another thread closes the channel in between, the
    message comes too late, and OpenSSH ends the whole connection (RFC 4254, section 5.3).
    """

    def __init__(self, transport: paramiko.Transport) -> None:
        self._transport = transport
        self._sending = threading.Lock()
        self._is_closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _send_user_message(self, message: Message) -> None:
        with self._sending:
            if not self._is_closed:
                self._is_closed = message.packet.getbuffer()[:1] == _CLOSE
                self._transport._send_user_message(message)


class Channel(paramiko.Channel):
    """paramiko's channel; closing it is no error if the connection has just broken.

    `of` turns one of paramiko's into it.
    """

    @classmethod
    def of(cls, channel: Any) -> Channel:
        """Return a new channel as this class, before anything is sent for it."""
        channel.__class__ = cls
        channel.transport = _OrderedTransport(channel.transport)
        return cast(Channel, channel)

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
