"""How a pool comes to life on its machines, changes hands, is mended and ends; what runs on it is `manager`'s."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import logging
import math
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bootstrap import apt, environment, steps
from ..errors import BootstrapError, PoolError
from ..machines.local import LocalMachine
from ..spec import PoolSpec
from . import absence, folders, launch, patience, plan, remote, rescue
from .control import Control
from .dask import PoolDask
from .entering import Entering
from .events import Event, Listener, NoticeEvent, PhaseEvent, ignore
from .expiry import Expiry
from .link import PoolLink
from .log import PoolLog
from .loop import Tick, loop, no_tick, wait_ticking
from .phases import PhaseLog
from .plan import Plan
from .pythons import PoolPythons
from .record import PoolRecord
from .registry import PoolRow, Registry
from .remote import PoolGone, RemoteHost
from .resizing import Resizing
from .supervisor import Supervisor
from .survey import Survey

if TYPE_CHECKING:
    from ..bootstrap.remote import Crew
    from ..machines.ssh.values import Prompts

AGENT_TIMEOUT = 60.0
JOIN_TIMEOUT = 10.0
_LAST_WORDS = 0.3
_END_PATIENCE = 20.0


class PoolLife:
    """The part of a `Pool` that has its hosts, and knows nothing of cells."""

    def __init__(self, spec: PoolSpec, prompts: Prompts | None = None) -> None:
        self.spec = spec
        self.prompts = prompts
        self.id = launch.new_id()
        self.state = "new"
        self.broken = ""
        self.registry = Registry()
        self.entering = Entering(self)
        self.pythons = PoolPythons(self)
        self.supervisor = Supervisor(spec, self.entering.renew, self.entering.again, self._break, self._let_go)
        self.hosts: list[launch.Host] = []
        # The link to other machines, and those that it holds.
        self.link: PoolLink | None = None
        self.machines: list[Any] = []
        # This machine, for each node that is one of its processes.
        self._near: list[Any] = []
        self.ids: Sequence[str] = ()
        self.control: Control | None = None
        self.began = 0.0
        # What its start came through, and how it is, for those who look.
        self.phases = PhaseLog()
        self.survey = Survey(self)
        self.logger = PoolLog(spec.name, spec.options)
        self.supervisor.note = self.logger.write
        self._listener: Listener = ignore
        self.workers = PoolDask(self)
        self.expiry = Expiry(spec.ttl, self._expire)
        # Where the scheduler is reached from here, and where the hosts reach it.
        self.scheduler_address = self.scheduler_there = ""
        # Machines that could not be reached when the pool was ended: what runs there ends by its lease.
        self.unsure: list[str] = []
        # Hosts that were to be ended, and could not be reached: they are when they are met again.
        self._astray: list[RemoteHost] = []
        self.owner = os.getpid()
        # Which manager of the pool this is: agents obey the highest.
        self.generation = 1
        # How often its nodes were changed since its hosts were made, and the change that is on.
        self.shape = 0
        self.resizing: Resizing | None = None
        self._stop = threading.Event()
        # Unset while hosts are being started on other machines.
        self._idle = threading.Event()
        self._idle.set()
        # What plugins entered here, for the pool's life.
        self._client = contextlib.ExitStack()
        # Held by whoever restarts, resizes or ends it from outside of the notebook's cells; what that is.
        self._change, self._changed = threading.Lock(), ""

    @property
    def listener(self) -> Listener:
        """Who is told of the pool's start and changes; its log hears it too."""
        return self._tell_of

    @listener.setter
    def listener(self, listener: Listener) -> None:
        self._listener = listener

    def _tell_of(self, event: Event) -> None:
        self.logger.on_event(event)
        self._listener(event)

    def start(self, listener: Listener = ignore, tick: Tick = no_tick) -> None:
        """Make the machines, prepare them and enter the plugins; whatever fails leaves nothing.

        Parameters
        ----------
        listener : callable
            Told of the phases.
        tick : callable
            Called several times a second while this waits.

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
        self.generation = self.registry.intend(
            self.id, self.spec.name, self.spec.provider.kind, self.spec.nodes, self.spec.keep
        )
        with contextlib.suppress(PoolError):
            self.phases.clear(self.registry.usual_phases(kind))
        try:
            wait_ticking(loop().submit(self._start()), tick)
        except BaseException as error:
            self.logger.write(logging.ERROR, f"not started: {str(error).partition(chr(10))[0] or type(error).__name__}")
            # What runs in a thread is not reached by an interrupt: it is asked to end.
            self._stop.set()
            self.down()
            if self.expiry.over and isinstance(error, Exception):
                raise PoolError(f"pool {self.spec.name!r} was not ready when {self.expiry.text}") from error
            raise
        self.state = "ready"
        try:
            self._enter_client()
        except BaseException:
            self.down()
            raise
        self._record_ready()
        self.logger.write(logging.INFO, f"{self.spec.nodes} nodes, {self.spec.world_size} ranks ready")
        self.registry.note_phases(kind, self.phases.took())

    def _enter_client(self) -> None:
        """What plugins do in the notebook for as long as it manages the pool."""
        for plugin in self.spec.plugins:
            if plugin.around_client is not None:
                self._client.enter_context(plugin.around_client(self))

    def _record_ready(self) -> None:
        places = tuple(dict.fromkeys(str(path) for host in self.hosts for path in (host.folder, host.blobs)))
        # Another machine's process number says nothing here.
        process = self.hosts[0].command.identity if self.hosts[0].here else None
        self.registry.update(self.id, "ready", places, process, self.spec.nodes)
        if self.link is not None:
            # Whoever looks for the pool finds it from now on, and its link as well.
            self._keep_link()

    def _take_up(self, row: PoolRow, record: PoolRecord, take_over: bool, tick: Tick) -> None:
        """Become the manager of a pool that outlived its own; where that fails, it stays as it was."""
        self.id, self.began, self.ids = row.id, time.perf_counter(), record.ids
        self.generation = self.registry.own(row.id, take_over=take_over)
        self.logger.open()
        try:
            wait_ticking(loop().submit(self._join(record)), tick)
        except BaseException as error:
            self._not_joined(row, error)
            raise
        self.state = "ready"
        ends = getattr(record, "ends", None)
        self.expiry.begin(None if ends is None else ends - time.time())
        self.logger.write(logging.INFO, "attached")
        try:
            self._enter_client()
        except Exception as error:
            # Its cells work all the same.
            self.supervisor.news.append(f"a plugin could not be entered in this notebook: {error}")

    async def _join(self, record: PoolRecord) -> None:
        if self.spec.provider.kind == "local":
            self.hosts = [launch.adopt(host) for host in record.hosts]
        else:
            with self._phase("connect", str(self.spec.provider)):
                await asyncio.to_thread(self._reconnect, record)
        self.scheduler_there = record.scheduler
        self.scheduler_address = await asyncio.to_thread(self.hosts[0].reach, record.scheduler)
        self.shape = getattr(record, "shape", 0)
        control = self._make_control(direct=record.direct)
        folder = self.hosts[0].folder
        with self._phase("agent", "connecting"):
            try:
                address = self.scheduler_address
                await control.connect(address, folder, self.spec.nodes, JOIN_TIMEOUT, lambda: "")
            except OSError as error:
                raise PoolError(f"pool {self.spec.name!r} cannot be reached: {error}") from None
            await self._meet_pythons()
        for host in self.hosts:
            host.listen(self._in_loop(functools.partial(self._on_host, host)))

    def _reconnect(self, record: PoolRecord) -> None:
        """Take up the hosts of another manager, through its link or a new one."""
        self.link, self.hosts = remote.reopen(record.hosts, self.spec.name, self.prompts)
        self.machines = [host.machine for host in self.hosts if isinstance(host, RemoteHost)]
        remote.relay(self.hosts, record.scheduler)
        self.link.listen(self._on_link, self._is_off)
        self._keep_link()

    def _keep_link(self) -> None:
        assert self.link is not None
        hosts = [host for host in self.hosts if isinstance(host, RemoteHost)]
        self.link.keep(self.spec.lease, lambda: [host.process for host in hosts], self._on_new_link)

    def _on_new_link(self) -> None:
        """The link is another process now: its tunnel is made, at the same port where that is free. In a thread."""
        remote.relay(self.hosts, self.scheduler_there)
        port = int(self.scheduler_address.rpartition(":")[2])
        self.scheduler_address = self.hosts[0].reach(self.scheduler_there, port)
        if self.control is not None:
            loop().loop.call_soon_threadsafe(self.control.move, self.scheduler_address)

    def _not_joined(self, row: PoolRow, error: BaseException) -> None:
        """What `attach` leaves where it fails: the pool as it was, or nothing of one that has ended."""
        self.state = "ended"
        for host in self.hosts:
            host.leave()
        if self.link is not None:
            self.link.give_up()
        with contextlib.suppress(PoolError):
            if isinstance(error, PoolGone):
                folders.remove(row.id, row.folders)
                self.registry.update(row.id, "ended")
            self.registry.release(row.id)

    def _write_record(self, *, direct: bool) -> None:
        """Leave in the pool's folder what a later manager needs."""
        if self.spec.keep or self.link is not None:
            hosts = tuple(host.facts() for host in self.hosts)
            left = self.expiry.left
            ends = None if left is None else time.time() + left
            record = PoolRecord(self.spec, self.scheduler_there, tuple(self.ids), hosts, direct, self.shape, ends)
            record.write(self.hosts[0].folder)

    def release(self) -> None:
        """Let go of a kept pool: it lives on, and whoever attaches to it becomes its manager."""
        if self.state in ("ended", "taken"):
            return
        self.state = "ended"
        with contextlib.suppress(Exception):
            self._client.close()
        self.workers.close()
        self._over("let go of; it lives on")
        with contextlib.suppress(Exception):
            loop().call(self._disconnect(), timeout=5)
        with contextlib.suppress(Exception):
            self.registry.release(self.id)
            self.registry.close()
        self._leave_link()

    def _leave_link(self) -> None:
        """Have nothing more to do with the link, which lives on; nothing where there is none."""
        for host in self.hosts:
            host.leave()
        if self.link is not None:
            self.link.release()

    def _let_go(self) -> None:
        """Another manager has the pool now."""
        self.state = "taken"
        self.expiry.stop()
        self.logger.write(logging.WARNING, "another manager has taken it over")
        asyncio.ensure_future(self._disconnect())  # noqa: RUF006 - it ends by itself

    async def _disconnect(self) -> None:
        self.supervisor.close()
        if self.control is not None:
            await self.control.close()
        if self.state == "taken":
            await asyncio.to_thread(self._leave_link)

    async def _start(self) -> None:
        spec, provider = self.spec, self.spec.provider
        local = provider.kind == "local"
        await (self._have_here() if local else self._have_remote())
        launch_all, direct = await patience.within(
            self._prepare() if local else self._prepare_remote(),
            "bootstrap_timeout",
            spec.options.bootstrap_timeout,
            lambda why: patience.not_prepared(why, self.phases.latest),
        )
        self.expiry.begin()
        with self._phase("agent", f"starting {spec.nodes} node{'s' if spec.nodes > 1 else ''} ({provider.kind})"):
            launching = asyncio.ensure_future(asyncio.to_thread(launch_all))
            # The client's import takes as long as the hosts' start; beside it, it costs nothing.
            await asyncio.to_thread(_import_client)
            address = await launching
            self.scheduler_there = address
            self.scheduler_address = await asyncio.to_thread(self.hosts[0].reach, address)
            self.shape = 0
            control = self._make_control(direct=direct)
            self._write_record(direct=direct)
            for host in self.hosts:
                host.listen(self._in_loop(functools.partial(self._on_host, host)))
            folder = self.hosts[0].folder
            await control.connect(self.scheduler_address, folder, spec.nodes, AGENT_TIMEOUT, lambda: self.broken)
        names = ", ".join(str(plugin) for plugin in spec.plugins)
        with self._phase("plugins", f"starting kernels{', entering ' + names if names else ''}"):
            await self._meet_pythons()
            await self.entering.enter()

    async def _meet_pythons(self) -> None:
        """See which Pythons the nodes run, and tell where that makes a difference."""
        if text := await self.pythons.learn():
            self.listener(NoticeEvent(text))
            self.pythons.check_plugins()

    def _make_control(self, *, direct: bool) -> Control:
        """What the hosts' agents are asked by; it is to be connected."""
        self.control = Control(self.supervisor, direct=direct, generation=self.generation, shape=self.shape)
        self.supervisor.control = self.control
        self._watch_hosts()
        return self.control

    async def _prepare(self) -> tuple[Callable[[], str], bool]:
        """See that this machine has the environment; what starts the hosts in it, and whether agents are near."""
        image = self.spec.full_image
        with self._phase("environment", "checking what is installed") as say:
            await asyncio.to_thread(apt.check_here, image.apt)
            machines = self._near
            env = await asyncio.to_thread(environment.ensure, image, on_line=say, stop=self._stop)
            variables = launch.node_environment(image.env)
            await asyncio.to_thread(steps.run, self.spec, machines, env.python, variables, say, self._stop)
        start = functools.partial(self._launch_here, machines, env.python, image.env)
        return start, all(machine.key == LocalMachine.key for machine in machines)

    def _launch_here(self, machines: Sequence[Any], python: Path, env: Mapping[str, str]) -> str:
        left = self.expiry.left
        return launch.launch(self.id, self.spec, machines, python, env, self.hosts.append, left)

    async def _have_here(self) -> None:
        """Have the machines, where they are this one."""

        def have() -> None:
            self.ids = self.spec.provider.create(self.spec, self.spec.nodes, self.id)
            self._near = [self.spec.provider.connect(id) for id in self.ids]

        await self._have(lambda: asyncio.to_thread(have))

    async def _have(self, make: Callable[[], Awaitable[None]]) -> None:
        """Have the machines, in as many attempts and as much time as there may be."""
        options = self.spec.options
        most = options.attempts(made=self.spec.provider.makes)

        def tell(text: str) -> None:
            self.listener(NoticeEvent(text))

        await patience.within(
            patience.attempts(make, most, options.provision_retry_delay, tell),
            "provision_timeout",
            options.provision_timeout,
            patience.not_made,
        )

    async def _have_remote(self) -> None:
        """Have the machines, and connections to them."""
        options = self.spec.options

        async def connect() -> None:
            with self._phase("connect", str(self.spec.provider)):
                await patience.within(
                    asyncio.to_thread(self._connect), "ssh_timeout", options.ssh_timeout, self._not_connected
                )

        await self._have(connect)

    def _not_connected(self, why: str) -> BootstrapError:
        # The thread that still tries ends with the link.
        self._hang_up()
        return BootstrapError("connect", f"connecting to {self.spec.provider} was {why}")

    async def _prepare_remote(self) -> tuple[Callable[[], str], bool]:
        """Connect to the machines and see that they have the environment; what starts the hosts there."""
        from ..bootstrap.remote import Crew

        provider = self.spec.provider
        importing = asyncio.ensure_future(asyncio.to_thread(_import_client))
        await asyncio.to_thread(self._end_astray)
        told = self.phases.on_node
        crew = Crew(self.machines, self.spec, offline=provider.offline, stop=self._stop, on_node=told)
        for name, text, work in crew.phases:
            with self._phase(name, text) as say:
                await asyncio.to_thread(work, say)
        await importing
        # Of remote machines, one port is reachable from here: the scheduler's.
        return functools.partial(self._launch_remote, crew), False

    def down(self) -> None:
        """End the pool: every process, socket and file of it. Safe to call at any time, and twice.

        A pool that another manager has taken over is that one's to end: it is only forgotten here.
        """
        if self.state in ("ended", "taken"):
            self.state = "ended"
            return
        self.state = "ended"
        if (change := self.resizing) is not None:
            # What it has made so far is ended by it.
            change.stop()
            change.over.wait(_END_PATIENCE)
        with contextlib.suppress(Exception):
            self._client.close()
        self.workers.close()
        limit = self.spec.options.shutdown_timeout
        end = time.monotonic() + limit
        with contextlib.suppress(Exception):
            loop().call(self._leave(), timeout=min(10.0, limit))
        hosts = [*self.hosts, *self._astray]
        if not patience.in_time(lambda: self._end_hosts(hosts), max(0.0, end - time.monotonic())):
            self.unsure = sorted({host.name or "a local node" for host in hosts})
            self.logger.write(logging.WARNING, f"{', '.join(self.unsure)} did not end within {limit:g} s")
        with contextlib.suppress(Exception):
            self.spec.provider.destroy(self.ids)
        with contextlib.suppress(Exception):
            self.registry.update(self.id, "ended")
            self.registry.close()
        self._over("ended")

    def _over(self, word: str) -> None:
        """The pool is no business of this process any more."""
        self.expiry.stop()
        self.logger.write(logging.INFO, word)
        self.logger.close()

    def _expire(self) -> None:
        """The pool's time is over: end it, whatever it does. In a thread."""
        if self.state in ("ended", "taken"):
            return
        self.broken = self.expiry.text
        self.logger.write(logging.WARNING, self.broken)
        self.down()

    def _connect(self) -> None:
        """Connect to the machines; in the thread itself, so that no connection is lost to an interrupt."""
        self.ids = self.spec.provider.create(self.spec, self.spec.nodes, self.id)
        self.link = PoolLink.start(self.id)
        self.link.listen(self._on_link, self._is_off)
        try:
            self.machines = list(self.spec.provider.connect_all(self.ids, self.prompts, self.link.link))
            if self._stop.is_set():
                raise BootstrapError("connect", "stopped")
        except BaseException:
            self._hang_up()
            raise

    def _launch_remote(self, crew: Crew) -> str:
        self._idle.clear()
        try:
            assert self.link is not None
            here = (self.link.folder, self.link.blobs)
            return remote.start(
                *(self.id, self.spec, crew.sites, here, crew.image.env, self.hosts.append, self._stop),
                lambda text: self.listener(NoticeEvent(text)),
                self.expiry.left,
            )
        finally:
            self._idle.set()

    def _end_hosts(self, hosts: Sequence[launch.Host]) -> None:
        """End hosts, those of other machines side by side, and the connections to them."""
        if self.spec.provider.kind == "local":
            for host in hosts:
                with contextlib.suppress(Exception):
                    host.end()
            return
        missed = {*self.away, *self._off(hosts)}
        unsure = remote.end_all(hosts, missed)
        # One that was being started when the others ended may have come up since.
        self._idle.wait(_END_PATIENCE)
        unsure += remote.end_all([host for host in self.hosts if host not in hosts], missed)
        ended = set(map(id, hosts))
        self._astray = [*(host for host in self._astray if id(host) not in ended), *unsure]
        self.unsure = sorted({host.name for host in self._astray})
        self._hang_up()

    def _end_astray(self) -> None:
        """End what the pool has left on machines that were away when it was made anew, and are there now."""
        there = {machine.key: machine for machine in self.machines}
        for host in self._astray:
            host.machine = there.get(host.machine.key, host.machine)
        self._astray = remote.end_all(self._astray)

    def _hang_up(self) -> None:
        """End the link, and with it all connections."""
        link, self.link, self.machines = self.link, None, []
        if link is not None:
            with contextlib.suppress(Exception):
                link.end()

    async def _leave(self) -> None:
        # Whoever waits for a run in another thread goes on.
        self.supervisor.lose_all(self._word_of_end)
        self.supervisor.close()
        if self.control is None:
            return
        self.control.why_closed = self._word_of_end
        ranks = list(range(self.spec.world_size))
        if any(plugin.around_process for plugin in self.spec.plugins):
            with contextlib.suppress(Exception):
                # Rank 0 holds the coordinators: it leaves last.
                await asyncio.wait_for(self.control.ask("leave", ranks=ranks[1:]), 5)
                await asyncio.wait_for(self.control.ask("leave", ranks=ranks[:1]), 5)
        await self.control.close()

    @property
    def _word_of_end(self) -> str:
        return f"the pool was ended: {self.expiry.text}" if self.expiry.over else "the pool was ended"

    @contextlib.contextmanager
    def changing(self, what: str) -> Iterator[None]:
        """The pool is being restarted, resized or ended: by one thread at a time.

        Raises
        ------
        PoolError
            When another one is at it.
        """
        if not self._change.acquire(blocking=False):
            raise PoolError(f"pool {self.spec.name!r} is being {self._changed} just now: try again when it is done")
        self._changed = what
        try:
            yield
        finally:
            self._change.release()

    def restart(self, listener: Listener = ignore, tick: Tick = no_tick, ranks: Sequence[int] | None = None) -> None:
        """New kernels on the same machines, plugins entered; where an agent is lost, new hosts.

        Parameters
        ----------
        ranks : sequence of int, optional
            Those that get one, all unless given; where the others cannot go on without them, all do.
        """
        with self.changing("restarted"):
            self._restart(listener, tick, ranks)

    def _restart(self, listener: Listener, tick: Tick, ranks: Sequence[int] | None) -> None:
        self._must_live(restarting=True)
        self.listener = listener
        assert self.control is not None
        away = self.control.lost or self.control.silent or len(self.control.addresses) < self.spec.nodes
        whole = bool(away) or self.state == "broken"
        if whole:
            self.workers.close()
        if whole and ranks is not None:
            raise PoolError(f"nodes of pool {self.spec.name!r} are lost: restart all of it, not some of its ranks")
        self._stop = threading.Event()
        try:
            wait_ticking(loop().submit(self._relaunch() if whole else self.supervisor.restart(ranks)), tick)
        except BaseException as error:
            if whole:
                self._end_half_made(error)
            raise
        if self.state == "ended":
            # Another thread has ended it meanwhile.
            self._end_hosts(list(self.hosts))
            self._must_live()
        self.state = "ready"
        if whole:
            self._record_ready()

    def resize(
        self,
        nodes: int | None = None,
        listener: Listener = ignore,
        tick: Tick = no_tick,
        *,
        add: Sequence[str] = (),
        remove: Sequence[int] = (),
    ) -> None:
        """Have so many nodes, or add hosts and remove nodes: new kernels on all ranks, the rest stays as it is.

        Nodes are numbered anew, without gaps, in their order; new ones come last. What fails, or is
        interrupted, leaves the pool as it was.

        Parameters
        ----------
        nodes : int, optional
            How many; new hosts are then those that the provider has left.
        add : sequence of str
            Hosts that become nodes.
        remove : sequence of int
            The numbers of nodes that are removed, of which nothing is left.

        Raises
        ------
        SpecError
            When it cannot be.
        """
        with self.changing("resized"):
            wanted = self.planned(nodes, add, remove)
            if wanted.is_of(self.spec):
                return
            self.listener = listener
            self.workers.close()
            self.phases.clear(self.phases.usual)
            change = self.resizing = Resizing(self, wanted)
            try:
                change.run(tick)
            finally:
                self.resizing = None
            self._record_ready()

    def planned(self, nodes: int | None = None, add: Sequence[str] = (), remove: Sequence[int] = ()) -> Plan:
        """What `resize` would make of it; SpecError where that cannot be."""
        self._must_live()
        return plan.of(self.spec, self.ids, nodes, add, remove)

    def stop_resizing(self) -> bool:
        """Give a change of nodes up that another thread is at; whether there is one."""
        change = self.resizing
        if change is not None:
            change.stop()
        return change is not None

    def _end_half_made(self, error: BaseException) -> None:
        """Nothing is left of what was to be the pool anew: it can be tried again, or ended."""
        self._stop.set()
        with contextlib.suppress(Exception):
            loop().call(self._leave(), timeout=10)
        hosts, self.hosts = self.hosts, []
        self._end_hosts(hosts)
        told = str(error).partition("\n")[0] or type(error).__name__
        if self.state != "ended":
            self.state, self.broken = "broken", f"it could not be made anew ({told})"

    async def _relaunch(self) -> None:
        assert self.control is not None
        # From here on, what the old hosts say concerns nobody.
        hosts, self.hosts = self.hosts, []
        self.supervisor.lose_all("the pool is made anew")
        self.phases.clear(self.phases.usual)
        self.supervisor.close()
        self.state, self.broken = "new", ""
        await self.control.close()
        await asyncio.to_thread(self._end_hosts, hosts)
        await self._start()
        self.supervisor.restarted.update(range(self.spec.world_size))

    def _in_loop(self, handle: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
        """The same handler, callable from any thread."""

        def hand_over(event: dict[str, Any]) -> None:
            loop().loop.call_soon_threadsafe(handle, event)

        return hand_over

    def _on_host(self, host: launch.Host, event: dict[str, Any]) -> None:
        """A host, or a process of it, has ended: without a scheduler nobody can be reached."""
        if self.state in ("ended", "taken") or host not in self.hosts:
            return
        name = str(event.get("name", ""))
        if event["event"] == "gone":
            # What its nodes said at last may still wait to be read.
            asyncio.get_running_loop().call_later(_LAST_WORDS, self._on_gone, host)
        elif name == "forkserver":
            self._break(f"the forkserver ended ({event['text']})")
        elif name and self.state == "new":
            self._break(f"{name} ended ({event['text']}) before it was ready" + "".join(host.last_words(name)))
        elif name and not event.get("revived"):
            self._break(f"the {name} ended ({event['text']}), again and again")
        elif event["event"] == "unchanged" and self.state == "new":
            self._break(f"a host could not be changed: {event['message']}")
        elif name.startswith("agent ") and self.control is not None:
            # Sooner than the control plane sees it; the host has started another.
            self.control.lose(int(name[6:]), f"its agent ended ({event['text']})")

    def _on_gone(self, host: launch.Host) -> None:
        if self.state in ("ended", "taken") or host not in self.hosts:
            return
        if self.expiry.over:
            # The nodes were a moment sooner: the rest of it ends now.
            threading.Thread(target=self._expire, name="sky-expire", daemon=True).start()
            return
        if 0 in host.nodes and isinstance(host, RemoteHost) and not self._lease_over:
            self._lose_head(self._why_gone(host.place))
        else:
            self._break(self._why_gone(host.place))

    def _on_link(self, text: str) -> None:
        """What became of the connection to a machine: whoever watches a run is told. Called in a thread."""
        loop().loop.call_soon_threadsafe(self.supervisor.tell, text)

    def _watch_hosts(self) -> None:
        """Where nodes are other machines, name them, and see to those that do not answer."""
        hosts = [host for host in self.hosts if isinstance(host, RemoteHost)]
        self.supervisor.names = {node: f" ({host.name})" for host in hosts for node in host.nodes}
        if self.control is not None:
            names = {node: host.name for host in hosts if host.apart is not None for node in host.nodes}
            self.control.apart = {node: functools.partial(self._is_away, name) for node, name in names.items()}

        limit = asyncio.Semaphore(absence.BESIDE)

        async def examine(node: int) -> None:
            control = self.control
            assert control is not None

            def give_up(why: str) -> None:
                if node == 0:
                    control.off.add(node)
                    self._lose_head(why)
                else:
                    self.supervisor.tell(why)
                    control.give_up(node, why)

            if node not in control.off:
                await absence.watch(node, hosts, control, self.scheduler_there, limit, give_up)

        self.supervisor.examine = examine if hosts else None

    @property
    def _lease_over(self) -> bool:
        """Whether the nodes have not heard of us for so long that they have ended."""
        return self.control is not None and time.monotonic() - self.control.heard >= (self.spec.lease or math.inf)

    def _why_gone(self, place: str = "") -> str:
        if self._lease_over:
            lease = self.spec.lease
            return f"its lease ended: nodes that hear of no notebook for {lease:g} s end (--idle-timeout {lease:g})"
        return f"the pool's processes{place} are gone"

    def _break(self, why: str) -> None:
        """The pool can run nothing until it is restarted; what runs on it is given up."""
        if self.state in ("ended", "taken"):
            return
        self.logger.write(logging.WARNING, f"broken: {why}")
        self._stop_control(why)
        self.supervisor.lose_all(f"{why}; `%sky restart` makes the pool anew")

    def _lose_head(self, why: str) -> None:
        """The same where the head is gone; what the other nodes have of the runs is read from their disks."""
        if self.state in ("ready", "new"):
            self._stop_control(why)
            self.supervisor.tell(why)
            hosts = [host for host in self.hosts if isinstance(host, RemoteHost)]
            self.supervisor.do(rescue.give_up(list(self.supervisor.runs.values()), hosts, why))

    def _stop_control(self, why: str) -> None:
        self.state, self.broken = "broken", why
        if self.control is not None:
            # It would look for its scheduler, and say so in the notebook, for ever.
            asyncio.ensure_future(self.control.close())  # noqa: RUF006 - it ends by itself

    @property
    def condition(self) -> str:
        """Its state in one word, as a person sees it: ``starting``, ``ready``, ``restarting``, ``broken`` and so on."""
        if self._change.locked() and self.state != "ended":
            return {"restarted": "restarting", "resized": "resizing", "ended": "ending"}.get(self._changed, self.state)
        return "starting" if self.state == "new" else self.state

    @property
    def away(self) -> dict[str, str]:
        """Machines that cannot be reached from here just now, and what is said of each."""
        return {} if self.link is None else dict(self.link.away)

    @property
    def apart(self) -> dict[str, str]:
        """Machines that the head does not reach, and so are controlled through here, and what is said of each."""
        there = [host for host in self.hosts if isinstance(host, RemoteHost)]
        return {host.name: host.apart.why for host in there if host.apart is not None}

    def _is_away(self, name: str) -> bool:
        return name in self.away

    def _is_off(self, name: str) -> bool:
        return name in self._off(self.hosts)

    def _off(self, hosts: Sequence[launch.Host]) -> set[str]:
        """Of which machines it is known that nothing goes on there."""
        off = set() if self.control is None else self.control.off
        return {host.name for host in hosts if off & set(host.nodes)}

    def _retry(self) -> None:
        """Somebody asks: what is away is tried at once, rather than when its turn comes."""
        if self.link is not None:
            self.link.retry()

    def _must_live(self, *, restarting: bool = False) -> None:
        if self.state == "ended":
            why = f": {self.expiry.text}" if self.expiry.over else ""
            raise PoolError(f"pool {self.spec.name!r} has ended{why}; `%sky up` makes a new one")
        if self.state == "taken":
            raise PoolError(
                f"another notebook has taken pool {self.spec.name!r} over; `%sky attach {self.spec.name} --take-over` "
                "takes it back, `%sky down` forgets it here"
            )
        if self.state == "broken" and not restarting:
            raise PoolError(f"pool {self.spec.name!r} is broken: {self.broken}; `%sky restart` makes it anew")
        if self.state == "new" and self._change.locked() and not restarting:
            raise PoolError(f"pool {self.spec.name!r} is being {self._changed} just now: try again when it is done")
        if self.state == "new" or self.control is None:
            raise PoolError(f"pool {self.spec.name!r} has not been started")

    @contextlib.contextmanager
    def _phase(self, phase: str, text: str) -> Iterator[Callable[[str], None]]:
        """Tell the listener of a phase's begin, lines and end."""
        noted = self.phases.begin(phase, text)

        def say(line: str) -> None:
            self.phases.say(noted, line)
            self.listener(PhaseEvent(phase, line, noted.elapsed, usual=noted.usual))

        say(text)
        try:
            yield say
        except BaseException:
            noted.end("failed")
            raise
        noted.end("done")
        self.listener(PhaseEvent(phase, text, noted.elapsed, done=True, usual=noted.usual))

    def __repr__(self) -> str:
        return f"<Pool {self.spec.name!r}: {self.spec.nodes} nodes, {self.spec.world_size} ranks, {self.state}>"


def _kind_of_start(spec: PoolSpec) -> str:
    """What two starts have in common that take about as long: provider and image; nothing of it can be read."""
    image = spec.full_image
    # Values of variables may be secrets.
    about = repr((spec.provider.kind, image.python, image.pip, image.apt, sorted(image.env)))
    return hashlib.sha256(about.encode(errors="replace")).hexdigest()[:16]


def _import_client() -> None:
    import distributed  # noqa: F401 - only to have it imported
