"""What has come in on a channel and was not read yet.

paramiko's own keeps it in one array, from whose front each read removes bytes: at a few hundred
megabytes a second most of the time goes into moving the rest. This one keeps the pieces as they came.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from paramiko.buffered_pipe import PipeTimeout


class Pipe:
    """Takes the place of paramiko's ``BufferedPipe``, with the same calls."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._changed = threading.Condition()
        self._closed = False
        self._event: threading.Event | None = None

    def set_event(self, event: threading.Event) -> None:
        """Have an event say whether there is something to read, or an end."""
        with self._changed:
            self._event = event
            (event.set if self._closed or self._size else event.clear)()

    def feed(self, data: bytes) -> None:
        """Add what came in."""
        if not data:
            return
        with self._changed:
            self._pieces.append(data)
            self._size += len(data)
            # Whoever waits has been told already where something was there before.
            if self._size == len(data):
                self._changed.notify_all()
            if self._event is not None:
                self._event.set()

    def read_ready(self) -> bool:
        """Whether a read would give something at once."""
        return self._size > 0

    def read(self, nbytes: int, timeout: float | None = None) -> bytes:
        """Up to so many bytes, as soon as there are any; none at the end. PipeTimeout after ``timeout`` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._size and not self._closed:
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise PipeTimeout
                self._changed.wait(left)
            parts: list[bytes] = []
            while self._pieces and nbytes:
                piece = self._pieces.popleft()
                if len(piece) > nbytes:
                    self._pieces.appendleft(piece[nbytes:])
                    piece = piece[:nbytes]
                parts.append(piece)
                nbytes -= len(piece)
            out = parts[0] if len(parts) == 1 else b"".join(parts)
            self._size -= len(out)
            if not self._size and self._event is not None and not self._closed:
                self._event.clear()
        return out

    def empty(self) -> bytes:
        """All that is there."""
        return self.read(self._size, 0) if self._size else b""

    def close(self) -> None:
        """There will be no more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            if self._event is not None:
                self._event.set()

    def __len__(self) -> int:
        return self._size
