"""The list of pools as the side panel gets it.

It has no folders, keys or tokens, and nothing that code printed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ..pool.registry import cost_rows, pool_bill
from ..pool.registry.registry import PoolRow, Registry, RunRow, running
from ..util import pool_cost
from .kernels import Kernel, Kernels, manager_of

_RUNS = 20


class Listing:
    """Made once for a server.

    Parameters
    ----------
    registry : Registry
        Of which the pools are.
    kernels : Kernels
        Whose notebooks are shown as managers.
    """

    def __init__(self, registry: Registry, kernels: Kernels) -> None:
        self.registry, self.kernels = registry, kernels

    async def pools(self) -> list[dict[str, Any]]:
        """Return all pools that have not ended, the oldest first.

        Returns
        -------
        list of dict
            Each pool as JSON.

        Raises
        ------
        PoolError
            When the registry cannot be read.
        """
        # Nobody who has no pools gets a file.
        if not await asyncio.to_thread(self.registry.path.exists):
            return []
        kernels = await self.kernels.by_process()
        return await asyncio.to_thread(self._read, kernels)

    def _read(self, kernels: Mapping[int, Kernel]) -> list[dict[str, Any]]:
        return [self._pool(row, dict(kernels)) for row in self.registry.pools()]

    def _pool(self, row: PoolRow, kernels: dict[int, Kernel]) -> dict[str, Any]:
        managed, here = row.owner_lives, row.is_here
        kernel = manager_of(row.owner, kernels) if managed and here else None
        manager = None
        if managed or not here:
            who = row.who if here else f"{row.who}, {row.where}: it is taken up or ended there"
            manager = {"who": who, "kernel": kernel.id if kernel else None, "path": kernel.path if kernel else None}
        return {
            "id": row.id,
            "name": row.name,
            "provider": row.provider,
            "nodes": row.nodes,
            "state": row.state,
            "keep": row.keep,
            "began": row.began,
            # None stands for nobody: a pool that costs, and that no notebook shows.
            "manager": manager,
            # Only where its processes and its keys are can it be ended or attached to.
            "here": here,
            "running": [_run(run) for run in self._running(row, managed)],
            "cost": self._cost(row.id),
        }

    def _cost(self, pool: str) -> dict[str, Any] | None:
        """Return what a pool had cost when its manager last looked; pages count on from there."""
        rows = cost_rows.of(self.registry, pool)
        return pool_cost.to_json(pool_bill.account(rows, at=max((row.at for row in rows), default=0.0)))

    def _running(self, row: PoolRow, managed: bool) -> list[RunRow]:
        on = [run for run in self.registry.runs(row.id, _RUNS) if run.state == "running"]
        if managed or row.provider != "local":
            return on
        # Nobody was there to record how they ended; their nodes know.
        left = running(row)
        return [run for run in on if run.id in left]

    async def runs(self, pool: str) -> list[dict[str, Any]]:
        """Return the runs of a pool (its id), the newest first."""
        return [_run(run) for run in await asyncio.to_thread(self.registry.runs, pool, _RUNS)]


def _run(run: RunRow) -> dict[str, Any]:
    return {
        "id": run.id,
        "state": run.state,
        "title": run.title,
        "began": run.began,
        "elapsed": run.elapsed,
        "ranks": len(run.ranks) or None,
    }
