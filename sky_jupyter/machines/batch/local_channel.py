"""Local command with its streams, in the form of an SSH connection's channel."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence

# Most bytes that are sent at once.
_PART = 1 << 16
# Seconds in which a command may end by itself after its streams were closed.
_END_PATIENCE = 10.0


class LocalChannel:
    """Command with three socket streams: closing them wakes whoever waits on them.

    Parameters
    ----------
    argv : sequence of str
        Program and arguments.
    env : mapping of str to str, optional
        Its environment; this process's by default.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        pairs = [socket.socketpair() for _ in range(3)]
        self._in, self._out, self._err = (near for near, _ in pairs)
        self.closed = False
        try:
            far = [other.fileno() for _, other in pairs]
            self.process = subprocess.Popen(
                list(argv), stdin=far[0], stdout=far[1], stderr=far[2], env=env, start_new_session=True
            )
        except BaseException:
            for near, _ in pairs:
                near.close()
            raise
        finally:
            for _, other in pairs:
                other.close()
        threading.Thread(target=self.process.wait, name="sky-step", daemon=True).start()

    def settimeout(self, seconds: float | None) -> None:
        """Set the timeout of reads and writes."""
        for one in (self._in, self._out, self._err):
            one.settimeout(seconds)

    def recv(self, size: int, /) -> bytes:
        """Return the next bytes of standard output; empty at the end."""
        return self._out.recv(size)

    def recv_stderr(self, size: int, /) -> bytes:
        """Return the next bytes of standard error; empty at the end."""
        return self._err.recv(size)

    def recv_ready(self) -> bool:
        """Return True if reading would not wait."""
        # `select` accepts no file number above 1023.
        waiting = select.poll()
        waiting.register(self._out, select.POLLIN)
        return bool(waiting.poll(0))

    def send_some(self, data: memoryview | bytes, /) -> int:
        """Send some of the bytes and return how many."""
        return self._in.send(data[:_PART])

    send = send_some

    def send_all(self, data: memoryview | bytes, /) -> None:
        """Send all bytes."""
        self._in.sendall(data)

    sendall = send_all

    def shutdown_write(self) -> None:
        """Close standard input."""
        with contextlib.suppress(OSError):
            self._in.shutdown(socket.SHUT_WR)

    def shutdown(self, how: int) -> None:
        """Close standard input, as a socket does for one direction."""
        self.shutdown_write()

    def close(self) -> None:
        """Close all streams; end the command if it does not end by that."""
        if self.closed:
            return
        self.closed = True
        for near in (self._in, self._out, self._err):
            with contextlib.suppress(OSError):
                near.shutdown(socket.SHUT_RDWR)
            near.close()
        self._signal(signal.SIGTERM)
        if self.process.poll() is None:
            timer = threading.Timer(_END_PATIENCE, self._signal, [signal.SIGKILL])
            timer.daemon = True
            timer.start()

    def _signal(self, number: int) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, number)


__all__ = ["LocalChannel"]
