"""Facts of pools and runs from the registry, as JSON.

They contain no folders, keys or tokens, and no output of code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..pool.registry import cost_rows, pool_bill
from ..pool.registry.registry import PoolRow, Registry, RunRow, running
from ..pool.registry.rows import notebooks
from ..util import pool_cost

SHOWN_RUNS = 20


def of_pool(registry: Registry, row: PoolRow, kernel: str | None = None, path: str | None = None) -> dict[str, Any]:
    """Return a pool as JSON.

    Parameters
    ----------
    registry : Registry
        The registry that has the pool.
    row : PoolRow
        The pool.
    kernel : str, optional
        The id of the kernel that manages it, where the caller knows it.
    path : str, optional
        The notebook of that kernel.

    Returns
    -------
    dict
        The pool.
    """
    managed, here = row.owner_lives, row.is_here
    manager = None
    if managed or not here:
        who = row.who if here else f"{row.who}, {row.where}: it is taken up or ended there"
        manager = {"who": who, "kernel": kernel, "path": path}
    return {
        "id": row.id,
        "name": row.name,
        "provider": row.provider,
        "nodes": row.nodes,
        "state": row.state,
        "keep": row.keep,
        "began": row.began,
        # None if there is no manager: the pool costs money, and no notebook shows it.
        "manager": manager,
        # A pool can be ended or attached to only where its processes and keys are.
        "here": here,
        "running": of_runs(active(registry, row)),
        "cost": _cost(registry, row.id),
    }


def of_run(run: RunRow) -> dict[str, Any]:
    """Return a run as JSON."""
    return {
        "id": run.id,
        "state": run.state,
        "title": run.title,
        "began": run.began,
        "elapsed": run.elapsed,
        "ranks": len(run.ranks) or None,
    }


def of_runs(runs: Sequence[RunRow]) -> list[dict[str, Any]]:
    """Return runs as JSON, with their notebooks where there are several."""
    several = notebooks(runs)
    return [{**of_run(run), "notebook": run.notebook} if several else of_run(run) for run in runs]


def active(registry: Registry, row: PoolRow) -> list[RunRow]:
    """Return a pool's running runs, as far as this machine knows."""
    on = registry.running_runs(row.id, SHOWN_RUNS)
    if row.owner_lives or not row.is_local:
        return on
    # Without a manager, nobody recorded the ends of runs; the nodes know them.
    left = running(row)
    return [run for run in on if run.id in left]


def _cost(registry: Registry, pool: str) -> dict[str, Any] | None:
    """Return a pool's cost when its manager last looked; readers count on from it."""
    rows = cost_rows.of(registry, pool)
    return pool_cost.to_json(pool_bill.account(rows, at=max((row.at for row in rows), default=0.0)))
