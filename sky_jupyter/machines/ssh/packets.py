"""The packets of an SSH connection, under AES-GCM with few copies and few calls of the system.

paramiko's own way copies each byte of a packet six times, sends each packet by itself and reads it in two
parts: that takes longer than to encrypt it. What stands here is used once both sides have agreed on
AES-GCM, which all of OpenSSH since 6.2 offers; until then, and with anything else, paramiko's own is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import paramiko
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from paramiko.common import MSG_CHANNEL_DATA
from paramiko.message import Message
from paramiko.packet import NeedRekeyException, Packetizer

from .dial import UNSENT

# Bytes that are read ahead of what is asked for.
_AHEAD = 1 << 19
# Bytes of data in a packet, which every server has to take, and the longest packet that OpenSSH sends.
PACKET = 1 << 15
_LONGEST = 1 << 18
_TAG = 16
_BLOCK = 16
_HEAD = struct.Struct(">BII")
# Packets that are sent at once at most, and the seconds that this may take before fewer are.
_BURST = 8
_BRIEF = 0.005


class Wire:
    """A socket, or a channel of another connection, that counts what comes in and reads ahead."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.received = 0
        # paramiko looks at this as it ends.
        self._closed = False
        self._socket = isinstance(inner, socket.socket)
        self._ahead = memoryview(bytearray(_AHEAD))
        self._begin = self._end = 0

    def recv(self, size: int) -> bytes:
        """Up to ``size`` bytes, as a socket gives them."""
        if self._begin == self._end and not self._more():
            return b""
        return bytes(self._taken(min(size, self._end - self._begin)))

    def exactly(self, size: int) -> memoryview:
        """So many bytes, good until the next call. TimeoutError and EOFError lose nothing that is there."""
        while self._end - self._begin < size:
            if not self._more():
                raise EOFError
        return self._taken(size)

    def _taken(self, size: int) -> memoryview:
        begin = self._begin
        self._begin += size
        return self._ahead[begin : self._begin]

    def _more(self) -> int:
        if self._begin == self._end:
            self._begin = self._end = 0
        elif self._begin and self._end + _LONGEST > _AHEAD:
            left = self._end - self._begin
            self._ahead[:left] = self._ahead[self._begin : self._end]
            self._begin, self._end = 0, left
        if self._socket:
            got = int(self.inner.recv_into(self._ahead[self._end :]))
        else:
            data = self.inner.recv(_AHEAD - self._end)
            got = len(data)
            self._ahead[self._end : self._end + got] = data
        self._end += got
        self.received += got
        return got

    def send(self, data: bytes | memoryview) -> int:
        """Some of the bytes, as a socket does."""
        return int(self.inner.send(data) if self._socket else self.inner.send_some(memoryview(data)))

    def settimeout(self, seconds: float | None) -> None:
        """As a socket's."""
        self.inner.settimeout(seconds)

    def close(self) -> None:
        """End it; what waits for it wakes up."""
        self._closed = True
        if self._socket:
            with contextlib.suppress(OSError):
                self.inner.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError, EOFError):
            self.inner.close()


class _Burst:
    """Data of a channel for several packets, in the place of one message."""

    def __init__(self, channel: int, parts: Sequence[memoryview]) -> None:
        self.channel, self.parts = channel, parts

    def payloads(self) -> Iterator[tuple[bytes, memoryview]]:
        """What each packet begins with, after the length of its padding, and its data."""
        for part in self.parts:
            yield _HEAD.pack(MSG_CHANNEL_DATA, self.channel, len(part)), part


class _Key:
    """One direction's key, and the number of the next packet under it."""

    def __init__(self, engine: Any, start: bytes) -> None:
        self.engine = engine
        self._fixed, self._next = start[:4], int.from_bytes(start[4:], "big")
        # Of all packets under it.
        self.size = 0

    def nonce(self, size: int) -> bytes:
        """For a packet of so many bytes."""
        number = self._next
        self._next = (number + 1) & 0xFFFFFFFFFFFFFFFF
        self.size += size
        return self._fixed + number.to_bytes(8, "big")


def _key(aead: bool, start: bytes | None, more: Mapping[str, Any]) -> _Key | None:
    """What is known of a cipher, if that is AES-GCM."""
    engine = more.get("block_engine")
    return _Key(engine, start) if aead and start is not None and isinstance(engine, AESGCM) else None


class Packets(Packetizer):
    """Takes the place of paramiko's packetizer."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self._wire = wire
        self._sending = threading.Lock()
        self._out: _Key | None = None
        self._in: _Key | None = None
        self._seen = 0
        # Packets that may be sent at once now, and the bytes that went so, one full burst after another.
        self.burst, self._brief = 1, 0

    # A new key comes when the last message under the old one has passed.

    def set_outbound_cipher(
        self, *arguments: Any, aead: bool = False, iv_out: bytes | None = None, **more: Any
    ) -> None:
        """Begin with a new key."""
        super().set_outbound_cipher(*arguments, aead=aead, iv_out=iv_out, **more)
        self._out = _key(aead, iv_out, more)

    def set_inbound_cipher(self, *arguments: Any, aead: bool = False, iv_in: bytes | None = None, **more: Any) -> None:
        """Begin with a new key."""
        super().set_inbound_cipher(*arguments, aead=aead, iv_in=iv_in, **more)
        self._in = _key(aead, iv_in, more)

    def reset_seqno_in(self) -> None:
        """Count from 0."""
        super().reset_seqno_in()
        self._seen = 0

    def send_message(self, data: Any) -> None:
        """Send a message, or a burst."""
        if self._out is None:
            for whole in _whole(data):
                super().send_message(whole)
            return
        with self._sending:
            key = self._out
            if isinstance(data, _Burst):
                self._write([piece for head, part in data.payloads() for piece in _sealed(key, head, part)])
            else:
                self.write_all(b"".join(_sealed(key, data.asbytes())))
            if key.size >= self.REKEY_BYTES and not self.need_rekey():
                self._trigger_rekey()

    def _write(self, out: Sequence[bytes]) -> None:
        """Send a burst, and see how long the next one may be: on a slow link other channels' packets wait for it."""
        began = time.monotonic()
        data = memoryview(b"".join(out))
        self.write_all(data)
        if time.monotonic() - began > _BRIEF:
            self.burst, self._brief = max(self.burst // 2, 1), 0
        elif len(out) == 2 * self.burst < 2 * _BURST:
            # The system takes some at once on any link.
            self._brief += len(data)
            if self._brief > 2 * UNSENT:
                self.burst, self._brief = self.burst + 1, 0

    def read_message(self) -> tuple[int, Message]:
        """The next message and its kind."""
        key = self._in
        if key is None:
            kind, message = super().read_message()
            self._seen = message.seqno + 1
            return kind, message
        length = bytes(self._exactly(4))
        size = int.from_bytes(length, "big")
        if size < _BLOCK or size % _BLOCK or size > _LONGEST:
            raise paramiko.SSHException(f"a packet of {size} bytes came")
        try:
            plain = key.engine.decrypt(key.nonce(size), self._exactly(size + _TAG), length)
        except InvalidTag:
            raise paramiko.SSHException("a packet is not what was sent") from None
        self._check_size(key)
        kind = plain[1]
        if kind == MSG_CHANNEL_DATA:
            # It says itself how long it is: its padding can stay.
            message = Message(plain)
            message.packet.seek(2)
        else:
            message = Message(plain[2 : size - plain[0]])
        message.seqno = self._seen
        self._seen = (self._seen + 1) & 0xFFFFFFFF
        return kind, message

    def _exactly(self, size: int) -> memoryview:
        while True:
            try:
                return self._wire.exactly(size)
            except (TimeoutError, BlockingIOError):
                if self.closed or self.handshake_timed_out():
                    raise EOFError from None
                # Between packets only: a length that was read would be forgotten.
                if size == 4 and self.need_rekey():
                    raise NeedRekeyException from None
            except OSError:
                if self.closed:
                    raise EOFError from None
                raise

    def _check_size(self, key: _Key) -> None:
        if key.size < self.REKEY_BYTES:
            return
        if not self.need_rekey():
            self._trigger_rekey()
        elif key.size > self.REKEY_BYTES + self.REKEY_BYTES_OVERFLOW_MAX:
            raise paramiko.SSHException("the host agrees on no new key")


def _whole(data: Any) -> list[Any]:
    """Messages for paramiko's own way."""
    if not isinstance(data, _Burst):
        return [data]
    return [Message(head + part) for head, part in data.payloads()]


def _sealed(key: _Key, payload: bytes, data: bytes | memoryview = b"") -> tuple[bytes, bytes]:
    """A packet: its length, and what is encrypted."""
    size = len(payload) + len(data)
    padding = 4 + -(size + 5) % _BLOCK
    length = (size + padding + 1).to_bytes(4, "big")
    plain = b"".join((padding.to_bytes(1, "big"), payload, data, os.urandom(padding)))
    return length, key.engine.encrypt(key.nonce(len(plain)), plain, length)


class Channel(paramiko.Channel):
    """paramiko's channel; to close it is no error where the connection has just broken."""

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            super().close()

    def send_some(self, data: memoryview) -> int:
        """Send as much as the other side takes now, and one call of the system may be given; waits for some room."""
        with self.lock:
            if self.closed:
                raise OSError(errno.EPIPE, "the channel is closed")
            longest = min(self.out_max_packet_size, PACKET)
            # Waits, and takes less than a packet: paramiko leaves room in each for what needs none.
            size = self._wait_for_send_window(min(len(data), longest))
            if not size:
                return 0
            most = min(len(data), self.transport.packetizer.burst * longest)
            more = min(max(most - size, 0), self.out_window_size)
            self.out_window_size -= more
            size += more
        parts = [data[at : min(at + longest, size)] for at in range(0, size, longest)]
        self.transport._send_user_message(_Burst(self.remote_chanid, parts))
        return int(size)


def send_all(channel: Channel, data: bytes | memoryview) -> None:
    """All of the bytes of it: paramiko's own `sendall` copies the rest again for each packet."""
    view = memoryview(data)
    while view:
        sent = channel.send_some(view)
        if not sent:
            raise OSError(errno.EPIPE, "the channel is closed")
        view = view[sent:]
