"""A local port that leads to one of a host's, the same through all breaks of the connection."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Any

from ...errors import SkyError
from .reconnecting_host import Held

_READ = 1 << 18
_MOST = 512
_BACKLOG = 64


class Tunnel:
    """Listens as long as it is not closed; while the host is away it refuses, so that nobody hangs.

    Parameters
    ----------
    held : Held
        The host it leads through.
    host, port
        Where it leads, as the host sees it.
    wish : int
        Where it listens, if that is free; anywhere where it is 0.
    """

    def __init__(self, number: int, held: Held, host: str, port: int, wish: int = 0) -> None:
        self.number, self.held, self.host, self.there = number, held, host, port
        self._listener = _listen(wish)
        self.port = int(self._listener.getsockname()[1])
        self._room = threading.Semaphore(_MOST)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closed = False
        threading.Thread(target=self._accept, name=f"link-tunnel-{self.port}", daemon=True).start()

    def close(self) -> None:
        """End it, with all that goes through."""
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
                continue  # who has called is gone again, or there are too many files: it may get better
            if not self.held.up or not self._room.acquire(blocking=False):
                _refuse(near)
                continue
            threading.Thread(target=self._serve, args=(near,), name="link-stream", daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        try:
            try:
                near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                far = self.held.machine.open_stream(self.host, self.there)
            except (SkyError, OSError):
                _refuse(near)
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
        finally:
            self._room.release()


def _listen(wish: int) -> socket.socket:
    if wish:
        with contextlib.suppress(OSError):
            return socket.create_server(("127.0.0.1", wish), backlog=_BACKLOG)
    return socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)


def join(near: socket.socket, far: Any) -> None:
    """Pass bytes both ways between a socket and a channel until both have ended."""
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


def _refuse(near: socket.socket) -> None:
    """End a connection so that the caller sees an error at once, rather than an orderly end."""
    with contextlib.suppress(OSError):
        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    near.close()
