"""A link to a server that can be frozen, cut, or made to break after so many bytes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class Link:
    """Forwards a loopback port to another; made by `link`."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.break_after: int | None = None
        self.passed = 0
        self._open = threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def freeze(self) -> None:
        """Nothing goes through any more, and nobody is told."""
        self._open.clear()

    def thaw(self) -> None:
        self._open.set()

    def cut(self) -> None:
        """All connections end; new ones are made as before."""
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._sockets.clear()

    def refuse(self) -> None:
        """No new connection is made; those that there are go on."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.refuse()
        self._listener.close()
        self.thaw()
        self.cut()
        for thread in self._threads:
            thread.join(60)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self._sockets += [near, far]
                for pair in ((near, far), (far, near)):
                    thread = threading.Thread(target=self._pass, args=pair, daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._open.wait()
                self.passed += len(data)
                if self.break_after is not None and self.passed > self.break_after:
                    self.break_after = None
                    self.cut()
                    return
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def link(port: int) -> Iterator[Link]:
    """A link to a port of this machine."""
    made = Link(port)
    try:
        yield made
    finally:
        made.close()
