"""The file of a node's active runs, for readers without a connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path

from ..journal.run_record import RunRecord

# Seconds after a run's begin or end at which the file is written.
_DELAY = 0.2


class ActiveRunsFile:
    """File with the ids of a node's active runs; used on the agent's loop only.

    Parameters
    ----------
    path : Path or None
        The file; None if it has no readers.
    runs : mapping
        The node's runs by id, which the agent changes.
    """

    def __init__(self, path: Path | None, runs: Mapping[str, RunRecord]) -> None:
        self._path, self._runs = path, runs
        # The next write; the file's content, None before the first write.
        self._due: asyncio.TimerHandle | None = None
        self._written: str | None = None

    def write_soon(self) -> None:
        """Write the file after a short delay: a run that is over by then costs no write."""
        if self._path is not None and self._due is None:
            self._due = asyncio.get_running_loop().call_later(_DELAY, self._write)

    def _write(self) -> None:
        self._due = None
        active = " ".join(id for id, record in self._runs.items() if not record.over.is_set())
        if self._path is not None and active != self._written:
            with contextlib.suppress(OSError):
                self._path.write_text(active)
                self._written = active
