"""Stop of a pool's machines, whose disks stay, and the start of such a pool."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...errors import PoolError, SkyError
from ...providers.base import can_stop
from ...providers.provisioning_types import STOPPED
from ..base.timeouts import TIMEOUTS
from ..registry import stopped_pools
from .provisioning import Provisioning

if TYPE_CHECKING:
    from ...providers.base import Provider
    from ..registry.rows import PoolRow
    from .kernel_shutdown import Tell
    from .lifecycle import PoolLifecycle

_LOOK = TIMEOUTS.machines.sweep_pause * 5


def stop(pool: PoolLifecycle, tell: Tell) -> float:
    """End a pool, stop its machines; return when their disks are deleted (Unix time).

    Raises PoolError if its machines cannot be stopped, or the registry cannot be written.
    """
    provider = pool.spec.provider
    if pool.states.is_over:
        pool.states.require_live()
    if not can_stop(provider):
        raise PoolError(f"machines of {provider} cannot be stopped: `%sky down` ends the pool")
    if any(record.market == "spot" for record in provider.describe(pool.ids)):
        raise PoolError("spot machines cannot be stopped and started: `%sky down` ends the pool")
    stopped_pools.write(pool.id, pool.spec, pool.ids)
    until = pool.provisioning.deadline(pool.spec)
    pool.teardown.keep_machines()
    pool.down(tell)
    return until


def resume(pool: PoolLifecycle, row: PoolRow, ids: Sequence[str]) -> None:
    """Make ``pool`` the stopped pool of ``row``, and start its machines only.

    Raises PoolError if its machines have ended, and SkyError if they cannot be started now: the pool stays stopped.
    """
    provider = pool.spec.provider
    if not can_stop(provider):
        raise PoolError(f"machines of {provider} cannot be started")
    gone = [record.id for record in provider.describe(ids) if not record.is_there or record.state == "unknown"]
    if gone:
        raise PoolError(f"pool {row.name!r} cannot be started: {', '.join(gone)} has ended; `%sky down {row.name}`")
    pool.registry.own(row.id)
    try:
        provider.start(ids)
        _wait(provider, ids, pool.spec.options.provision_timeout)
    except BaseException:
        # Machines that have started are stopped again, as far as possible.
        with contextlib.suppress(SkyError, OSError):
            provider.stop(ids)
        pool.registry.release(row.id)
        raise
    pool.id, pool.ids, pool.resumed = row.id, list(ids), True
    pool.provisioning = Provisioning(pool.registry, row.id)
    # Else the price is unknown until the meter looks.
    with contextlib.suppress(Exception):
        pool.provisioning.charge(pool.spec)


def _wait(provider: Provider, ids: Sequence[str], limit: float) -> None:
    """Wait until no machine is stopped any more."""
    end = time.monotonic() + limit
    while any(record.state == STOPPED for record in provider.describe(ids)):
        if time.monotonic() > end:
            raise PoolError(f"machines did not start within {limit:g} s: {', '.join(ids)}")
        time.sleep(_LOOK)


__all__ = ["resume", "stop"]
