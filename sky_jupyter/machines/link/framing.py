"""Messages over a Unix socket, with authentication and size limits.

`multiprocessing.connection` is not used: its `accept` blocks on a client that sends nothing, its `close` does not wake
up a reading thread, and before Python 3.12 its authentication is HMAC with MD5, which systems in FIPS mode refuse.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import select
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ...node.system import peer_user

MAX_HEAD = 1 << 20
CHUNK = 1 << 18
_LENGTHS = struct.Struct("!II")
_NONCE = 32
_PATIENCE = 10.0


class Broken(Exception):
    """Raised when the other end has closed or sends invalid messages."""


class Message(NamedTuple):
    """Received message: facts, and bytes that belong to them."""

    facts: dict[str, Any]
    body: bytes


class Wire:
    """End of a connection between client and link; for one thread at a time.

    Parameters
    ----------
    connection : socket.socket
        A Unix socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def send(self, facts: Mapping[str, Any], body: bytes = b"") -> None:
        """Send one message; raise Broken on failure."""
        head = json.dumps(facts, separators=(",", ":"), ensure_ascii=True).encode()
        if len(head) > MAX_HEAD:
            raise ValueError(f"a message of {len(head)} bytes is more than the link takes ({MAX_HEAD})")
        try:
            self.socket.sendall(_LENGTHS.pack(len(head), len(body)) + head)
            if body:
                self.socket.sendall(body)
        except OSError as error:
            raise Broken(str(error)) from None

    def receive(self) -> Message:
        """Return the next message; raise Broken on failure."""
        head, body = _LENGTHS.unpack(self._exactly(_LENGTHS.size))
        if head > MAX_HEAD or body > CHUNK:
            raise Broken(f"a message of {head} and {body} bytes is too large")
        try:
            facts = json.loads(self._exactly(head))
        except (ValueError, RecursionError):
            raise Broken("a message that is no JSON") from None
        if not isinstance(facts, dict):
            raise Broken("a message that is no object")
        return Message(facts, self._exactly(body))

    def send_data(self, data: Iterable[bytes]) -> None:
        """Send bytes of any length, and an end mark."""
        for part in data:
            view = memoryview(part)
            for at in range(0, len(view), CHUNK):
                self.send({}, bytes(view[at : at + CHUNK]))
        self.send({"end": True})

    def receive_data(self) -> Iterator[bytes]:
        """Yield the bytes of `send_data`, in chunks."""
        while not (message := self.receive()).facts.get("end"):
            yield message.body

    def close(self) -> None:
        """Close the connection and wake up its readers."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def gone(self, seconds: float = 0.0) -> bool:
        """Return True if the other end closes within so many seconds."""
        poll = select.poll()
        poll.register(self.socket, getattr(select, "POLLRDHUP", 0))
        try:
            return bool(poll.poll(seconds * 1000))
        except (OSError, ValueError):
            return True

    def _exactly(self, size: int) -> bytes:
        if not size:
            return b""
        parts = bytearray(size)
        view, at = memoryview(parts), 0
        while at < size:
            try:
                got = self.socket.recv_into(view[at:])
            except OSError as error:
                raise Broken(str(error)) from None
            if not got:
                raise Broken("the other end has hung up")
            at += got
        return bytes(parts)


def prove(connection: socket.socket, key: bytes, *, server: bool) -> Wire:
    """Authenticate both ends, by user and key, and return the wire between them.

    Raise Broken if that fails or takes too long.
    """
    wire = Wire(connection)
    try:
        connection.settimeout(_PATIENCE)
        if not peer_user.is_own(connection):
            raise Broken("the other end is another user's")
        mine = os.urandom(_NONCE)
        connection.sendall(mine)
        theirs = wire._exactly(_NONCE)
        own, other = (b"server", b"client") if server else (b"client", b"server")
        # The server speaks last: a client without the key gets no digest made with it.
        steps = [_expect, _tell] if server else [_tell, _expect]
        for step in steps:
            step(wire, key, (own + mine + theirs) if step is _tell else (other + theirs + mine))
        connection.settimeout(None)
    except OSError as error:
        connection.close()
        raise Broken(str(error)) from None
    except Broken:
        connection.close()
        raise
    return wire


def _tell(wire: Wire, key: bytes, text: bytes) -> None:
    wire.socket.sendall(hmac.digest(key, text, "sha256"))


def _expect(wire: Wire, key: bytes, text: bytes) -> None:
    if not hmac.compare_digest(wire._exactly(32), hmac.digest(key, text, "sha256")):
        raise Broken("the other end does not have the key")
