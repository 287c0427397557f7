"""Loss of a session's connection, recorded once and reported to listeners."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ...errors import LinkLost


class ConnectionLoss:
    """Loss of one session's connection, if any; held by the session, thread-safe.

    Parameters
    ----------
    closing : threading.Event
        Set when the session is closed: later breaks are no loss.
    """

    def __init__(self, closing: threading.Event) -> None:
        self.reason: LinkLost | None = None
        self._closing = closing
        self._listeners: list[Callable[[LinkLost], None]] = []
        self._lock = threading.Lock()

    def on_lost(self, tell: Callable[[LinkLost], None]) -> None:
        """Call a function when the connection breaks; at once if it has broken."""
        with self._lock:
            reason = self.reason
            if reason is None:
                self._listeners.append(tell)
        if reason is not None:
            tell(reason)

    def lose(self, reason: LinkLost, shut: Callable[[], None] = lambda: None) -> None:
        """Record the first loss of the connection, call ``shut``, then the listeners."""
        with self._lock:
            if self.reason is not None or self._closing.is_set():
                return
            self.reason = reason
            listeners, self._listeners = self._listeners, []
        shut()
        for tell in listeners:
            tell(reason)
