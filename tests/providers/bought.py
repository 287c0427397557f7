"""Pools that have bought machines of a light cloud, for tests of what becomes of these."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.registry.registry import Registry
from sky_jupyter.spec.options import Options
from sky_jupyter.spec.pool_spec import PoolSpec
from tests.providers.cloud import Cloud


def pool_of(cloud: Cloud, nodes: int = 2, ttl: float | None = None, **options: Any) -> Pool:
    """A pool whose machines can be had, and which nobody has started."""
    options = {"console": False, **options}
    spec = PoolSpec(provider=cloud, nodes=nodes, name="bought", ttl=ttl, options=Options(**options))
    pool = Pool(spec)
    pool.lifecycle.provisioning.plan(spec)
    pool.registry.intend(pool.id, spec.name, cloud.kind, nodes, keep=False)
    pool.lifecycle.provisioning.begin()
    return pool


def buy(pool: Pool, before: Sequence[str] = ()) -> list[str]:
    return pool.lifecycle.provisioning.acquire(pool.spec, pool.spec.nodes, before)


def abandon(registry: Registry, pool: Pool) -> None:
    """Have a pool's notebook be dead."""
    pool.registry.close()
    with sqlite3.connect(registry.path) as connection:
        connection.execute("UPDATE pools SET owner = 4000000, owner_started = 1 WHERE id = ?", (pool.id,))
