"""What a manager that is gone left of its runs in a kept pool: ends that nobody recorded, and what it had sent."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ...node.protocol import rpc
from ..base.event_loop import loop
from ..context import PoolContext
from ..registry.registry import KEPT_RUNS

if TYPE_CHECKING:
    from ..registry.registry import Registry
    from ..runs.result import CellResult

# A run's folder has its id as its name; nothing else in a pool's folders is called like this.
_RUN = re.compile(r"[0-9a-f]{8}\Z")


class StockContext(PoolContext, Protocol):
    """The pool, and its runs as they are written down here and there."""

    @property
    def registry(self) -> Registry:
        """Where runs are written down."""
        ...

    def runs(self) -> dict[str, dict[str, Any]]:
        """Return those that the nodes know; see `Pool.runs`."""
        ...

    def log(self, id: str) -> CellResult:
        """Return what a run has printed and returned."""
        ...


def take_stock(pool: StockContext) -> None:
    """Record runs that ended or were lost while nobody managed the pool, and remove what was sent for them.

    Raises
    ------
    SkyError, OSError
        When the pool cannot be asked.
    """
    known = pool.runs()
    on = {id for id, facts in known.items() if not facts["over"]}
    for row in pool.registry.runs(pool.id, limit=KEPT_RUNS):
        if row.state != "running" or row.id in on:
            continue
        result = pool.log(row.id) if row.id in known else None
        # Where no node knows it, it had not begun, or is long forgotten.
        state = "lost" if result is None else "failed" if len(result.errors) else "ok"
        pool.registry.run_ended(row.id, state, 0.0 if result is None else result.elapsed)
    # What was sent to other machines; on this one, also what did not come to an agent's notice.
    loop().call(pool.control.ask(rpc.DELETE_BLOBS, keep=sorted(on)))
    for folder in {place for host in pool.hosts for place in (host.folder, host.blobs)}:
        _remove_sent(folder, on)


def _remove_sent(folder: Path, on: set[str]) -> None:
    for path in folder.iterdir():
        if _RUN.match(path.name) and path.name not in on:
            shutil.rmtree(path, ignore_errors=True)
