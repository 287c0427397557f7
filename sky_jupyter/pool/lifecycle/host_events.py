"""Events of a pool's hosts and links, and the detection of lost hosts."""

from __future__ import annotations

import asyncio
import functools
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ...providers.base import has_queue, is_provisioner
from ..base.event_loop import loop
from ..base.timeouts import TIMEOUTS
from ..context import PoolContext
from ..hosts import indirect_probe, launch
from .lost_machines import loss_of
from .state_machine import PoolState

if TYPE_CHECKING:
    from ..execution.supervisor import Supervisor
    from ..execution.unresponsive_notices import Watchdog
    from .cost_meter import CostMeter
    from .failure import PoolFailure
    from .lost_machines import Loss
    from .state_machine import StateMachine
    from .teardown import Teardown
    from .ttl import Expiry

_LAST_WORDS = TIMEOUTS.end.last_words


class HostEventsContext(PoolContext, Protocol):
    """The pool as seen by its hosts' events."""

    @property
    def hosts(self) -> list[launch.Host]:
        """The hosts of its nodes, with those being started."""
        ...

    @property
    def ids(self) -> Sequence[str]: ...

    @property
    def incarnations(self) -> Mapping[str, str]: ...

    @property
    def state(self) -> PoolState: ...

    @property
    def states(self) -> StateMachine: ...

    @property
    def supervisor(self) -> Supervisor: ...

    @property
    def watchdog(self) -> Watchdog: ...

    @property
    def expiry(self) -> Expiry: ...

    @property
    def meter(self) -> CostMeter: ...

    @property
    def scheduler_there(self) -> str:
        """The scheduler's address as the hosts see it."""
        ...

    def is_away(self, name: str) -> bool:
        """Return whether a machine cannot be reached from here."""
        ...

    @property
    def failure(self) -> PoolFailure: ...

    @property
    def teardown(self) -> Teardown: ...


class HostEvents:
    """Handler of the events of one pool's hosts; made with the pool."""

    def __init__(self, pool: HostEventsContext) -> None:
        self.pool = pool

    def take(self, host: launch.Host) -> None:
        """Add a host that is being started; watch its processes."""
        self.pool.hosts.append(host)
        self.watch_over(host)

    def watch_over(self, host: launch.Host) -> None:
        """Subscribe to a host's reports of stopped processes."""
        host.watch(self._in_loop(functools.partial(self._on_standstill, host)))

    def listen(self, host: launch.Host) -> None:
        """Subscribe to a host's events."""
        host.listen(self._in_loop(functools.partial(self._on_host, host)))

    def watch(self) -> None:
        """Set remote nodes' names, and the check of silent nodes."""
        pool = self.pool
        hosts = [host for host in pool.hosts if not host.here]
        pool.supervisor.names = {node: f" ({host.name})" for host in hosts for node in host.nodes}
        control, names = pool.control, {node: host.name for host in hosts for node in host.nodes}
        control.names = pool.supervisor.names
        control.detector.away = {node: functools.partial(pool.is_away, name) for node, name in names.items()}
        control.detector.apart = {node for host in hosts if host.apart is not None for node in host.nodes}
        limit = asyncio.Semaphore(indirect_probe.BESIDE)

        async def examine(node: int) -> None:
            control = pool.control
            told: list[Loss | None] = [None]

            def give_up(why: str) -> None:
                if node == 0:
                    control.off.add(node)
                    pool.failure.lose_head(pool.supervisor.interruptions.why_lost(node) or why, told[-1])
                else:
                    taken = pool.supervisor.interruptions.why_lost(node)
                    pool.supervisor.tell(f"node {node}{pool.supervisor.names.get(node, '')}: {taken}" if taken else why)
                    control.detector.give_up(node, why)

            def why() -> str:
                told.append(loss := loss_of(pool.spec, [pool.ids[node]], pool.incarnations))
                return loss.why if loss is not None else ""

            ended = why if is_provisioner(pool.spec.provider) and node < len(pool.ids) else None
            if node not in control.off:
                await indirect_probe.watch(node, hosts, control, pool.scheduler_there, limit, give_up, ended)

        pool.supervisor.examine = examine if hosts else None

    def _in_loop(self, handle: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
        """Return a thread-safe version of a handler that runs on the loop."""

        def hand_over(event: dict[str, Any]) -> None:
            loop().loop.call_soon_threadsafe(handle, event)

        return hand_over

    def _on_host(self, host: launch.Host, event: dict[str, Any]) -> None:
        """Handle the end of a host or of one of its processes."""
        pool = self.pool
        if event["event"] == "standstill":
            self._on_standstill(host, event)
            return
        if pool.states.is_over or host not in pool.hosts:
            return
        name = str(event.get("name", ""))
        if event["event"] == "ending":
            if pool.state is PoolState.NEW:
                pool.failure.mark_broken(self.why_gone(host.place))
        elif event["event"] == "gone":
            # The last output of its nodes may still be unread.
            asyncio.get_running_loop().call_later(_LAST_WORDS, self._on_gone, host)
        elif name == "forkserver" and pool.state is PoolState.NEW:
            pool.failure.mark_broken(f"the forkserver ended ({event['text']}){host.place} before it was ready")
        elif name and pool.state is PoolState.NEW:
            pool.failure.mark_broken(
                f"{name} ended ({event['text']}) before it was ready" + "".join(host.last_words(name))
            )
        elif name and not event.get("revived"):
            pool.failure.mark_broken(f"the {name} ended ({event['text']}){host.place}, again and again")
        elif name == "forkserver" and pool.has_control:
            # Its kernels ended with it; the host has started another forkserver, and agents that use it.
            for node in host.nodes:
                pool.control.detector.lose(node, f"its forkserver ended ({event['text']})", revived=True)
        elif event["event"] == "unchanged" and pool.state is PoolState.NEW:
            pool.failure.mark_broken(f"a host could not be changed: {event['message']}")
        elif name.startswith("agent") and pool.has_control:
            # The control plane sees it later; the host has started another process for these agents.
            for node in sorted({*event.get("nodes", host.nodes)} & {*host.nodes}):
                pool.control.detector.lose(node, f"its agent ended ({event['text']})", revived=True)

    def _on_standstill(self, host: launch.Host, event: dict[str, Any]) -> None:
        # Also while the pool is being ended, which a stopped process delays.
        if self.pool.state is not PoolState.TAKEN_OVER and host in self.pool.hosts:
            self.pool.watchdog.on_standstill(event, host.place)

    def _on_gone(self, host: launch.Host) -> None:
        pool = self.pool
        if pool.states.is_over or host not in pool.hosts:
            return
        if self.end_if_time_is_over():
            return
        if 0 not in host.nodes and has_queue(pool.spec.provider) and not self._lease_over and pool.has_control:
            # Its machine may have restarted: the other nodes go on.
            for node in host.nodes:
                pool.control.detector.give_up(node, f"its processes{host.place} are gone")
        elif 0 in host.nodes and not host.here and not self._lease_over:
            pool.failure.lose_head(self.why_gone(host.place))
        else:
            pool.failure.mark_broken(self.why_gone(host.place))

    def end_if_time_is_over(self) -> bool:
        """If the pool's time or budget is over, end it in a thread; return whether it is."""
        pool = self.pool
        why = pool.expiry.text if pool.expiry.over else pool.meter.used_up
        if why:
            threading.Thread(target=pool.teardown.expire, args=(why,), name="sky-expire", daemon=True).start()
        return bool(why)

    def on_link(self, text: str) -> None:
        """Report a machine's connection state; called in a thread."""
        loop().loop.call_soon_threadsafe(self.pool.supervisor.tell, text)

    @property
    def _lease_over(self) -> bool:
        """Whether the nodes' lease has expired."""
        pool = self.pool
        return pool.has_control and time.monotonic() - pool.control.heard >= (pool.spec.lease or math.inf)

    def why_gone(self, place: str = "") -> str:
        """Return why a host has ended; ``place`` is part of the message."""
        if self._lease_over:
            lease = self.pool.spec.lease
            return f"its lease ended: nodes that hear of no notebook for {lease:g} s end (--idle-timeout {lease:g})"
        return f"the pool's processes{place} are gone"
