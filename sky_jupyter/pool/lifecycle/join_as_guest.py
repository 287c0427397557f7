"""Opening of a pool as its guest."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING

from ..base.event_loop import Tick, loop, wait_ticking
from ..hosts import launch
from ..registry.pool_record import PoolRecord
from ..registry.registry import PoolRow
from . import attach
from .guest import Guest
from .state_machine import PoolState

if TYPE_CHECKING:
    from .lifecycle import PoolLifecycle


def join(pool: PoolLifecycle, row: PoolRow, record: PoolRecord, tick: Tick) -> None:
    """Become a guest of a pool, which keeps its manager."""
    pool.id, pool.began, pool.ids = row.id, time.perf_counter(), record.ids
    pool.incarnations, pool.generation = dict(record.incarnations), row.generation
    pool.guest = guest = Guest(pool.registry, row)
    turns = pool.supervisor.turns
    turns.guest, turns.find_gone = guest.id, guest.find_gone
    turns.reset()
    pool.logger.open()
    try:
        with pool.watchdog.telling(pool.listener):
            wait_ticking(loop().submit(attach.connect(pool, record)), tick)
            wait_ticking(loop().submit(_greet(pool)), tick)
        pool.become_ready()
    except BaseException:
        pool.states.to(PoolState.ENDED)
        with contextlib.suppress(Exception):
            loop().call(pool.disconnect(), timeout=5)
        for host in pool.hosts:
            host.leave()
        if pool.link is not None:
            pool.link.give_up()
        raise
    launch.settle(pool.hosts)
    pool.logger.write(logging.INFO, "joined as a guest")
    try:
        pool.enter_client()
    except Exception as error:
        # Cells work all the same.
        pool.supervisor.news.append(f"a plugin could not be entered in this notebook: {error}")


async def _greet(pool: PoolLifecycle) -> None:
    """Learn which names other notebooks' runs have assigned so far."""
    await asyncio.wait_for(pool.supervisor.look_at_others(), attach.JOIN_TIMEOUT)
