"""The agent: a node's process that the control plane talks to; it never runs the user's code.

It is a Dask worker whose handlers begin with `sky_`. It starts the kernels of its ranks, hands them
requests, appends what they say to the run's journal at once, and forwards it in batches.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import os
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import cloudpickle
import dask.config
from distributed import Worker
from distributed.worker import get_worker

from . import scheduler as control
from .config import HostConfig
from .provisioner import Forkserver
from .rank import Rank
from .run import Run
from .runtime import InstanceInfo

TOPIC = "sky"
_BATCH = 0.05
# A reply that waits this long brings a short run's end along, instead of a second message.
_LINGER = 0.02
_KEEP_RUNS = 200
_CALLS = (
    *("start", "read", "fetch", "forget", "status"),
    *("signal", "abort", "restart", "enter", "check", "again", "leave", "ports"),
)


class Agent(control.WithoutHttp, Worker):
    """One a node, made by `serve`; ends with its process.

    Parameters
    ----------
    pool_folder : Path
        The pool's folder on this machine.
    config : HostConfig
        The pool's shape.
    node : int
        This node's number.
    accelerators : tuple of int and str
        How many accelerators it has, and their kind.
    """

    def __init__(
        self,
        scheduler: str,
        pool_folder: Path,
        config: HostConfig,
        node: int,
        accelerators: tuple[int, str | None] = (0, None),
    ) -> None:
        self.accelerators = accelerators
        self.apps = contextlib.ExitStack()
        self.folder = pool_folder / f"n{node}"
        self.pool_folder = pool_folder
        self.config = config
        self.node = node
        self.runs: dict[str, Run] = {}
        self.noise: re.Pattern[str] | None = None
        self.forkserver = Forkserver()
        self._flusher: asyncio.TimerHandle | None = None
        self._waiting: set[asyncio.Task[Any]] = set()
        (self.folder / "journal").mkdir(mode=0o700, exist_ok=True)
        (self.folder / "values").mkdir(mode=0o700, exist_ok=True)
        first = node * config.ranks_per_node
        env = {
            "IPYTHONDIR": str(self.folder / "ipython"),
            "SKY_POOL": config.pool,
            # debugpy comes with ipykernel and warns of what is no matter here.
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        }
        self.ranks = {
            number: Rank(number, self.folder, config.cwd, env, functools.partial(self.on_event, number))
            for number in range(first, first + config.ranks_per_node)
        }
        super().__init__(
            scheduler,
            name=f"node-{node}",
            nthreads=config.ranks_per_node,
            host=config.addresses[node],
            security=control.security(pool_folder),
            dashboard=False,
            memory_limit=0,
            local_directory=str(self.folder / "dask"),
        )
        for name in _CALLS:
            self.handlers[f"sky_{name}"] = getattr(self, f"sky_{name}")

    async def start_ranks(self) -> None:
        """Connect to the forkserver and start all kernels; failures are kept for `sky_enter` to tell."""
        await self.forkserver.connect(self.pool_folder / "fork")
        self.starting = {rank.number: asyncio.create_task(rank.start(self.forkserver)) for rank in self.ranks.values()}
        await asyncio.wait(self.starting.values())

    # -- what the manager asks ---------------------------------------------------------------------

    async def sky_start(self, run: str, ranks: list[int], content: dict[str, Any]) -> dict[str, Any]:
        """Start a run on those of the ranks that live here; a known id answers with its state instead."""
        if run in self.runs:
            return {"state": "known", "first": 0, "count": 0, "data": b""}
        chosen = self.mine(ranks)
        record = self.open_run(run, [rank.number for rank in chosen])
        for rank in chosen:
            self.background(rank.request(run, content))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(record.over.wait(), _LINGER)
        first, count, data = record.take() or (0, 0, b"")
        record.replied = True
        return {"state": "over" if record.over.is_set() else "running", "first": first, "count": count, "data": data}

    async def sky_read(self, run: str, start: int) -> dict[str, Any]:
        """Events of a run from number ``start`` on."""
        record = self.known(run)
        record.settle()
        data, following = record.journal.read(start)
        return {"first": start, "data": data, "next": following, "over": record.over.is_set()}

    async def sky_signal(self, number: int, ranks: list[int] | None = None, run: str | None = None) -> list[int]:
        """Signal kernels; with ``run``, only those that still work on it."""
        reached = []
        for rank in self.mine(ranks):
            if run is None or rank.busy_with == run:
                await rank.signal(number)
                reached.append(rank.number)
        return reached

    async def sky_abort(self, ranks: list[int] | None = None) -> None:
        """Break the collectives that ranks are blocked in."""
        for rank in self.mine(ranks):
            rank.abort()

    async def sky_restart(self, ranks: list[int] | None = None) -> dict[int, str]:
        """Replace kernels by new ones; returns the failures in words, by rank."""
        chosen = self.mine(ranks)
        if not chosen:
            return {}
        for rank in chosen:
            await rank.kill()
        # The watcher of the old process has to see its end before a new one takes its place.
        await asyncio.sleep(0.03)
        self.starting = {rank.number: asyncio.create_task(rank.start(self.forkserver)) for rank in chosen}
        await asyncio.wait(self.starting.values())
        return {n: str(task.exception()) for n, task in self.starting.items() if task.exception() is not None}

    async def sky_enter(
        self,
        plugins: bytes,
        ports: dict[str, int],
        job: str,
        noise: list[str],
        apps: bytes = b"",
        ranks: list[int] | None = None,
    ) -> dict[int, dict[str, Any]]:
        """Have ranks enter the plugins, once their kernels answer; returns how each ended.

        ``apps`` is given at a pool's first entering: what plugins do in the agent itself.
        """
        for around in cloudpickle.loads(apps) if apps else ():
            self.apps.enter_context(around(self.info(min(self.ranks), ports, job)))
        every = "|".join(f"^(?:{expression})(?:\n|\\Z)" for expression in noise)
        self.noise = re.compile(every, re.MULTILINE) if noise else None
        for rank in self.mine(ranks):
            rank.noise = self.noise
        content = {"kind": "enter", "plugins": base64.b64encode(plugins).decode()}

        async def enter(rank: Rank) -> dict[str, Any]:
            try:
                await asyncio.shield(self.starting[rank.number])
            except Exception as error:
                return {"status": "died", "text": str(error), "tail": rank.tail()}
            info = self.info(rank.number, ports, job)
            request = f"enter-{job}-{rank.number}-{rank.generation}"
            end = await rank.request(request, {**content, "info": info.to_json()})
            rank.entered = end["status"] == "ok"
            return {**end, "preload_failed": rank.preload_failed, "tail": rank.tail()}

        chosen = self.mine(ranks)
        ends = await asyncio.gather(*(enter(rank) for rank in chosen))
        return {rank.number: end for rank, end in zip(chosen, ends, strict=True)}

    async def sky_check(self, patience: float) -> bool:
        """Whether this node's ranks, with all others, get through the plugins' checks in time."""
        contents = {rank: {"kind": "check"} for rank in self.ranks}
        return await self.all_well(f"check-{time.time_ns()}", contents, patience)

    async def sky_again(self, ports: dict[str, int], job: str, patience: float) -> bool:
        """Have this node's ranks set their frameworks up anew; whether all did, in time."""
        contents = {rank: {"kind": "again", "info": self.info(rank, ports, job).to_json()} for rank in self.ranks}
        return await self.all_well(f"again-{job}", contents, patience)

    async def sky_leave(self, ranks: list[int] | None = None, patience: float = 5.0) -> None:
        """Have ranks leave the plugins; one that is busy or slow is not waited for."""

        async def leave(rank: Rank) -> None:
            if rank.entered and rank.busy_with is None:
                rank.entered = False
                request = f"leave-{rank.number}-{time.time_ns()}"
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(rank.request(request, {"kind": "leave"}), patience)

        await asyncio.gather(*(leave(rank) for rank in self.mine(ranks)))

    async def sky_status(self) -> dict[str, Any]:
        """This node's process id and what each rank does."""
        return {
            "pid": os.getpid(),
            "ranks": {
                rank.number: {"pid": rank.pid, "busy_with": rank.busy_with, "entered": rank.entered}
                for rank in self.ranks.values()
            },
        }

    async def sky_ports(self, count: int) -> list[int]:
        """Free ports of this node's address, for the frameworks' coordinators."""
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
            for item in sockets:
                item.bind((self.config.addresses[self.node], 0))
            return [item.getsockname()[1] for item in sockets]

    async def sky_fetch(self, run: str, rank: int) -> dict[str, Any]:
        """The pickled value of a run that stayed on a rank."""
        path = self.folder / "values" / f"{time.time_ns()}"
        end = await self.ranks[rank].request(f"fetch-{path.name}", {"kind": "fetch", "of": run, "path": str(path)})
        try:
            return {"end": end, "data": path.read_bytes() if end["status"] == "ok" else b""}
        finally:
            path.unlink(missing_ok=True)

    async def sky_forget(self, run: str) -> None:
        """Drop a run's journal."""
        record = self.runs.pop(run, None)
        if record is not None:
            record.journal.close()
            record.journal.path.unlink(missing_ok=True)

    # -- what the ranks say ------------------------------------------------------------------------

    def on_event(self, rank: int, run: str, event: dict[str, Any]) -> None:
        record = self.runs.get(run)
        if event["kind"] == "stream" and self.noise is not None:
            quiet = self.noise.sub("", event["text"])
            if quiet != event["text"]:
                if not quiet:
                    return
                event["text"] = quiet
        if record is None:
            if event["kind"] == "stream":
                self.ranks[rank].note(event["text"])
            return
        record.add(rank, event)
        if not record.replied:
            return
        if record.over.is_set():
            self.forward(record)
        elif self._flusher is None:
            self._flusher = asyncio.get_running_loop().call_later(_BATCH, self.flush)

    def flush(self) -> None:
        """Forward what has gathered in every run."""
        self._flusher = None
        for record in self.runs.values():
            if record.replied:
                self.forward(record)

    def forward(self, record: Run) -> None:
        batch = record.take()
        if batch is not None:
            first, count, data = batch
            message = {"run": record.id, "node": self.node, "first": first, "count": count, "data": data}
            self.batched_send({"op": "log-event", "topic": TOPIC, "msg": message})

    # -- parts -------------------------------------------------------------------------------------

    def open_run(self, run: str, ranks: Iterable[int]) -> Run:
        record = self.runs[run] = Run(run, ranks, self.folder / "journal" / f"{run}.jsonl")
        if len(self.runs) > _KEEP_RUNS:
            finished = [key for key, item in self.runs.items() if item.over.is_set()]
            for key in finished[: max(0, len(self.runs) - _KEEP_RUNS)]:
                self.background(self.sky_forget(key))
        return record

    def known(self, run: str) -> Run:
        if run not in self.runs:
            raise LookupError(f"node {self.node} knows no run {run}")
        return self.runs[run]

    def mine(self, ranks: Iterable[int] | None) -> list[Rank]:
        """Those of the given ranks that live here; all of them where none are given."""
        return [rank for number, rank in self.ranks.items() if ranks is None or number in ranks]

    async def all_well(self, name: str, contents: dict[int, dict[str, Any]], patience: float) -> bool:
        """Make a request of each rank, all at once; whether all ended well in time."""
        requests = [
            asyncio.ensure_future(self.ranks[rank].request(f"{name}-{rank}", content))
            for rank, content in contents.items()
        ]
        done, _ = await asyncio.wait(requests, timeout=patience)
        return len(done) == len(requests) and all(task.result()["status"] == "ok" for task in done)

    def info(self, rank: int, ports: dict[str, int], job: str) -> InstanceInfo:
        per_node = self.config.ranks_per_node
        return InstanceInfo(
            node=self.node,
            rank=rank,
            total_nodes=self.config.total_nodes,
            world_size=self.config.total_nodes * per_node,
            ranks_per_node=per_node,
            local_rank=rank % per_node,
            head_addr=self.config.addresses[0],
            head_port=next(iter(ports.values()), 0),
            peers=tuple(self.config.addresses),
            job_id=job,
            ports=ports,
            accelerators=self.accelerators[0],
            accelerator=self.accelerators[1],
        )

    def background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)


async def call(run: str, content: dict[str, Any], rank: int | None = None) -> dict[str, Any]:
    """A function call as a Dask task: hand opaque bytes to a rank's kernel and wait for its end.

    Without ``rank``, it goes to the rank of this node that has least to do. What it prints and
    returns is in the run's journal.
    """
    agent = get_worker()
    assert isinstance(agent, Agent)
    idle = min(agent.ranks.values(), key=lambda item: (item.waiting, item.number))
    chosen = agent.ranks[rank] if rank is not None else idle
    record = agent.open_run(run, [chosen.number])
    record.replied = True
    await chosen.request(run, content)
    return {"rank": chosen.number, "node": agent.node}


def serve(folder: Path, config: HostConfig, node: int, scheduler: str, accelerators: tuple[int, str | None]) -> None:
    """Be the agent of a node until the process is asked to end."""
    dask.config.set(control.DASK_SETTINGS)
    asyncio.run(_serve(lambda: Agent(scheduler, folder, config, node, accelerators)))


async def _serve(make: Callable[[], Agent]) -> None:
    agent = make()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    starting = asyncio.create_task(agent.start_ranks())
    # A handler may be called as soon as the scheduler knows this worker.
    agent.starting = dict.fromkeys(agent.ranks, starting)
    try:
        async with agent:
            done = [asyncio.ensure_future(stop.wait()), asyncio.ensure_future(agent.finished())]
            await asyncio.wait(done, return_when=asyncio.FIRST_COMPLETED)
    except Exception:
        # Dask's own tasks would be waited for; an agent that cannot start has nothing to save.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    finally:
        agent.apps.close()
