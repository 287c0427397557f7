"""Whether the pool that the link serves is still there, asked of its hosts while nobody else asks."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from ...errors import SkyError
from .held import Held
from .lifetime import Lifetime

_TICK = 0.5
_OFTEN, _SELDOM = 2.0, 60.0
_BESIDE = 16


class Watched(NamedTuple):
    """A process of the pool."""

    held: Held
    pid: int
    started: float


class Guard:
    """Made once a link; looks at the pool's processes while no client is there.

    A pool whose processes have all ended leaves nothing here: its folders, keys among them, go. One of
    which a process lives keeps the link, whatever its lease; of one that cannot be asked, the lease decides.

    Parameters
    ----------
    lifetime : Lifetime
        The link's; told what was found.
    """

    def __init__(self, lifetime: Lifetime) -> None:
        self._lifetime = lifetime
        self._lock = threading.Lock()
        self._watched: Sequence[Watched] = ()
        self._folders: Sequence[Path] = ()
        self._thread: threading.Thread | None = None
        self._over = threading.Event()

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

    def remove_folders(self) -> None:
        """Remove what the pool has here, where it is known to have ended."""
        if self._lifetime.pool is False:
            for folder in self._folders:
                shutil.rmtree(folder, ignore_errors=True)

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
        with ThreadPoolExecutor(min(_BESIDE, len(watched)), thread_name_prefix="link-look") as several:
            found = list(several.map(_one_lives, watched))
        return True if True in found else None if None in found else False


def _one_lives(watched: Watched) -> bool | None:
    with contextlib.suppress(SkyError, TimeoutError, OSError):
        with watched.held.lane() as lane:
            return lane.process(watched.pid, watched.started).alive
    return None
