"""The list of pools as the side panel gets it.

It has no folders, keys or tokens, and nothing that code printed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ..access import pool_facts
from ..pool.registry.registry import PoolRow, Registry
from .manager_kernels import Kernel, Kernels, manager_of


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
        kernel = manager_of(row.owner, kernels) if row.owner_lives and row.is_here else None
        if kernel is None:
            return pool_facts.of_pool(self.registry, row)
        return pool_facts.of_pool(self.registry, row, kernel.id, kernel.path)

    async def runs(self, pool: str) -> list[dict[str, Any]]:
        """Return the runs of a pool (its id), the newest first."""
        found = await asyncio.to_thread(self.registry.runs, pool, pool_facts.SHOWN_RUNS)
        return pool_facts.of_runs(found)
