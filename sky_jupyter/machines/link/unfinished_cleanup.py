"""Cleanup of hosts that were unreachable when their pool ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from ...errors import SkyError
from .. import remote_cleanup
from .encoding import Event
from .reconnecting_host import ReconnectingHost

_PAUSE, _LONGEST_PAUSE = 0.5, 15.0


class Finishing:
    """Background cleanup of unreachable hosts, which then ends the link.

    Parameters
    ----------
    works : sequence of (ReconnectingHost, str)
        Hosts, with the script of `remote_cleanup.script` for each.
    patience : float
        Seconds to retry; hosts that are still unreachable then end by their lease.
    tell : callable
        Called with an event for each host that is cleaned up.
    stop : callable
        Ends the link.
    """

    def __init__(
        self,
        works: Sequence[tuple[ReconnectingHost, str]],
        patience: float,
        tell: Callable[[Event], None],
        stop: Callable[[], None],
    ) -> None:
        self._works, self._tell, self._stop = works, tell, stop
        self._end = time.monotonic() + patience

    def start(self) -> None:
        """Start the threads."""
        threading.Thread(target=self._run, name="link-finish", daemon=True).start()

    def _run(self) -> None:
        threads = [threading.Thread(target=self._one, args=work, daemon=True) for work in self._works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # Listeners get the last host's event before the link ends.
        time.sleep(_PAUSE)
        self._stop()

    def _one(self, held: ReconnectingHost, script: str) -> None:
        pause = _PAUSE
        while time.monotonic() < self._end:
            if held.gone:
                self._tell(Event(held.target.name, "ended", "it is gone, with all of the pool there"))
                return
            try:
                with held.lane() as lane:
                    remote_cleanup.run(lane, script)
            except (SkyError, TimeoutError, OSError, EOFError):
                held.retry()
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                self._tell(Event(held.target.name, "ended", "nothing of the pool is left there"))
                return
