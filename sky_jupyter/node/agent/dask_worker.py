"""Dask worker that connects an agent to the control plane.

A Dask worker closes for good when the scheduler's connection breaks. The agent's process outlives it and makes another
worker, with the same kernels, journals and number.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.config
import distributed.core
from distributed import Worker
from distributed.worker import get_worker

from ..dask import scheduler as control
from ..dask.monotonic_batching import patch_batched_send
from ..protocol import rpc
from ..protocol.host_config import HostConfig, member_name
from ..protocol.short_call_frames import HANDSHAKE
from ..system.gpus import Devices
from .agent import Agent

TOPIC = "sky"
_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
_BEAT = 2.0


class AgentWorker(control.WithoutHttp, control.WithoutMeasurements, Worker):
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
        # Seconds between two heartbeats, at least.
        self.beat = _BEAT
        config = agent.config
        # A tunnel to the agent leads to a fixed port. If that is taken for the moment, connecting is retried.
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
            self.handlers[call.op] = self.check_caller(call, handler) if call.fenced else handler
        self.handlers[HANDSHAKE] = self.serve_short_calls

    async def listen(self, port_or_addr: Any = None, allow_offload: bool = False, **options: Any) -> None:
        """Listen without offloading messages to a thread.

        Dask would otherwise measure every message first. Large values here are bytes, which need no thread.
        """
        await super().listen(port_or_addr, allow_offload=allow_offload, **options)

    async def heartbeat(self) -> None:
        """Send a heartbeat; the next one comes later than Dask would have it.

        Connections show who is there: heartbeats only find the rare one that the scheduler has closed unheard.
        """
        await super().heartbeat()
        if (beat := self.periodic_callbacks.get("heartbeat")) is not None:
            beat.callback_time = max(beat.callback_time, self.beat * 1000)

    def check_caller(self, call: rpc.AgentCall, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a handler so that it refuses a manager that has been replaced, and a guest where it may not call."""

        async def checked(manager: int = 0, guest: str = "", **arguments: Any) -> Any:
            if guest:
                self.agent.admit(guest, call)
            else:
                self.agent.obey(manager)
            return await handler(**arguments)

        return checked

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
    node: int,
    scheduler: str,
    devices: Devices,
    lease: int,
) -> None:
    """Run a node's agent until the process receives SIGTERM.

    Parameters
    ----------
    folder : Path
        The pool's folder on this machine.
    config : HostConfig
        The pool's shape.
    node : int
        This node's number.
    scheduler : str
        The scheduler's address.
    devices : Devices
        The machine's accelerators.
    lease : int
        File descriptor to which a byte is written to renew the lease.
    """
    dask.config.set(control.DASK_SETTINGS)
    patch_batched_send()
    asyncio.run(_serve(Agent(folder, config, node, devices), scheduler, lease))


async def _serve(agent: Agent, scheduler: str, lease: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    starting = asyncio.create_task(agent.start_ranks())
    # A call may arrive as soon as the scheduler knows this node.
    agent.starting = dict.fromkeys(agent.ranks, starting)
    agent.background(agent.sample())
    agent.background(agent.watch_processes())
    agent.background(agent.interruptions.attend())
    if agent.node == min(agent.config.nodes):
        # Only one agent per machine: they share the blobs.
        agent.background(agent.files.kept.evict_regularly())
    agent.background(agent.renew_lease(functools.partial(_renew, lease), agent.config.lease_interval))
    connected = asyncio.create_task(_stay_connected(agent, scheduler))
    try:
        await asyncio.wait([asyncio.ensure_future(stop.wait()), connected], return_when=asyncio.FIRST_COMPLETED)
        if connected.done():
            connected.result()
        await asyncio.gather(agent.terminals.close(), agent.sky_end_kernels(agent.config.exit_timeout))
    except Exception:
        # A normal exit would wait for Dask's own tasks; an agent that cannot start has nothing to save.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    finally:
        agent.apps.close()


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
            # The scheduler may not have noticed yet that the old connection is gone: retry with a back-off.
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
