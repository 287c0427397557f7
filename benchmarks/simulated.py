"""Simulated nodes: the real agents, many to a process, with ranks that follow a script and are no processes.

All between the notebook and a rank is real: the scheduler and the agents over Dask's TLS connections, their journals,
batches and calls. A rank here answers at once, in its agent's process: what costs time is what is between. `pool` makes
a pool of such nodes in the calling process; ``python -m benchmarks.simulated FOLDER`` is the host that it starts.

A cell is a script for each rank: ``x = 1`` ends at once, ``lines = N`` prints so many lines in batches of a kernel's
size, and ``wait = 1`` ends when it is interrupted. Functions are called in the agent's process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from sky_jupyter.node.agent.kernel_client import RankKernel
from sky_jupyter.node.host.host import HostProcess, main
from sky_jupyter.node.host.host_parts import HostParts
from sky_jupyter.node.protocol import agent_process
from sky_jupyter.node.protocol.host_config import HostConfig

if TYPE_CHECKING:
    from sky_jupyter.pool.pool import Pool

MODULE = "benchmarks.simulated"
# Agents of a process: what one event loop manages is shared by as few processes as there are cores.
PROCESSES = "SKY_SIMULATED_PROCESSES"
# Set, each agent says that it is alone in its process: messages are those of as many machines.
APART = "SKY_SIMULATED_APART"
# Lines that a kernel sends at once.
_TOGETHER = 100
_END = {"status": "ok", "bound": True, "writes": [], "modules": [], "imports": {}, "sizes": {}, "uses": {}}


class SimulatedForkserver:
    """Stands where the agent has its forkserver; nothing is forked."""

    async def connect(self, path: Path) -> None:
        """Do nothing."""


class SimulatedRank(RankKernel):
    """Rank whose requests are answered by a script, in the agent's process."""

    _lives = False
    _interrupted: asyncio.Event

    @property
    def pid(self) -> int:
        """The agent's own process id."""
        return os.getpid() if self._lives else 0

    async def start(self, forkserver: object) -> None:
        """Be there at once."""
        self.generation += 1
        self._lives, self.entered = True, False
        self._interrupted = asyncio.Event()
        self.ready.set()

    async def _request(self, run: str, content: dict[str, Any], *, interrupted: bool) -> dict[str, Any]:
        self.ended[run] = asyncio.get_running_loop().create_future()
        self.busy_with = run
        self.begun.set()
        began = time.perf_counter()
        try:
            end = await self._play(run, content)
        except Exception as error:
            end = {"status": "error", "ename": type(error).__name__, "evalue": str(error), "traceback": [repr(error)]}
        try:
            return self._finish(run, {"kind": "end", **end, "elapsed": time.perf_counter() - began})
        finally:
            self.busy_with = None
            self.ended.pop(run, None)

    async def _play(self, run: str, content: dict[str, Any]) -> dict[str, Any]:
        kind = content["kind"]
        if kind == "call":
            from sky_jupyter.node.serialization import pickling, result_values

            function, calls = pickling.load_call(content)
            values = [function(*args, **kwargs) for args, kwargs in calls]
            value = values if content.get("together") else values[0]
            return {**_END, **result_values.dump(value, result_values.SMALL)}
        if kind != "cell":
            return {"status": "ok"}
        word, _, count = content["code"].strip().partition(" = ")
        if word == "lines":
            for start in range(0, int(count), _TOGETHER):
                text = "".join(f"line {n} of rank {self.number}\n" for n in range(start, start + _TOGETHER))
                self.on_event(run, {"kind": "stream", "name": "stdout", "text": text, "t": time.time()})
                # As ranks of their own would, all go on side by side.
                await asyncio.sleep(0)
        elif word == "wait":
            self._interrupted.clear()
            await self._interrupted.wait()
            return {**_END, "status": "interrupted", "ename": "KeyboardInterrupt", "evalue": "", "traceback": []}
        return dict(_END)

    async def signal(self, number: int, run: str | None = None) -> bool:
        """End what waits."""
        if run is not None and self.busy_with != run:
            return False
        if self._lives:
            self._interrupted.set()
        return True

    def tell(self, told: dict[str, Any], buffers: list[bytes]) -> None:
        """Do nothing: no code is there to hear it."""

    def answer(self, content: dict[str, Any], data: Sequence[bytes] = ()) -> None:
        """Do nothing: no code has asked."""

    def abort(self) -> None:
        """Do nothing: there are no collectives."""

    async def kill(self) -> None:
        """End."""
        self._lives = False

    async def end(self, patience: float) -> bool:
        """End, in time."""
        self._lives = False
        return True


class SimulatedParts(HostParts):
    """Parts of a host that starts no forkserver; it imports the control plane by itself."""

    def _begin(self, folder: Path) -> None:
        """Do nothing."""


class SimulatedHost(HostProcess):
    """Host that starts no forkserver, and few processes for all agents."""

    def start(self) -> None:
        from sky_jupyter.node.agent import agent
        from sky_jupyter.node.dask import scheduler, settings

        settings.forget_the_persons()
        # The agent's parts ask for them by these names.
        agent.RankKernel, agent.Forkserver = SimulatedRank, SimulatedForkserver  # type: ignore[misc,assignment]
        agent.Agent.watch_processes = _nothing  # type: ignore[method-assign]
        self.serve_scheduler, self.serve_agents = scheduler.serve, serve_agents
        self.has_scheduler = self.scheduler_address is None
        if self.has_scheduler:
            self.scheduler_address = self.start_scheduler()
        self.start_all_agents()
        self.renewed = time.monotonic()
        self.say(event="started", scheduler=self.scheduler_address)

    def start_all_agents(self) -> None:
        # The last node has a process of its own, which can be killed as a node.
        *most, last = self.config.nodes
        size = -(-len(most) // max(1, int(os.environ.get(PROCESSES, "2")))) or 1
        groups = [*(most[at : at + size] for at in range(0, len(most), size)), [last]]
        self.agents = {agent_process.name_of(nodes): nodes for nodes in groups}
        for name in self.agents:
            self.start_agents(name)


def serve_agents(folder: Path, config: HostConfig, *given: Any) -> None:
    """Run the agents of nodes, which find functions as a kernel does."""
    from sky_jupyter.node.agent import dask_worker
    from sky_jupyter.node.files.blob_cache import places
    from sky_jupyter.node.serialization import pickling

    os.environ[pickling.BLOBS] = os.pathsep.join(map(str, places(folder, config.blobs)))
    if os.environ.get(APART):
        _set_apart()
    dask_worker.serve(folder, config, *given)


def _set_apart() -> None:
    """Have agents of this process know nothing of each other."""
    from sky_jupyter.node.agent import agent, dask_worker

    together, new = dask_worker._serve, agent_process.new_incarnations

    async def serve(agents: Sequence[Any], *given: Any) -> None:
        for one in agents:
            one.beside = (one,)
        await together(agents, *given)

    dask_worker._serve = serve  # type: ignore[assignment]
    agent_process.new_incarnations = lambda nodes: {node: new([node])[node] for node in nodes}
    agent.Agent.sample = _nothing  # type: ignore[method-assign]


async def _nothing(self: Any) -> None:
    """Do nothing."""


@contextlib.contextmanager
def hosts() -> Iterator[None]:
    """Have pools of local nodes that are started in the block simulated."""
    from sky_jupyter.pool.hosts import early_host

    before = early_host.HOST_PROCESS
    early_host.HOST_PROCESS = MODULE  # type: ignore[misc]
    try:
        with _folders_in_memory():
            yield
    finally:
        early_host.HOST_PROCESS = before  # type: ignore[misc]


@contextlib.contextmanager
def _folders_in_memory() -> Iterator[None]:
    """Have the nodes' folders in memory, where there is such a place.

    So many nodes have a disk each elsewhere. On one disk of ext4, just after another pool's files were removed, each
    new file costs up to 0.2 ms, which is more than all else that an agent does for an empty cell.
    """
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix="sky-simulated-", dir=memory) as folder,
        mock.patch.dict(os.environ, TMPDIR=folder),
        mock.patch.object(tempfile, "tempdir", folder),
    ):
        yield


@contextlib.contextmanager
def pool(nodes: int) -> Iterator[Pool]:
    """Start a pool of simulated nodes, and end it."""
    from sky_jupyter.pool.pool import Pool
    from sky_jupyter.providers import Local
    from sky_jupyter.spec.options import Options
    from sky_jupyter.spec.pool_spec import PoolSpec

    with hosts():
        made = Pool(PoolSpec(provider=Local(), nodes=nodes, options=Options(crowded=True)))
        try:
            made.start()
            yield made
        finally:
            made.down()


if __name__ == "__main__":
    main(SimulatedParts, SimulatedHost)
