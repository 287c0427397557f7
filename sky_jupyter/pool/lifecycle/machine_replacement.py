"""Replacement of machines that were taken away, while the other nodes go on.

Another machine is made as soon as a notice comes, in the same zone, and prepared. When the old one is gone, its node
restarts on the new one. The supervisor then makes its kernels, and sets up the frameworks again. If a machine comes
back under its id, as another incarnation, it is waited for instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ...errors import BootstrapError, MachineError, NoCapacity, PoolError, ProvisionError, SkyError
from ...machines import remote_cleanup
from ...node.protocol import rpc
from ...providers.base import ConnectionSession, has_queue
from ...util.background_tasks import BackgroundTasks
from ...util.text import first_line
from ..base import retries
from ..base.event_loop import stoppable_in_thread
from ..base.timeouts import TIMEOUTS
from ..context import PoolContext
from ..hosts import launch, remote_host
from . import incarnations, machine_queue, zone_choice
from .lost_machines import loss_of
from .state_machine import PoolState

if TYPE_CHECKING:
    from ...bootstrap.remote_environment import HostPreparation
    from ...machines.ssh.types import Prompts
    from ..base.phases import PhaseLog
    from ..execution.supervisor import Supervisor
    from ..hosts.pool_link import PoolLink
    from ..registry.remote_leftovers import Traces
    from .failure import PoolFailure
    from .host_events import HostEvents
    from .provisioning import Provisioning
    from .state_machine import StateMachine
    from .ttl import Expiry

_log = logging.getLogger(__name__)
T = TypeVar("T")
_JOIN_TIMEOUT = TIMEOUTS.start.rejoin
_END_PATIENCE = TIMEOUTS.end.others
# How often a provider is asked whether a lost node's machine has ended, and the pause.
_QUESTIONS, _PAUSE = 3, TIMEOUTS.liveness.dial
# How long it is asked again if it may replace the machine by itself.
_COMEBACK = TIMEOUTS.machines.comeback
_LOOK = TIMEOUTS.polls.resize
# How often new machines are prepared and started before the replacement is given up.
_ATTEMPTS = 3


class ReplacementContext(PoolContext, Protocol):
    """Pool's lifecycle as replacements see it, which change one node's part of it."""

    ids: Sequence[str]
    incarnations: dict[str, str]
    hosts: list[launch.Host]
    machines: list[Any]
    link: PoolLink | None
    prompts: Prompts | None
    shape: int
    scheduler_there: str
    states: StateMachine
    supervisor: Supervisor
    provisioning: Provisioning
    phases: PhaseLog
    host_events: HostEvents
    expiry: Expiry
    failure: PoolFailure

    @property
    def state(self) -> PoolState: ...

    @property
    def traces(self) -> Traces:
        """The registry's records of its parts on other machines."""
        ...

    def keep_link(self) -> None:
        """Record which machines the link is connected to."""
        ...

    def write_record(self, *, direct: bool) -> None:
        """Write the file from which a later manager attaches."""
        ...


class _Again(Exception):
    """More nodes are to be replaced: prepare all of them."""


class MachineReplacement:
    """Replacements of one pool's machines; made with the pool, used on its loop.

    Parameters
    ----------
    pool : ReplacementContext
        The pool.
    """

    def __init__(self, pool: ReplacementContext) -> None:
        self.pool = pool
        # The nodes whose machines are to be replaced, and those of them that are lost.
        self._wanted: set[int] = set()
        self._lost: set[int] = set()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._tasks = BackgroundTasks()
        # The task that finds out whether the node lost last has lost its machine.
        self._considering: asyncio.Task[None] | None = None
        # The lost nodes whose machines come back under their ids.
        self._returning: set[int] = set()
        self._stop = threading.Event()
        # New machines by node: their ids; their ids and incarnations, and connections to them.
        self._ids: dict[int, str] = {}
        self._machines: dict[int, tuple[tuple[str, str], Any]] = {}
        self._over = threading.Event()
        self._over.set()
        supervisor = pool.supervisor
        supervisor.interruptions.on_notice, supervisor.interruptions.on_withdrawn = self.expect, self.forget
        supervisor.lost_nodes.on_lost, supervisor.repairs.replacing = self.on_lost, lambda: self.over

    # -- events of nodes ---------------------------------------------------------------------------

    def expect(self, node: int) -> None:
        """Prepare a machine for a node that will lose its own, unless it would queue."""
        if node != 0 and self._may and not has_queue(self.pool.spec.provider):
            self._begin(node)

    def forget(self, node: int) -> None:
        """Prepare no other machine for a node: its machine stays after all."""
        if node not in self._lost:
            self._wanted.discard(node)
            self._news.set()

    def on_lost(self, node: int) -> None:
        """Replace a lost node's machine if it was taken away, or has ended by itself."""
        if node != 0 and self._may:
            self._considering = self._tasks.start(self._consider(node))

    async def _consider(self, node: int) -> None:
        """Replace a lost node's machine if it is gone; it may not be seen at once."""
        pool = self.pool
        for _ in range(_QUESTIONS):
            if await self._replace_if_gone(node):
                return
            await asyncio.sleep(_PAUSE)
        if has_queue(pool.spec.provider):
            # Calls do not wait for this.
            self._tasks.start(self._consider_on(node))

    async def _consider_on(self, node: int) -> None:
        """Keep polling about a lost node's machine; replace it once it is gone."""
        control = self.pool.control
        for _ in range(round(_COMEBACK / _PAUSE)):
            await asyncio.sleep(_PAUSE)
            if control is not self.pool.control or await self._replace_if_gone(node):
                return

    async def _replace_if_gone(self, node: int) -> bool:
        """Begin to replace a lost node's machine if gone; return whether to stop polling."""
        pool = self.pool
        if node not in pool.control.lost or not self._may:
            return True
        # After a notice, the loss is certain: the provider is asked only if the machine may come back.
        if not pool.supervisor.interruptions.is_taken(node) or has_queue(pool.spec.provider):
            loss = await asyncio.to_thread(loss_of, pool.spec, [pool.ids[node]], pool.incarnations)
            if node not in pool.control.lost or not self._may:
                return True
            if loss is None:
                return False
            pool.control.whys[node] = loss.why
            pool.supervisor.tell(f"node {node}{pool.supervisor.names.get(node, '')}: {loss.why}")
            if loss.returns:
                self._returning.add(node)
        self._lost.add(node)
        self._begin(node)
        return True

    @property
    def _may(self) -> bool:
        pool = self.pool
        if pool.states.is_changing or pool.state is not PoolState.READY:
            # Another change buys machines, or will: one machine must not be two nodes.
            return False
        return pool.provisioning.buys(pool.spec) and pool.link is not None

    @property
    def over(self) -> asyncio.Task[None] | None:
        """The work that lost nodes wait for; None if there is none."""
        works = (self._considering, self._task if self._lost else None)
        return next((work for work in works if work is not None and not work.done()), None)

    def stop(self) -> None:
        """Stop replacing: the pool changes as a whole, or ends. Thread-safe."""
        self._stop.set()
        task = self._task
        if task is not None:
            with contextlib.suppress(RuntimeError):
                task.get_loop().call_soon_threadsafe(task.cancel)

    def wait(self) -> None:
        """Wait until a stopped replacement's threads have returned; in a thread."""
        self._over.wait(_END_PATIENCE)

    # -- the work ----------------------------------------------------------------------------------

    def _begin(self, node: int) -> None:
        self._wanted.add(node)
        self._news.set()
        if self._task is None or self._task.done():
            self._start_work()

    def _start_work(self) -> None:
        self._stop = threading.Event()
        self._over.clear()
        self._task = asyncio.ensure_future(self._work())

    async def _work(self) -> None:
        failures = 0
        try:
            while self._wanted:
                self._news.clear()
                try:
                    with contextlib.suppress(_Again):
                        await self._replace()
                    failures = 0
                except (SkyError, OSError, TimeoutError) as error:
                    # Another machine may have gone meanwhile, which is then replaced too.
                    failures += 1
                    last = failures >= _ATTEMPTS or isinstance(error, machine_queue.QueuedTooLong)
                    if last or self._must_move(error):
                        raise
                    await asyncio.sleep(_PAUSE)
        except Exception as error:
            if not isinstance(error, (SkyError, OSError, TimeoutError)):
                _log.exception("machines could not be replaced")
            self._give_up(error)
        finally:
            self._wanted.clear()
            self._lost.clear()
            self._returning.clear()
            await asyncio.shield(asyncio.to_thread(self._discard))
            self._over.set()
            if self._wanted and not self._stop.is_set():
                # Another node was lost during that.
                self._start_work()

    async def _replace(self) -> None:
        pool, wanted = self.pool, frozenset(self._wanted)
        text = "waiting for machines to come back" if self._returning else "another machine is made"
        with self._telling(text) as tell:
            nodes = await self._in_thread(self._await_turn, tell)
            if not nodes:
                return
            names = ", ".join(f"node {node}" for node in nodes)
            returning = self._returning.issuperset(nodes)
            tell(f"{'preparing' if returning else 'another machine is made for'} {names}")
            await self._obtain(nodes, tell)
            preparation = await self._in_thread(self._prepare, nodes)
            for _, _, work in preparation.phases:
                await self._in_thread(work, _ignore)
            if not returning:
                tell(f"another machine is ready for {names}")
            await self._until_lost(nodes, wanted)
            tell(f"{names} restarts{'' if returning else ' on another machine'}")
            before = [pool.ids[node] for node in nodes]
            await self._start(nodes, preparation)
        pool.supervisor.tell(f"{names} has {'restarted' if returning else 'another machine'}")
        self._wanted.difference_update(nodes)
        self._lost.difference_update(nodes)
        self._returning.difference_update(nodes)
        await self._in_thread(pool.provisioning.release, pool.spec, [id for id in before if id not in pool.ids])

    def _await_turn(self, tell: Callable[[str], None]) -> list[int]:
        """Return the nodes to replace now: those that need new machines, else those back."""
        pool, wanted = self.pool, set(self._wanted)
        # A machine that was to come back may have ended meanwhile.
        for node in wanted & self._returning:
            loss = loss_of(pool.spec, [pool.ids[node]], pool.incarnations)
            if loss is not None and not loss.returns:
                self._returning.discard(node)
        if bought := wanted - self._returning:
            return sorted(bought)
        by_id = {pool.ids[node]: node for node in sorted(wanted)}
        session = ConnectionSession(pool.prompts, stop=self._stop)
        try:
            there = machine_queue.wait(pool.spec, by_id, session, tell, lambda: self._wanted != wanted, self._ended())
        except MachineError:
            if self._wanted != wanted:
                raise _Again from None
            raise
        return [by_id[id] for id in there]

    def _ended(self) -> dict[str, str]:
        """Return the incarnations of the lost machines that come back, by id."""
        pool = self.pool
        ids = [pool.ids[node] for node in self._returning]
        return {id: pool.incarnations[id] for id in ids if id in pool.incarnations}

    async def _obtain(self, nodes: Sequence[int], tell: Callable[[str], None]) -> None:
        """Make machines for the nodes, and connect to them."""
        options = self.pool.spec.options
        # If all nodes can move to another zone, there is no need to wait for this one.
        most = 1 if zone_choice.needs_one_zone(self.pool.spec) else options.attempts(made=True)

        async def obtain() -> None:
            if bought := [node for node in nodes if node not in self._returning]:
                await self._in_thread(self._acquire, bought, tell)
            self._ids.update({node: self.pool.ids[node] for node in nodes if node in self._returning})
            await self._in_thread(self._connect, nodes, tell)

        await retries.attempts(obtain, most, options.provision_retry_delay, tell)

    def _acquire(self, nodes: Sequence[int], tell: Callable[[str], None]) -> None:
        pool, provisioning = self.pool, self.pool.provisioning
        before = [self._ids.get(node, id) if node in nodes else id for node, id in enumerate(pool.ids)]
        old = {pool.ids[node] for node in nodes}
        provisioning.begin()
        try:
            ids = provisioning.acquire(pool.spec, pool.spec.nodes, before, tell, without=old, move=False)
        finally:
            provisioning.stop()
        self._ids.update({node: ids[node] for node in nodes})
        if any(ids[node] != pool.ids[node] for node in range(len(ids)) if node not in nodes):
            raise ProvisionError(f"another machine of pool {pool.spec.name!r} has ended")

    def _connect(self, nodes: Sequence[int], tell: Callable[[str], None]) -> None:
        """Connect to the nodes' new machines, once none is queued any more."""
        pool = self.pool
        assert pool.link is not None
        session = pool.link.session(pool.prompts, self._stop)
        machine_queue.wait(pool.spec, {self._ids[node]: node for node in nodes}, session, tell)
        there = incarnations.read(pool.spec, [self._ids[node] for node in nodes])
        wanted = {node: (self._ids[node], there.get(self._ids[node], "")) for node in nodes}
        fresh = [node for node in nodes if node not in self._machines or self._machines[node][0] != wanted[node]]
        if not fresh:
            return
        made, known = incarnations.connect(pool.spec, [self._ids[node] for node in fresh], session)
        for node, machine in zip(fresh, made, strict=True):
            if node in self._machines and self._machines[node][1] != machine:
                pool.link.forget([self._machines[node][1]])
            self._machines[node] = ((self._ids[node], known.get(self._ids[node], "")), machine)

    def _prepare(self, nodes: Sequence[int]) -> HostPreparation:
        from ...bootstrap.remote_environment import HostPreparation

        pool = self.pool
        machines, standing = [], {}
        # The addresses that the nodes have, with those of earlier replacements.
        addresses = self._host_of(0).config().addresses
        for node in range(pool.spec.nodes):
            if node in nodes:
                machines.append(self._machines[node][1])
            else:
                host = self._host_of(node)
                machines.append(host.machine)
                standing[node] = (host.python, addresses[node])
        told = pool.phases.on_node
        offline = pool.spec.provider.offline
        absent = pool.control.lost - set(nodes)
        return HostPreparation(
            *(machines, pool.spec), offline=offline, stop=self._stop, on_node=told, standing=standing, absent=absent
        )

    async def _until_lost(self, nodes: Sequence[int], wanted: Collection[int]) -> None:
        """Wait until the old machines are gone; raise _Again if the wanted nodes change."""
        while self._wanted == wanted and not self._lost.issuperset(nodes):
            self._news.clear()
            await self._news.wait()
        if self._wanted != wanted:
            raise _Again

    async def _start(self, nodes: Sequence[int], preparation: HostPreparation) -> None:
        """Start the nodes' hosts on their new machines, in the old ones' places."""
        pool, control = self.pool, self.pool.control
        for node in nodes:
            # The scheduler may not have noticed that the agent is gone.
            await control.unregister(node)
        started: list[launch.Host] = []
        addresses = [site.address for site in preparation.sites]
        try:
            await self._in_thread(self._launch, nodes, preparation, started.append)
            # Fails if another node goes just then; the next attempt starts hosts on the same machines.
            await control.ask(rpc.CHANGE_ADDRESSES, sorted(control.there - set(nodes)), addresses=addresses)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(remote_host.end_all, started))
            raise
        old = [self._host_of(node) for node in nodes]
        self._put(nodes, started)
        await asyncio.to_thread(self._forget, old)
        await asyncio.to_thread(pool.write_record, direct=control.direct)
        end = time.monotonic() + _JOIN_TIMEOUT
        while set(nodes) & control.lost:
            if time.monotonic() > end or control.closing:
                raise BootstrapError("agent", f"its agent did not join in {_JOIN_TIMEOUT:.0f} s", node=nodes[0])
            await asyncio.sleep(_LOOK)

    def _launch(self, nodes: Sequence[int], preparation: HostPreparation, take: Callable[[launch.Host], None]) -> None:
        pool = self.pool
        assert pool.link is not None
        for node in set(nodes) & self._returning:
            # The disk may have come back with the machine, and the old host's files on it.
            old = self._host_of(node)
            script = remote_cleanup.script(pool.id, [old.there, old.blobs_there])
            with contextlib.suppress(SkyError, TimeoutError):
                remote_cleanup.run(self._machines[node][1], script)

        def bring(host: launch.Host) -> None:
            take(host)
            # Send what active runs need: a call for this node may come as soon as it joins.
            _send_again(host)

        remote_host.start_more(
            *(pool.traces, pool.spec, preparation.sites, nodes, pool.scheduler_there, pool.shape),
            *(
                (pool.link.folder, pool.link.blobs),
                preparation.image.env,
                bring,
                self._stop,
                pool.notify,
                pool.expiry.left,
            ),
            absent=pool.control.lost - set(nodes),
        )

    def _put(self, nodes: Sequence[int], started: Sequence[launch.Host]) -> None:
        """Assign the new hosts and machines to the nodes."""
        pool = self.pool
        by_node = {host.nodes[0]: host for host in started}
        pool.hosts = [by_node.get(host.nodes[0], host) for host in pool.hosts]
        pool.machines = [host.machine for host in pool.hosts if not host.here]
        pool.ids = [self._ids.pop(node) if node in by_node else id for node, id in enumerate(pool.ids)]
        for node in nodes:
            (id, incarnation), _ = self._machines.pop(node)
            pool.incarnations[id] = incarnation
            pool.supervisor.interruptions.forget(node)
        for host in started:
            pool.host_events.watch_over(host)
            pool.host_events.listen(host)
            host.over.set()
        pool.host_events.watch()

    def _forget(self, old: Sequence[launch.Host]) -> None:
        """Forget hosts whose machines are gone."""
        pool = self.pool
        for host in old:
            host.leave()
            pool.traces.forget(host.there)
        pool.keep_link()
        if pool.link is not None:
            # A machine that came back unchanged keeps its connection.
            pool.link.forget([host.machine for host in old if host.machine not in pool.machines])

    def _give_up(self, error: Exception) -> None:
        pool = self.pool
        if not self._lost or self._stop.is_set():
            return
        names = ", ".join(f"node {node}" for node in sorted(self._lost))
        made = "prepared" if self._returning >= self._lost else "made"
        why = f"no machine could be {made} in place of {names} ({first_line(error)})"
        if self._must_move(error):
            pool.failure.make_anew(why)
        else:
            pool.supervisor.tell(why)

    def _must_move(self, error: Exception) -> bool:
        """Return whether the whole pool must be made elsewhere."""
        return isinstance(error, NoCapacity) and zone_choice.needs_one_zone(self.pool.spec)

    def _discard(self) -> None:
        """End the machines that were made and are not used."""
        pool = self.pool
        machines, ids = list(self._machines.values()), list(self._ids.values())
        self._machines.clear()
        self._ids.clear()
        if pool.link is not None and machines:
            pool.link.forget([machine for _, machine in machines])
        ids = [id for id in ids if id not in pool.ids]
        # A change of the whole pool takes the machines over, and its end ends them.
        if ids and not self._stop.is_set():
            pool.provisioning.release(pool.spec, ids)

    # -- parts -------------------------------------------------------------------------------------

    def _host_of(self, node: int) -> launch.Host:
        return next(host for host in self.pool.hosts if node in host.nodes)

    @contextlib.contextmanager
    def _telling(self, text: str) -> Any:
        """Show users who wait what is being done."""
        watchdog = self.pool.supervisor.watchdog
        loop = asyncio.get_running_loop()

        def tell(line: str) -> None:
            loop.call_soon_threadsafe(watchdog.trouble, "replacement", line)

        tell(text)
        try:
            yield tell
        finally:
            loop.call_soon(watchdog.over, "replacement")

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        """Run work in a thread; on a cancellation stop it, and wait for it."""

        def stop() -> None:
            self._stop.set()
            self.pool.provisioning.stop()

        return await stoppable_in_thread(stop, _END_PATIENCE, work, *arguments)


def _ignore(line: str) -> None:
    """Discard a line of a command's output."""


def _send_again(host: launch.Host) -> None:
    """Send a new host the small values of runs that are under way."""
    for folder in sorted(host.blobs.iterdir()) if host.blobs.is_dir() else ():
        if folder.is_dir():
            with contextlib.suppress(MachineError, OSError, PoolError):
                remote_host.send([host], folder, folder.name)
