"""Local port that leads to a host's port and survives breaks of the connection."""

from __future__ import annotations

import contextlib
import socket
import threading

from ...errors import SkyError
from ..forwards import join, listen, refuse
from .reconnecting_host import ReconnectingHost

_MOST = 512


class Tunnel:
    """Listening local port; while the host is away, it resets connections at once.

    Parameters
    ----------
    number : int
        Number in the link.
    held : ReconnectingHost
        Host that it leads through.
    host : str
        Host that it leads to, as ``held`` sees it.
    port : int
        Port of that host.
    wish : int
        Local port to use if it is free; 0 for any.
    """

    def __init__(self, number: int, held: ReconnectingHost, host: str, port: int, wish: int = 0) -> None:
        self.number, self.held, self.host, self.there = number, held, host, port
        self._listener = listen(wish)
        self.port = int(self._listener.getsockname()[1])
        self._room = threading.Semaphore(_MOST)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closed = False
        threading.Thread(target=self._accept, name=f"link-tunnel-{self.port}", daemon=True).start()

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
                continue  # the caller is gone, or too many files are open: try again
            if not self.held.up or not self._room.acquire(blocking=False):
                refuse(near)
                continue
            threading.Thread(target=self._serve, args=(near,), name="link-stream", daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        try:
            try:
                near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                far = self.held.machine.open_stream(self.host, self.there)
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
        finally:
            self._room.release()
