"""Pools of other processes: find them, read them, ask their managers' kernels."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import PoolError
from ..pool.registry.registry import PoolRow, Registry, RunRow, refuse_elsewhere, sweep
from ..pool.registry.stopped_pools import STOPPED
from ..util.text import nearest
from . import kernel_requests, pool_facts

if TYPE_CHECKING:
    from ..pool.pool import Pool
    from ..pool.runs.log_reader import PagesContext
    from .terminal_client import TerminalLine

Attach = Callable[[PoolRow], "Pool"]
"""Function that attaches to a pool without a manager, and returns the pool."""
_SHOWN = 50
_UNMANAGED = "no notebook manages pool {0!r}: `%sky attach {0}` in a notebook attaches to it"


class PoolAccess:
    """Access to the pools of this user; close it at the end.

    Parameters
    ----------
    attach : callable, optional
        Attaches to a pool without a manager, for as long as a request to it takes. Without it, requests to such a pool
        are refused, except for journals on this machine: attaching renews its lease and runs its plugins' code here.
    """

    def __init__(self, attach: Attach | None = None) -> None:
        self.registry = Registry()
        self._attach = attach

    def close(self) -> None:
        """Close the registry."""
        self.registry.close()

    def rows(self) -> list[PoolRow]:
        """Return the live pools, the oldest first; forget those that are gone."""
        # Create no registry for a user without pools.
        if not self.registry.path.exists():
            return []
        sweep(self.registry)
        return self.registry.pools()

    def find(self, name: str | None = None) -> PoolRow:
        """Return the live pool of this name or id; without one, the only pool.

        Raises PoolError, which lists the pools' names, unless exactly one pool matches.
        """
        rows = self.rows()
        chosen = [row for row in rows if row.id == name] or [row for row in rows if name in (None, row.name)]
        if len(chosen) > 1 and len(near := [row for row in chosen if row.is_here]) == 1:
            chosen = near
        if len(chosen) == 1:
            return chosen[0]
        if chosen:
            several = ", ".join(f"{row.name} ({row.id})" for row in chosen)
            raise PoolError(f"which pool? {several}: give a name{', or an id' if name else ''}")
        if name is None:
            raise PoolError("no pool is running; `%sky up` in a notebook makes one")
        names = [row.name for row in rows]
        raise PoolError(f"no pool {name!r} is running{nearest(name, names)}; running: {', '.join(names) or 'none'}")

    def pools(self) -> list[dict[str, Any]]:
        """Return all live pools as JSON; see `pool_facts.of_pool`."""
        return [pool_facts.of_pool(self.registry, row) for row in self.rows()]

    def runs(self, row: PoolRow | None = None, limit: int = _SHOWN) -> list[RunRow]:
        """Return the newest runs, of a pool or of all."""
        if not self.registry.path.exists():
            return []
        return self.registry.runs(None if row is None else row.id, limit)

    def run(self, row: PoolRow, run: str | None = None) -> RunRow:
        """Return a pool's run of this id, or prefix of one; without one, the newest.

        Raises PoolError if no run matches, or several do.
        """
        found = self.registry.run(run, row.id) if run else next(iter(self.registry.runs(row.id, 1)), None)
        if found is not None:
            return found
        raise PoolError(f"pool {row.name!r} has no run {run!r}" if run else f"nothing has run on pool {row.name!r} yet")

    def ask(self, row: PoolRow, content: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the kernel that manages a pool for something about it; see docs/actions.md.

        Raises PoolError if no kernel of this machine manages it, or the kernel refuses.
        """
        connection = self.manager(row)
        return asyncio.run(kernel_requests.ask(connection, {**content, "pool": row.name}))

    def evaluate(self, row: PoolRow, request: Mapping[str, Any]) -> dict[str, Any]:
        """Evaluate a request in the kernel that manages a pool; see `kernel_requests`.

        Raises PoolError if no kernel of this machine manages it, or the kernel refuses.
        """
        connection = self.manager(row)
        return asyncio.run(kernel_requests.evaluate(connection, {**request, "pool": row.name}))

    def manager(self, row: PoolRow) -> dict[str, Any]:
        """Return the connection of the kernel that manages a pool.

        Raises PoolError if there is none that can be asked.
        """
        refuse_elsewhere(row)
        if not row.owner_lives:
            raise PoolError(_UNMANAGED.format(row.name))
        connection = kernel_requests.connection_of(row.owner)
        if connection is None:
            raise PoolError(
                f"pool {row.name!r} is managed by {row.who}, which is not a notebook's kernel that can be asked"
            )
        return connection

    @contextlib.contextmanager
    def log(self, row: PoolRow) -> Iterator[PagesContext]:
        """Yield a reader of a pool's runs' output; the pool keeps its manager."""
        from . import log_pages

        if row.is_local and row.is_here and row.folders:
            yield log_pages.LocalPages(row)
        elif row.owner_lives:
            self.manager(row)
            yield log_pages.KernelPages(lambda content: self.ask(row, content))
        else:
            with self.attached(row) as pool:
                yield pool

    def where(self, row: PoolRow) -> str:
        """Return each rank's stack; the pool stays with its manager."""
        if row.owner_lives:
            return str(self.ask(row, {"action": "where"})["text"])
        with self.attached(row) as pool:
            return str(pool.where())

    @contextlib.asynccontextmanager
    async def terminals(self, row: PoolRow) -> AsyncIterator[tuple[TerminalLine, float | None]]:
        """Yield the way to a pool for terminals; the pool stays with its manager.

        The second value is the number of seconds without input after which a terminal ends: the pool's lease if this
        process manages the pool meanwhile, None if another does.
        """
        from .terminal_client import KernelLine, PoolLine

        if row.owner_lives:
            async with KernelLine(self.manager(row), row.name) as line:
                yield line, None
        else:
            with self.attached(row) as pool:
                yield PoolLine(pool), pool.spec.lease

    @contextlib.contextmanager
    def attached(self, row: PoolRow) -> Iterator[Pool]:
        """Manage a pool that has no manager while the block runs; then release it.

        Raises PoolError if another process manages it by now, it cannot be reached, its machines are stopped, it is
        about to end, or this object was made without ``attach``.
        """
        refuse_elsewhere(row)
        if row.state == STOPPED:
            raise PoolError(f"the machines of pool {row.name!r} are stopped: `%sky start {row.name}` starts them")
        if not row.outlives:
            raise PoolError(f"pool {row.name!r} cannot be asked: no notebook manages it, and it is about to end")
        if self._attach is None:
            raise PoolError(_UNMANAGED.format(row.name))
        pool = self._attach(row)
        try:
            yield pool
        finally:
            pool.release()
