"""Pools that a notebook left, as `%load_ext` and `%sky status` describe them."""

from __future__ import annotations

import contextlib
import time

from ..errors import PoolError
from ..pool.base.run_titles import short_title
from ..pool.open_pools import pools
from ..pool.registry.registry import Registry, opened, running, sweep
from ..pool.registry.rows import PoolRow, clock

_SHOWN_RUNS = 20
# The registry's tables about pools' parts on other machines, and about purchases of machines.
_ELSEWHERE = ("traces", "orders", "purchases")


def news() -> list[str]:
    """Sweep what a crash left and describe the kept pools, a line each.

    Warnings about the registry follow.
    """
    with opened() as registry:
        before: dict[str, bool] = {}
        with contextlib.suppress(PoolError):
            before = {row.id: row.unfinished for row in registry.pools()}
        sweep(registry)
        lines = []
        with contextlib.suppress(PoolError):
            rows = [row for row in registry.pools() if row.outlives and pools.get(row.name) is None]
            lines = [_kept(registry, row) for row in rows]
        with contextlib.suppress(PoolError):
            if registry.has_rows(_ELSEWHERE):
                # Imported here: it imports all that ends machines, and most users' pools leave none.
                from .end_leftovers import end_in_background

                lines += end_in_background(registry, before)
        return [*lines, *registry.take_warnings()]


def nobodys() -> list[str]:
    """Describe the kept pools that nobody manages, a line each."""
    from ..pool.registry.stopped_pools import STOPPED

    with opened() as registry, contextlib.suppress(PoolError):
        rows = registry.pools()
        left = [_kept(registry, row) for row in rows if row.outlives and not row.owner_lives]
        return [*left, *(_stopped(registry, row) for row in rows if row.state == STOPPED)]
    return []


def _stopped(registry: Registry, row: PoolRow) -> str:
    """Describe a stopped pool in a line."""
    # Imported here, as above: loading the extension does not mention stopped pools.
    from ..pool.registry import machine_orders

    ends = [one.until for one in machine_orders.of(registry, row.id) if one.until is not None]
    until = f" until {clock(max(ends))}" if ends else ""
    return (
        f"pool {row.name}: {row.nodes} {row.provider} machine{'s' if row.nodes > 1 else ''}, stopped; their disks stay "
        f"and cost{until}: `%sky start {row.name}` starts them, `%sky down {row.name}` ends them"
    )


def kept(row: PoolRow) -> str:
    """Describe a kept pool in a line."""
    with opened() as registry:
        return _kept(registry, row)


def _kept(registry: Registry, row: PoolRow) -> str:
    near = row.is_local
    text = f"pool {row.name}: {row.nodes} {row.provider} node{'s' if row.nodes > 1 else ''}, "
    text += "kept" if row.keep else "left by its notebook until its lease ends"
    if not row.is_here:
        return f"{text}, {row.where}: there `%sky attach {row.name}` attaches to it or `%sky down` ends it"
    # Imported here: loading the extension waits for it only if there is such a pool.
    from ..node.protocol.version import PROTOCOL
    from ..pool.registry.pool_record import protocol_of, unfit

    protocol = protocol_of(row)
    if protocol not in (None, PROTOCOL):
        return unfit(row.name, protocol or 0)
    # On other machines, it is known which runs began, but not whether they have ended since.
    found = sorted(running(row)) if near else [run.id for run in registry.running_runs(row.id, _SHOWN_RUNS)]
    for id in found:
        run = registry.run(id)
        if run is not None:
            minutes = max(0.0, time.time() - run.began) / 60
            since = f"for {minutes:.0f} min" if near else f"since {minutes:.0f} min ago, as far as is known"
            text += f", runs {id} ({short_title(run.title)}) {since}"
    return f"{text}; `%sky attach {row.name}` attaches to it"
