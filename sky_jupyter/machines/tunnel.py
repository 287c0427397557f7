"""A port of this machine that leads to a port that another machine can reach."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any, Protocol

from ..errors import MachineError

_READ = 1 << 18
_END = 5.0


class Opens(Protocol):
    """A machine from which connections lead on."""

    def open_stream(self, host: str, port: int) -> Any:
        """A connection from there, used as a socket is."""


class Tunnel:
    """Listens on loopback and carries each connection on from a machine to an address there.

    Who else is on this machine can connect too: what listens at the other end has to know its peers.

    Parameters
    ----------
    machine : Opens
        From where it goes on.
    host, port
        Where to, as seen from there.

    Attributes
    ----------
    port : int
        Where it listens here, on 127.0.0.1.

    Raises
    ------
    MachineError
        When the machine opens no connection to there.
    """

    def __init__(self, machine: Opens, host: str, port: int) -> None:
        self._machine, self._to = machine, (host, port)
        # The first is made now, so that a server that forbids it says so here, and not in a thread.
        self._first: Any = machine.open_stream(host, port)
        self._lock = threading.Lock()
        self._ends: set[Any] = set()
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, name=f"sky-tunnel-{self.port}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it and all connections through it."""
        with self._lock:
            self._closed = True
            ends, self._ends = list(self._ends), set()
            first, self._first = self._first, None
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in [*ends, *([first] if first is not None else [])]:
            _close(end)
        if self._thread is not threading.current_thread():
            self._thread.join(_END)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                if self._closed:
                    return
                continue
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._carry, args=(near,), name="sky-tunnel-open", daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with self._lock:
            far, self._first = self._first, None
        try:
            if far is None or far.closed:
                far = self._machine.open_stream(*self._to)
        except MachineError:
            near.close()
            return
        with self._lock:
            if not self._closed:
                self._ends.update((near, far))
        if self._closed:
            _close(near)
            _close(far)
            return
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=self._pump, args=(source, sink), name="sky-tunnel-pump", daemon=True).start()

    def _pump(self, source: Any, sink: Any) -> None:
        """Carry bytes one way, until either end ends; then both do."""
        with contextlib.suppress(OSError, EOFError):
            while data := source.recv(_READ):
                sink.sendall(data)
        with self._lock:
            self._ends -= {source, sink}
        _close(source)
        _close(sink)


def _close(end: Any) -> None:
    """Close one end; a thread that reads from it wakes up."""
    if isinstance(end, socket.socket):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError, EOFError):
        end.close()
