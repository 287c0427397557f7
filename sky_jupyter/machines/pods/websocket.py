"""WebSocket frames of Kubernetes' streams, over a socket with or without TLS.

The first byte of each message is its channel. One thread at a time receives, and any may send. Of the server's data,
only a part of a message is kept here, however long its frames are.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator

_READ = 1 << 18
# Bytes of data in a frame: the other end keeps a whole frame in memory.
FRAME = 1 << 17
_CONTINUED, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_MOST_CONTROL = 125
# Masks keep a browser's page from choosing the bytes on the wire. Nobody chooses ours.
_MASK = bytes(4)


class WebSocketError(OSError):
    """Raised when the other end sends data that is not WebSocket's."""


class PatientSocket:
    """Socket to read and write in two threads, which OpenSSL itself does not allow.

    Parameters
    ----------
    made : socket.socket
        A connected socket, or an `ssl.SSLSocket` after its handshake.
    """

    def __init__(self, made: socket.socket) -> None:
        made.setblocking(False)
        self._socket = made
        self._pending = made.pending if isinstance(made, ssl.SSLSocket) else lambda: 0
        # Held for calls of OpenSSL, none of which blocks.
        self._lock = threading.Lock()
        self._users = 0
        self.closed = False
        # One for each kind of wait; only one thread at a time may use each.
        self._to_read, self._to_both, self._to_write = (
            _poll(made, wanted) for wanted in (select.POLLIN, select.POLLIN | select.POLLOUT, select.POLLOUT)
        )

    def read(self, room: memoryview, until: float | None = None, also: Callable[[], bool] = lambda: False) -> int:
        """Read into ``room`` and return the count; 0 at the end, or when it is closed.

        Raises TimeoutError at the time ``until``. While there is nothing to read, ``also`` is called. It returns True
        if data waits to be written, and is called again when that is possible.
        """
        with self._used():
            while not self.closed:
                # To poll first costs less than a useless exception.
                if not (self._pending() or self._to_read.poll(0)):
                    _wait(self._to_both if also() else self._to_read, until)
                try:
                    with self._lock:
                        return self._read_all(room)
                except (ssl.SSLWantReadError, BlockingIOError):
                    _wait(self._to_read, until)
                except ssl.SSLWantWriteError:
                    _wait(self._to_both, until)
            return 0

    def _read_all(self, room: memoryview) -> int:
        """Read all that is there and has room: OpenSSL gives one record at a time."""
        size = self._socket.recv_into(room)
        with contextlib.suppress(OSError):  # the next call raises it
            while 0 < size < len(room) and (self._pending() or self._to_read.poll(0)):
                got = self._socket.recv_into(room[size:])
                if not got:
                    break
                size += got
        return size

    def write(self, data: memoryview, until: float | None = None) -> int:
        """Write some of the data and return how much; raise TimeoutError at ``until``."""
        with self._used():
            while not self.closed:
                try:
                    with self._lock:
                        return self._socket.send(data)
                except (ssl.SSLWantWriteError, ssl.SSLWantReadError, BlockingIOError):
                    # If OpenSSL needs data to continue, the reading thread reads it.
                    _wait(self._to_write, until)
            raise BrokenPipeError("the connection is closed")

    def readable(self) -> bool:
        """Return True if reading would not wait; for the thread that would read."""
        with self._used():
            return bool(self.closed or self._pending() or self._to_read.poll(0))

    def close(self) -> None:
        """Close it and wake up the threads that wait for it."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            # The base class's `shutdown`: that of an SSL socket drops its TLS state, which another thread may be using.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
            if not self._users:
                self._socket.close()

    @contextlib.contextmanager
    def _used(self) -> Iterator[None]:
        """Keep the file descriptor open in the block: its number could be reused."""
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self.closed and not self._users:
                    self._socket.close()


def _poll(made: socket.socket, wanted: int) -> select.poll:
    found = select.poll()
    found.register(made.fileno(), wanted)
    return found


def _wait(poll: select.poll, until: float | None) -> None:
    left = None if until is None else (until - time.monotonic()) * 1000
    if (left is not None and left <= 0) or not poll.poll(left):
        raise TimeoutError("timed out")


class WebSocket:
    """Client's end of a WebSocket after its handshake.

    Parameters
    ----------
    made : socket.socket
        The socket.
    rest : bytes
        Bytes that were read after the handshake.
    protocol : str
        The subprotocol that the server has chosen.
    """

    def __init__(self, made: socket.socket, rest: bytes, protocol: str) -> None:
        self.protocol = protocol
        self._socket = PatientSocket(made)
        self._buffer = bytearray(max(_READ, len(rest)))
        self._buffer[: len(rest)] = rest
        self._view = memoryview(self._buffer)
        self._start, self._end = 0, len(rest)
        # Of the message that is being received: remaining bytes of its frame, whether that is the last one, and its
        # channel.
        self._left, self._final = 0, True
        self._channel: int | None = None
        self._sending = threading.Lock()
        self._pending = memoryview(b"")
        self._pong: bytes | None = None
        # Times of the last receipt and the last sending.
        self.received = self.sent = time.monotonic()

    @property
    def closed(self) -> bool:
        """Whether it was closed here."""
        return self._socket.closed

    # Receiving

    def receive(self, until: float | None = None) -> tuple[int, bytes]:
        """Return channel and bytes of the next part of a message.

        Parameters
        ----------
        until : float, optional
            Time by the monotonic clock at which to give up; never by default.

        Returns
        -------
        tuple of int and bytes
            Channel and bytes.

        Raises
        ------
        EOFError
            At the end.
        TimeoutError
            At the time ``until``.
        OSError
            When the connection breaks, or its data is not WebSocket frames.
        """
        while True:
            while self._left:
                if self._channel is None:
                    self._need(1, until)
                    self._channel = self._buffer[self._start]
                    self._start += 1
                    self._left -= 1
                    if self._left:
                        continue
                    return self._given(b"")
                self._need(1, until)
                size = min(self._left, self._end - self._start)
                data = bytes(self._view[self._start : self._start + size])
                self._start += size
                self._left -= size
                return self._given(data)
            self._begin_frame(until)

    def _given(self, data: bytes) -> tuple[int, bytes]:
        channel = self._channel
        assert channel is not None
        if not self._left and self._final:
            self._channel = None
        return channel, data

    def _begin_frame(self, until: float | None) -> None:
        """Read the head of a frame, and the whole of one that is not data."""
        self._need(2, until)
        first, second = self._buffer[self._start], self._buffer[self._start + 1]
        code, size = first & 15, second & 127
        extra = 2 if size == 126 else 8 if size == 127 else 0
        if first & 0x70 or second & 0x80 or code not in (_CONTINUED, _TEXT, _BINARY, _CLOSE, _PING, _PONG):
            raise WebSocketError("a frame that no server sends")
        self._need(2 + extra, until)
        if extra:
            size = int.from_bytes(self._view[self._start + 2 : self._start + 2 + extra], "big")
        if code >= _CLOSE:
            if size > _MOST_CONTROL or extra or not first & 0x80:
                raise WebSocketError(f"a control frame of {size} bytes")
            self._need(2 + size, until)
            data = bytes(self._view[self._start + 2 : self._start + 2 + size])
            self._start += 2 + size
            self._control(code, data)
            return
        if size >> 63:
            raise WebSocketError("a frame of an impossible length")
        if (code == _CONTINUED) == self._final:
            raise WebSocketError("a part of a message that has not begun, or one within another")
        self._start += 2 + extra
        self._left, self._final = size, bool(first & 0x80)
        if not size and self._final:
            self._channel = None

    def _control(self, code: int, data: bytes) -> None:
        if code == _CLOSE:
            raise EOFError("the server has closed the stream")
        if code == _PING:
            # Sent now, or by the thread that is sending.
            self._pong = _frame(_PONG, data)
            self.flush()

    def _need(self, size: int, until: float | None) -> None:
        """Read until the buffer has so many bytes."""
        while self._end - self._start < size:
            if self._start == self._end:
                self._start = self._end = 0
            elif len(self._buffer) - self._start < size:
                left = bytes(self._view[self._start : self._end])
                self._view[: len(left)] = left
                self._start, self._end = 0, len(left)
            got = self._socket.read(self._view[self._end :], until, self._is_unsent)
            if not got:
                raise EOFError("the connection has ended")
            self._end += got
            self.received = time.monotonic()

    def readable(self) -> bool:
        """Return True if receiving would not wait for the other end."""
        return self._end > self._start or self._socket.readable()

    # Sending

    def send(self, channel: int, data: memoryview | bytes, until: float | None = None) -> int:
        """Send at most one frame of data, and return how much of the data that was.

        If the frame cannot be sent completely now, the rest is sent later. Raises TimeoutError at the time ``until`` if
        an earlier frame is not sent by then.
        """
        with self._sending:
            self._flush(until)
            part = bytes([channel]) + bytes(data[:FRAME])
            self._pending = memoryview(_frame(_BINARY, part))
            with contextlib.suppress(TimeoutError):
                self._flush(until)
            return len(part) - 1

    def finish(self) -> None:
        """Send the rest of a frame that was begun."""
        with self._sending:
            self._flush(None)

    def flush(self) -> None:
        """Send as much of a begun frame as possible now; the reader reports errors."""
        if self._sending.acquire(blocking=False):
            try:
                with contextlib.suppress(OSError):
                    self._flush(0.0)
            finally:
                self._sending.release()

    def ping(self, frame: bytes = b"") -> None:
        """Send a ping unless other data is being sent."""
        if self._sending.acquire(blocking=False):
            try:
                if not self._pending:
                    self._pending = memoryview(frame or _frame(_PING, b""))
                    with contextlib.suppress(OSError):
                        self._flush(0.0)
            finally:
                self._sending.release()

    def touch(self, channel: int) -> None:
        """Send an empty message: servers end streams without data, pings or not."""
        self.ping(_frame(_BINARY, bytes([channel])))

    def _is_unsent(self) -> bool:
        self.flush()
        return bool(self._pending)

    def _flush(self, until: float | None) -> None:
        while self._pending or self._pong is not None:
            if not self._pending and self._pong is not None:
                self._pending, self._pong = memoryview(self._pong), None
            self._pending = self._pending[self._socket.write(self._pending, until) :]
            self.sent = time.monotonic()

    def close(self) -> None:
        """Close it and wake up the threads that wait for it."""
        if not self._socket.closed:
            self.ping(_frame(_CLOSE, struct.pack("!H", 1000)))
        self._socket.close()


def _frame(code: int, data: bytes) -> bytes:
    size = len(data)
    if size < 126:
        head = bytes([0x80 | code, 0x80 | size])
    elif size < 1 << 16:
        head = bytes([0x80 | code, 0xFE]) + struct.pack("!H", size)
    else:
        head = bytes([0x80 | code, 0xFF]) + struct.pack("!Q", size)
    return b"".join((head, _MASK, data))


def new_key() -> bytes:
    """Return the random bytes of a handshake."""
    return os.urandom(16)
