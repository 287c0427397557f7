"""Runs of a kept pool whose manager has gone: their end and their files."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ...node.protocol import rpc
from ...node.protocol.journal_events import is_count
from ...util.validate import is_number
from ..base.event_loop import loop
from ..base.run_timeline import LATEST
from ..context import PoolContext

if TYPE_CHECKING:
    from ..registry.registry import Registry
    from ..runs.result import CellResult
    from .supervisor import Supervisor

# A run's folder is named by its id; nothing else in a pool's folders matches.
_RUN = re.compile(r"[0-9a-f]{8}\Z")


class StockContext(PoolContext, Protocol):
    """The pool, its registry and its runs."""

    @property
    def registry(self) -> Registry: ...

    @property
    def supervisor(self) -> Supervisor: ...

    def runs(self) -> dict[str, dict[str, Any]]:
        """Return the runs that the nodes know; see `JournaledRuns.all`."""
        ...

    def log(self, id: str) -> CellResult: ...


def take_stock(pool: StockContext) -> None:
    """Record runs that ended without a manager, and remove their files.

    Raises SkyError or OSError if the pool does not answer.
    """
    known = pool.runs()
    _record_missing(pool, known)
    on = {id for id, facts in known.items() if not facts["over"]}
    # Waiting runs of guests have sent what they need, so it is kept.
    on |= loop().call(pool.supervisor.turns.queued())
    for row in pool.registry.running_runs(pool.id):
        if row.id in on:
            continue
        result = pool.log(row.id) if row.id in known else None
        # No node knows it: it had not begun, or its journal was evicted.
        state = "lost" if result is None else "failed" if len(result.errors) else "ok"
        pool.registry.run_ended(row.id, state, 0.0 if result is None else result.elapsed)
    # Agents delete what they were sent; on this machine there may be more.
    loop().call(pool.control.ask(rpc.DELETE_BLOBS, keep=sorted(on)))
    for folder in {place for host in pool.hosts for place in (host.folder, host.blobs)}:
        _remove_sent(folder, on)


def _record_missing(pool: StockContext, known: Mapping[str, Mapping[str, Any]]) -> None:
    """Record cells whose rows were still queued when their manager was killed."""
    latest = pool.registry.runs(pool.id, 1)
    for id, facts in known.items():
        begin, content = facts["begin"], facts["begin"].get("content") or {}
        began, count = begin.get("began"), content.get("count")
        if content.get("kind") != "cell" or begin.get("guest") or not is_number(began, 0.0, LATEST):
            continue
        if (not latest or began > latest[0].began) and pool.registry.run(id) is None:
            ranks = [rank for rank in begin.get("ranks") or () if is_count(rank)]
            code, cell = str(begin.get("code") or ""), count if is_count(count) else 0
            # It is not known any more which notebook has begun it.
            pool.registry.run_began(id, pool.id, code, ranks, cell, notebook="")


def _remove_sent(folder: Path, on: set[str]) -> None:
    for path in folder.iterdir():
        if _RUN.match(path.name) and path.name not in on:
            shutil.rmtree(path, ignore_errors=True)
