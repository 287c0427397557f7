"""Lifecycle of a pool: start, connections, and the parts that change and end it."""

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
from ...node.system.stopped_processes import HOST
from ...spec.pool_spec import PoolSpec
from ...util.text import first_line
from ..base.event_loop import Tick, loop, no_tick, wait_ticking
from ..base.events import Event, Listener, NoticeEvent, ignore
from ..base.log import PoolLog
from ..base.phases import PhaseLog
from ..base.timeouts import TIMEOUTS
from ..control.control_client import Control
from ..execution.supervisor import Supervisor
from ..execution.unresponsive_notices import LINK
from ..hosts import launch, remote_host
from ..hosts.early_host import early_hosts
from ..hosts.pool_link import PoolLink
from ..registry.pool_record import PoolRecord
from ..registry.registry import Registry
from ..registry.remote_leftovers import Traces
from ..runs.input_requests import AskUser
from ..runs.run import new_id
from ..transfer.python_versions import PoolPythons
from . import resize_plan
from .comeback import Comeback
from .cost_meter import CostMeter
from .dask_cluster import PoolDask
from .failure import PoolFailure
from .host_events import HostEvents
from .kernel_shutdown import Leaving, Tell, silently
from .machine_replacement import MachineReplacement
from .plugin_setup import PluginSetup
from .provisioning import Provisioning
from .resize import Resizing
from .resize_plan import Plan
from .restart import PoolRestart
from .start import PoolStart, import_client
from .state_machine import PoolState, StateMachine
from .status import StatusCache
from .teardown import Teardown
from .ttl import Expiry

if TYPE_CHECKING:
    from ...machines.ssh.types import Prompts
    from .guest import Guest

AGENT_TIMEOUT = TIMEOUTS.start.agents
_END_PATIENCE = TIMEOUTS.end.others
# The state of a pool whose nodes have ended themselves changes within this.
_SAID, _SAID_POLL = TIMEOUTS.end.moment, TIMEOUTS.polls.broken


def _nothing() -> None:
    """Do nothing."""


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
        self.teardown, self.failure, self.pool_restart = Teardown(self), PoolFailure(self), PoolRestart(self)
        self.plugin_setup = PluginSetup(self)
        self.pythons = PoolPythons(self)
        self.supervisor = Supervisor(
            spec, self.plugin_setup.renew, self.plugin_setup.again, self.failure.mark_broken, self._let_go
        )
        self.hosts: list[launch.Host] = []
        # The link to remote machines, and the machines that it is connected to.
        self.link: PoolLink | None = None
        self.machines: list[Any] = []
        self.ids: Sequence[str] = ()
        # The incarnations of its machines that may come back, by id.
        self.incarnations: dict[str, str] = {}
        self.provisioning = Provisioning(self.registry, self.id)
        self.meter = CostMeter(self, self.teardown.expire)
        # Whether its machines were stopped before.
        self.resumed = False
        self._control: Control | None = None
        self.began = 0.0
        # Seconds that ranks get for an orderly shutdown.
        self.exit_timeout = spec.options.exit_timeout
        # For its status: the phases of its start, and the nodes' facts.
        self.phases = PhaseLog()
        self.status_cache = StatusCache(self)
        self.pool_start, self.host_events, self.leaving = PoolStart(self), HostEvents(self), Leaving(self)
        self.supervisor.repairs.finish = self.leaving.finish
        self.replacement, self.comeback = MachineReplacement(self), Comeback(self, self.pool_restart.come_back)
        self.supervisor.note = self.logger.write
        self._listener: Listener = ignore
        self.watchdog = self.supervisor.watchdog
        self.watchdog.beside = self._beside
        self.workers = PoolDask(self)
        # Shows the message of a pool that ends by itself, as no cell may be running.
        self.farewell: Callable[[str], None] = silently
        # Asks the user while something runs; None if nobody can be asked.
        self.ask: AskUser | None = None
        self.expiry = Expiry(spec.lifetime, self.teardown.expire, given=spec.ttl is not None)
        # The scheduler's address as seen from here, and from the hosts.
        self.scheduler_address = self.scheduler_there = ""
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

    @property
    def state(self) -> PoolState:
        """The current state; `states` changes it."""
        return self.states.current

    @property
    def broken(self) -> str:
        """The reason why the pool is broken or has ended, or ""."""
        return self.states.why

    @property
    def control(self) -> Control:
        """The client of the agents; PoolError if there is none."""
        if self._control is None:
            raise self.states.not_started()
        return self._control

    @property
    def has_control(self) -> bool:
        """Whether there is, or was, a client of the agents."""
        return self._control is not None

    @property
    def traces(self) -> Traces:
        """The registry's records of its parts on other machines."""
        return Traces(self.registry, self.id, self.spec)

    @property
    def listener(self) -> Listener:
        """The sender of events to the listener and the log."""
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
                wait_ticking(loop().submit(self.make_nodes()), tick)
            if not self.states.offer(PoolState.READY):
                raise BootstrapError("agent", self.broken or "the pool was ended")
        except BaseException as error:
            self.logger.write(logging.ERROR, f"not started: {first_line(error)}")
            # An interrupt does not reach threads, so they are asked to stop.
            self.stop_event.set()
            # The disks of a stopped pool are kept.
            self.teardown.keeps_machines = self.resumed
            self.down()
            if self.expiry.over and isinstance(error, Exception):
                raise PoolError(f"pool {self.spec.name!r} was not ready when {self.expiry.text}") from error
            raise
        try:
            self.enter_client()
            self.record_ready()
            self.logger.write(logging.INFO, f"{self.spec.nodes} nodes, {self.spec.world_size} ranks ready")
            self.registry.note_phases(kind, self.phases.took())
        except BaseException:
            self.teardown.keeps_machines = self.resumed
            self.down()
            raise

    def _beside(self) -> dict[int, str]:
        """Return the local processes that only this one can watch."""
        hosts = {host.command.identity[0]: HOST for host in list(self.hosts) if host.here}
        return {**hosts, **({self.link.pid: LINK} if self.link is not None and self.link.pid else {})}

    def enter_client(self) -> None:
        """Enter the plugins' contexts in the notebook."""
        for plugin in self.spec.plugins:
            if plugin.around_client is not None:
                self._client.enter_context(plugin.around_client(self._user))

    def leave_client(self) -> None:
        """Leave the notebook's plugin contexts and close the client of Dask workers."""
        with contextlib.suppress(Exception):
            self._client.close()
        self.workers.close()

    def record_ready(self) -> None:
        """Record that the pool is ready, and its hosts."""
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
        """Raise PoolError if this is a guest; ``done`` is the change, as in "restarted"."""
        if self.guest is not None:
            self.guest.refuse(done)

    def require_same(self) -> None:
        """Raise PoolError for a guest whose pool has ended or changed."""
        if self.guest is not None and (gone := self.guest.find_over()) is not None:
            loop().loop.call_soon_threadsafe(self.failure.lose_as_guest, self.guest, gone.text)
            raise PoolError(gone.refusal("%%sky --provider local"))

    def release(self) -> None:
        """Release a kept pool, so that another manager can attach; a guest leaves."""
        if self.states.is_over or self.owner != os.getpid():
            return
        self.states.to(PoolState.ENDED)
        self.comeback.stop(_END_PATIENCE)
        self.leave_client()
        self.teardown.close("released; it keeps running")
        with contextlib.suppress(Exception):
            loop().call(self.disconnect(), timeout=5)
        with contextlib.suppress(Exception):
            if self.guest is None:
                self.registry.release(self.id)
            self.registry.close()
        self.leave_link()

    def leave_link(self) -> None:
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
            await asyncio.to_thread(self.leave_link)

    async def make_nodes(self) -> None:
        """Acquire the machines and start all nodes, up to kernels that are ready."""
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
        """End the pool; if another thread ends it already, wait for that. Idempotent.

        A pool that another manager has taken over is only forgotten here; so is a pool that a fork inherited.

        Parameters
        ----------
        tell : callable
            Called in this thread with messages on ranks that take long to end, and on stopped processes. An interrupt
            kills them at once, and is raised when the pool has ended.
        """
        self._before_end()
        if self.guest is not None:
            self.release()
        else:
            self.teardown.run(tell)

    def stop_changes(self) -> None:
        """Stop what restarts, resizes or repairs the pool, which ends."""
        self.provisioning.stop()
        self.replacement.stop()
        self.comeback.stop(_END_PATIENCE)
        if (change := self.resizing) is not None:
            # It discards what it has made so far.
            change.stop()
            change.over.wait(_END_PATIENCE)

    def say(self, text: str) -> None:
        """Send a message to the runs' views, else below the last cell; on the loop."""
        if self.is_watched:
            self.supervisor.tell(text)
        else:
            self.logger.write(logging.WARNING, text)
            self.farewell(text)

    def changing(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Exclude other changes of the pool; see `StateMachine.changing`."""
        self.refuse_guest(what)
        return self.states.changing(what)

    def become_ready(self) -> None:
        """Set the state to READY; raise PoolError if impossible."""
        if not self.states.offer(PoolState.READY):
            self.require_live()

    @contextlib.contextmanager
    def explaining_end(self) -> Iterator[None]:
        """Raise why the pool ended or broke, instead of the error that this caused.

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
            # The thread that ends the pool changes the state first.
            end = time.monotonic() + _SAID
            while self.state is PoolState.READY and time.monotonic() < end:
                time.sleep(_SAID_POLL)
        if self.state is PoolState.READY:
            self.states.offer(PoolState.BROKEN, self.host_events.why_gone())

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
            self.give_up_replacement()
            self.listener = listener
            self.workers.close()
            self.phases.clear(self.phases.usual)
            change = self.resizing = Resizing(self, wanted)
            try:
                with self.watchdog.telling(self.listener):
                    change.run(tick)
            finally:
                self.resizing = None
                # Also after an interrupt of its last phase, which ends what left the pool.
                if change.is_applied and not self.states.is_over:
                    self.record_ready()

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
            change.cancel()
        return change is not None

    def give_up_replacement(self) -> None:
        """Stop the replacement of machines: all of the pool changes."""
        self.replacement.stop()
        self.replacement.wait()

    @property
    def is_watched(self) -> bool:
        """Whether runs have listeners that hear of failures."""
        return any(run.left for run in list(self.supervisor.runs.values()))

    @property
    def condition(self) -> str:
        """The state in one word; see `StateMachine`."""
        return self.states.condition

    @property
    def away(self) -> dict[str, str]:
        """The unreachable machines, each with a description."""
        return {} if self.link is None else dict(self.link.away)

    @property
    def apart(self) -> dict[str, str]:
        """The machines that the head does not reach, each with the reason.

        They are controlled through this machine.
        """
        there = [host for host in self.hosts if not host.here]
        return {host.name: host.apart.why for host in there if host.apart is not None}

    def is_away(self, name: str) -> bool:
        return name in self.away

    def is_off(self, name: str) -> bool:
        return name in self.off(self.hosts)

    def off(self, hosts: Sequence[launch.Host]) -> set[str]:
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


def _kind_of_start(spec: PoolSpec) -> str:
    """Return a hash of provider and image: a key for usual durations."""
    image = spec.full_image
    # Without the variables' values, which may be secrets.
    about = repr((spec.provider.kind, image.python, image.pip, image.apt, sorted(image.env)))
    return hashlib.sha256(about.encode(errors="replace")).hexdigest()[:16]
