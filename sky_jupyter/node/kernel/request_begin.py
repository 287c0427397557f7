"""Start of a rank's requests, reported to an agent that waits to interrupt one.

Before a request has begun, and after its end, its process ignores interrupts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class RequestBegin:
    """State of the request that can be interrupted now.

    Parameters
    ----------
    send : callable
        Called as ``send("sky_begin", content)``, in any thread.
    """

    def __init__(self, send: Callable[[str, dict[str, Any]], None]) -> None:
        self._send = send
        # The request that runs, and the one whose begin the agent waits for.
        self._running = self._awaited = ""
        self._since = 0.0

    def note(self, run: str) -> None:
        """Note that interrupts now reach a request; tell the agent if it waits for that."""
        self._since, self._running = time.monotonic(), run
        if self._awaited == run:
            self._tell(run)

    def note_end(self) -> None:
        """Note that interrupts are ignored from here on."""
        self._running = ""

    def tell(self, run: str) -> None:
        """Tell the agent once a request has begun; runs in the control thread."""
        # In this order: the main thread sets one of the two, and then checks the other.
        self._awaited = run
        if self._running == run:
            self._tell(run)

    def _tell(self, run: str) -> None:
        # The machine's monotonic clock, which the agent reads too.
        self._send("sky_begin", {"run": run, "since": self._since})
