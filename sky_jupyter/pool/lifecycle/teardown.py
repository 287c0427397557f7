"""Teardown of a pool: its kernels, hosts and machines end, which is recorded."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ...providers.base import provider_of
from ...util.text import first_line
from ..base import retries
from ..base.event_loop import loop
from ..base.timeouts import TIMEOUTS
from ..context import PoolContext
from ..hosts import launch, remote_host
from ..registry import stopped_pools
from ..registry.stopped_pools import STOPPED
from .kernel_shutdown import Tell, silently
from .state_machine import PoolState

if TYPE_CHECKING:
    from ..base.log import PoolLog
    from ..execution.supervisor import Supervisor
    from ..execution.unresponsive_notices import Watchdog
    from ..hosts.pool_link import PoolLink
    from ..registry.registry import Registry
    from ..registry.remote_leftovers import RemotePart, Traces
    from .cost_meter import CostMeter
    from .kernel_shutdown import Leaving
    from .provisioning import Provisioning
    from .state_machine import StateMachine
    from .ttl import Expiry

_END_PATIENCE = TIMEOUTS.end.others
# The ranks' shutdown, in addition to their own time: plugins exit before.
_LEAVE_PATIENCE = TIMEOUTS.end.ranks
# The time for the processes of destroyed machines to end visibly.
_HOSTS_OF_ENDED = TIMEOUTS.machines.hosts
_LOOK = TIMEOUTS.polls.machines


class TeardownContext(PoolContext, Protocol):
    """The pool's lifecycle as seen by its teardown."""

    hosts: list[launch.Host]
    machines: list[Any]
    link: PoolLink | None
    ids: Sequence[str]
    owner: int
    exit_timeout: float
    # Unset while hosts are being started on other machines.
    launches_done: threading.Event
    farewell: Callable[[str], None]
    logger: PoolLog
    registry: Registry
    states: StateMachine
    supervisor: Supervisor
    watchdog: Watchdog
    leaving: Leaving
    provisioning: Provisioning
    expiry: Expiry
    meter: CostMeter

    @property
    def state(self) -> PoolState: ...

    @property
    def traces(self) -> Traces:
        """The registry's records of its parts on other machines."""
        ...

    @property
    def away(self) -> dict[str, str]:
        """The unreachable machines, each with a description."""
        ...

    @property
    def is_watched(self) -> bool:
        """Whether runs have listeners that hear of failures."""
        ...

    def off(self, hosts: Sequence[launch.Host]) -> set[str]:
        """Return the machines that are known to run nothing."""
        ...

    def stop_changes(self) -> None:
        """Stop what restarts, resizes or repairs the pool."""
        ...

    def leave_client(self) -> None:
        """Leave the notebook's plugin contexts and close the client of Dask workers."""
        ...

    def down(self) -> None:
        """End the pool, or leave it as a guest."""
        ...


class Teardown:
    """Teardown of one pool; made with it.

    Parameters
    ----------
    pool : TeardownContext
        The pool.
    """

    def __init__(self, pool: TeardownContext) -> None:
        self.pool = pool
        # Machines that were created for it and not seen to end; None while that is not known.
        self.unended: list[str] | None = None
        # Machines that were unreachable when the pool was ended: what runs there ends by its lease.
        self.unsure: list[str] = []
        # Hosts that could not be ended because they were unreachable; retried when they are back.
        self.unreachable: list[launch.Host] = []
        # Whether it only stops the pool's machines, and does not destroy them; and whether the registry says so.
        self.keeps_machines = self._is_stop_recorded = False
        # Whether the pool's ttl is over, or it has ended by itself for another reason; and that reason, "" for the ttl.
        self.expired, self._why_expired = False, ""
        # True once the provider has shown that all machines are gone, so that nothing is left on any.
        self._are_machines_gone = False
        # Whether the end has been recorded; the thread that ends the pool, 0 for none, and whether that is done.
        self._closed, self._ender, self._has_ended = False, 0, threading.Event()

    def keep_machines(self) -> None:
        """Have the end keep the machines; raise PoolError if it cannot be recorded."""
        # Before anything ends: sweeps destroy the disks of a pool without an owner that is not recorded as stopped.
        self.pool.registry.update(self.pool.id, STOPPED)
        self.keeps_machines = self._is_stop_recorded = True

    def run(self, tell: Tell = silently) -> None:
        """End the pool, for its manager; see `PoolLifecycle.down`."""
        pool = self.pool
        ours = not pool.states.is_over and pool.owner == os.getpid()
        if ours:
            self._ender = threading.get_ident()
        pool.states.to(PoolState.ENDED, self._why_over)
        if not ours:
            if self._ender not in (0, threading.get_ident()):
                # This process may exit next, which would end that thread before the pool.
                self._has_ended.wait(pool.spec.options.shutdown_timeout)
            return
        try:
            self._end(tell)
        finally:
            self._has_ended.set()

    def _end(self, tell: Tell) -> None:
        """End the pool, which is in the state ENDED."""
        pool = self.pool
        limit = pool.spec.options.shutdown_timeout
        wait = min(limit, pool.exit_timeout)
        with going_on(lambda: self._end_unwatched(limit)):
            self._begin_end()
            end = time.monotonic() + limit
            with pool.watchdog.telling(pool.leaving.hear):
                interrupt = pool.leaving.attend(self.leave(wait), min(limit, wait + _LEAVE_PATIENCE), tell)
                hosts = [*pool.hosts, *self.unreachable]
                left = max(0.0, end - time.monotonic())
                # The provider's list is polled once more after the limit.
                margin = _LOOK if pool.provisioning.buys(pool.spec) else 0.0
                done = retries.in_time(
                    lambda: self._end_all(hosts, left), left + margin, lambda: pool.leaving.say(tell)
                )
            if not done:
                self.unsure = sorted({host.name or "a local node" for host in hosts})
                pool.logger.write(logging.WARNING, f"{', '.join(self.unsure)} did not end within {limit:g} s")
        self._record_end(tell)
        self.close("ended")
        if interrupt is not None:
            raise interrupt

    def _begin_end(self) -> None:
        """Stop what changes or uses the pool, and record that it ends."""
        pool = self.pool
        pool.stop_changes()
        pool.leave_client()
        if pool.spec.provider.survives_manager:
            # If this process dies meanwhile, no manager attaches to the rest.
            with contextlib.suppress(Exception):
                pool.registry.update(pool.id, STOPPED if self.keeps_machines else "ending")
                self._is_stop_recorded = self.keeps_machines
        if pool.link is not None:
            # All hosts are ended through it.
            pool.link.wake()

    def _end_all(self, hosts: Sequence[launch.Host], limit: float) -> None:
        """End the hosts; in parallel, destroy the pool's machines."""
        pool = self.pool
        if not pool.provisioning.buys(pool.spec):
            with contextlib.suppress(Exception):
                provider_of(pool.spec).destroy(pool.ids)
            self.unended = []
            self.end_hosts(hosts)
            self._record_late_end()
            return
        beside = threading.Thread(target=self.end_hosts, args=(hosts,), name="sky-end-hosts", daemon=True)
        beside.start()
        if self.keeps_machines:
            beside.join(limit)
            unended = pool.provisioning.halt(pool.spec, pool.ids, limit)
        else:
            unended = pool.provisioning.end(pool.spec, limit)
        beside.join(_HOSTS_OF_ENDED if not unended else limit)
        if not unended:
            # Threads that still wait for their hosts have nothing more to report.
            self._are_machines_gone = not self.keeps_machines
            self.unreachable, self.unsure = [], []
            for trace in pool.traces.left():
                pool.traces.forget(trace.folder)
            self.hang_up()
        self.unended = unended
        self._record_late_end()

    def _record_late_end(self) -> None:
        if self.pool.state is PoolState.ENDED and self._closed:
            self._record_end(silently)

    def _end_unwatched(self, limit: float) -> None:
        """End the pool when no thread waits for it any more."""
        pool = self.pool
        self._closed = True
        pool.leave_client()
        if pool.has_control and not pool.control.closing:
            # The interrupt came before the kernels were to end.
            with contextlib.suppress(Exception):
                loop().call(self.leave(), timeout=_LEAVE_PATIENCE)
        self._end_all([*pool.hosts, *self.unreachable], limit)
        self.close("ended")

    def _record_end(self, tell: Tell) -> None:
        """Record the end; with machines left, it stays ``ending``."""
        pool = self.pool
        self._closed = True
        with contextlib.suppress(Exception):
            if self.unended == [] and not self.keeps_machines:
                stopped_pools.remove(pool.id)
                pool.registry.update(pool.id, "ended")
            else:
                self._record_stop(tell)
                pool.registry.release(pool.id)
            pool.registry.close()
        if self.unended != []:
            left = ", ".join(self.unended or ["what was made"])
            what = "stop" if self.keeps_machines else "end"
            text = (
                f"machines of pool {pool.spec.name!r} could not be confirmed to {what}: {left}; this is tried again "
                "when the extension is loaded, and by `%sky clean`"
            )
            pool.logger.write(logging.WARNING, text)
            tell(text)

    def _record_stop(self, tell: Tell) -> None:
        """Record that the pool is stopped, unless it ends or that is done."""
        pool = self.pool
        if not self.keeps_machines or self._is_stop_recorded:
            return
        try:
            pool.registry.update(pool.id, STOPPED)
            self._is_stop_recorded = True
        except Exception as error:
            # Sweeps leave the pool alone while it has an owner, which is this process.
            text = (
                f"pool {pool.spec.name!r} could not be recorded as stopped ({first_line(error)}): sweeps end its "
                "machines, with their disks, after this notebook has ended"
            )
            pool.logger.write(logging.WARNING, text)
            tell(text)
            raise

    def close(self, word: str) -> None:
        """Stop the timers and close the log at the end of management."""
        pool = self.pool
        pool.expiry.stop()
        pool.meter.stop()
        pool.watchdog.close()
        pool.logger.write(logging.INFO, word)
        pool.logger.close()

    def expire(self, why: str = "") -> None:
        """End the pool as its ``ttl`` is over, or because of ``why``; runs in a thread."""
        pool = self.pool
        if pool.states.is_over:
            return
        self.expired, self._why_expired = True, why
        pool.logger.write(logging.WARNING, self.why_expired)
        unwatched = not pool.is_watched
        pool.down()
        if unwatched:
            pool.farewell(f"pool {pool.spec.name!r} has ended: {self.why_expired}")

    def end_hosts(self, hosts: Sequence[launch.Host]) -> None:
        """End hosts, remote ones in parallel, and the connections to them."""
        pool = self.pool
        for host in hosts:
            host.exit_timeout = pool.exit_timeout
        if not pool.spec.provider.survives_manager:
            for host in hosts:
                with contextlib.suppress(Exception):
                    host.end()
            return
        missed = {*pool.away, *pool.off(hosts)}
        unsure = remote_host.end_all(hosts, missed)
        # A host that was starting when the others ended may be up by now.
        pool.launches_done.wait(_END_PATIENCE)
        unsure += remote_host.end_all([host for host in pool.hosts if host not in hosts], missed)
        if not self._are_machines_gone:
            ended = set(map(id, hosts))
            self.unreachable = [*(host for host in self.unreachable if id(host) not in ended), *unsure]
            left = pool.traces.left() if pool.state is PoolState.ENDED else []
            self.unsure = sorted({*(host.name for host in self.unreachable), *(trace.host for trace in left)})
        self.hang_up()

    def end_unreachable(self) -> None:
        """End old hosts on machines that are reachable again."""
        there = {machine.key: machine for machine in self.pool.machines}
        for host in self.unreachable:
            host.machine = there.get(host.machine.key, host.machine)
        self.unreachable = remote_host.end_all(self.unreachable)

    def hang_up(self) -> None:
        """Close the link, and with it all connections."""
        link, self.pool.link, self.pool.machines = self.pool.link, None, []
        if link is None:
            return
        left = self.pool.traces.left() if self.pool.state is PoolState.ENDED else []
        with contextlib.suppress(Exception):
            if left:
                self._finish(link, left)
            else:
                link.end()

    def _finish(self, link: PoolLink, left: Sequence[RemotePart]) -> None:
        """Let the link retry to end what was not confirmed as ended."""
        scripts: dict[str, list[str]] = {}
        for trace in left:
            scripts.setdefault(trace.host, []).append(trace.script)

        def ended(host: str) -> None:
            for trace in left:
                if trace.host == host:
                    self.pool.traces.forget(trace.folder)

        link.finish(scripts, ended)

    async def leave(self, exit_timeout: float = 0.0) -> None:
        """End all kernels, within ``exit_timeout`` seconds; close the agents' client."""
        pool = self.pool
        busy = pool.supervisor.busy
        # Threads that wait for a run go on.
        pool.supervisor.lose_all(self._word_of_end)
        pool.supervisor.close()
        if not pool.has_control:
            return
        pool.control.why_closed = self._word_of_end
        try:
            await pool.leaving.end_all(exit_timeout, busy=busy)
        finally:
            await pool.control.close()

    @property
    def why_expired(self) -> str:
        """The reason why it has ended by itself."""
        return self._why_expired or self.pool.expiry.text

    @property
    def _why_over(self) -> str:
        """The reason why it ends by itself, or ""."""
        return self._why_expired or (self.pool.expiry.text if self.pool.expiry.over else "")

    @property
    def _word_of_end(self) -> str:
        return f"the pool was ended: {self._why_over}" if self._why_over else "the pool was ended"


@contextlib.contextmanager
def going_on(work: Callable[[], None]) -> Iterator[None]:
    """Run ``work`` in a thread if an interrupt ends the block."""
    try:
        yield
    except KeyboardInterrupt:
        threading.Thread(target=work, name="sky-end", daemon=True).start()
        raise
