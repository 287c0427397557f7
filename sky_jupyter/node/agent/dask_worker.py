"""An agent's place in the control plane: a Dask worker that hands on what is asked.

A Dask worker closes for good when the scheduler's connection breaks. The agent's process outlives
it, and takes its place anew, with the same kernels, journals and number.
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
from ..system.gpus import Devices
from .agent import Agent

TOPIC = "sky"
_PAUSE, _LONGEST_PAUSE = 0.1, 1.0


class AgentWorker(control.WithoutHttp, Worker):
    """Made by `serve`, anew after each break; holds nothing but the agent.

    Parameters
    ----------
    scheduler : str
        The scheduler's address.
    agent : Agent
        Who answers the calls.
    """

    def __init__(self, scheduler: str, agent: Agent) -> None:
        self.agent = agent
        config = agent.config
        # What leads to the agent leads to one port: where another has it for now, it is tried again.
        here = {"host": control.listening_host(config.addresses[agent.node])}
        apart = {"host": "127.0.0.1", "port": config.port, "contact_address": config.contact}
        super().__init__(
            scheduler,
            name=member_name(agent.node, config.shape),
            # One function call at a time for each rank, and for one that is asked for.
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
            self.handlers[call.op] = self.check_fencing_token(handler) if call.fenced else handler

    async def listen(self, port_or_addr: Any = None, allow_offload: bool = False, **options: Any) -> None:
        """Dask's, which else weighs all that is in each message: what is large here is bytes, and needs no thread."""
        await super().listen(port_or_addr, allow_offload=allow_offload, **options)

    def check_fencing_token(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a handler so that it refuses a manager that has been replaced by another."""

        async def checked(manager: int = 0, **arguments: Any) -> Any:
            self.agent.obey(manager)
            return await handler(**arguments)

        return checked

    def forward(self, message: dict[str, Any]) -> None:
        """Send a batch of a run's events to whoever has subscribed."""
        self.batched_send({"op": "log-event", "topic": TOPIC, "msg": message})


def rank_resource(rank: int) -> str:
    """What a call asks Dask for that is to be on one rank and no other."""
    return f"sky-rank-{rank}"


async def call(id: str, content: dict[str, Any], own: dict[str, Any], rank: int | None = None) -> dict[str, Any]:
    """A function call as a Dask task: opaque bytes for a rank's kernel, waited for.

    ``content`` is what it has in common with others. What it prints and returns is in its journal.
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
    """Be the agent of a node until the process is asked to end.

    Parameters
    ----------
    lease : int
        The file descriptor that a byte is written to when the lease is to be renewed.
    """
    dask.config.set(control.DASK_SETTINGS)
    patch_batched_send()
    asyncio.run(_serve(Agent(folder, config, node, devices), scheduler, lease))


async def _serve(agent: Agent, scheduler: str, lease: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    starting = asyncio.create_task(agent.start_ranks())
    # A call may come as soon as the scheduler knows this node.
    agent.starting = dict.fromkeys(agent.ranks, starting)
    agent.background(agent.sample())
    agent.background(agent.watch_processes())
    if agent.node == min(agent.config.nodes):
        # One of those on this machine, since they have the same blobs.
        agent.background(agent.files.look_after_blobs())
    agent.background(agent.renew_lease(functools.partial(_renew, lease), agent.config.lease_interval))
    connected = asyncio.create_task(_stay_connected(agent, scheduler))
    try:
        await asyncio.wait([asyncio.ensure_future(stop.wait()), connected], return_when=asyncio.FIRST_COMPLETED)
        if connected.done():
            connected.result()
        await agent.sky_end_kernels(agent.config.exit_timeout)
    except Exception:
        # Dask's own tasks would be waited for; an agent that cannot start has nothing to save.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    finally:
        agent.apps.close()


async def _stay_connected(agent: Agent, scheduler: str) -> None:
    """Take the agent's place, and take it again whenever it is lost."""
    been_there = False
    pause = _PAUSE
    while True:
        try:
            async with AgentWorker(scheduler, agent) as member:
                been_there, pause = True, _PAUSE
                agent.connect(member.forward)
                agent.sharing.connect(member)
                await member.finished()
        except Exception:
            if not been_there:
                raise
            # The scheduler may not have noticed yet that this node's old connection is gone.
            traceback.print_exc()
            pause = min(1.5 * pause, _LONGEST_PAUSE)
        finally:
            agent.connect(None)
            agent.sharing.connect(None)
            _forget_handlers()
        await asyncio.sleep(pause)


def _forget_handlers() -> None:
    """Dask remembers each handler that it ever called, and with it each worker that was closed."""
    with contextlib.suppress(AttributeError):
        distributed.core._expects_comm.cache_clear()


def _renew(lease: int) -> None:
    with contextlib.suppress(OSError):
        os.write(lease, b"r")
