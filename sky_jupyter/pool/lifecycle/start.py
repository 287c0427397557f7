"""Start of a pool's machines and hosts: acquire, connect, prepare, launch."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ...bootstrap import apt, local_environment, plugin_steps
from ...errors import BootstrapError
from ...machines.local_machine import LocalMachine
from ...node.system import gpus
from ...providers.base import ConnectionSession, has_queue, provider_of
from ...util.garbage import collections_paused
from ..base import retries
from ..context import PoolContext
from ..hosts import launch, remote_host
from ..hosts.host_places import node_environment
from ..hosts.pool_link import PoolLink
from . import incarnations, machine_queue
from .power_renewal import kept_on

if TYPE_CHECKING:
    from ...bootstrap.remote_environment import HostPreparation
    from ...machines.ssh.types import Prompts
    from ..base.phases import PhaseLog
    from ..registry.remote_leftovers import Traces
    from .host_events import HostEvents
    from .provisioning import Provisioning
    from .state_machine import PoolState
    from .teardown import Teardown
    from .ttl import Expiry

# The number of an error's lines that say what was waited for.
_LAST = 5


class StartContext(PoolContext, Protocol):
    """The pool as its start sees it, and fills it."""

    ids: Sequence[str]
    # The incarnations of its machines that may come back, by id.
    incarnations: dict[str, str]
    machines: list[Any]
    link: PoolLink | None
    prompts: Prompts | None
    # Set to cancel the start.
    stop_event: threading.Event
    launches_done: threading.Event

    @property
    def state(self) -> PoolState: ...

    @property
    def provisioning(self) -> Provisioning: ...

    @property
    def host_events(self) -> HostEvents: ...

    @property
    def phases(self) -> PhaseLog: ...

    @property
    def traces(self) -> Traces:
        """The registry's records of the pool's parts on other machines."""
        ...

    @property
    def expiry(self) -> Expiry: ...

    def is_off(self, name: str) -> bool:
        """Return whether nothing runs on a machine."""
        ...

    @property
    def teardown(self) -> Teardown: ...


class PoolStart:
    """Start of one pool's machines and hosts; made with it.

    Parameters
    ----------
    pool : StartContext
        The pool, whose ``ids``, ``machines`` and ``hosts`` it fills.
    """

    def __init__(self, pool: StartContext) -> None:
        self.pool = pool
        self._local = not pool.spec.provider.survives_manager
        # The time that the machines wait in a queue.
        self._queued = retries.Pauses()
        # This machine, for each node that is one of its processes.
        self._near: list[Any] = []

    async def have(self) -> None:
        """Acquire the machines, and connect to them.

        Raises ProvisionError or BootstrapError if that fails or exceeds its limit.
        """
        await (self._here() if self._local else self._connected())

    async def prepare(self) -> tuple[Callable[[], str], bool]:
        """Install the environment; return what starts the hosts there.

        Also returns whether agents can be reached without the scheduler. Raises BootstrapError if that fails or
        exceeds its limit.
        """
        return await retries.within(
            self._prepare_here() if self._local else self._prepare_remote(),
            "bootstrap_timeout",
            self.pool.spec.options.bootstrap_timeout,
            lambda why: retries.not_prepared(why, self.pool.phases.latest),
        )

    async def _here(self) -> None:
        """Acquire the machines of a local pool."""
        pool = self.pool

        def have() -> None:
            pool.ids = pool.provisioning.acquire(pool.spec, pool.spec.nodes)
            self._near = list(provider_of(pool.spec).connect(pool.ids, ConnectionSession(pool.prompts)))
            if pool.spec.world_size > 1:
                env = {**os.environ, **pool.spec.full_image.env}
                if said := gpus.shared_by(gpus.present(env), pool.spec.world_size, env):
                    pool.notify(said)

        await self._attempt(lambda: asyncio.to_thread(have))

    async def _attempt(self, make: Callable[[], Awaitable[None]]) -> None:
        """Acquire machines within the options' attempts and timeout."""
        pool, options = self.pool, self.pool.spec.options
        most = options.attempts(made=pool.spec.provider.provisions)

        buys = pool.spec.provider.provisions
        if buys:
            pool.provisioning.begin()
        try:
            await retries.within(
                retries.attempts(make, most, options.provision_retry_delay, pool.notify),
                "provision_timeout",
                options.provision_timeout,
                retries.not_made,
                self._queued,
            )
        finally:
            if buys:
                # A thread that still runs buys no more.
                pool.provisioning.stop()

    async def _connected(self) -> None:
        """Acquire remote machines, and connect to them."""
        pool, options = self.pool, self.pool.spec.options

        async def connect() -> None:
            # Not part of connecting: a retry adopts the machines that exist.
            await asyncio.to_thread(self._acquire)
            if has_queue(pool.spec.provider):
                await asyncio.to_thread(self._wait_in_queue)
            told: list[str] = []
            waits: dict[str, str] = {}
            with pool.phase("connect", str(pool.spec.provider)) as say:

                def tell(line: str) -> None:
                    told.append(line)
                    say(line)

                work = asyncio.to_thread(self._connect, tell, waits)
                late = functools.partial(self._not_connected, told, waits)
                await retries.within(work, "ssh_timeout", options.ssh_timeout, late)

        await self._attempt(connect)

    def _acquire(self) -> None:
        """Acquire the machines; replace those of the pool that are dead."""
        pool = self.pool
        if not pool.spec.provider.provisions:
            pool.ids = pool.provisioning.acquire(pool.spec, pool.spec.nodes)
            return
        several = "s" if pool.spec.nodes > 1 else ""
        with pool.phase("machines", f"{pool.spec.nodes} machine{several} of {pool.spec.provider}") as say:
            pool.ids = pool.provisioning.acquire(pool.spec, pool.spec.nodes, pool.ids, say)

    def _wait_in_queue(self) -> None:
        """Wait until no machine is queued, in a phase whose time does not count."""
        pool = self.pool
        with contextlib.ExitStack() as stack:
            shown: list[Callable[[str], None]] = []

            def tell(line: str) -> None:
                if not shown:
                    stack.enter_context(self._queued.pause())
                    shown.append(stack.enter_context(pool.phase("queue", f"waiting for {pool.spec.provider}")))
                shown[0](line)

            session = ConnectionSession(pool.prompts, stop=pool.stop_event)
            nodes = {id: node for node, id in enumerate(pool.ids)}
            machine_queue.wait(pool.spec, nodes, session, tell, lambda: pool.state == "ended")

    def _not_connected(self, told: Sequence[str], waits: Mapping[str, str], why: str) -> BootstrapError:
        """Return the error of a connection that takes too long.

        It has the latest lines on machines, and the machines that are waited for and have no line yet.
        """
        lines = list(told[-_LAST:])
        lines += [f"{id}: {state}" for id, state in list(waits.items()) if not any(state in line for line in lines)]
        # Closing the link ends the thread that still connects.
        self.pool.teardown.hang_up()
        return BootstrapError("connect", f"connecting to {self.pool.spec.provider} was {why}", lines=lines[-_LAST:])

    def _connect(self, tell: Callable[[str], None], waits: dict[str, str]) -> None:
        """Connect to the machines in one thread, so that interrupts lose none."""
        pool = self.pool
        pool.link = PoolLink.start(pool.id)
        pool.link.listen(pool.host_events.on_link, pool.is_off)
        try:
            session = pool.link.session(pool.prompts, pool.stop_event, tell=tell, waits=waits)
            if has_queue(pool.spec.provider):
                pool.machines, pool.incarnations = incarnations.connect(pool.spec, pool.ids, session)
            else:
                # Such a provider brings no machine back under its id with its processes gone.
                pool.machines, pool.incarnations = list(provider_of(pool.spec).connect(pool.ids, session)), {}
            if pool.stop_event.is_set():
                raise BootstrapError("connect", "stopped")
        except BaseException:
            pool.teardown.hang_up()
            raise

    async def _prepare_here(self) -> tuple[Callable[[], str], bool]:
        """Install the environment on this machine; see `prepare`."""
        pool = self.pool
        image = pool.spec.full_image
        with pool.phase("environment", "checking what is installed") as say:
            await asyncio.to_thread(apt.check_here, image.apt)
            machines = self._near
            env = await asyncio.to_thread(local_environment.ensure, image, on_line=say, stop=pool.stop_event)
            variables = node_environment(image.env, launch.secret_variables(pool.spec))
            await asyncio.to_thread(plugin_steps.run, pool.spec, machines, env.python, variables, say, pool.stop_event)
        start = functools.partial(self._launch_here, machines, env.python, image.env)
        return start, all(machine.key == LocalMachine.key for machine in machines)

    def _launch_here(self, machines: Sequence[Any], python: Path, env: Mapping[str, str]) -> str:
        pool = self.pool

        def take(host: launch.Host) -> None:
            pool.host_events.take(host)
            if pool.stop_event.is_set() or pool.state == "ended":
                # The pool ended while this host was starting, and may not have ended it.
                host.end()
                raise BootstrapError("agent", "stopped")

        return launch.launch(pool.id, pool.spec, machines, python, env, take, pool.expiry.left)

    async def _prepare_remote(self) -> tuple[Callable[[], str], bool]:
        """Install the environment on the machines; see `prepare`."""
        from ...bootstrap.remote_environment import HostPreparation

        pool, provider = self.pool, self.pool.spec.provider
        importing = asyncio.ensure_future(asyncio.to_thread(import_client))
        await asyncio.to_thread(pool.teardown.end_unreachable)
        told = pool.phases.on_node
        preparation = HostPreparation(
            pool.machines, pool.spec, offline=provider.offline, stop=pool.stop_event, on_node=told
        )
        with kept_on(pool.machines, provider):
            for name, text, work in preparation.phases:
                with pool.phase(name, text) as say:
                    await asyncio.to_thread(work, say)
        await importing
        # Of remote machines, only the scheduler's port is reachable from here.
        return functools.partial(self._launch_remote, preparation), False

    def _launch_remote(self, preparation: HostPreparation) -> str:
        pool = self.pool
        pool.launches_done.clear()
        try:
            assert pool.link is not None
            here = (pool.link.folder, pool.link.blobs)
            return remote_host.start(
                *(
                    pool.traces,
                    pool.spec,
                    preparation.sites,
                    here,
                    preparation.image.env,
                    pool.host_events.take,
                    pool.stop_event,
                ),
                pool.notify,
                pool.expiry.left,
            )
        finally:
            pool.launches_done.set()


def import_client() -> None:
    """Import distributed, which takes long, ahead of its use."""
    with collections_paused():
        import distributed  # noqa: F401 - only to have it imported
