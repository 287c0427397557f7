"""Streams of a pod: commands with standard streams, and connections to ports."""

from __future__ import annotations

import contextlib
import errno
import json
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from ..ssh.types import shown
from .websocket import WebSocket, WebSocketError

V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"
STDIN, STDOUT, STDERR, _STATUS, _CLOSE = 0, 1, 2, 3, 255
_MOST_OUTPUT = 4 << 20
_MOST_ERRORS = 1 << 20
_MOST_STATUS = 1 << 16
# Seconds without data after which a stream is closed, once this side has ended its own data; see `PortStream`.
LINGER = 5.0
TICK = 1.0
_MOST_REFUSAL = 4096

# A server of v4 cannot be told that the input ends. So the command reads a pipe, and a process beside it fills the
# pipe: it reads the number of bytes that come next; 0 is the end.
_FRAMED = (
    'exec 3<&0; {{ while IFS= read -r _sky_n && [ "$_sky_n" -gt 0 ]; do head -c "$_sky_n" || break; done <&3 '
    "2>/dev/null & }} | {{ exec 3<&-; {command}; }}"
)


def framed(command: str) -> str:
    """Return a command that reads lengths and bytes, as `ExecChannel` sends them."""
    return _FRAMED.format(command=command)


class _Flow:
    """Reading of one WebSocket by whichever thread waits for its data."""

    def __init__(self, socket: WebSocket) -> None:
        self.socket = socket
        self._news = threading.Condition()
        self._reading = False
        # Set when no more data can come.
        self._over = False
        self._timeout: float | None = None

    def settimeout(self, seconds: float | None) -> None:
        """Set after how many seconds sending and receiving raise TimeoutError."""
        self._timeout = seconds

    def _until(self) -> float | None:
        return None if self._timeout is None else time.monotonic() + self._timeout

    def _wait_for(self, ready: Callable[[], Any], until: float | None, room: Callable[[], bool]) -> Any:
        """Receive, or wait while another thread does, until ``ready`` or the end.

        Nothing is received while there is no ``room`` for it.
        """
        while True:
            with self._news:
                if (found := ready()) or self._over:
                    return found
                if self._reading or not room():
                    left = None if until is None else until - time.monotonic()
                    if left is not None and left <= 0:
                        raise TimeoutError("timed out")
                    self._news.wait(left)
                    continue
                self._reading = True
            self._receive(until)

    def _receive(self, until: float | None) -> None:
        channel, data, failed = -1, b"", None
        try:
            channel, data = self.socket.receive(until)
        except TimeoutError:
            with self._news:
                self._reading = False
                self._news.notify_all()
            raise
        except (EOFError, OSError, ValueError) as error:
            failed = error
        with self._news:
            if failed is None:
                try:
                    self._take(channel, data)
                except WebSocketError as error:
                    failed = error
            self._reading = False
            if failed is not None:
                self._over = True
            self._news.notify_all()
        if failed is not None:
            self._end(failed)

    def _take(self, channel: int, data: bytes) -> None:
        raise NotImplementedError

    def _end(self, error: BaseException) -> None:
        raise NotImplementedError

    def look(self) -> None:
        """Receive available data, without waiting, unless another thread does.

        The data may hold the end.
        """
        with self._news:
            if self._over or self._reading or not self._has_room() or not self.socket.readable():
                return
            self._reading = True
        with contextlib.suppress(TimeoutError):
            self._receive(time.monotonic())

    def _has_room(self) -> bool:
        return True


class ExecChannel(_Flow):
    """Command of a pod's container and its streams; used like a paramiko channel.

    Parameters
    ----------
    socket : WebSocket
        The stream.
    tell : callable
        Called when the stream breaks before the command has ended, with the reason.
    framed : bool
        Whether the command was changed by `framed`.
    """

    def __init__(self, socket: WebSocket, tell: Callable[[ExecChannel, str], None], *, framed: bool = False) -> None:
        super().__init__(socket)
        self._tell, self._framed = tell, framed
        self._out: deque[bytes] = deque()
        self._err: deque[bytes] = deque()
        self._out_size = self._err_size = 0
        self._said = b""
        self._exit: int | None = None
        # The runtime's message if it could not run the command.
        self.failure = ""
        self.broken = False

    @property
    def closed(self) -> bool:
        """Whether it was closed, has broken, or its command has ended."""
        return self.socket.closed or self._over

    # Receiving

    def recv(self, size: int, /) -> bytes:
        """Return the next bytes of standard output; empty at the end."""
        until = self._until()
        self._wait_for(lambda: self._out, until, self._has_room)
        with self._news:
            data = _first(self._out, size)
            self._out_size -= len(data)
            self._news.notify_all()
        return data

    def recv_stderr(self, size: int, /) -> bytes:
        """Return the next bytes of standard error; empty at the end."""
        self._wait_for(lambda: self._err, self._until(), self._has_room)
        with self._news:
            data = _first(self._err, size)
            self._err_size -= len(data)
        return data

    def recv_ready(self) -> bool:
        """Return True if `recv` would not wait."""
        self.look()
        with self._news:
            return bool(self._out) or self._over

    def wait_status(self) -> int | None:
        """Wait for the command's end; return its status, None if the stream ended first."""
        self._wait_for(lambda: self._exit is not None, None, self._has_room)
        return self._exit

    def watch(self) -> None:
        """Receive until the end, so that it is noticed at once."""
        self._wait_for(lambda: False, None, self._has_room)

    def _has_room(self) -> bool:
        return self._out_size < _MOST_OUTPUT

    def _take(self, channel: int, data: bytes) -> None:
        if channel == STDOUT:
            if data:
                self._out.append(data)
                self._out_size += len(data)
        elif channel == STDERR:
            if data:
                self._err.append(data)
                self._err_size += len(data)
                # Only the last part is of interest, and mostly nobody reads it.
                while self._err_size > _MOST_ERRORS:
                    self._err_size -= len(self._err.popleft())
        elif channel == _STATUS:
            self._said += data
            if len(self._said) > _MOST_STATUS:
                raise WebSocketError("the command's status is too long")
            with contextlib.suppress(ValueError, RecursionError):
                self._read_status(json.loads(self._said))
        elif channel not in (STDIN, _CLOSE):
            raise WebSocketError(f"data of channel {channel}, which nobody has opened")

    def _read_status(self, facts: Any) -> None:
        """Read Kubernetes' Status of a command that has ended, or could not begin."""
        if not isinstance(facts, dict):
            raise WebSocketError("the command's status is no Status")
        self._exit, self._over = exit_status(facts), True
        if self._exit is None:
            self._exit, self.failure = -1, shown(str(facts.get("message") or "no reason was given"))

    def _end(self, error: BaseException) -> None:
        ours = self.socket.closed
        self.socket.close()
        if self._exit is None and not ours:
            self.broken = True
            self._tell(self, str(error))

    # Sending

    def send_some(self, data: memoryview | bytes) -> int:
        """Send up to a frame and return its size; raise OSError if the command has ended."""
        if self._over:
            raise OSError(errno.EPIPE, "the command has ended")
        view = memoryview(data)[: 1 << 17]
        if self._framed and view:
            view = memoryview(b"%d\n" % len(view) + bytes(view))
            self._send_all(view)
            return len(view) - view.tobytes().index(b"\n") - 1
        return self.socket.send(STDIN, view, self._until())

    def _send_all(self, view: memoryview) -> None:
        while view:
            view = view[self.socket.send(STDIN, view) :]

    def send_all(self, data: memoryview | bytes, /) -> None:
        """Send all of the data."""
        view = memoryview(data)
        while view:
            view = view[self.send_some(view) :]
        self.socket.finish()

    def shutdown_write(self) -> None:
        """Send the end of the input, if the server understands it."""
        with contextlib.suppress(OSError):
            if self.socket.protocol == V5:
                self.socket.send(_CLOSE, bytes([STDIN]))
            elif self._framed:
                self.socket.send(STDIN, b"0\n")
            self.socket.finish()

    def close(self) -> None:
        """Close its streams; the command may keep running."""
        self.socket.close()
        with self._news:
            self._over = True
            self._news.notify_all()


def exit_status(facts: dict[str, Any]) -> int | None:
    """Return the exit status, or minus the signal; None if the command could not run."""
    if facts.get("status") == "Success":
        return 0
    details = facts.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    for cause in causes if isinstance(causes, list) else ():
        if isinstance(cause, dict) and cause.get("reason") == "ExitCode":
            with contextlib.suppress(ValueError, TypeError):
                status = int(cause.get("message") or "")
                return status if status <= 128 else 128 - status
    return None


class PortStream(_Flow):
    """Connection to a port of a pod; implements `forwards.ByteStream`.

    The API cannot end one direction alone. After `shutdown_write`, the other one is read until no data has come for a
    while.

    Parameters
    ----------
    socket : WebSocket
        The stream.
    port : int
        The port.
    """

    def __init__(self, socket: WebSocket, port: int) -> None:
        super().__init__(socket)
        self._port = port.to_bytes(2, "little")
        # Each channel begins with the port's number.
        self._heads = {0: b"", 1: b""}
        self._data: deque[bytes] = deque()
        self._ended_at: float | None = None
        self.refusal = ""
        self._broken = False

    @property
    def closed(self) -> bool:
        """Whether it was closed or has broken; False after the peer's orderly end."""
        return self._broken or (self.socket.closed and not self._over)

    def recv(self, size: int, /) -> bytes:
        """Return the next bytes; empty at the end."""
        while not self._data and not self._over:
            try:
                self._wait_for(lambda: self._data, time.monotonic() + TICK, lambda: True)
            except TimeoutError:
                if self._ended_at is not None and self._is_quiet():
                    self._over = True
        return _first(self._data, size)

    def _is_quiet(self) -> bool:
        assert self._ended_at is not None
        return time.monotonic() - max(self._ended_at, self.socket.received) > LINGER

    def send_all(self, data: bytes, /) -> None:
        """Send all bytes; raise OSError if the other side has closed."""
        view = memoryview(data)
        while view:
            if self._over:
                raise OSError(errno.EPIPE, self.refusal or "the other side has closed")
            view = view[self.socket.send(0, view) :]
        self.socket.finish()

    def shutdown_write(self) -> None:
        """Send no more."""
        self._ended_at = time.monotonic()

    def _take(self, channel: int, data: bytes) -> None:
        if channel not in self._heads:
            raise WebSocketError(f"data of channel {channel}, which nobody has opened")
        if (missing := 2 - len(self._heads[channel])) > 0:
            self._heads[channel] += data[:missing]
            data = data[missing:]
            if len(self._heads[channel]) == 2 and self._heads[channel] != self._port:
                raise WebSocketError("it is of another port")
        if data and channel == 0:
            self._data.append(data)
        elif data:
            self.refusal = (self.refusal + data.decode("utf-8", "replace"))[:_MOST_REFUSAL]
            self._broken = True

    def _has_room(self) -> bool:
        return not self._data

    def _end(self, error: BaseException) -> None:
        if not isinstance(error, EOFError):
            self._broken = True
        self.socket.close()

    def close(self) -> None:
        """Close the connection."""
        self._broken = self._broken or not self._over
        self.socket.close()
        with self._news:
            self._over = True
            self._news.notify_all()


def _first(parts: deque[bytes], size: int) -> bytes:
    """Take up to ``size`` bytes of the first part."""
    if not parts:
        return b""
    data = parts.popleft()
    if len(data) > size:
        parts.appendleft(data[size:])
        data = data[:size]
    return data


__all__ = ["LINGER", "V4", "V5", "ExecChannel", "PortStream", "exit_status", "framed"]
