"""Dask workers, one per agent, that connect a process to the control plane.

A Dask worker closes for good when its connection to the scheduler breaks. The agent outlives it and makes another
worker, with the same kernels, journals and number. If the scheduler was told that the node is lost, the agent returns
with another incarnation: its calls have been begun elsewhere, and its kernels are replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask.config
import distributed.core
from distributed import Worker
from distributed.worker import get_worker

from ...errors import PoolError
from ..dask import scheduler as control
from ..dask.pings import PingsMany
from ..protocol import agent_process, rpc
from ..protocol.host_config import HostConfig, member_name
from ..protocol.short_call_frames import HANDSHAKE, agents_socket_of
from ..system import processes
from ..system.gpus import Devices
from . import run_starts
from .agent import Agent
from .short_call_listener import ShortCallListener

TOPIC = "sky"
_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
# Least seconds between heartbeats: of the first agent in a process, and of the others, which live as long as the first;
# and most heartbeats in a second: of all first agents, and of all others.
_BEAT, _BEAT_BESIDE = 2.0, 10.0
_BEATS, _BEATS_BESIDE = 100, 20
# Dask's reason for closing a worker that it was told to remove.
_REMOVED = "scheduler-remove-worker"
# Threads of each agent's share, as asyncio would have them.
_THREADS = min(32, (os.cpu_count() or 1) + 4)


class AgentWorker(PingsMany, control.WithoutHttp, control.WithoutMeasurements, Worker):
    """Dask worker that answers the agents' calls; `serve` makes one per connection.

    Parameters
    ----------
    scheduler : str
        The scheduler's address.
    agent : Agent
        The agent that answers the calls.
    """

    def __init__(self, scheduler: str, agent: Agent) -> None:
        self.agent = agent
        config = agent.config
        if agent is agent.beside[0]:
            self.beat = max(_BEAT, config.total_nodes / _BEATS)
        else:
            self.beat = max(_BEAT_BESIDE, config.total_nodes / _BEATS_BESIDE)
        # A tunnel to the agent leads to a fixed port. If another process has that for the moment, connecting is
        # retried.
        here = {"host": control.listening_host(config.addresses[agent.node])}
        apart = {"host": "127.0.0.1", "port": config.port, "contact_address": config.contact}
        super().__init__(
            scheduler,
            name=member_name(agent.node, config.shape),
            # One function call at a time per rank; a call may request a certain rank.
            nthreads=config.ranks_per_node,
            resources={rank_resource(rank): 1 for rank in agent.ranks},
            **(apart if config.contact else here),
            security=control.security(agent.pool_folder),
            dashboard=False,
            memory_limit=0,
            local_directory=str(agent.folder / "dask"),
        )
        for call in rpc.AGENT_CALLS:
            handler = agent.handler(call)
            handler = self.check_caller(call, handler) if call.fenced else handler
            self.handlers[call.op] = self.pass_on(call, handler) if "branches" in call.optional else handler
        self.serve_pings()
        self.handlers[HANDSHAKE] = self.serve_short_calls

    async def listen(self, port_or_addr: Any = None, allow_offload: bool = False, **options: Any) -> None:
        """Listen without offloading messages to a thread.

        Dask would otherwise measure every message first. Large values here are bytes, which need no thread.
        """
        await super().listen(port_or_addr, allow_offload=allow_offload, **options)

    async def heartbeat(self) -> None:
        """Send a heartbeat, with a longer pause until the next one than Dask's own.

        Connections show which agents are alive. Heartbeats only find the rare connection that the scheduler has closed
        without the agent's notice.
        """
        await super().heartbeat()
        if (beat := self.periodic_callbacks.get("heartbeat")) is not None:
            beat.callback_time = max(beat.callback_time, self.beat * 1000)

    async def close(self, *args: Any, reason: str = "worker-close", **options: Any) -> str | None:
        """Close the connection; renew the incarnation if the scheduler removed the node."""
        if reason == _REMOVED:
            self.agent.renew_incarnation()
        self.agent.short.hang_up()
        return await super().close(*args, reason=reason, **options)

    def ping_one(self, address: str, **caller: Any) -> Coroutine[Any, Any, str]:
        """Ping an agent, which may be this one."""
        if address == self.contact_address:
            ping: Coroutine[Any, Any, str] = self.handlers[rpc.PING.op](**caller)
            return ping
        return super().ping_one(address, **caller)

    def check_caller(self, call: rpc.AgentCall, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a handler to refuse replaced managers, and guests that may not call it."""

        async def checked(manager: int = 0, guest: str = "", **arguments: Any) -> Any:
            for agent in self.concerned(call, arguments):
                if guest:
                    agent.admit(guest, call)
                else:
                    agent.obey(manager)
            try:
                return await handler(**arguments)
            except OSError as error:
                # The caller would take it for a broken connection; Dask's own errors of such have no number.
                if error.errno is None or isinstance(error, (ConnectionError, TimeoutError)) or call is rpc.PING:
                    raise
                raise PoolError(f"{type(error).__name__}: {error}") from error

        return checked

    def pass_on(self, call: rpc.AgentCall, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a joint call's handler so that other agents of this branch answer too."""

        async def ask(address: str, arguments: dict[str, Any]) -> dict[int, Any]:
            with contextlib.suppress(OSError):
                answer: dict[int, Any] = await getattr(self.rpc(address), call.op)(**arguments)
                return answer
            # The manager calls these agents itself.
            return {}

        async def passed_on(branches: dict[str, list[str]] | None = None, **arguments: Any) -> dict[int, Any]:
            others = (branches or {}).get(str(self.contact_address), [])
            answers = await asyncio.gather(handler(**arguments), *(ask(address, arguments) for address in others))
            return {node: answer for found in answers for node, answer in found.items()}

        return passed_on

    def concerned(self, call: rpc.AgentCall, arguments: dict[str, Any]) -> Sequence[Agent]:
        """Return the agents of this process that a call counts for."""
        if "incarnations" in call.required:
            return run_starts.present(self.agent.beside, arguments["incarnations"])
        return self.agent.beside if call is rpc.PING else (self.agent,)

    async def serve_short_calls(self, comm: Any, manager: int) -> Any:
        """Serve the manager's channel of short calls until it closes."""
        self.agent.obey(manager)
        await self.agent.short.serve(comm, manager)
        comm.abort()
        return distributed.core.Status.dont_reply

    def forward(self, message: dict[str, Any]) -> None:
        """Send a batch of events to the subscribers of TOPIC."""
        self.batched_send({"op": "log-event", "topic": TOPIC, "msg": message})


def rank_resource(rank: int) -> str:
    """Return the Dask resource that pins a call to one rank."""
    return f"sky-rank-{rank}"


async def call(id: str, content: dict[str, Any], own: dict[str, Any], rank: int | None = None) -> dict[str, Any]:
    """Run a function call on a rank, as a Dask task; return its attempt's name.

    ``content`` is common to several calls, ``own`` is this call's. The bytes in them are opaque to Dask. Output and
    result are in the attempt's journal.
    """
    member = get_worker()
    assert isinstance(member, AgentWorker)
    return await member.agent.tasks.call(id, {**content, **own}, rank)


def serve(
    folder: Path,
    config: HostConfig,
    nodes: Sequence[int],
    scheduler: str,
    devices: Devices,
    lease: int,
) -> None:
    """Run the agents of nodes until the process receives SIGTERM.

    Parameters
    ----------
    folder : Path
        The pool's folder on this machine.
    config : HostConfig
        The pool's shape.
    nodes : sequence of int
        The nodes' numbers.
    scheduler : str
        The scheduler's address.
    devices : Devices
        The machine's accelerators.
    lease : int
        File descriptor to which a byte is written to renew the lease.
    """
    dask.config.set(control.DASK_SETTINGS)
    control.patch_batched_send()
    processes.allow_many_files()
    incarnations = agent_process.new_incarnations(nodes)
    agents = [Agent(folder, config, node, devices, incarnations[node]) for node in nodes]
    for agent in agents:
        agent.beside = agents
    asyncio.run(_serve(agents, scheduler, lease))


async def _serve(agents: Sequence[Agent], scheduler: str, lease: int) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.set_default_executor(ThreadPoolExecutor(_THREADS * len(agents), "asyncio"))
    for agent in agents:
        _begin(agent, lease)
    ShortCallListener(agents, agents_socket_of(agents[0].pool_folder, agents[0].node))
    connected = [asyncio.create_task(_stay_connected(agent, scheduler)) for agent in agents]
    try:
        await asyncio.wait([asyncio.ensure_future(stop.wait()), *connected], return_when=asyncio.FIRST_COMPLETED)
        for task in connected:
            if task.done():
                task.result()
        await asyncio.gather(*(_end(agent) for agent in agents))
    except Exception:
        # A normal exit would wait for Dask's own tasks; an agent that cannot start has nothing to save.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    finally:
        for agent in reversed(agents):
            agent.apps.close()


def _begin(agent: Agent, lease: int) -> None:
    """Start an agent's ranks and background tasks."""
    starting = asyncio.create_task(agent.start_ranks())
    # A call may arrive as soon as the scheduler knows this node.
    agent.starting = dict.fromkeys(agent.ranks, starting)
    # An earlier agent may have left one that has runs which ended with it.
    agent.active_runs.write_soon()
    agent.background(agent.sample())
    agent.background(agent.watch_processes())
    agent.background(agent.interruptions.attend())
    if agent.node == min(agent.config.nodes):
        # Only one agent per machine: they share the blobs.
        agent.background(agent.files.kept.evict_regularly())
    agent.background(agent.renew_lease(functools.partial(_renew, lease), agent.config.lease_interval))


async def _end(agent: Agent) -> None:
    """End an agent's terminals and ranks in order."""
    await asyncio.gather(agent.terminals.close(), agent.sky_end_kernels(agent.config.exit_timeout))


async def _stay_connected(agent: Agent, scheduler: str) -> None:
    """Connect to the scheduler, and reconnect whenever the connection breaks."""
    been_there = False
    pause = _PAUSE
    while True:
        try:
            async with AgentWorker(scheduler, agent) as member:
                been_there, pause = True, _PAUSE
                agent.connect(member.forward)
                agent.sharing.connect(member)
                agent.interruptions.connect(member)
                await member.finished()
        except Exception:
            if not been_there:
                raise
            # The scheduler may not have noticed yet that the old connection has ended: retry with a back-off.
            traceback.print_exc()
            pause = min(1.5 * pause, _LONGEST_PAUSE)
        finally:
            agent.connect(None)
            agent.sharing.connect(None)
            agent.interruptions.connect(None)
            _forget_handlers()
        await asyncio.sleep(pause)


def _forget_handlers() -> None:
    """Clear Dask's cache of handlers, which keeps every closed worker alive."""
    with contextlib.suppress(AttributeError):
        distributed.core._expects_comm.cache_clear()


def _renew(lease: int) -> None:
    with contextlib.suppress(OSError):
        os.write(lease, b"r")
