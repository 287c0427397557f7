"""Poll the registry's file, and the processes in it, for changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..errors import SkyError
from .pool_list import Listing

# Nothing is written when a manager dies: so often the list is read although the file is as it was.
_ANYWAY = 3.0


class RegistryWatcher:
    """Made once for a server, which calls `look` again and again.

    Parameters
    ----------
    listing : Listing
        What is watched.
    tell : callable
        Called with how many changes there were, after each.
    """

    def __init__(self, listing: Listing, tell: Callable[[int], None]) -> None:
        self._listing, self._tell = listing, tell
        self._file: Any = None
        self._read = 0.0
        self._last: list[dict[str, Any]] | None = None
        self.number = 0
        """How many changes there were."""

    async def look(self) -> None:
        """Tell whether the list has changed since the last call."""
        file, now = self._stamp(), time.monotonic()
        # Where there are no pools, none can lose its manager.
        if file == self._file and (not self._last or now - self._read < _ANYWAY):
            return
        try:
            pools = await self._listing.pools()
        except SkyError:
            return  # who asks for the list is told
        self._file, self._read = file, now
        if pools != self._last:
            first, self._last = self._last is None, pools
            if not first or pools:
                self.number += 1
                self._tell(self.number)

    def _stamp(self) -> tuple[Any, ...]:
        """Return what changes with a write: SQLite writes into its journal file first."""
        path = self._listing.registry.path
        found: list[Any] = []
        for name in (path, path.with_name(f"{path.name}-wal")):
            try:
                facts = name.stat()
            except OSError:
                found.append(None)
            else:
                found.append((facts.st_ino, facts.st_size, facts.st_mtime_ns))
        return tuple(found)
