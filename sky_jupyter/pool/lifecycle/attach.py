"""Attachment to a pool that outlived its manager."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING

from ...errors import NodeLost, PoolError
from ...providers.base import provider_of
from ..base.event_loop import Tick, loop, wait_ticking
from ..base.timeouts import TIMEOUTS
from ..hosts import launch, remote_host
from ..hosts.remote_host import PoolGone
from ..registry import folder_removal
from ..registry.pool_record import PoolRecord
from ..registry.registry import PoolRow
from .provisioning import Provisioning
from .state_machine import PoolState

if TYPE_CHECKING:
    from .lifecycle import PoolLifecycle

JOIN_TIMEOUT = TIMEOUTS.start.join


def take_up(pool: PoolLifecycle, row: PoolRow, record: PoolRecord, take_over: bool, tick: Tick) -> None:
    """Become the manager of a pool; on failure, leave it as it was."""
    pool.id, pool.began, pool.ids = row.id, time.perf_counter(), record.ids
    pool.incarnations = dict(record.incarnations)
    pool.provisioning = Provisioning(pool.registry, pool.id)
    pool.generation = pool.registry.own(row.id, take_over=take_over)
    # An earlier manager may have admitted guests.
    pool.supervisor.turns.shared = True
    pool.logger.open()
    work = loop().submit(connect(pool, record))
    try:
        with pool.watchdog.telling(pool.listener):
            wait_ticking(work, tick)
        pool.become_ready()
    except BaseException as error:
        # Else an interrupted one would go on.
        work.cancel()
        _not_joined(pool, row, error)
        raise
    # The previous manager may have died before it told the hosts that the pool is ready.
    launch.settle(pool.hosts)
    ends = getattr(record, "ends", None)
    pool.expiry.begin(None if ends is None else ends - time.time())
    pool.meter.begin(at_once=True)
    pool.logger.write(logging.INFO, "attached")
    try:
        pool.enter_client()
    except Exception as error:
        # Cells work all the same.
        pool.supervisor.news.append(f"a plugin could not be entered in this notebook: {error}")


async def connect(pool: PoolLifecycle, record: PoolRecord) -> None:
    """Connect to the hosts and agents of a pool that another process has started."""
    if not pool.spec.provider.survives_manager:
        pool.hosts = [launch.adopt(host) for host in record.hosts]
    else:
        with pool.phase("connect", str(pool.spec.provider)):
            await asyncio.to_thread(_reconnect, pool, record)
    for host in pool.hosts:
        pool.host_events.watch_over(host)
    pool.scheduler_there = record.scheduler
    pool.scheduler_address = await asyncio.to_thread(pool.hosts[0].reach, record.scheduler)
    pool.shape = getattr(record, "shape", 0)
    control = pool.make_control(direct=record.direct)
    folder = pool.hosts[0].folder
    with pool.phase("agent", "connecting"):
        try:
            address = pool.scheduler_address
            await control.connect(address, folder, pool.spec.nodes, JOIN_TIMEOUT, lambda: "")
        except (NodeLost, OSError) as error:
            raise PoolError(f"pool {pool.spec.name!r} cannot be reached: {error}{pool.watchdog.why}") from None
        await pool.meet_pythons()
        with contextlib.suppress(NodeLost):
            await pool.supervisor.look_for_ended()
    for host in pool.hosts:
        pool.host_events.listen(host)


def _reconnect(pool: PoolLifecycle, record: PoolRecord) -> None:
    """Reopen the connections to the hosts, by the old link or a new one."""
    pool.link, pool.hosts = remote_host.reopen(
        record.hosts, pool.spec.name, pool.traces, pool.prompts, provider_of(pool.spec), record.ids
    )
    pool.machines = [host.machine for host in pool.hosts if not host.here]
    remote_host.relay(pool.hosts, record.scheduler)
    pool.link.listen(pool.host_events.on_link, pool.is_off)
    if pool.guest is None:
        pool.keep_link()


def _not_joined(pool: PoolLifecycle, row: PoolRow, error: BaseException) -> None:
    """Undo a failed attachment; forget a pool that has ended."""
    pool.states.to(PoolState.ENDED)
    try:
        # Its pings would keep the nodes beyond their lease, for as long as this process lives.
        with contextlib.suppress(Exception):
            loop().call(pool.disconnect(), timeout=5)
    finally:
        # Also if the user interrupts that.
        _give_back(pool, row, error)


def _give_back(pool: PoolLifecycle, row: PoolRow, error: BaseException) -> None:
    for host in pool.hosts:
        host.leave()
    if pool.link is not None:
        pool.link.give_up()
    with contextlib.suppress(PoolError):
        if isinstance(error, PoolGone):
            folder_removal.remove(row.id, row.folders)
            for trace in pool.traces.left():
                pool.traces.forget(trace.folder)
            pool.registry.update(row.id, "ended")
        pool.registry.release(row.id)
