"""What the link still does when its pool has ended: hosts that could not be reached then are tried again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from ...errors import SkyError
from .. import remote_cleanup
from .encoding import Event
from .reconnecting_host import Held

_PAUSE, _LONGEST_PAUSE = 0.5, 15.0


class Finishing:
    """Made once a link, when its pool was ended and not all of it could be.

    Parameters
    ----------
    works : sequence of (Held, str)
        Hosts, and the script of `machines.ending` that ends the pool's part there.
    patience : float
        Seconds after which those that have not been reached are left to their lease.
    tell : callable
        Told of each host where nothing is left.
    stop : callable
        Ends the link.
    """

    def __init__(
        self,
        works: Sequence[tuple[Held, str]],
        patience: float,
        tell: Callable[[Event], None],
        stop: Callable[[], None],
    ) -> None:
        self._works, self._tell, self._stop = works, tell, stop
        self._end = time.monotonic() + patience

    def start(self) -> None:
        """Begin, in threads of its own."""
        threading.Thread(target=self._run, name="link-finish", daemon=True).start()

    def _run(self) -> None:
        threads = [threading.Thread(target=self._one, args=work, daemon=True) for work in self._works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        # Who listens is told of the last host before the link is gone.
        time.sleep(_PAUSE)
        self._stop()

    def _one(self, held: Held, script: str) -> None:
        pause = _PAUSE
        while time.monotonic() < self._end:
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
