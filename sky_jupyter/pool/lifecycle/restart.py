"""Restart of a pool: new kernels, or other hosts where those are lost."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ...errors import PoolError
from ...node.protocol import rpc
from ...util.text import first_line
from ..base.event_loop import Tick, loop, no_tick, wait_ticking
from ..base.events import Listener, NoticeEvent, ignore
from ..context import PoolContext
from ..hosts import launch
from .state_machine import PoolState
from .teardown import going_on

if TYPE_CHECKING:
    from ..base.phases import PhaseLog
    from ..execution.supervisor import Supervisor
    from ..execution.unresponsive_notices import Watchdog
    from ..registry.registry import Registry
    from .comeback import Comeback
    from .dask_cluster import PoolDask
    from .failure import PoolFailure
    from .provisioning import Provisioning
    from .state_machine import StateMachine
    from .teardown import Teardown


class RestartContext(PoolContext, Protocol):
    """The pool's lifecycle as seen by its restart, which may make all hosts again."""

    hosts: list[launch.Host]
    # Set to cancel the start of machines and hosts.
    stop_event: threading.Event
    states: StateMachine
    supervisor: Supervisor
    watchdog: Watchdog
    registry: Registry
    provisioning: Provisioning
    phases: PhaseLog
    workers: PoolDask
    teardown: Teardown
    failure: PoolFailure
    comeback: Comeback

    @property
    def state(self) -> PoolState: ...

    @property
    def listener(self) -> Listener:
        """The sender of events to the listener and the log."""
        ...

    @listener.setter
    def listener(self, listener: Listener) -> None: ...

    def refuse_guest(self, done: str) -> None:
        """Raise PoolError if this is a guest; ``done`` is the change, as in "restarted"."""
        ...

    def changing(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Exclude other changes of the pool."""
        ...

    def give_up_replacement(self) -> None:
        """Stop the replacement of machines: all of the pool changes."""
        ...

    async def make_nodes(self) -> None:
        """Make all nodes, up to kernels that are ready."""
        ...

    def become_ready(self) -> None:
        """Set the state to READY; raise PoolError if impossible."""
        ...

    def record_ready(self) -> None:
        """Record that the pool is ready, and its hosts."""
        ...


class PoolRestart:
    """Restarts of one pool; made with it.

    Parameters
    ----------
    pool : RestartContext
        The pool.
    """

    def __init__(self, pool: RestartContext) -> None:
        self.pool = pool

    def run(self, listener: Listener = ignore, tick: Tick = no_tick, ranks: Sequence[int] | None = None) -> None:
        """Restart kernels and plugins; replace hosts that are lost.

        Parameters
        ----------
        listener : callable
            Receives the phases.
        tick : callable
            Called every poll.
        ranks : sequence of int, optional
            Ranks that get a new kernel, by default all; if the others cannot go on without them, all do. If the pool is
            restarting by itself, a restart of all waits for that instead.
        """
        self.pool.refuse_guest("restarted")
        if ranks is None and self.pool.comeback.join(listener, tick):
            return
        with self.pool.changing("restarted"):
            self._restart(listener, tick, ranks)

    def renew(self, listener: Listener = ignore, tick: Tick = no_tick) -> None:
        """Recreate a broken pool, unless it has done so by itself meanwhile; see `run`."""
        if not self.pool.comeback.join(listener, tick) and self.pool.state is PoolState.BROKEN:
            self.run(listener, tick)

    def come_back(self, why: str, listener: Listener, tick: Tick) -> None:
        """Recreate a broken pool on its existing machines only; see `Comeback`."""
        pool = self.pool
        with pool.changing("restarted"), pool.provisioning.adopting():
            if pool.state is PoolState.BROKEN:
                pool.failure.anew = why
                self._restart(listener, tick, None)

    def _restart(self, listener: Listener, tick: Tick, ranks: Sequence[int] | None) -> None:
        """Restart the pool, which nothing else changes."""
        pool = self.pool
        pool.require_live(restarting=True)
        pool.give_up_replacement()
        pool.listener = listener
        away = pool.control.lost or pool.control.silent or len(pool.control.addresses) < pool.spec.nodes
        whole = bool(away) or pool.state is PoolState.BROKEN or pool.watchdog.keeper_stands_still
        if not whole and (bare := self._nodes_without_folder()):
            names = ", ".join(f"node {node}{pool.supervisor.names.get(node, '')}" for node in bare)
            listener(NoticeEvent(f"somebody has removed the pool's folder on {names}: the pool is recreated"))
            whole, ranks = True, None
        if whole:
            pool.workers.close()
        if whole and ranks is not None:
            raise PoolError(f"nodes of pool {pool.spec.name!r} are lost: restart all of it, not some of its ranks")
        if whole and pool.spec.provider.survives_manager:
            # Until it is ready again, no manager can attach to it. If this fails, nothing has been changed.
            pool.registry.update(pool.id, "starting")
        pool.stop_event = threading.Event()
        work = loop().submit(self._relaunch() if whole else pool.supervisor.repairs.restart(ranks))
        try:
            with pool.watchdog.telling(pool.listener):
                wait_ticking(work, tick)
            if whole:
                pool.become_ready()
        except BaseException as error:
            if whole:
                # Else this work would go on beside the next restart.
                work.cancel()
                self._end_half_made(error)
            raise
        if pool.state is PoolState.ENDED:
            # Another thread has ended it.
            pool.teardown.end_hosts(list(pool.hosts))
        pool.become_ready()
        pool.failure.anew = ""
        if whole:
            pool.record_ready()

    def _nodes_without_folder(self) -> list[int]:
        """Return the nodes whose folder was removed."""
        # The restart itself reports nodes that do not answer.
        with contextlib.suppress(Exception):
            answers = loop().call(self.pool.control.ask(rpc.STATUS, range(self.pool.spec.nodes)), timeout=5)
            return [node for node, status in answers.items() if not status.get("folder", True)]
        return []

    def _end_half_made(self, error: BaseException) -> None:
        """Discard a failed restart, which may be repeated."""
        pool = self.pool
        pool.stop_event.set()
        pool.states.offer(PoolState.BROKEN, f"it could not be recreated ({first_line(error)})")
        hosts = pool.hosts
        with going_on(lambda: pool.teardown.end_hosts(hosts)):
            with contextlib.suppress(Exception):
                loop().call(pool.teardown.leave(), timeout=10)
            hosts, pool.hosts = pool.hosts, []
            pool.teardown.end_hosts(hosts)

    async def _relaunch(self) -> None:
        """End all hosts, and make the pool's nodes again."""
        pool = self.pool
        # From here on, events of the old hosts are ignored.
        hosts, pool.hosts = pool.hosts, []
        pool.supervisor.lose_all("the pool is recreated")
        pool.watchdog.forget()
        pool.phases.clear(pool.phases.usual)
        pool.supervisor.close()
        pool.states.to(PoolState.NEW)
        await pool.control.close()
        await asyncio.to_thread(pool.teardown.end_hosts, hosts)
        await pool.make_nodes()
        pool.supervisor.restarted.update(range(pool.spec.world_size))
