"""``%sky clean``: remove what pools have kept for later, here or on hosts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from ..bootstrap import cache_cleanup
from ..display.base.prompts import person
from ..errors import PoolError
from ..machines import remote_cleanup
from ..pool.registry import remote_leftovers
from ..pool.registry.machine_sweep import sweep_machines
from ..pool.registry.registry import Registry, sweep
from ..pool.registry.rows import PoolRow
from ..providers import SSH
from ..providers.base import ConnectionSession
from ..util.background_tasks import map_all
from ..util.text import format_size

if TYPE_CHECKING:
    from ..machines.base import Machine

T = TypeVar("T")


def here() -> str:
    """Clean this machine; return what was done, in a line.

    Returns
    -------
    str
        What was removed and ended.

    Raises
    ------
    PoolError
        When a pool uses what would be removed, or is being started.
    """
    rows = _rows()
    starting = [row for row in rows if row.state == "starting" and row.is_here and row.owner_lives]
    if starting:
        raise PoolError(f"this machine: pool {starting[0].name!r} is coming up; nothing has been removed")
    # A machine that shares this registry shares these folders too, and may use their files unnoticed.
    for row in rows:
        if row.is_local and not row.is_here:
            raise PoolError(
                f"this machine: pool {row.name!r} runs {row.where}, and may use what would be removed: end it there; "
                "nothing has been removed"
            )
    return _told("this machine", cache_cleanup.clean_here(_names(rows)))


def machines() -> list[str]:
    """End machines of pools that nobody else would end.

    Returns
    -------
    list of str
        What was done, a line each.

    Raises
    ------
    PoolError
        When some machines could not be confirmed to have ended.
    """
    registry = Registry()
    try:
        sweep(registry)
        swept = person.wait(lambda: sweep_machines(registry))
    finally:
        registry.close()
    if swept.failed:
        whys = "; ".join(f"pool {name}: {why}" for name, why in swept.failed.items())
        raise PoolError(f"machines could not be confirmed to end: {whys}; try again")
    return [f"pool {name}: all machines that were made for it have ended" for name in swept.pools]


def hosts(provider: SSH) -> list[str]:
    """Clean all or none of the hosts; return what was done, a line each.

    Of the user's own pools, the remains of ended ones, and those that nobody manages, are ended there. A pool that is
    kept, or that runs something, is not: its user may come back for it.

    Parameters
    ----------
    provider : SSH
        The hosts.

    Returns
    -------
    list of str
        What was done, a line each.

    Raises
    ------
    PoolError
        When a pool is on one of the hosts.
    MachineError
        When a host cannot be reached, or files there cannot be removed.
    """
    names = _names(_rows())
    machines = person.wait(lambda: provider.connect(provider.hosts, ConnectionSession(person.prompts)))
    try:
        ended = [_told_of(machine, ids) for machine, ids in zip(machines, _on_all(machines, _end_left), strict=True)]
        _on_all(machines, lambda machine: cache_cleanup.check_host(machine, names))
        freed = _on_all(machines, lambda machine: cache_cleanup.clean_host(machine, names))
    finally:
        for machine in machines:
            machine.close()
    told = [_told(machine.name, size) for machine, size in zip(machines, freed, strict=True)]
    return [*filter(None, ended), *told]


def _end_left(machine: Machine) -> list[str]:
    """End a host's pools that nobody can use any more; return their names."""
    registry = Registry()
    try:
        sweep(registry)
        found = {id: name for id in cache_cleanup.pools_on(machine) if (name := registry.left_name(id)) is not None}
        for trace in remote_leftovers.orphans(registry):
            if trace.host == machine.name:
                found.setdefault(trace.pool, trace.name)
        for id in found:
            folders = [path for trace in remote_leftovers.of(registry, id) for path in (trace.folder, trace.blobs)]
            remote_cleanup.run(machine, remote_cleanup.script(id, folders))
            for trace in remote_leftovers.of(registry, id):
                if trace.host == machine.name:
                    remote_leftovers.forget_ended(registry, trace)
        return list(found.values())
    finally:
        registry.close()


def _told_of(machine: Machine, names: Sequence[str]) -> str:
    many = "pools" if len(names) > 1 else "pool"
    return f"{machine.name}: what was left of {many} {', '.join(map(repr, names))} is ended" if names else ""


def _on_all(machines: Sequence[Machine], work: Callable[[Machine], T]) -> list[T]:
    return map_all(work, machines, "sky-clean", most=len(machines))


def _rows() -> list[PoolRow]:
    registry = Registry()
    try:
        with contextlib.suppress(PoolError):
            return registry.pools()
        return []
    finally:
        registry.close()


def _names(rows: Sequence[PoolRow]) -> dict[str, str]:
    return {row.id: row.name for row in rows}


def _told(place: str, freed: int) -> str:
    return f"{place}: {format_size(freed)} freed" if freed else f"{place}: nothing to remove"
