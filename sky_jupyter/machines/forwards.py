"""A port of this machine that leads elsewhere, as long as it is open."""

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


class Stream(Protocol):
    """A connection to where a forward leads."""

    @property
    def closed(self) -> bool:
        """Whether it is closed, or broken."""

    def recv(self, size: int, /) -> bytes:
        """What comes; empty at its end."""

    def send_all(self, data: bytes, /) -> None:
        """Send all of it; OSError where nobody reads it."""

    def shutdown_write(self) -> None:
        """Say that nothing more is sent."""

    def close(self) -> None:
        """End it."""


class SocketStream:
    """A socket as a `Stream`."""

    def __init__(self, made: socket.socket) -> None:
        self._socket = made
        self.closed = False

    def recv(self, size: int, /) -> bytes:
        """What comes; empty at its end."""
        return self._socket.recv(size)

    def send_all(self, data: bytes, /) -> None:
        """Send all of it."""
        self._socket.sendall(data)

    def shutdown_write(self) -> None:
        """Say that nothing more is sent."""
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """End it."""
        self.closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def dial(host: str, port: int) -> SocketStream:
    """A connection to an address that this machine reaches; OSError where it cannot be had."""
    made = socket.create_connection((host, port), _DIAL)
    made.settimeout(None)
    return SocketStream(made)


class LocalForward:
    """Listens until it is closed; made by `Machine.forward`, and implements `base.Forward`.

    Parameters
    ----------
    connect : callable
        Makes the `Stream` for each connection.
    wish : int
        The port, where it is free; any free port otherwise.
    """

    def __init__(self, connect: Callable[[], Any], wish: int = 0) -> None:
        self._connect = connect
        self._listener = listen(wish)
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closed = False
        threading.Thread(target=self._accept, name=f"sky-forward-{self.port}", daemon=True).start()

    def close(self) -> None:
        """Close the port, and all connections through it."""
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
                continue
            threading.Thread(target=self._serve, args=(near,), name="sky-forwarded", daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
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
    """A listening socket on 127.0.0.1, at this port where it is free."""
    if wish:
        with contextlib.suppress(OSError):
            return socket.create_server(("127.0.0.1", wish), backlog=_BACKLOG)
    return socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)


def join(near: socket.socket, far: Any) -> None:
    """Pass bytes both ways between a socket and a `Stream` until both have ended."""
    up = threading.Thread(target=_up, args=(near, far), name="link-up", daemon=True)
    up.start()
    whole = False
    with contextlib.suppress(OSError, EOFError):
        while data := far.recv(_READ):
            near.sendall(data)
        whole = not far.closed
    # The other side has said its last word; where the connection broke, there is nobody to listen either.
    with contextlib.suppress(OSError):
        near.shutdown(socket.SHUT_WR if whole else socket.SHUT_RDWR)
    up.join()


def _up(near: socket.socket, far: Any) -> None:
    try:
        while data := near.recv(_READ):
            far.send_all(data)
        far.shutdown_write()
    except (OSError, EOFError):
        # Nobody reads there any more, or the connection broke.
        with contextlib.suppress(OSError, EOFError):
            far.close()


def refuse(near: socket.socket) -> None:
    """End a connection so that the caller sees an error at once, rather than an orderly end."""
    with contextlib.suppress(OSError):
        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    near.close()
