"""Watchdog for the link's pool: polls its processes while no client is connected."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ...errors import SkyError
from ...util.background_tasks import map_all
from .idle_timeout import IdleTimeout
from .reconnecting_host import ReconnectingHost

_TICK = 0.5
_OFTEN, _SELDOM = 2.0, 60.0
_BESIDE = 16
_PATIENCE = 30.0


class Watched(NamedTuple):
    """Process of the pool."""

    held: ReconnectingHost
    pid: int
    started: float
    # Folder in which its nodes record running cells; empty if they do not.
    folder: str = ""


class PoolWatchdog:
    """Watchdog of the pool's processes, one for each link.

    When all of the pool's processes have ended, its folders on this machine, keys included, are removed. While one is
    alive, the link stays, whatever its lease. If a host cannot be polled, the lease decides: its nodes have the same
    lease, and only a run can keep them alive longer. If a run was active when they were last polled, the keys stay, but
    partial uploads are removed.

    Parameters
    ----------
    idle_timeout : IdleTimeout
        The link's idle timeout; its attribute ``pool`` is set after each poll.
    folders : sequence of Path
        The pool's folders here, until `watch` names them.
    """

    def __init__(self, idle_timeout: IdleTimeout, folders: Sequence[Path] = ()) -> None:
        self._idle_timeout = idle_timeout
        self._lock = threading.Lock()
        self._watched: Sequence[Watched] = ()
        self._folders = folders
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        # `_runs`: a run was active at the last poll. `_forgotten`: nobody will attach to the pool again.
        self._runs = self._forgotten = False

    def watch(self, watched: Sequence[Watched], folders: Sequence[Path]) -> None:
        """Poll these processes from now on; ``folders`` are the pool's, on this machine."""
        with self._lock:
            self._watched, self._folders = watched, folders
            if self._thread is None:
                self._thread = threading.Thread(target=self._look_often, name="link-watchdog", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Stop polling."""
        self._over.set()

    def forget(self) -> None:
        """Record that nobody will attach to the pool again."""
        self._runs, self._forgotten = False, True

    def remove_folders(self, *, over: bool) -> None:
        """Remove the pool's folders if it has ended, or if the idle timeout is ``over``."""
        if not (over or self._forgotten or self._idle_timeout.pool is False):
            return
        for number, folder in enumerate(self._folders):
            if self._runs and number == 0:
                continue
            shutil.rmtree(folder, ignore_errors=True)
            if self._runs:
                folder.mkdir(mode=0o700)

    def _look_often(self) -> None:
        looked = time.monotonic()
        while not self._over.wait(_TICK):
            idle, lease = self._idle_timeout.idle, self._idle_timeout.lease
            if idle is None or lease is None:
                self._idle_timeout.pool = None
                continue
            pause = min(_SELDOM, max(_OFTEN, lease / 8))
            if idle >= pause and time.monotonic() - looked >= pause:
                self._idle_timeout.pool = self._lives()
                looked = time.monotonic()

    def _lives(self) -> bool | None:
        """Return True if a process is alive, False if none is, None if unknown."""
        with self._lock:
            watched = self._watched
        if not watched:
            return None
        looks = map_all(_look_at, watched, "link-look", most=_BESIDE)
        found = [alive for alive, _ in looks]
        if None not in found or any(runs for _, runs in looks):
            self._runs = any(runs for _, runs in looks)
        return True if True in found else None if None in found else False


def _look_at(watched: Watched) -> tuple[bool | None, bool]:
    """Return whether a process is alive (None: unknown), and whether a run is active."""
    if watched.held.gone:
        return False, False
    with contextlib.suppress(SkyError, TimeoutError, OSError):
        with watched.held.lane() as lane:
            alive = lane.process((watched.pid, watched.started)).alive
            script = f"cat -- {shlex.quote(watched.folder)}/n*/running 2>/dev/null"
            runs = alive and watched.folder and lane.run(script, timeout=_PATIENCE).out.strip()
            return alive, bool(runs)
    return None, False
