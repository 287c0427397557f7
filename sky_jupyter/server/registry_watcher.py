"""Watcher of the registry's file, and of the processes in it, for changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..errors import SkyError
from .pool_list import Listing

# Seconds after which the list is read even if the file is unchanged: the death of a manager writes nothing.
_ANYWAY = 3.0


class RegistryWatcher:
    """Watcher for one server, which calls `look` periodically.

    Parameters
    ----------
    listing : Listing
        The list to watch.
    tell : callable
        Called after each change with the number of changes so far.
    """

    def __init__(self, listing: Listing, tell: Callable[[int], None]) -> None:
        self._listing, self._tell = listing, tell
        self._file: Any = None
        self._read = 0.0
        self._last: list[dict[str, Any]] | None = None
        self.number = 0
        """The number of changes so far."""

    async def look(self) -> None:
        """Report whether the list has changed since the last call."""
        file, now = self._stamp(), time.monotonic()
        # Without pools, no manager can die.
        if file == self._file and (not self._last or now - self._read < _ANYWAY):
            return
        try:
            pools = await self._listing.pools()
        except SkyError:
            return  # whoever requests the list gets the error
        self._file, self._read = file, now
        if pools != self._last:
            first, self._last = self._last is None, pools
            if not first or pools:
                self.number += 1
                self._tell(self.number)

    def _stamp(self) -> tuple[Any, ...]:
        """Return values that change with a write, which goes into the -wal file first."""
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
