"""Whether the pool that the link serves is still there, asked of its hosts while nobody else asks."""

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
from ...util.tasks import map_all
from .idle_timeout import Lifetime
from .reconnecting_host import Held

_TICK = 0.5
_OFTEN, _SELDOM = 2.0, 60.0
_BESIDE = 16
_PATIENCE = 30.0


class Watched(NamedTuple):
    """A process of the pool."""

    held: Held
    pid: int
    started: float
    # Where its nodes leave word of what runs; nothing where they do not.
    folder: str = ""


class Guard:
    """Made once a link; looks at the pool's processes while no client is there.

    A pool whose processes have all ended leaves nothing here: its folders, keys among them, go. One of
    which a process lives keeps the link, whatever its lease; of one that cannot be asked, the lease decides,
    which is that of its nodes too. Only a run may have kept those: where one was on when they were last
    heard of, the keys stay, and what was being sent goes.

    Parameters
    ----------
    lifetime : Lifetime
        The link's; told what was found.
    folders : sequence of Path
        Those of the pool here, until `watch` names them.
    """

    def __init__(self, lifetime: Lifetime, folders: Sequence[Path] = ()) -> None:
        self._lifetime = lifetime
        self._lock = threading.Lock()
        self._watched: Sequence[Watched] = ()
        self._folders = folders
        self._thread: threading.Thread | None = None
        self._over = threading.Event()
        # Whether a run was on at the last look, and whether nobody is to take the pool up any more.
        self._runs = self._forgotten = False

    def watch(self, watched: Sequence[Watched], folders: Sequence[Path]) -> None:
        """Look at these processes from now on; the folders are the pool's here."""
        with self._lock:
            self._watched, self._folders = watched, folders
            if self._thread is None:
                self._thread = threading.Thread(target=self._look_often, name="link-guard", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._over.set()

    def forget(self) -> None:
        """Nobody is to take the pool up any more."""
        self._runs, self._forgotten = False, True

    def remove_folders(self, *, over: bool) -> None:
        """Remove what the pool has here, where it has ended, or where the link's own time is ``over``."""
        if not (over or self._forgotten or self._lifetime.pool is False):
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
            idle, lease = self._lifetime.idle, self._lifetime.lease
            if idle is None or lease is None:
                self._lifetime.pool = None
                continue
            pause = min(_SELDOM, max(_OFTEN, lease / 8))
            if idle >= pause and time.monotonic() - looked >= pause:
                self._lifetime.pool = self._lives()
                looked = time.monotonic()

    def _lives(self) -> bool | None:
        """Whether any of the processes lives; None where that is not known of all, and no other does."""
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
    """Whether a process lives, where that is known, and whether a run is on there."""
    with contextlib.suppress(SkyError, TimeoutError, OSError):
        with watched.held.lane() as lane:
            alive = lane.process((watched.pid, watched.started)).alive
            script = f"cat -- {shlex.quote(watched.folder)}/n*/running 2>/dev/null"
            runs = alive and watched.folder and lane.run(script, timeout=_PATIENCE).out.strip()
            return alive, bool(runs)
    return None, False
