"""Port on one host that leads, through this process, to another host's address."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from ...errors import SkyError
from ..ssh.session_machine import SessionMachine
from .reconnecting_host import ReconnectingHost

_READ = 1 << 18
_MOST = 512
_PAUSE, _LONGEST_PAUSE = 0.3, 5.0


class Relay:
    """Listening port on a host; it refuses connections while ``far`` is away.

    Parameters
    ----------
    near : ReconnectingHost
        Host that listens, on its loopback.
    far : ReconnectingHost
        Host that it leads through.
    host : str
        Host that it leads to, as ``far`` sees it.
    port : int
        Port of that host.
    wish : int
        Port of an earlier link's relay; 0 for any free one.

    Raises
    ------
    MachineError
        When ``near`` refuses to listen.
    """

    def __init__(self, near: ReconnectingHost, far: ReconnectingHost, host: str, port: int, wish: int = 0) -> None:
        self.near, self.far, self.host, self.there = near, far, host, port
        self.port = wish
        self._room = threading.Semaphore(_MOST)
        self._turn = threading.Lock()
        self._closed = threading.Event()
        # The session that listens, and its sshd process.
        self._at: SessionMachine | None = None
        self._server: tuple[int, int] | None = None
        if not wish:
            self._listen(near.machine)
        near.on_open(self._on_open)
        self._on_open(near.machine)

    def close(self) -> None:
        """Stop listening; connections through it end with either host's connection."""
        self._closed.set()
        at = self._at
        if at is not None:
            at.session.unlisten(self.port)

    def _on_open(self, machine: SessionMachine) -> None:
        threading.Thread(target=self._restore, args=(machine,), name=f"link-relay-{self.port}", daemon=True).start()

    def _restore(self, machine: SessionMachine) -> None:
        """Listen again over a new session, and retry while it lasts."""
        pause = _PAUSE
        with self._turn:
            while self._at is not machine and machine.session.alive and not self._closed.is_set():
                try:
                    self._listen(machine)
                except (SkyError, OSError):
                    self._end_former(machine)
                    self._closed.wait(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)

    def _listen(self, machine: SessionMachine) -> None:
        self.port = machine.session.listen(self.port, self._accept)
        self._at, self._server = machine, None
        with contextlib.suppress(SkyError, OSError, ValueError, TimeoutError), self.near.lane() as lane:
            if lane.session is machine.session:
                self._server = lane.server()

    def _end_former(self, machine: SessionMachine) -> None:
        """Kill the former session's sshd, which may hold the port for hours."""
        if self._server is not None:
            with contextlib.suppress(SkyError, OSError, TimeoutError), self.near.lane() as lane:
                if lane.session is machine.session:
                    lane.end_server(*self._server)

    def _accept(self, near: Any) -> None:
        threading.Thread(target=self._serve, args=(near,), name="link-relayed", daemon=True).start()

    def _serve(self, near: Any) -> None:
        if self._closed.is_set() or not self._room.acquire(blocking=False):
            near.close()
            return
        try:
            far = self.far.machine.open_stream(self.host, self.there)
        except (SkyError, OSError):
            near.close()
            self._room.release()
            return
        try:
            back = threading.Thread(target=_pour, args=(far, near), name="link-relayed-back", daemon=True)
            back.start()
            _pour(near, far)
            back.join()
        finally:
            far.close()
            near.close()
            self._room.release()


def _pour(source: Any, target: Any) -> None:
    """Copy bytes until the source ends; close both if either breaks."""
    with contextlib.suppress(OSError, EOFError):
        while data := source.recv(_READ):
            target.send_all(data)
        if not source.closed:
            target.shutdown_write()
            return
    target.close()
    source.close()
