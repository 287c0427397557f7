"""Resize of a live pool: new nodes are prepared, then all ranks change.

A kernel's world size is fixed, so all kernels are replaced. Machines and environments, which are slow to make, are
kept; the pool stays usable while new nodes are prepared.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ...errors import PoolError
from ...node.protocol.host_config import NEXT, HostConfig
from ...providers.base import ConnectionSession
from ...spec.pool_spec import PoolSpec
from ...util.text import first_line
from ..base.event_loop import Tick, loop, stoppable_in_thread, wait_ticking
from ..base.phases import PhaseLog
from ..base.timeouts import TIMEOUTS
from ..context import PoolContext
from ..control.control_client import Control
from ..hosts import remote_host
from ..hosts.launch import Host
from . import incarnations, machine_queue
from .power_renewal import kept_on
from .resize_plan import Plan
from .state_machine import PoolState

if TYPE_CHECKING:
    from ...bootstrap.remote_environment import HostPreparation
    from ...machines.ssh.types import Prompts
    from ..execution.supervisor import Supervisor
    from ..execution.unresponsive_notices import Watchdog
    from ..hosts.pool_link import PoolLink
    from ..registry.remote_leftovers import Traces
    from .failure import PoolFailure
    from .host_events import HostEvents
    from .kernel_shutdown import Leaving
    from .plugin_setup import PluginSetup
    from .provisioning import Provisioning
    from .state_machine import StateMachine
    from .status import StatusCache
    from .teardown import Teardown
    from .ttl import Expiry

T = TypeVar("T")
REPLACED = "its kernel was replaced by `%sky resize`"
_JOIN_TIMEOUT = TIMEOUTS.start.rejoin
_SEEN_PATIENCE = TIMEOUTS.start.seen
_LOOK = TIMEOUTS.polls.resize
_FREE_PATIENCE = TIMEOUTS.start.freed
# The grace of a thread that cannot be cancelled, such as one that connects.
_END_PATIENCE = TIMEOUTS.start.given_up


@dataclass(frozen=True)
class _World:
    """Snapshot of a pool's nodes: a resize's target, or its rollback's."""

    spec: PoolSpec
    ids: Sequence[str]
    hosts: list[Host]
    # Each host's nodes.
    nodes: Sequence[list[int]]
    machines: list[Any]
    addresses: list[str]


class ResizeContext(PoolContext, Protocol):
    """The pool's lifecycle as seen by a resize, which may change all of it."""

    spec: PoolSpec
    ids: Sequence[str]
    incarnations: dict[str, str]
    hosts: list[Host]
    machines: list[Any]
    shape: int
    stop_event: threading.Event
    link: PoolLink | None
    prompts: Prompts | None
    scheduler_address: str
    scheduler_there: str
    states: StateMachine
    supervisor: Supervisor
    watchdog: Watchdog
    provisioning: Provisioning
    phases: PhaseLog
    status_cache: StatusCache
    host_events: HostEvents
    leaving: Leaving
    plugin_setup: PluginSetup
    expiry: Expiry
    teardown: Teardown
    failure: PoolFailure

    @property
    def broken(self) -> str:
        """The reason why the pool is broken or has ended; "" if it is neither."""
        ...

    @property
    def away(self) -> dict[str, str]:
        """The unreachable machines, each with a reason."""
        ...

    @property
    def traces(self) -> Traces:
        """The registry's records of its parts on other machines."""
        ...

    def keep_link(self) -> None:
        """Record which machines the link is connected to."""
        ...

    def make_control(self, *, direct: bool) -> Control:
        """Return a new client of the agents, used from then on."""
        ...

    def write_record(self, *, direct: bool) -> None:
        """Write the file from which a later manager attaches."""
        ...

    async def meet_pythons(self) -> None:
        """Compare the nodes' Python versions with the notebook's."""
        ...


class Resizing:
    """One resize of a pool: `run` does it, `stop` rolls it back.

    Parameters
    ----------
    pool : ResizeContext
        The pool; it must not be changed otherwise meanwhile.
    plan : Plan
        The target.
    """

    def __init__(self, pool: ResizeContext, plan: Plan) -> None:
        self.pool, self.plan = pool, plan
        self.over = threading.Event()
        self._task: asyncio.Task[None] | None = None
        self._started: list[Host] = []
        self._connected: list[Any] = []
        self._before: _World | None = None
        self._configs: dict[int, HostConfig] = {}
        self._addresses: list[str] = []
        # Machines that were created for the resize.
        self._bought: list[str] = []
        # Whether the rollback was cancelled, which breaks the pool; whether the pool was marked broken.
        self._abandoned = self._broken = False
        # Whether it was cancelled or has failed, so that it is rolled back; whether all ranks have changed.
        self._is_rolled_back = self.is_applied = False
        # Machines that did not answer when it began.
        self._missed: set[str] = set()

    # -- for other threads -------------------------------------------------------------------------

    def run(self, tick: Tick) -> None:
        """Resize the pool, calling ``tick`` every poll; roll back on failure.

        An interrupt is a failure; a second one leaves the rollback unfinished. Raises BootstrapError, MachineError or
        PoolError, with the phase and node that failed.
        """
        self.pool.stop_event = threading.Event()
        work = loop().submit(self._run())
        work.add_done_callback(lambda _: self.over.set())
        try:
            wait_ticking(work, tick)
        except BaseException:
            self.cancel()
            try:
                while not work.done():
                    concurrent.futures.wait([work], timeout=_LOOK)
                    tick()
            except KeyboardInterrupt:
                # A second interrupt: leave the rollback unfinished.
                self._abandoned = True
                self.stop()
                concurrent.futures.wait([work], timeout=_FREE_PATIENCE)
                if not work.done() and not self.is_applied:
                    broken = loop().submit(self._break("a change of its nodes was cancelled half-way"))
                    concurrent.futures.wait([broken], timeout=_FREE_PATIENCE)
                raise
            raise

    def stop(self) -> None:
        """Cancel the resize, unless all ranks have changed; thread-safe.

        A second call cancels the rollback.
        """
        self.pool.stop_event.set()
        self.pool.provisioning.stop()
        if self._task is not None:
            self._is_rolled_back = True
            loop().loop.call_soon_threadsafe(self._task.cancel)

    def cancel(self) -> None:
        """Cancel the resize as `stop` does, but never its rollback."""
        if not self._is_rolled_back:
            self.stop()

    # -- on the loop -------------------------------------------------------------------------------

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        try:
            self._check()
            await self._prepare()
            await self._change_over()
            self._task, self.is_applied = None, True
        except BaseException as error:
            await self._undo(error)
            if isinstance(error, asyncio.CancelledError):
                raise PoolError(f"the change of pool {self.pool.spec.name!r}'s nodes was cancelled") from None
            raise
        await self._end_removed()

    def _check(self) -> None:
        """Raise PoolError if a node that stays is unreachable."""
        control, pool = self.pool.control, self.pool
        self._missed = {host.name for host in pool.hosts if not set(host.nodes) <= control.there}
        away = [node for node in self.plan.kept if node not in control.there]
        if away:
            names = ", ".join(f"{node}{pool.supervisor.names.get(node, '')}" for node in away)
            advice = "`%sky restart` recreates the pool" if 0 in away else "remove what is gone (--remove)"
            several = "s" if len(away) > 1 else ""
            raise PoolError(f"node{several} {names} of pool {pool.spec.name!r} cannot be reached: {advice}")

    async def _prepare(self) -> None:
        """Prepare the new nodes up to idle agents, beside the pool."""
        pool, plan = self.pool, self.plan
        kept = [_host_of(pool, node) for node in plan.kept]
        for host in kept:
            if id(host) not in self._configs:
                self._configs[id(host)] = await self._in_thread(host.config)
        known = self._configs[id(kept[0])].addresses
        self._addresses = [known[node] for node in plan.kept]
        if not pool.spec.provider.survives_manager:
            await self._in_thread(pool.provisioning.acquire, plan.spec, plan.spec.nodes)
            self._addresses += [known[0]] * len(plan.added)
        elif plan.added:
            if pool.provisioning.buys(plan.spec):
                await self._buy()
            await self._start_hosts([host for host in kept if not host.here])

    async def _buy(self) -> None:
        """Create machines for the new nodes."""
        pool, plan = self.pool, self.plan
        kept = plan.ids[: len(plan.kept)]
        several = "s" if len(plan.added) > 1 else ""
        pool.provisioning.begin()
        try:
            with pool.phase("machines", f"{len(plan.added)} machine{several} of {plan.spec.provider}") as say:
                # The pool is live, so its machines are not made elsewhere.
                acquire = functools.partial(pool.provisioning.acquire, move=False)
                ids = await self._in_thread(acquire, plan.spec, plan.spec.nodes, kept, say)
        finally:
            pool.provisioning.stop()
        self._bought = [id for id in ids if id not in pool.ids]
        if tuple(ids[: len(kept)]) != kept:
            raise PoolError(f"a machine of pool {pool.spec.name!r} has ended: `%sky restart` recreates the pool")
        self.plan = replace(plan, ids=tuple(ids))

    async def _start_hosts(self, kept: Sequence[Host]) -> None:
        from ...bootstrap.remote_environment import HostPreparation

        pool, plan = self.pool, self.plan
        await self._in_thread(self._wait_in_queue)
        with pool.phase("connect", ", ".join(plan.added)):
            await self._in_thread(self._connect)
        standing = {node: (host.python, self._addresses[node]) for node, host in enumerate(kept)}
        machines = [*(host.machine for host in kept), *self._connected]
        offline = plan.spec.provider.offline
        told = pool.phases.on_node
        preparation = HostPreparation(
            machines, plan.spec, offline=offline, stop=pool.stop_event, on_node=told, standing=standing
        )
        with kept_on(self._connected, plan.spec.provider):
            for name, text, work in preparation.phases:
                with pool.phase(name, text) as say:
                    await self._in_thread(work, say)
        several = "s" if len(plan.added) > 1 else ""
        with pool.phase("agent", f"starting {len(plan.added)} node{several} ({plan.spec.provider.kind})"):
            pool.control.joining = pool.control.crowded = True
            await self._in_thread(self._launch, preparation)
        self._addresses = [site.address for site in preparation.sites]

    def _wait_in_queue(self) -> None:
        """Wait until no new machine is queued, in a phase of its own."""
        pool, plan = self.pool, self.plan
        with contextlib.ExitStack() as stack:
            shown: list[Callable[[str], None]] = []

            def tell(line: str) -> None:
                if not shown:
                    shown.append(stack.enter_context(pool.phase("queue", f"waiting for {plan.spec.provider}")))
                shown[0](line)

            session = ConnectionSession(pool.prompts, stop=pool.stop_event)
            nodes = {id: node for node, id in enumerate(plan.ids) if id in plan.added}
            machine_queue.wait(plan.spec, nodes, session, tell, lambda: bool(self._ended))

    def _connect(self) -> None:
        pool, plan = self.pool, self.plan
        assert pool.link is not None
        session = pool.link.session(pool.prompts, pool.stop_event)
        made, fresh = incarnations.connect(plan.spec, plan.added, session)
        pool.incarnations.update(fresh)
        self._connected = [machine for machine in made if machine not in pool.machines]
        for machine in made:
            if machine in pool.machines:
                raise PoolError(f"{machine.name} is a node of pool {pool.spec.name!r} already")
        # A machine that was removed while it was unreachable may be back.
        gone = {machine.key: machine for machine in self._connected}
        met = [host for host in pool.teardown.unreachable if host.machine.key in gone]
        for host in met:
            host.machine = gone[host.machine.key]
        unsure = remote_host.end_all(met)
        pool.teardown.unreachable = [host for host in pool.teardown.unreachable if host not in met or host in unsure]

    def _launch(self, preparation: HostPreparation) -> None:
        pool, plan = self.pool, self.plan
        assert pool.link is not None
        fresh = range(len(plan.kept), plan.spec.nodes)
        remote_host.start_more(
            *(pool.traces, plan.spec, preparation.sites, fresh, pool.scheduler_there, pool.shape + 1),
            *((pool.link.folder, pool.link.blobs), preparation.image.env, self._started.append, pool.stop_event),
            pool.notify,
            pool.expiry.left,
        )

    async def _change_over(self) -> None:
        """Apply the plan to all nodes, with new kernels."""
        pool, plan = self.pool, self.plan
        known = list(next(iter(self._configs.values())).addresses)
        nodes = [list(host.nodes) for host in pool.hosts]
        old = self._before = _World(pool.spec, pool.ids, pool.hosts, nodes, pool.machines, known)
        staying = [host for host in old.hosts if id(host) in self._configs]
        if not pool.spec.provider.survives_manager:
            nodes = [list(range(plan.spec.nodes))]
        else:
            nodes = [[plan.kept.index(host.nodes[0])] for host in staying]
        for host in self._started:
            pool.host_events.listen(host)
        hosts = [*staying, *self._started]
        machines = [host.machine for host in hosts if not host.here]
        nodes += [list(host.nodes) for host in self._started]
        new = _World(plan.spec, plan.ids, hosts, nodes, machines, self._addresses)
        with pool.phase("agent", f"changing over to {plan.spec.nodes} node{'s' if plan.spec.nodes > 1 else ''}"):
            await self._become(new, dict(enumerate(plan.kept)))
        await self._enter()

    async def _become(self, world: _World, was: dict[int, int]) -> None:
        """Reconfigure the hosts and connect to their new agents; kernels end.

        ``was`` maps new numbers of nodes to old ones; it lacks the new nodes.
        """
        pool = self.pool
        self._must_go_on()
        busy = pool.supervisor.busy
        pool.supervisor.lose_all(REPLACED)
        pool.supervisor.close()
        await pool.leaving.finish(range(pool.spec.world_size), busy=busy)
        direct = pool.control.direct
        pool.states.to(PoolState.NEW)
        await pool.control.close()
        pool.shape += 1
        self._adopt(world)
        pool.watchdog.forget(keepers=False)
        pool.status_cache.renumber({old: new for new, old in was.items()})
        changes = []
        for host, nodes in zip(world.hosts, world.nodes, strict=True):
            host.nodes = list(nodes)
            if host not in self._started:
                config = replace(
                    self._configs[id(host)],
                    nodes=list(nodes),
                    was=[was.get(node, -1) for node in nodes],
                    total_nodes=world.spec.nodes,
                    addresses=world.addresses,
                    shape=pool.shape,
                )
                changes.append(self._in_thread(host.change, config))
        failed = [end for end in await asyncio.gather(*changes, return_exceptions=True) if end is not None]
        if failed:
            raise failed[0]
        await asyncio.to_thread(pool.write_record, direct=direct)
        control = pool.make_control(direct=direct)
        self._must_go_on()
        folder = pool.hosts[0].folder
        await control.connect(
            pool.scheduler_address, folder, world.spec.nodes, _JOIN_TIMEOUT, lambda: pool.broken or self._ended
        )

    def _adopt(self, world: _World) -> None:
        pool = self.pool
        # The rest of the spec, such as a budget, may have changed since.
        pool.spec = replace(pool.spec, nodes=world.spec.nodes, provider=world.spec.provider)
        pool.ids, pool.hosts, pool.machines = world.ids, list(world.hosts), list(world.machines)
        pool.supervisor.suit(pool.spec)

    async def _enter(self) -> None:
        pool = self.pool
        names = ", ".join(str(plugin) for plugin in pool.spec.plugins)
        with pool.phase("plugins", f"starting kernels{', entering ' + names if names else ''}"):
            await pool.meet_pythons()
            await pool.plugin_setup.enter()
        self._must_go_on()
        pool.states.to(PoolState.READY)
        pool.supervisor.restarted = set(range(pool.spec.world_size))

    @property
    def _ended(self) -> str:
        return "the pool was ended" if self.pool.states.is_over else ""

    def _must_go_on(self) -> None:
        if self._ended:
            self.pool.require_live()

    async def _end_removed(self) -> None:
        """End hosts and machines that left the pool.

        A host that does not answer ends by its lease.
        """
        pool, before = self.pool, self._before
        assert before is not None
        gone = [host for host in before.hosts if host not in pool.hosts]
        if pool.link is None:
            return
        pool.keep_link()
        if gone:
            names = ", ".join(host.name for host in gone)
            with pool.phase("end", f"ending what runs on {names}"):
                await self._in_thread(self._end, gone)
        await self._in_thread(pool.provisioning.release, pool.spec, [id for id in before.ids if id not in pool.ids])
        # Also machines that were being prepared in place of a node that is gone now.
        await self._in_thread(pool.provisioning.keep_only, pool.spec, pool.ids)

    def _end(self, hosts: Sequence[Host]) -> None:
        """End hosts and the connections to them."""
        pool = self.pool
        unsure = remote_host.end_all(hosts, {*pool.away, *self._missed})
        pool.teardown.unreachable = [*pool.teardown.unreachable, *unsure]
        pool.teardown.unsure = sorted({host.name for host in pool.teardown.unreachable})
        if pool.link is not None:
            # Unreachable hosts are kept: they can be ended with the pool if they come back.
            pool.link.forget([host.machine for host in hosts if not host.here and host not in unsure])

    # -- rollback ----------------------------------------------------------------------------------

    async def _undo(self, error: BaseException) -> None:
        """Restore the previous nodes, and discard new ones."""
        pool = self.pool
        self._is_rolled_back = True
        pool.stop_event.set()
        pool.control.joining = False
        try:
            if self._before is not None and not self._ended:
                if self._abandoned:
                    raise PoolError("it was interrupted again")
                await self._go_back(self._before)
        except BaseException as again:
            whys = [first_line(one) for one in (error, again)]
            await self._break(f"its nodes could not be changed ({whys[0]}), nor changed back ({whys[1]})")
        finally:
            await self._in_thread(self._discard)

    async def _break(self, why: str) -> None:
        """Mark the pool broken, once; a restart then makes its previous nodes."""
        if self._broken:
            return
        self._broken = True
        if self._before is not None:
            self._adopt(self._before)
        self.pool.failure.mark_broken(why)

    async def _go_back(self, world: _World) -> None:
        with self.pool.phase("agent", "changing back"):
            for host in world.hosts:
                if id(host) not in self._configs:
                    self._configs[id(host)] = await self._in_thread(host.config)
            if not world.spec.provider.survives_manager:
                await self._in_thread(_await_seen, world.hosts[0])
            await self._become(world, {old: new for new, old in enumerate(self.plan.kept)})
        await self._enter()

    def _discard(self) -> None:
        """End everything that was made for the new nodes."""
        if self._started or self._connected:
            self._end(self._started)
            link = self.pool.link
            left = [host.machine for host in self.pool.teardown.unreachable]
            if link is not None:
                link.forget([machine for machine in self._connected if machine not in left])
        self.pool.provisioning.release(self.plan.spec, self._bought)
        if not self._ended:
            # Also machines that were bought by a call that was given up.
            kept = self.pool.ids if self._before is None else self._before.ids
            self.pool.provisioning.keep_only(self.plan.spec, kept)

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        """Run work in a thread; stop it and wait on a cancellation.

        Nothing runs on behalf of the resize after its end.
        """
        return await stoppable_in_thread(self.pool.stop_event.set, _END_PATIENCE, work, *arguments)


def _host_of(pool: ResizeContext, node: int) -> Host:
    return next(host for host in pool.hosts if node in host.nodes)


def _await_seen(host: Host) -> None:
    """Wait until a host has read its configuration, before the next."""
    end = time.monotonic() + _SEEN_PATIENCE
    while (host.folder / NEXT).exists() and time.monotonic() < end:
        time.sleep(_LOOK)
