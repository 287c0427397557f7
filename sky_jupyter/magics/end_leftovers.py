"""Leftovers of pools on other machines, after a start or end was cut short."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence

from ..display.base.prompts import person
from ..errors import PoolError
from ..pool import end_without_manager
from ..pool.open_pools import pools
from ..pool.registry import provider_accounts, remote_leftovers
from ..pool.registry.ended_pools import Gone
from ..pool.registry.machine_sweep import left_over, sweep_machines
from ..pool.registry.registry import Registry, opened, sweep


def end_in_background(registry: Registry, before: Mapping[str, bool]) -> list[str]:
    """Begin to end leftovers in the background; return lines that describe them.

    Parameters
    ----------
    registry : Registry
        The registry, after a sweep.
    before : mapping of str to bool
        The pools' ids before the sweep, and whether their start or end was under way.

    Returns
    -------
    list of str
        The lines.
    """
    left, bought = remote_leftovers.orphans(registry), list[str]()
    # Leftovers whose lease is over have most likely ended: they are not mentioned.
    told = [trace for trace in left if before.get(trace.pool, True)]
    lines = [_left(name, hosts) for name, hosts in _by_pool(told).items()]
    with contextlib.suppress(PoolError):
        bought = left_over(registry)
        lines += [_bought(name) for name in bought]
    if left or bought or _has_bought(registry):
        threading.Thread(target=_end_left, name="sky-traces", daemon=True).start()
    return lines


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
    """End the leftovers that can be reached without asking the user.

    The next load of the extension names the rest.
    """
    with opened() as registry, contextlib.suppress(PoolError):
        sweep_machines(registry)
        remote_leftovers.end(registry, remote_leftovers.orphans(registry))


def end_left(name: str | None, gone: Gone | None = None) -> str:
    """End leftovers of pools on other machines; return what was done.

    These are the pools of this name, or all that nobody can attach to.

    Parameters
    ----------
    name : str, optional
        A pool's name or id; by default, all pools that nobody can attach to.
    gone : Gone, optional
        The ended pool in whose place nothing ran here; it is forgotten now.

    Returns
    -------
    str
        What was done, a line each.

    Raises
    ------
    PoolError
        When there is no such pool, or its machines cannot be reached.
    """
    with opened() as registry:
        sweep(registry)
        left = [trace for trace in remote_leftovers.orphans(registry) if name in (None, trace.name, trace.pool)]
        if not left:
            if name is not None and (told := person.wait(lambda: end_without_manager.end_named(name, person.prompts))):
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
