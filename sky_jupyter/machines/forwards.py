"""Local ports that lead to an address elsewhere."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any, Protocol

from ..errors import SkyError

_READ = 1 << 18
_BACKLOG = 64
_DIAL = 30.0


class ByteStream(Protocol):
    """Connection to the target address of a forward."""

    @property
    def closed(self) -> bool:
        """True after it was closed or has broken."""

    def recv(self, size: int, /) -> bytes:
        """Return the next bytes; empty at the end."""

    def send_all(self, data: bytes, /) -> None:
        """Send all bytes; raise OSError if the other side has closed."""

    def shutdown_write(self) -> None:
        """Send end of file."""

    def close(self) -> None:
        """Close the connection."""


class SocketStream:
    """`ByteStream` of a socket."""

    def __init__(self, made: socket.socket) -> None:
        self._socket = made
        self.closed = False

    def recv(self, size: int, /) -> bytes:
        """Return the next bytes; empty at the end."""
        return self._socket.recv(size)

    def send_all(self, data: bytes, /) -> None:
        """Send all bytes."""
        self._socket.sendall(data)

    def shutdown_write(self) -> None:
        """Send end of file."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket, both ways."""
        self.closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def dial(host: str, port: int) -> SocketStream:
    """Connect to an address that this machine reaches; raise OSError on failure."""
    made = socket.create_connection((host, port), _DIAL)
    made.settimeout(None)
    return SocketStream(made)


class LocalForward:
    """Listening local port, made by `Machine.forward`; implements `base.Forward`.

    Parameters
    ----------
    connect : callable
        Returns a new `ByteStream` for each connection.
    wish : int
        Port to use if it is free; any free port otherwise.
    most : int, optional
        Connections at the same time; further ones are reset. No limit by default.
    """

    def __init__(self, connect: Callable[[], Any], wish: int = 0, *, most: int | None = None) -> None:
        self._connect = connect
        self._room = None if most is None else threading.Semaphore(most)
        self._listener = listen(wish)
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closed = False
        threading.Thread(target=self._accept, name=f"sky-forward-{self.port}", daemon=True).start()

    def close(self) -> None:
        """Close the port and all connections through it."""
        with self._lock:
            self._closed = True
            left = list(self._open)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for near in left:
            with contextlib.suppress(OSError):
                near.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                continue  # the caller has disconnected, or too many files are open: try again
            if self._room is not None and not self._room.acquire(blocking=False):
                refuse(near)
                continue
            threading.Thread(target=self._serve, args=(near,), name="sky-forwarded", daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with contextlib.ExitStack() as end:
            if self._room is not None:
                end.callback(self._room.release)
            self._carry(near)

    def _carry(self, near: socket.socket) -> None:
        try:
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            far = self._connect()
        except (SkyError, OSError):
            refuse(near)
            return
        with self._lock:
            self._open.add(near)
            closed = self._closed
        if not closed:
            join(near, far)
        with self._lock:
            self._open.discard(near)
        far.close()
        near.close()


def listen(wish: int) -> socket.socket:
    """Return a socket that listens on 127.0.0.1, at this or another free port."""
    if wish:
        with contextlib.suppress(OSError):
            return socket.create_server(("127.0.0.1", wish), backlog=_BACKLOG)
    return socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)


def join(near: socket.socket, far: Any) -> None:
    """Copy bytes both ways between a socket and a `ByteStream` until both end."""
    up = threading.Thread(target=_up, args=(near, far), name="link-up", daemon=True)
    up.start()
    whole = False
    with contextlib.suppress(OSError, EOFError):
        while data := far.recv(_READ):
            near.sendall(data)
        whole = not far.closed
    # After an orderly end, the other direction may continue; after a break, it cannot.
    with contextlib.suppress(OSError):
        near.shutdown(socket.SHUT_WR if whole else socket.SHUT_RDWR)
    up.join()


def _up(near: socket.socket, far: Any) -> None:
    try:
        while data := near.recv(_READ):
            far.send_all(data)
        far.shutdown_write()
    except (OSError, EOFError):
        # The other side has closed, or the connection broke.
        with contextlib.suppress(OSError, EOFError):
            far.close()


def refuse(near: socket.socket) -> None:
    """Reset a connection, so that the caller sees an error, not an end of file."""
    with contextlib.suppress(OSError):
        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    near.close()
