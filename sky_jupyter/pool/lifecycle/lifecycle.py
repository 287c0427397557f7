"""Lifecycle of a pool: start, attachment, restart, resize, failure and end."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import BootstrapError, PoolError
from ...node.protocol import rpc
from ...node.system.stopped_processes import HOST
from ...providers.base import provider_of
from ...spec.pool_spec import PoolSpec
from ...util.text import first_line
from ..base import retries
from ..base.event_loop import Tick, loop, no_tick, wait_ticking
from ..base.events import Event, Listener, NoticeEvent, ignore
from ..base.log import PoolLog
from ..base.phases import PhaseLog
from ..base.timeouts import TIMEOUTS
from ..control.control_client import Control
from ..execution.supervisor import Supervisor
from ..execution.unresponsive_processes import LINK
from ..hosts import launch, remote_host
from ..hosts.early_host import early_hosts
from ..hosts.pool_link import PoolLink
from ..registry import stopped_pools
from ..registry.pool_record import PoolRecord
from ..registry.registry import Registry
from ..registry.remote_leftovers import RemotePart, Traces
from ..registry.stopped_pools import STOPPED
from ..runs import journal_recovery
from ..runs.input_requests import AskUser
from ..runs.run import new_id
from ..transfer.python_versions import PoolPythons
from . import resize_plan
from .comeback import Comeback
from .cost_meter import CostMeter
from .dask_cluster import PoolDask
from .ended_machines import why_ended
from .host_events import HostEvents
from .kernel_shutdown import Leaving, Tell, silently
from .machine_replacement import MachineReplacement
from .plugin_setup import PluginSetup
from .provisioning import Provisioning
from .resize import Resizing
from .resize_plan import Plan
from .start import PoolStart, import_client
from .state_machine import PoolState, StateMachine
from .status import StatusCache
from .ttl import Expiry

if TYPE_CHECKING:
    from ...machines.ssh.types import Prompts
    from .ended_machines import Loss
    from .guest import Guest

AGENT_TIMEOUT = TIMEOUTS.start.agents
_END_PATIENCE = TIMEOUTS.end.others
# The ranks' shutdown besides their own time: plugins are left before.
_LEAVE_PATIENCE = TIMEOUTS.end.ranks
# The processes of destroyed machines are seen ending within this.
_HOSTS_OF_ENDED = TIMEOUTS.machines.hosts
_LOOK = TIMEOUTS.polls.machines
# The state of a pool whose nodes have ended themselves changes within this.
_SAID, _SAID_POLL = TIMEOUTS.end.moment, TIMEOUTS.polls.broken


def _nothing() -> None:
    """Do nothing."""


def _say_nothing(text: str) -> None:
    """Discard a message."""


class PoolLifecycle:
    """The part of a `Pool` that owns its hosts and knows nothing of cells.

    Parameters
    ----------
    spec : PoolSpec
        Spec of the pool.
    prompts : Prompts, optional
        Asks for passphrases, and about unknown hosts; by default nothing is asked.
    user : object
        Passed to plugins that act in the notebook: the `Pool`.
    before_end : callable
        Called first when the pool is ended.
    """

    # What it knows of the manager if this process is a guest; None for the manager.
    guest: Guest | None = None

    def __init__(
        self,
        spec: PoolSpec,
        prompts: Prompts | None = None,
        *,
        user: object = None,
        before_end: Callable[[], None] = _nothing,
    ) -> None:
        self._user, self._before_end = user, before_end
        self.spec = spec
        self.prompts = prompts
        self.id = (not spec.provider.survives_manager and early_hosts.claim(spec)) or new_id()
        self.logger = PoolLog(spec.name, spec.options)
        self.states = StateMachine(spec.name, self.logger.write)
        self.registry = Registry()
        self.plugin_setup = PluginSetup(self)
        self.pythons = PoolPythons(self)
        self.supervisor = Supervisor(
            spec, self.plugin_setup.renew, self.plugin_setup.again, self.mark_broken, self._let_go
        )
        self.hosts: list[launch.Host] = []
        # The link to remote machines, and the machines that it is connected to.
        self.link: PoolLink | None = None
        self.machines: list[Any] = []
        self.ids: Sequence[str] = ()
        # The incarnations of its machines that may come back, by id.
        self.incarnations: dict[str, str] = {}
        self.provisioning = Provisioning(self.registry, self.id)
        self.meter = CostMeter(self)
        # Machines that were created for it and not seen to end; None while that is not known.
        self.unended: list[str] | None = None
        # Whether its end stops its machines only, and whether it was stopped before.
        self.keeps_machines = self.resumed = False
        self._control: Control | None = None
        self.began = 0.0
        # Seconds that ranks get for an orderly shutdown.
        self.exit_timeout = spec.options.exit_timeout
        # For its status: the phases of its start, and the nodes' facts.
        self.phases = PhaseLog()
        self.status_cache = StatusCache(self)
        self.pool_start, self.host_events, self.leaving = PoolStart(self), HostEvents(self), Leaving(self)
        self.supervisor.repairs.finish = self.leaving.finish
        self.replacement, self.comeback = MachineReplacement(self), Comeback(self)
        # Why the next cell recreates the pool, on other machines, and why it has ended by itself; "" if not.
        self._anew = self._why_expired = ""
        self.supervisor.note = self.logger.write
        self._listener: Listener = ignore
        self.watchdog = self.supervisor.watchdog
        self.watchdog.beside = self._beside
        self.workers = PoolDask(self)
        # Whether its ttl is over, and the callback for that, as no cell may be running.
        self.expired = False
        self.farewell: Callable[[str], None] = _say_nothing
        # Asks a person beside what runs; None if nobody is there.
        self.ask: AskUser | None = None
        self.expiry = Expiry(spec.lifetime, self.expire, given=spec.ttl is not None)
        # Where the scheduler is reached from here, and where the hosts reach it.
        self.scheduler_address = self.scheduler_there = ""
        # Machines that were unreachable when the pool was ended: what runs there ends by its lease.
        self.unsure: list[str] = []
        # True once the provider has shown that all of them are gone, so that nothing is left on any.
        self._machines_gone = False
        # Hosts that could not be ended because they were unreachable; retried when they are back.
        self.unreachable: list[launch.Host] = []
        self.owner = os.getpid()
        # A fencing token: agents obey the manager with the highest.
        self.generation = 1
        # How often it was resized since its hosts were made, and the resize that is under way.
        self.shape = 0
        self.resizing: Resizing | None = None
        self.stop_event = threading.Event()
        # Unset while hosts are being started on other machines.
        self.launches_done = threading.Event()
        self.launches_done.set()
        # The plugins' contexts in the notebook.
        self._client = contextlib.ExitStack()
        # Whether its end has been recorded; the thread that ends it, 0 for none, and whether that is done.
        self._closed, self._ender, self._has_ended = False, 0, threading.Event()

    @property
    def state(self) -> PoolState:
        """Return the current state; `states` changes it."""
        return self.states.current

    @property
    def broken(self) -> str:
        """Return why the pool is broken or has ended, or ""."""
        return self.states.why

    @property
    def control(self) -> Control:
        """Return the agents' client; raise PoolError if there is none."""
        if self._control is None:
            raise self.states.not_started()
        return self._control

    @property
    def has_control(self) -> bool:
        """Return whether there is, or was, a client of the agents."""
        return self._control is not None

    @property
    def traces(self) -> Traces:
        """Return the registry's records of its parts elsewhere."""
        return Traces(self.registry, self.id, self.spec)

    @property
    def listener(self) -> Listener:
        """Return the sender of events to the listener and the log."""
        return self._tell_of

    @listener.setter
    def listener(self, listener: Listener) -> None:
        self._listener = listener

    def _tell_of(self, event: Event) -> None:
        self.logger.on_event(event)
        self._listener(event)

    def notify(self, text: str) -> None:
        """Send a notice to the listener."""
        self.listener(NoticeEvent(text))

    def change_spec(self, spec: PoolSpec) -> None:
        """Replace the spec, for later managers as well."""
        self.refuse_guest("changed")
        self.spec = spec
        if self.has_control:
            self.write_record(direct=self.control.direct)

    def start(self, listener: Listener = ignore, tick: Tick = no_tick) -> None:
        """Create the machines and start the pool; undo all on failure.

        Parameters
        ----------
        listener : callable
            Receives the phases.
        tick : callable
            Called every poll.

        Raises
        ------
        BootstrapError, ProvisionError
            What failed, in which phase, and on which node.
        """
        self.listener = listener
        self.logger.open()
        for name in self.spec.ignored:
            self.logger.write(logging.INFO, f"{name} has no meaning on {self.spec.provider.kind} nodes")
        kind = _kind_of_start(self.spec)
        self.began = time.perf_counter()
        if self.spec.provider.provisions and (text := self.provisioning.plan(self.spec)):
            self.notify(text)
        if self.resumed:
            self.generation = self.registry.own(self.id)
            self.registry.update(self.id, "starting")
        else:
            self.generation = self.registry.intend(
                self.id, self.spec.name, self.spec.provider.kind, self.spec.nodes, self.spec.keep
            )
        with contextlib.suppress(PoolError):
            self.phases.clear(self.registry.usual_phases(kind))
        try:
            with self.watchdog.telling(self.listener):
                wait_ticking(loop().submit(self._start()), tick)
            if not self.states.offer(PoolState.READY):
                raise BootstrapError("agent", self.broken or "the pool was ended")
        except BaseException as error:
            self.logger.write(logging.ERROR, f"not started: {first_line(error)}")
            # An interrupt does not reach threads: they are asked to stop.
            self.stop_event.set()
            # What is on the disks of a stopped pool is kept.
            self.keeps_machines = self.resumed
            self.down()
            if self.expiry.over and isinstance(error, Exception):
                raise PoolError(f"pool {self.spec.name!r} was not ready when {self.expiry.text}") from error
            raise
        try:
            self.enter_client()
        except BaseException:
            self.down()
            raise
        self._record_ready()
        self.logger.write(logging.INFO, f"{self.spec.nodes} nodes, {self.spec.world_size} ranks ready")
        self.registry.note_phases(kind, self.phases.took())

    def _beside(self) -> dict[int, str]:
        """Return the local processes that only this one can watch."""
        hosts = {host.command.identity[0]: HOST for host in list(self.hosts) if host.here}
        return {**hosts, **({self.link.pid: LINK} if self.link is not None and self.link.pid else {})}

    def enter_client(self) -> None:
        """Enter the plugins' contexts in the notebook."""
        for plugin in self.spec.plugins:
            if plugin.around_client is not None:
                self._client.enter_context(plugin.around_client(self._user))

    def _record_ready(self) -> None:
        places = tuple(dict.fromkeys(str(path) for host in self.hosts for path in (host.folder, host.blobs)))
        # A pid of another machine means nothing here.
        process = self.hosts[0].command.identity if self.hosts[0].here else None
        self.registry.update(self.id, "ready", places, process, self.spec.nodes)
        if self.spec.provider.provisions:
            self.meter.begin()
        launch.settle(self.hosts)
        if self.link is not None:
            # Other managers can find the pool from now on, and its link.
            self.keep_link()

    def keep_link(self) -> None:
        assert self.link is not None
        hosts = [host for host in self.hosts if not host.here]
        self.link.keep(self.spec.lease, lambda: hosts, self._on_new_link)

    def _on_new_link(self) -> None:
        """Open a new link's tunnel, at the old port if it is free."""
        remote_host.relay(self.hosts, self.scheduler_there)
        port = int(self.scheduler_address.rpartition(":")[2])
        self.scheduler_address = self.hosts[0].reach(self.scheduler_there, port)
        if self.has_control:
            loop().loop.call_soon_threadsafe(self.control.move, self.scheduler_address)

    def write_record(self, *, direct: bool) -> None:
        """Write the record from which a later manager attaches, and guests join."""
        hosts = tuple(host.facts() for host in self.hosts)
        left = self.expiry.left
        ends = None if left is None else time.time() + left
        ids = tuple(self.ids)
        record = PoolRecord(
            self.spec, self.scheduler_there, ids, hosts, direct, self.shape, ends, dict(self.incarnations)
        )
        record.write(self.hosts[0].folder)

    def refuse_guest(self, done: str) -> None:
        """Raise PoolError if this process is a guest, which cannot have that ``done`` to the pool."""
        if self.guest is not None:
            self.guest.refuse(done)

    def require_same(self) -> None:
        """Raise PoolError if the pool has ended or changed that this process is a guest of."""
        if self.guest is not None and (gone := self.guest.find_over()) is not None:
            loop().loop.call_soon_threadsafe(self._lose_as_guest, self.guest, gone.text)
            raise PoolError(gone.refusal("%%sky --provider local"))

    def release(self) -> None:
        """Release a kept pool, so that another manager can attach; a guest leaves."""
        if self.states.is_over or self.owner != os.getpid():
            return
        self.states.to(PoolState.ENDED)
        self.comeback.stop(_END_PATIENCE)
        with contextlib.suppress(Exception):
            self._client.close()
        self.workers.close()
        self._over("released; it keeps running")
        with contextlib.suppress(Exception):
            loop().call(self.disconnect(), timeout=5)
        with contextlib.suppress(Exception):
            if self.guest is None:
                self.registry.release(self.id)
            self.registry.close()
        self._leave_link()

    def _leave_link(self) -> None:
        """Release the link, if there is one; it lives on."""
        for host in self.hosts:
            host.leave()
        if self.link is not None:
            self.link.release()

    def _let_go(self) -> None:
        """Release the pool because another manager has taken it over."""
        if not self.states.offer(PoolState.TAKEN_OVER, "another manager has taken it over"):
            # It is being ended here, which closes its control plane.
            return
        self.expiry.stop()
        self.meter.stop()
        asyncio.ensure_future(self.disconnect())  # noqa: RUF006 - it ends by itself

    async def disconnect(self) -> None:
        """Close the client of the agents, which go on."""
        if self.state is PoolState.ENDED and self.has_control:
            await self.supervisor.leave_turns()
        self.supervisor.close()
        if self.has_control:
            await self.control.close()
        if self.state is PoolState.TAKEN_OVER:
            await asyncio.to_thread(self._leave_link)

    async def _start(self) -> None:
        spec, provider = self.spec, self.spec.provider
        await self.pool_start.have()
        launch_all, direct = await self.pool_start.prepare()
        if spec.lifetime is not None:
            self.expiry.begin(self.provisioning.left(spec))
        with self.phase("agent", f"starting {spec.nodes} node{'s' if spec.nodes > 1 else ''} ({provider.kind})"):
            launching = asyncio.ensure_future(asyncio.to_thread(launch_all))
            # Retrieve its error: a cancelled start does not.
            launching.add_done_callback(lambda done: done.cancelled() or done.exception())
            # The client's import takes as long as the hosts' start: do both at once.
            await asyncio.to_thread(import_client)
            self.phases.step("distributed is imported here")
            address = await launching
            self.phases.step("the hosts and the scheduler run")
            self.scheduler_there = address
            self.scheduler_address = await asyncio.to_thread(self.hosts[0].reach, address)
            self.phases.step("the scheduler can be reached")
            self.shape = 0
            control = self.make_control(direct=direct)
            self.write_record(direct=direct)
            for host in self.hosts:
                self.host_events.listen(host)
            folder = self.hosts[0].folder
            await control.connect(self.scheduler_address, folder, spec.nodes, AGENT_TIMEOUT, lambda: self.broken)
            self.phases.step("all agents answer")
        names = ", ".join(str(plugin) for plugin in spec.plugins)
        with self.phase("plugins", f"starting kernels{', entering ' + names if names else ''}"):
            await self.meet_pythons()
            self.phases.step("the agents have reported their Pythons")
            await self.plugin_setup.enter()
            self.phases.step("all kernels are ready")

    async def meet_pythons(self) -> None:
        """Learn the nodes' Python versions; report differences that matter."""
        if text := await self.pythons.learn():
            self.listener(NoticeEvent(text))
            self.pythons.check_plugins()

    def make_control(self, *, direct: bool) -> Control:
        """Return a new client of the hosts' agents, not yet connected."""
        guest = "" if self.guest is None else self.guest.id
        control = Control(self.supervisor, direct=direct, generation=self.generation, shape=self.shape, guest=guest)
        self._control = self.supervisor.control = control
        self.host_events.watch()
        return control

    def down(self, tell: Tell = silently) -> None:
        """End the pool: its processes, sockets and files. Idempotent; waits for another thread that is at it.

        A pool that another manager has taken over is only forgotten here; so is a pool that a fork inherited.

        Parameters
        ----------
        tell : callable
            Called in this thread with messages on ranks that take long to end, and on processes that stand still. An
            interrupt kills them at once, and is raised when the pool has ended.
        """
        self._before_end()
        if self.guest is not None:
            self.release()
            return
        ours = not self.states.is_over and self.owner == os.getpid()
        if ours:
            self._ender = threading.get_ident()
        self.states.to(PoolState.ENDED, self._why_over)
        if not ours:
            if self._ender not in (0, threading.get_ident()):
                # This process may exit next, and the rest of the pool with that thread.
                self._has_ended.wait(self.spec.options.shutdown_timeout)
            return
        try:
            self._end(tell)
        finally:
            self._has_ended.set()

    def _end(self, tell: Tell) -> None:
        """End the pool, which is in the state ENDED."""
        self.provisioning.stop()
        self.replacement.stop()
        self.comeback.stop(_END_PATIENCE)
        if (change := self.resizing) is not None:
            # It discards what it has made so far.
            change.stop()
            change.over.wait(_END_PATIENCE)
        with contextlib.suppress(Exception):
            self._client.close()
        self.workers.close()
        if self.spec.provider.survives_manager:
            # If this process dies meanwhile, no manager attaches to the rest.
            with contextlib.suppress(Exception):
                self.registry.update(self.id, STOPPED if self.keeps_machines else "ending")
        limit = self.spec.options.shutdown_timeout
        end = time.monotonic() + limit
        wait = min(limit, self.exit_timeout)
        hosts = [*self.hosts, *self.unreachable]
        if self.link is not None:
            # All hosts are ended through it.
            self.link.wake()
        with _going_on(lambda: self._end_unwatched(hosts, limit)), self.watchdog.telling(self.leaving.hear):
            interrupt = self.leaving.attend(self._leave(wait), min(limit, wait + _LEAVE_PATIENCE), tell)
            hosts = [*self.hosts, *self.unreachable]
            left = max(0.0, end - time.monotonic())
            # The provider's list is polled once more after the limit.
            margin = _LOOK if self.provisioning.buys(self.spec) else 0.0
            if not retries.in_time(lambda: self._end_all(hosts, left), left + margin, lambda: self.leaving.say(tell)):
                self.unsure = sorted({host.name or "a local node" for host in hosts})
                self.logger.write(logging.WARNING, f"{', '.join(self.unsure)} did not end within {limit:g} s")
        self._record_end(tell)
        self._over("ended")
        if interrupt is not None:
            raise interrupt

    def _end_all(self, hosts: Sequence[launch.Host], limit: float) -> None:
        """End the hosts; in parallel, destroy the pool's machines."""
        if not self.provisioning.buys(self.spec):
            with contextlib.suppress(Exception):
                provider_of(self.spec).destroy(self.ids)
            self.unended = []
            self._end_hosts(hosts)
            self._record_late_end()
            return
        beside = threading.Thread(target=self._end_hosts, args=(hosts,), name="sky-end-hosts", daemon=True)
        beside.start()
        if self.keeps_machines:
            beside.join(limit)
            unended = self.provisioning.halt(self.spec, self.ids, limit)
        else:
            unended = self.provisioning.end(self.spec, limit)
        beside.join(_HOSTS_OF_ENDED if not unended else limit)
        if not unended:
            # What still waits for their hosts has nothing more to say.
            self._machines_gone = not self.keeps_machines
            self.unreachable, self.unsure = [], []
            for trace in self.traces.left():
                self.traces.forget(trace.folder)
            self.hang_up()
        self.unended = unended
        self._record_late_end()

    def _record_late_end(self) -> None:
        if self.state is PoolState.ENDED and self._closed:
            self._record_end(_say_nothing)

    def _end_unwatched(self, hosts: Sequence[launch.Host], limit: float) -> None:
        """End the hosts and machines when no thread waits for it any more."""
        self._closed = True
        self._end_all(hosts, limit)

    def _record_end(self, tell: Tell) -> None:
        """Record the end; with machines left, it stays ``ending``."""
        self._closed = True
        with contextlib.suppress(Exception):
            if self.unended == [] and not self.keeps_machines:
                stopped_pools.remove(self.id)
                self.registry.update(self.id, "ended")
            else:
                self.registry.release(self.id)
            self.registry.close()
        if self.unended != []:
            left = ", ".join(self.unended or ["what was made"])
            what = "stop" if self.keeps_machines else "end"
            text = (
                f"machines of pool {self.spec.name!r} could not be confirmed to {what}: {left}; this is tried again "
                "when the extension is loaded, and by `%sky clean`"
            )
            self.logger.write(logging.WARNING, text)
            tell(text)

    def _over(self, word: str) -> None:
        """Stop the timers and close the log at the end of management."""
        self.expiry.stop()
        self.meter.stop()
        self.watchdog.close()
        self.logger.write(logging.INFO, word)
        self.logger.close()

    def say(self, text: str) -> None:
        """Send a message to the runs' views, else below the last cell; on the loop."""
        if self._is_watched:
            self.supervisor.tell(text)
        else:
            self.logger.write(logging.WARNING, text)
            self.farewell(text)

    def expire(self, why: str = "") -> None:
        """End the pool because its ``ttl`` is over, or for another reason; runs in a thread."""
        if self.states.is_over:
            return
        self.expired, self._why_expired = True, why
        self.logger.write(logging.WARNING, self.why_expired)
        unwatched = not self._is_watched
        self.down()
        if unwatched:
            self.farewell(f"pool {self.spec.name!r} has ended: {self.why_expired}")

    def _end_hosts(self, hosts: Sequence[launch.Host]) -> None:
        """End hosts, remote ones in parallel, and the connections to them."""
        for host in hosts:
            host.exit_timeout = self.exit_timeout
        if not self.spec.provider.survives_manager:
            for host in hosts:
                with contextlib.suppress(Exception):
                    host.end()
            return
        missed = {*self.away, *self._off(hosts)}
        unsure = remote_host.end_all(hosts, missed)
        # A host that was starting when the others ended may be up by now.
        self.launches_done.wait(_END_PATIENCE)
        unsure += remote_host.end_all([host for host in self.hosts if host not in hosts], missed)
        if not self._machines_gone:
            ended = set(map(id, hosts))
            self.unreachable = [*(host for host in self.unreachable if id(host) not in ended), *unsure]
            left = self.traces.left() if self.state is PoolState.ENDED else []
            self.unsure = sorted({*(host.name for host in self.unreachable), *(trace.host for trace in left)})
        self.hang_up()

    def end_unreachable(self) -> None:
        """End old hosts on machines that are reachable again."""
        there = {machine.key: machine for machine in self.machines}
        for host in self.unreachable:
            host.machine = there.get(host.machine.key, host.machine)
        self.unreachable = remote_host.end_all(self.unreachable)

    def hang_up(self) -> None:
        """Close the link, and with it all connections."""
        link, self.link, self.machines = self.link, None, []
        if link is None:
            return
        left = self.traces.left() if self.state is PoolState.ENDED else []
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
                    self.traces.forget(trace.folder)

        link.finish(scripts, ended)

    async def _leave(self, exit_timeout: float = 0.0) -> None:
        busy = self.supervisor.busy
        # Threads that wait for a run go on.
        self.supervisor.lose_all(self._word_of_end)
        self.supervisor.close()
        if not self.has_control:
            return
        self.control.why_closed = self._word_of_end
        try:
            await self.leaving.end_all(exit_timeout, busy=busy)
        finally:
            await self.control.close()

    @property
    def why_expired(self) -> str:
        """Return why it has ended by itself."""
        return self._why_expired or self.expiry.text

    @property
    def _why_over(self) -> str:
        """Return why it ends by itself, or ""."""
        return self._why_expired or (self.expiry.text if self.expiry.over else "")

    @property
    def _word_of_end(self) -> str:
        return f"the pool was ended: {self._why_over}" if self._why_over else "the pool was ended"

    def changing(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Exclude other changes of the pool; see `StateMachine.changing`."""
        self.refuse_guest(what)
        return self.states.changing(what)

    def restart(self, listener: Listener = ignore, tick: Tick = no_tick, ranks: Sequence[int] | None = None) -> None:
        """Restart kernels and plugins; replace hosts that are lost.

        Parameters
        ----------
        listener : callable
            Receives the phases.
        tick : callable
            Called every poll.
        ranks : sequence of int, optional
            Ranks that get a new kernel, by default all; if the others cannot go on without them, all do. A restart of
            all that the pool has begun by itself is waited for instead.
        """
        self.refuse_guest("restarted")
        if ranks is None and self.comeback.join(listener, tick):
            return
        with self.changing("restarted"):
            self._restart(listener, tick, ranks)

    def renew(self, listener: Listener = ignore, tick: Tick = no_tick) -> None:
        """Recreate a broken pool, unless it has done so by itself meanwhile; see `restart`."""
        if not self.comeback.join(listener, tick) and self.state is PoolState.BROKEN:
            self.restart(listener, tick)

    def come_back(self, why: str, listener: Listener, tick: Tick) -> None:
        """Recreate a broken pool on the machines that it has, and on no others; see `Comeback`."""
        with self.changing("restarted"), self.provisioning.adopting():
            if self.state is PoolState.BROKEN:
                self._anew = why
                self._restart(listener, tick, None)

    def _restart(self, listener: Listener, tick: Tick, ranks: Sequence[int] | None) -> None:
        self.require_live(restarting=True)
        self._give_up_replacement()
        self.listener = listener
        away = self.control.lost or self.control.silent or len(self.control.addresses) < self.spec.nodes
        whole = bool(away) or self.state is PoolState.BROKEN or self.watchdog.keeper_stands_still
        if not whole and (bare := self._nodes_without_folder()):
            names = ", ".join(f"node {node}{self.supervisor.names.get(node, '')}" for node in bare)
            listener(NoticeEvent(f"somebody has removed the pool's folder on {names}: the pool is recreated"))
            whole, ranks = True, None
        if whole:
            self.workers.close()
        if whole and ranks is not None:
            raise PoolError(f"nodes of pool {self.spec.name!r} are lost: restart all of it, not some of its ranks")
        self.stop_event = threading.Event()
        work = loop().submit(self._relaunch() if whole else self.supervisor.repairs.restart(ranks))
        try:
            with self.watchdog.telling(self.listener):
                wait_ticking(work, tick)
            if whole:
                self.become_ready()
        except BaseException as error:
            if whole:
                # Else it would go on beside the next restart.
                work.cancel()
                self._end_half_made(error)
            raise
        if self.state is PoolState.ENDED:
            # Another thread has ended it.
            self._end_hosts(list(self.hosts))
        self.become_ready()
        self._anew = ""
        if whole:
            self._record_ready()

    def become_ready(self) -> None:
        """Set the state to READY; raise PoolError if impossible."""
        if not self.states.offer(PoolState.READY):
            self.require_live()

    @contextlib.contextmanager
    def explaining_end(self) -> Iterator[None]:
        """Raise why the pool has ended, or is broken, instead of what that did to the block.

        The block may find folders removed and connections closed. For other threads than the loop's.
        """
        try:
            yield
        except Exception as error:
            if self.state is PoolState.READY and self._is_without_folder():
                # The event of its host has not arrived yet.
                self._find_gone()
            try:
                self.require_live()
            except PoolError as over:
                raise over from error
            raise

    def _is_without_folder(self) -> bool:
        hosts = self.hosts[:1]
        return any(not (host.folder.exists() and host.blobs.exists()) for host in hosts)

    def _find_gone(self) -> None:
        """Change the state, as the pool's folder is gone."""
        if self.host_events.end_if_time_is_over():
            # The thread that ends it says so first.
            end = time.monotonic() + _SAID
            while self.state is PoolState.READY and time.monotonic() < end:
                time.sleep(_SAID_POLL)
        if self.state is PoolState.READY:
            self.states.offer(PoolState.BROKEN, self.host_events.why_gone())

    def _nodes_without_folder(self) -> list[int]:
        """Return the nodes whose folder was removed."""
        # The restart itself reports nodes that do not answer.
        with contextlib.suppress(Exception):
            answers = loop().call(self.control.ask(rpc.STATUS, range(self.spec.nodes)), timeout=5)
            return [node for node, status in answers.items() if not status.get("folder", True)]
        return []

    def resize(
        self,
        nodes: int | None = None,
        listener: Listener = ignore,
        tick: Tick = no_tick,
        *,
        add: Sequence[str] = (),
        remove: Sequence[int] = (),
    ) -> None:
        """Change the nodes, by a number or by hosts; restart kernels.

        Nodes are renumbered without gaps, in their order; new ones come last. On failure or interrupt the pool is
        restored.

        Parameters
        ----------
        nodes : int, optional
            New number of nodes; added ones are the provider's spares.
        listener : callable
            Receives the phases.
        tick : callable
            Called every poll.
        add : sequence of str
            Hosts that become nodes.
        remove : sequence of int
            Numbers of nodes to remove, with all that runs there.

        Raises
        ------
        SpecError
            If it is not possible.
        """
        with self.changing("resized"):
            wanted = self.planned(nodes, add, remove)
            if wanted.is_of(self.spec):
                return
            self._give_up_replacement()
            self.listener = listener
            self.workers.close()
            self.phases.clear(self.phases.usual)
            change = self.resizing = Resizing(self, wanted)
            try:
                with self.watchdog.telling(self.listener):
                    change.run(tick)
            finally:
                self.resizing = None
            self._record_ready()

    def planned(self, nodes: int | None = None, add: Sequence[str] = (), remove: Sequence[int] = ()) -> Plan:
        """Return the plan of a `resize`; raise SpecError if impossible."""
        self.require_live()
        return resize_plan.of(self.spec, self.ids, nodes, add, remove)

    def stop_comeback(self) -> None:
        """End a restart that the pool has begun by itself; it stays broken."""
        self.comeback.stop(_END_PATIENCE)

    def stop_resizing(self) -> bool:
        """Cancel the resize of another thread; return whether there is one."""
        change = self.resizing
        if change is not None:
            change.stop()
        return change is not None

    def _end_half_made(self, error: BaseException) -> None:
        """Discard a failed restart, which may be repeated."""
        self.stop_event.set()
        self.states.offer(PoolState.BROKEN, f"it could not be recreated ({first_line(error)})")
        hosts = self.hosts
        with _going_on(lambda: self._end_hosts(hosts)):
            with contextlib.suppress(Exception):
                loop().call(self._leave(), timeout=10)
            hosts, self.hosts = self.hosts, []
            self._end_hosts(hosts)

    async def _relaunch(self) -> None:
        # From here on, events of the old hosts are ignored.
        hosts, self.hosts = self.hosts, []
        self.supervisor.lose_all("the pool is recreated")
        self.watchdog.forget()
        self.phases.clear(self.phases.usual)
        self.supervisor.close()
        self.states.to(PoolState.NEW)
        await self.control.close()
        if self.spec.provider.survives_manager:
            # Until it is ready again, no manager can attach to it.
            self.registry.update(self.id, "starting")
        await asyncio.to_thread(self._end_hosts, hosts)
        await self._start()
        self.supervisor.restarted.update(range(self.spec.world_size))

    def mark_broken(self, why: str) -> None:
        """Set the state to BROKEN, and fail what runs."""
        if self.guest is not None:
            # Only its manager can recreate it.
            self._lose_as_guest(self.guest, why)
            return
        if not self._stop_control(why):
            return
        self.supervisor.lose_all(f"{why}; `%sky restart` recreates the pool")

    def _lose_as_guest(self, guest: Guest, why: str) -> None:
        """Forget a pool whose guest this process was."""
        if self.states.is_over:
            return
        unwatched, why = not self._is_watched, guest.lose(why).text
        self.states.offer(PoolState.ENDED, why)
        self.supervisor.lose_all(why)
        if self.has_control:
            self.control.why_closed = why
        if unwatched:
            self.farewell(why)
        self._over("left: its manager has ended or changed it")
        asyncio.ensure_future(self._part())  # noqa: RUF006 - it ends by itself

    async def _part(self) -> None:
        await self.disconnect()
        await asyncio.to_thread(self._leave_link)

    def lose_head(self, why: str, loss: Loss | None = None) -> None:
        """Do the same without a head; read runs from nodes' disks.

        ``loss`` is that of its machine, if its provider says that it has taken it away.
        """
        if self.guest is not None:
            self.mark_broken(why)
            return
        if taken := self.supervisor.interruptions.why_lost(0):
            why = self._anew = f"{taken}: it was the head's"
        elif loss is not None:
            self._anew = why
        if self.state is not PoolState.BROKEN and self._stop_control(why, self.comeback.cure(loss)):
            self.supervisor.tell(why)
            hosts = [host for host in self.hosts if not host.here]
            self.supervisor.do(journal_recovery.give_up(list(self.supervisor.runs.values()), hosts, why))
            self.comeback.expect()

    def make_anew(self, why: str) -> None:
        """Break the pool, until the next cell recreates it."""
        self._anew = why
        self.mark_broken(why)

    def taken_away(self) -> str:
        """Return why a broken pool is to be recreated by the next cell, or "".

        That is so if machines that were bought for it have ended or restarted, also while it is recreated by itself.
        Not for the loop's own thread.
        """
        if self.comeback.is_on:
            return self._anew or self.broken
        if self.state is not PoolState.BROKEN or not self.provisioning.buys(self.spec):
            return ""
        return self._anew or why_ended(self.spec, self.ids, self.incarnations)

    def _give_up_replacement(self) -> None:
        """Stop the replacement of machines: all of the pool changes."""
        self.replacement.stop()
        self.replacement.wait()

    @property
    def _is_watched(self) -> bool:
        """Return whether runs have listeners that hear of failures."""
        return any(run.left for run in list(self.supervisor.runs.values()))

    def _stop_control(self, why: str, cure: str | None = None) -> bool:
        """Break the pool and close its client; return success. ``cure`` is what makes it anew."""
        alone = self.state is PoolState.READY and not self._is_watched and not self.states.is_changing
        if not self.states.offer(PoolState.BROKEN, why):
            return False
        self.supervisor.repairs.give_up()
        if alone:
            if cure is None:
                cure = f"{'the next cell' if self._anew else '`%sky restart`'} recreates it"
            self.farewell("; ".join(filter(None, [f"pool {self.spec.name!r} can run nothing any more: {why}", cure])))
        if self.has_control:
            self.control.why_closed = f"{why}; `%sky restart` recreates the pool"
            # It would retry its scheduler for ever, and log that in the notebook.
            asyncio.ensure_future(self.control.close())  # noqa: RUF006 - it ends by itself
        return True

    @property
    def condition(self) -> str:
        """Return the state in one word; see `StateMachine`."""
        return self.states.condition

    @property
    def away(self) -> dict[str, str]:
        """Return the unreachable machines, each with a description."""
        return {} if self.link is None else dict(self.link.away)

    @property
    def apart(self) -> dict[str, str]:
        """Return the machines that the head does not reach, and why.

        They are controlled through this machine.
        """
        there = [host for host in self.hosts if not host.here]
        return {host.name: host.apart.why for host in there if host.apart is not None}

    def is_away(self, name: str) -> bool:
        return name in self.away

    def is_off(self, name: str) -> bool:
        return name in self._off(self.hosts)

    def _off(self, hosts: Sequence[launch.Host]) -> set[str]:
        """Return the machines that are known to run nothing."""
        off = self.control.off if self.has_control else set()
        return {host.name for host in hosts if off & set(host.nodes)}

    def retry_links(self) -> None:
        """Reconnect to unreachable machines at once, without back-off."""
        if self.link is not None:
            self.link.retry()

    def must_be_ours(self) -> None:
        """Raise PoolError in a fork of the managing process."""
        if os.getpid() != self.owner:
            raise PoolError(
                f"pool {self.spec.name!r} belongs to process {self.owner}; a forked process cannot use it: "
                "use it in that one, or make another pool here"
            )

    def require_live(self, *, restarting: bool = False) -> None:
        """Raise PoolError if the pool cannot run, or is not ours."""
        self.must_be_ours()
        if self.guest is not None and self.guest.gone is not None:
            raise PoolError(self.guest.gone.refusal("%%sky --provider local"))
        if self.state is not PoolState.READY:
            self.states.require_live(restarting=restarting)
        if not self.has_control:
            raise self.states.not_started()

    def phase(self, phase: str, text: str) -> contextlib.AbstractContextManager[Callable[[str], None]]:
        """Report a phase; yield a function that reports a line of it."""
        return self.phases.phase(phase, text, self.listener)


@contextlib.contextmanager
def _going_on(work: Callable[[], None]) -> Iterator[None]:
    """Run ``work`` in a thread if an interrupt ends the block."""
    try:
        yield
    except KeyboardInterrupt:
        threading.Thread(target=work, name="sky-end", daemon=True).start()
        raise


def _kind_of_start(spec: PoolSpec) -> str:
    """Return a hash of provider and image: a key for usual durations."""
    image = spec.full_image
    # Without the variables' values, which may be secrets.
    about = repr((spec.provider.kind, image.python, image.pip, image.apt, sorted(image.env)))
    return hashlib.sha256(about.encode(errors="replace")).hexdigest()[:16]
