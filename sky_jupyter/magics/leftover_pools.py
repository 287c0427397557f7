"""Pools that a notebook left: what loading the extension says of them, and how what they left is ended."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence

from ..display.base.prompts import person
from ..errors import PoolError
from ..node.protocol.version import PROTOCOL
from ..pool import end_pool
from ..pool.open_pools import pools
from ..pool.registry import machine_orders, provider_accounts, remote_leftovers
from ..pool.registry.ended_pools import Gone
from ..pool.registry.machine_sweep import left_over, sweep_machines
from ..pool.registry.pool_record import protocol_of, unfit
from ..pool.registry.registry import Registry, running, sweep
from ..pool.registry.rows import PoolRow, clock
from ..pool.registry.stopped_pools import STOPPED
from .runs_table import opened_registry, short

_SHOWN_RUNS = 20


def news() -> list[str]:
    """Sweep what a crash left and describe the kept pools, a line each.

    What is wrong with the registry follows.
    """
    with opened_registry() as registry:
        before: dict[str, bool] = {}
        with contextlib.suppress(PoolError):
            before = {row.id: row.unfinished for row in registry.pools()}
        sweep(registry)
        lines = []
        with contextlib.suppress(PoolError):
            rows = [row for row in registry.pools() if row.outlives and pools.get(row.name) is None]
            lines = [_kept(registry, row) for row in rows]
        left, bought = remote_leftovers.orphans(registry), list[str]()
        # Those whose lease is over have most likely ended.
        told = [trace for trace in left if before.get(trace.pool, True)]
        lines += [_left(name, hosts) for name, hosts in _by_pool(told).items()]
        with contextlib.suppress(PoolError):
            bought = left_over(registry)
            lines += [_bought(name) for name in bought]
        if left or bought or _has_bought(registry):
            threading.Thread(target=_end_left, name="sky-traces", daemon=True).start()
        return [*lines, *registry.take_warnings()]


def _has_bought(registry: Registry) -> bool:
    with contextlib.suppress(PoolError):
        return bool(provider_accounts.of(registry))
    return False


def _by_pool(left: Sequence[remote_leftovers.RemotePart]) -> dict[str, str]:
    found: dict[str, list[remote_leftovers.RemotePart]] = {}
    for trace in left:
        found.setdefault(trace.name, []).append(trace)
    return {name: remote_leftovers.hosts_of(several) for name, several in found.items()}


def _left(name: str, hosts: str) -> str:
    return (
        f"pool {name}: what it left on {hosts} when its start or end was cut short is being ended; "
        f"`%sky down --name {name}` does so too, and says why where it cannot be"
    )


def _bought(name: str) -> str:
    return (
        f"pool {name}: machines that were made for it are being ended, as nobody else would; "
        "`%sky clean` does so too, and says what came of it"
    )


def _end_left() -> None:
    """End what can be reached without asking anybody.

    The next load of the extension names the rest.
    """
    with opened_registry() as registry, contextlib.suppress(PoolError):
        sweep_machines(registry)
        remote_leftovers.end(registry, remote_leftovers.orphans(registry))


def end_left(name: str | None, gone: Gone | None = None) -> str:
    """End what pools have left on other machines; return what was done.

    Those of this name, or all that nobody can attach to.

    Parameters
    ----------
    name : str, optional
        A pool's name or id; unless given, all that nobody can take up.
    gone : Gone, optional
        The pool in whose place nothing ran here, and which is forgotten now.

    Returns
    -------
    str
        What was done, a line each.

    Raises
    ------
    PoolError
        When there is nothing, or it cannot be reached.
    """
    with opened_registry() as registry:
        sweep(registry)
        left = [trace for trace in remote_leftovers.orphans(registry) if name in (None, trace.name, trace.pool)]
        if not left:
            if name is not None and (told := person.wait(lambda: end_pool.end_named(name, person.prompts))):
                return told
            if gone is not None:
                return f"{gone.text}; it is forgotten, and cells run on this machine again"
            if name is None:
                return "there is no pool, and nothing to end"
            pools.need(name)
        ended, failed = person.wait(lambda: remote_leftovers.end(registry, left, person.prompts))
    lines = [f"pool {name}: ended on {hosts}" for name, hosts in _by_pool(ended).items()]
    if failed:
        whys = "; ".join(f"{host}: {why}" for host, why in failed.items())
        done = f"{'; '.join(lines)}; but " if lines else ""
        raise PoolError(f"{done}what pools have left there cannot be ended just now: {whys}")
    return "\n".join(lines)


def nobodys() -> list[str]:
    """Describe the kept pools that nobody manages, a line each."""
    with opened_registry() as registry, contextlib.suppress(PoolError):
        rows = registry.pools()
        left = [_kept(registry, row) for row in rows if row.outlives and not row.owner_lives]
        return [*left, *(_stopped(registry, row) for row in rows if row.state == STOPPED)]
    return []


def _stopped(registry: Registry, row: PoolRow) -> str:
    """Describe a stopped pool in a line."""
    ends = [one.until for one in machine_orders.of(registry, row.id) if one.until is not None]
    until = f" until {clock(max(ends))}" if ends else ""
    return (
        f"pool {row.name}: {row.nodes} {row.provider} machine{'s' if row.nodes > 1 else ''}, stopped; their disks stay "
        f"and cost{until}: `%sky start {row.name}` starts them, `%sky down {row.name}` ends them"
    )


def kept(row: PoolRow) -> str:
    """Describe a kept pool in a line."""
    with opened_registry() as registry:
        return _kept(registry, row)


def _kept(registry: Registry, row: PoolRow) -> str:
    near = row.provider == "local"
    text = f"pool {row.name}: {row.nodes} {row.provider} node{'s' if row.nodes > 1 else ''}, "
    text += "kept" if row.keep else "left by its notebook until its lease ends"
    if not row.is_here:
        return f"{text}, {row.where}: there `%sky attach {row.name}` attaches to it or `%sky down` ends it"
    protocol = protocol_of(row)
    if protocol not in (None, PROTOCOL):
        return unfit(row.name, protocol or 0)
    # Of other machines it is known what began there, and not whether it has ended since.
    found = sorted(running(row)) if near else [run.id for run in registry.running_runs(row.id, _SHOWN_RUNS)]
    for id in found:
        run = registry.run(id)
        if run is not None:
            minutes = max(0.0, time.time() - run.began) / 60
            since = f"for {minutes:.0f} min" if near else f"since {minutes:.0f} min ago, as far as is known"
            text += f", runs {id} ({short(run.title)}) {since}"
    return f"{text}; `%sky attach {row.name}` attaches to it"
