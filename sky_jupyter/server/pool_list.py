"""The list of pools for the side panel.

It contains no folders, keys or tokens, and no output of code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ..access import pool_facts
from ..pool.registry.registry import PoolRow, Registry
from .manager_kernels import Kernel, Kernels, manager_of


class Listing:
    """The list of pools; one object per server.

    Parameters
    ----------
    registry : Registry
        The registry of the pools.
    kernels : Kernels
        The server's kernels, whose notebooks are shown as managers.
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
        # Create no registry for a user without pools.
        if not await asyncio.to_thread(self.registry.path.exists):
            return []
        kernels = await self.kernels.by_process()
        return await asyncio.to_thread(self._read, kernels)

    def _read(self, kernels: Mapping[int, Kernel]) -> list[dict[str, Any]]:
        return [self._pool(row, dict(kernels)) for row in self.registry.pools()]

    def _pool(self, row: PoolRow, kernels: dict[int, Kernel]) -> dict[str, Any]:
        kernel = manager_of(row.owner, kernels) if row.owner_lives and row.is_here else None
        if kernel is None:
            return pool_facts.of_pool(self.registry, row)
        return pool_facts.of_pool(self.registry, row, kernel.id, kernel.path)

    async def runs(self, pool: str) -> list[dict[str, Any]]:
        """Return the runs of a pool (its id), the newest first."""
        found = await asyncio.to_thread(self.registry.runs, pool, pool_facts.SHOWN_RUNS)
        return pool_facts.of_runs(found)
