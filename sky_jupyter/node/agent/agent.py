"""Agent: a node's part of the control plane. It never runs user code.

It starts the kernels of its ranks, sends them requests, appends their output to the run's journal at once, and forwards
it in batches. `dask_worker` has the connections: connections and schedulers change, while the agent keeps its kernels,
journals and number.
"""

from __future__ import annotations

import asyncio
import base64
import collections
import contextlib
import dataclasses
import functools
import itertools
import os
import platform
import re
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import cloudpickle

from ...errors import PoolError
from ...util.background_tasks import BackgroundTasks
from ...util.text import plain
from ..dask.user_cluster import UserDaskProcesses
from ..files.blob_cache import places
from ..files.file_calls import FileService
from ..journal.journal import Journal
from ..journal.run_record import RunRecord, kept_content, part_of
from ..journal.spare_files import FileRecycler
from ..kernel import added_packages, project_modules, stack_dump
from ..kernel.script_run import DEVICES
from ..protocol import agent_process, debug_messages
from ..protocol.host_config import CONFIG, HostConfig, member_name
from ..protocol.journal_events import error_text
from ..protocol.rpc import REPLACED, AgentCall
from ..protocol.shared_state_frames import socket_of
from ..protocol.version import PROTOCOL
from ..runtime import rank_environment
from ..runtime.instance_info import PLAIN, InstanceInfo
from ..serialization import code_portability, pickling
from ..system import gpus as accelerators
from ..system import metrics
from ..system.gpus import Devices
from ..system.stopped_processes import HOST, PAUSE, StoppedProcesses
from . import comm_hooks, run_starts, stack_sampling
from .active_runs_file import ActiveRunsFile
from .completion_calls import NameInspection
from .debug_relay import DebugRelay
from .input_relay import InputRelay
from .interruption_watch import InterruptionWatch
from .kernel_client import RankKernel
from .kernel_provisioner import Forkserver
from .name_listing import NameListing
from .run_turns import RunTurns
from .shared_state_client import SharedStateProxy
from .short_call_relay import RelayedCall, ShortCallRelay
from .stream_relay import StreamRelay
from .task_calls import TaskRunner
from .terminals import TerminalService
from .value_export import ValueExport

_BATCH = 0.05
_KEEP_RUNS = 200
# Above this number, a run's list of ranks is long.
_MANY_RANKS = 64
_SIGNALS = 100
# Most bytes that the agents of a process forward before the manager has acknowledged them. So a manager that reads
# nothing fills no memory, neither here nor in the scheduler; it reads what it missed from the journal.
_MOST_AHEAD = 8 << 20


class Agent:
    """Agent of one node; made by `dask_worker.serve`, lives as long as its process.

    Agents of other nodes may be in the same process.

    Parameters
    ----------
    pool_folder : Path
        The pool's folder on this machine.
    config : HostConfig
        The pool's shape.
    node : int
        This node's number.
    devices : Devices
        The accelerators of its machine.
    incarnation : str
        Id by which a manager that reconnects sees whether the kernels are still the same; a random one by default.
    """

    def __init__(
        self,
        pool_folder: Path,
        config: HostConfig,
        node: int,
        devices: Devices,
        incarnation: str = "",
    ) -> None:
        shares = _shares(devices, config, node)
        mine = [device.kind for share in shares for device in share.all]
        self.accelerators: tuple[int, str | None] = len(mine), (mine[0] if mine else None)
        # If the ranks have no shares of the devices, every rank may use every device.
        self.devices = [device for share in shares for device in share.all] or devices.all
        self.sampler: metrics.Sampler | None = None
        self.began = time.monotonic()
        self.entered_apps = False
        # Parts of plugins that run here; sockets that reserve the coordinators' ports.
        self.apps, self.ports = contextlib.ExitStack(), contextlib.ExitStack()
        self.folder = pool_folder / f"n{node}"
        self.pool_folder, self.config, self.node = pool_folder, config, node
        self.incarnation = incarnation or secrets.token_hex(8)
        # The highest generation of a manager so far, which is obeyed; the times of the last calls by it and by each
        # guest.
        self.manager, self.heard = 0, time.monotonic()
        self.guests_heard: dict[str, float] = {}
        self.runs: dict[str, RunRecord] = {}
        self.turns = RunTurns(self)
        self.noise: re.Pattern[str] | None = None
        # Keys of the latest signals: a manager without a reply repeats its call.
        self.signalled: collections.deque[str] = collections.deque(maxlen=_SIGNALS)
        self.forkserver, self.files = Forkserver(), FileService(pool_folder, config)
        # In a pool that ends with its notebook, nobody reads the file.
        self.active_runs = ActiveRunsFile(self.folder / "running" if config.idle_timeout else None, self.runs)
        self.user_dask = UserDaskProcesses(pool_folder, config, node)
        # Sends a batch to the manager; set while the control plane is connected.
        self.send: Callable[[dict[str, Any]], None] | None = None
        # Bytes forwarded, and bytes acknowledged or given up.
        self.forwarded = self.taken_in = 0
        self._flusher: asyncio.TimerHandle | None = None
        self._waiting = BackgroundTasks()
        (self.folder / "journal").mkdir(mode=0o700, exist_ok=True)
        # An earlier agent of this node left them: its kernels are gone, its journals are kept.
        for stale in self.folder.glob("k*-*"):
            stale.unlink(missing_ok=True)
        self.spares = FileRecycler(self.folder / "journal")
        self.reopen_runs()
        first = node * config.ranks_per_node
        env = {
            "IPYTHONDIR": str(self.folder / "ipython"),
            "SKY_POOL": config.pool,
            pickling.BLOBS: os.pathsep.join(map(str, dict.fromkeys(places(pool_folder, config.blobs)))),
            project_modules.VARIABLE: str(pool_folder / project_modules.FOLDER),
            added_packages.VARIABLE: str(pool_folder / added_packages.FOLDER),
            # debugpy comes with ipykernel and prints a warning that is irrelevant here.
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        }
        together = accelerators.sharing(devices, _beside(config, node)[1])
        if any(share.all for share in shares):
            env[DEVICES] = ",".join(device.id for share in shares for device in share.all)
        self.ranks = {
            number: RankKernel(
                number,
                self.folder,
                config.cwd,
                {**env, **(share.environment() or together)},
                functools.partial(self.on_event, number),
            )
            for number, share in enumerate(shares, first)
        }
        self.values = ValueExport(node, self.folder / "values", config.blobs, self.ranks)
        self.names = NameListing(self.ranks)
        self.inspection = NameInspection(self.ranks)
        tells = {number: rank.tell for number, rank in self.ranks.items()}
        self.tasks = TaskRunner(self)
        self.short = ShortCallRelay(self, self.tasks)
        self.comms = comm_hooks.load(tells, self.incarnation, lambda: self.may_forward, self.forward_comms)
        self.streams = StreamRelay(self)
        self.inputs = InputRelay(self)
        self.terminals = TerminalService(self.ranks, self.folder)
        self.debugging = DebugRelay(self)
        self.sharing = SharedStateProxy(self.incarnation, member_name(node, config.shape), socket_of(pool_folder))
        self.interruptions = InterruptionWatch(config.notice, node, self.ranks.values, self.on_notice)
        for number, rank in self.ranks.items():
            rank.on_ask = functools.partial(self.on_ask, rank)
            rank.on_comm = functools.partial(self.on_comm, number)
            rank.on_end = functools.partial(self.on_kernel_end, number)

    @functools.cached_property
    def beside(self) -> Sequence[Agent]:
        """The agents of this process, with this one; `dask_worker.serve` sets it."""
        return (self,)

    async def start_ranks(self) -> None:
        """Connect to the forkserver and start all kernels.

        Failures are kept; `sky_enter_plugins` reports them.
        """
        await self.forkserver.connect(self.pool_folder / "fork")
        self.starting = {rank.number: asyncio.create_task(rank.start(self.forkserver)) for rank in self.ranks.values()}
        await asyncio.wait(self.starting.values())

    def renew_incarnation(self) -> None:
        """Renew the incarnation, so that the manager replaces the kernels.

        The manager treats this node as lost and runs its calls elsewhere.
        """
        self.incarnation = agent_process.renewed(self.incarnation)
        for rank in self.ranks.values():
            # Later calls wait for the new kernel: they would end with this one.
            rank.entered = False

    def handler(self, call: AgentCall) -> Callable[..., Any]:
        """Return the method that answers a call: the agent's own or a part's."""
        part = getattr(self, call.part) if call.part else self
        method: Callable[..., Any] = getattr(part, call.op)
        return method

    # -- calls of the manager ----------------------------------------------------------------------

    async def sky_start_run(
        self, run: str, ranks: list[int], content: dict[str, Any], about: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Start a run on this node's share of the ranks; return its first output.

        For a known id, return its state instead. ``about`` is what a later manager needs to know of the run, besides
        its ranks and content.
        """
        return (await run_starts.start([self], run, ranks, content, about))[self.node]

    async def sky_start_runs(
        self,
        run: str,
        ranks: list[int],
        content: dict[str, Any],
        incarnations: dict[int, str],
        about: dict[str, Any] | None = None,
        branches: dict[str, list[str]] | None = None,
    ) -> dict[int, dict[str, Any]]:
        """Start a run on the agents with these incarnations; return answers by node.

        The connection handles ``branches``: it passes the call on.
        """
        return await run_starts.start(run_starts.present(self.beside, incarnations), run, ranks, content, about)

    async def sky_list_runs(self, runs: list[str] | None = None, brief: bool = False) -> dict[str, dict[str, Any]]:
        """Return each run's begin event, whether it is over, and its event count.

        The default is all runs. With ``brief``, if a run has very many ranks, its event lacks what other nodes know
        too, and a field says so.
        """
        self.short.file_quiet()
        found: dict[str, dict[str, Any]] = {}
        for key, record in self.runs.items():
            if runs is None or key in runs:
                begin = record.journal.begin or {}
                found[key] = {"begin": begin, "over": record.over.is_set(), "next": record.journal.next}
                if brief and len(begin.get("ranks") or ()) > _MANY_RANKS:
                    own = {name: begin[name] for name in ("mine", "shape", "began") if name in begin}
                    found[key].update(begin=own, brief=True)
        return found

    async def sky_ping(self) -> str:
        """Return the incarnation; like any call, this renews the lease.

        A manager that knows which agents share a process pings one of them; the others count as pinged too.
        """
        return self.incarnation

    async def sky_ack_output(self, marks: dict[int, int | None]) -> None:
        """Note that the manager has read all batches up to this node's mark in ``marks``.

        Without a mark, all that was sent counts as read; the manager reads what it missed from the journal.
        """
        mark = marks.get(self.node)
        self.taken_in = self.forwarded if mark is None else min(max(mark, self.taken_in), self.forwarded)
        self.flush()

    async def sky_ack_outputs(self, marks: dict[int, int | None], incarnations: dict[int, str]) -> dict[int, None]:
        """Call `sky_ack_output` on agents with these incarnations; return their nodes."""
        heard = run_starts.present(self.beside, incarnations)
        for agent in heard:
            await agent.sky_ack_output(marks)
        return dict.fromkeys(agent.node for agent in heard)

    async def sky_read_events(self, run: str, start: int) -> dict[str, Any]:
        """Return a run's events from number ``start`` on."""
        record = self.known(run)
        record.settle()
        data, following = record.journal.read(start)
        return {"first": start, "data": data, "next": following, "over": record.over.is_set()}

    async def sky_read_page(self, run: str, start: int, most: int) -> dict[str, Any] | None:
        """Return about ``most`` bytes of a run's events from ``start`` on.

        A negative ``start`` counts from the end. Returns None for an unknown run.
        """
        self.short.file_quiet()
        record = self.runs.get(run) or next((self.runs[name] for name in self.runs if name.startswith(f"{run}.")), None)
        if record is None:
            return None
        record.settle()
        start = start if start >= 0 else max(0, record.journal.next + start)
        data, following = record.journal.read(start, most)
        over = record.over.is_set()
        return {"first": start, "data": data, "next": following, "end": record.journal.next, "over": over}

    async def sky_signal_kernels(
        self, number: int, ranks: list[int] | None = None, run: str | None = None, key: str = ""
    ) -> list[int]:
        """Signal kernels; return the ranks that were signalled.

        With ``run``, only kernels that still work on it are signalled. A call with a known ``key`` is a retry and does
        nothing.
        """
        if key and key in self.signalled:
            return []
        self.signalled.append(key)
        chosen = self.mine(ranks)
        reached = await asyncio.gather(*(rank.signal(number, run) for rank in chosen))
        return [rank.number for rank, is_reached in zip(chosen, reached, strict=True) if is_reached]

    async def sky_abort_collectives(self, ranks: list[int] | None = None) -> None:
        """Break the collectives that ranks are blocked in."""
        for rank in self.mine(ranks):
            rank.abort()

    async def sky_restart_kernels(self, ranks: list[int] | None = None) -> dict[int, str]:
        """Replace kernels by new ones; return the errors by rank."""
        chosen = self.mine(ranks)
        if not chosen:
            return {}
        # Also kernels that are still starting: otherwise this would wait for a start that hangs.
        for rank in chosen:
            await rank.kill()
        starts = {rank.number: asyncio.create_task(rank.start(self.forkserver)) for rank in chosen}
        self.starting.update(starts)
        await asyncio.wait(starts.values())
        return {n: str(task.exception()) for n, task in starts.items() if task.exception() is not None}

    async def sky_end_kernels(self, patience: float, ranks: list[int] | None = None) -> list[int]:
        """End kernels in order; return the ranks that had to be killed.

        A kernel that takes longer than ``patience`` seconds is killed.
        """
        chosen = self.mine(ranks)
        ends = await asyncio.gather(*(rank.end(patience) for rank in chosen))
        return [rank.number for rank, in_time in zip(chosen, ends, strict=True) if not in_time]

    async def sky_enter_plugins(
        self,
        plugins: bytes,
        ports: dict[str, int],
        job: str,
        noise: list[str],
        apps: bytes = b"",
        ranks: list[int] | None = None,
        python: str = "",
    ) -> dict[int, dict[str, Any]]:
        """Enter the plugins on ranks once their kernels are up; return the ends.

        ``apps`` are the parts of plugins that run in the agent itself, once; ``python`` is the notebook's Python if its
        minor version differs.
        """
        if PLAIN in ports:
            # No coordinator uses the reserved port, so the user's programs may bind it in any way.
            self.ports.close()
        if apps and not self.entered_apps:
            self.entered_apps = True
            for around in cloudpickle.loads(apps):
                self.apps.enter_context(around(self.info(min(self.ranks), ports, job)))
        every = "|".join(f"^(?:{expression})(?:\n|\\Z)" for expression in noise)
        self.noise = re.compile(every, re.MULTILINE) if noise else None
        for rank in self.mine(ranks):
            rank.noise = self.noise
        content = {"kind": "enter", "plugins": base64.b64encode(plugins).decode(), "python": python}

        async def enter(rank: RankKernel) -> dict[str, Any]:
            try:
                await asyncio.shield(self.starting[rank.number])
            except Exception as error:
                return {"status": "died", "text": str(error), "tail": rank.tail()}
            info = self.info(rank.number, ports, job)
            request = f"enter-{job}-{rank.number}-{rank.generation}"
            end = await rank.request(request, {**content, "info": info.to_json()})
            rank.entered = end["status"] == "ok"
            self.interruptions.tell_new(rank)
            return {**end, "preload_failed": rank.preload_failed, "tail": rank.tail()}

        chosen = self.mine(ranks)
        ends = await asyncio.gather(*(enter(rank) for rank in chosen))
        return {rank.number: end for rank, end in zip(chosen, ends, strict=True)}

    async def sky_check_plugins(self, patience: float) -> bool:
        """Run the plugins' checks on this node; return True if all pass in time.

        All nodes must run them together.
        """
        contents = {rank: {"kind": "check"} for rank in self.ranks}
        return await self.all_well(f"check-{secrets.token_hex(8)}", contents, patience)

    async def sky_reinitialize(
        self, ports: dict[str, int], job: str, patience: float, ranks: list[int] | None = None
    ) -> bool:
        """Set the frameworks up anew on ranks; return True if all did so in time."""
        chosen = [rank.number for rank in self.mine(ranks)]
        contents = {rank: {"kind": "again", "info": self.info(rank, ports, job).to_json()} for rank in chosen}
        return await self.all_well(f"again-{job}", contents, patience)

    async def sky_leave_plugins(self, ranks: list[int] | None = None, patience: float = 5.0) -> None:
        """Leave the plugins on ranks; do not wait for a busy or slow one."""

        async def leave(rank: RankKernel) -> None:
            if rank.entered and rank.busy_with is None:
                rank.entered = False
                request = f"leave-{rank.number}-{secrets.token_hex(8)}"
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(rank.request(request, {"kind": "leave"}), patience)

        await asyncio.gather(*(leave(rank) for rank in self.mine(ranks)))

    async def sky_status(self, since: dict[str, int] | None = None) -> dict[str, Any]:
        """Return this node's process id and the state of each rank.

        With ``since`` (a sample number by node) the machine's metrics are included.
        """
        status: dict[str, Any] = {
            "pid": os.getpid(),
            "incarnation": self.incarnation,
            # A cleaner of temporary files may have removed the folder, with keys and journals.
            "folder": self.folder.is_dir(),
            "interruption": self.interruptions.facts,
            "ranks": {
                rank.number: {
                    "pid": rank.pid,
                    # A short question about names does not count as work.
                    "busy_with": None if rank.busy_with == self.names.asked(rank.number) else rank.busy_with,
                    "entered": rank.entered,
                    "surprise": rank.surprise,
                }
                for rank in self.ranks.values()
            },
        }
        if since is None:
            return status
        for rank in self.ranks.values():
            status["ranks"][rank.number]["memory"] = metrics.memory_of(rank.pid) if rank.pid else 0
        status["uptime"] = round(time.monotonic() - self.began, 1)
        status["accelerators"] = self.accelerators
        if self.sampler is not None:
            status["metrics"] = self.sampler.since(since.get(str(self.node), 0))
        return status

    async def sample(self) -> None:
        """Keep sampling the machine's load for all agents with the same devices."""
        alike = [agent for agent in self.beside if agent.devices == self.devices]
        if alike[0] is not self:
            return
        # A driver may take long to wake up a device.
        gpus = await asyncio.to_thread(metrics.gpus_of, self.devices) if self.devices else metrics.NoGpus()
        sampler = metrics.Sampler(metrics.MachineMonitor(), gpus)
        for agent in alike:
            agent.sampler = sampler
        await sampler.attend()

    async def watch_processes(self) -> None:
        """Report to the manager when a rank or the host is stopped or resumed."""
        sent, standstill = self.send, StoppedProcesses()
        while True:
            await asyncio.sleep(PAUSE)
            if self.send is not sent:
                # A new connection: report every stopped process again.
                sent, standstill = self.send, StoppedProcesses()
            processes = {rank.pid: f"rank {rank.number}" for rank in self.ranks.values() if rank.pid}
            if self is self.beside[0]:
                processes[os.getppid()] = HOST
            changes = list(standstill.look(processes))
            if changes and sent is not None:
                sent({"standstill": changes, "node": self.node})

    async def sky_sample_stacks(
        self, native: bool, known: Sequence[str], window: float, within: float
    ) -> dict[str, Any]:
        """Return each rank's stack; see `stack_sampling.inspect_ranks`."""
        answer = await self.sky_status()
        living = {n: (rank.pid, stack_dump.path_of(rank.connection_file)) for n, rank in self.ranks.items() if rank.pid}
        reports = await stack_sampling.inspect_ranks(living, native=native, known=known, window=window, within=within)
        for number, report in reports.items():
            answer["ranks"][number].update(report)
        return {**answer, "accelerators": self.accelerators[0]}

    async def sky_list_packages(self) -> dict[str, Any]:
        """Return this node's Python, its packages, and those added for this pool."""
        folder = str(self.pool_folder / added_packages.FOLDER)
        found = await asyncio.to_thread(added_packages.installed, folder)
        facts = {"python": platform.python_version(), "interpreter": sys.executable, "packages": found}
        return {**facts, "added": sorted(added_packages.added(folder))}

    async def sky_python(self) -> dict[str, Any]:
        """Return this node's minor Python version and its protocol number."""
        return {"python": code_portability.PYTHON, "protocol": PROTOCOL}

    async def sky_change_addresses(self, addresses: list[str]) -> None:
        """Store the nodes' addresses for agents and kernels that are set up later."""
        self.config = dataclasses.replace(self.config, addresses=addresses)
        path = self.pool_folder / CONFIG
        new = path.with_name(f"{CONFIG}.{self.node}")
        # The host's own configuration, with all of its nodes.
        config = dataclasses.replace(HostConfig.read(self.pool_folder), addresses=addresses)
        new.write_bytes(config.dump())
        new.replace(path)

    async def sky_free_ports(self, count: int) -> list[int]:
        """Return free ports of this node's address, for coordinators.

        The ports stay bound until the next call, so that the system gives them to no one else. A coordinator can still
        bind such a port explicitly.
        """
        address = self.config.addresses[self.node]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        held = contextlib.ExitStack()
        sockets = [held.enter_context(socket.socket(family)) for _ in range(count)]
        for item in sockets:
            # If both sides set it, a bound socket that does not listen blocks no one on Linux (elsewhere it may).
            item.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            item.bind((address, 0))
        ports = [item.getsockname()[1] for item in sockets]
        # The previous ports are released only now: no port is returned twice in a row.
        self.ports.close()
        self.ports = held
        if sys.platform != "linux":
            self.ports.close()
        return ports

    async def forget(self, run: str) -> None:
        """Remove a run and its journal."""
        record = self.runs.pop(run, None)
        if record is not None:
            record.journal.remove()
            self.comms.forget(run)
            self.flush_soon()

    def on_notice(self) -> None:
        """Send the manager an interruption notice, after the ranks' output so far."""
        if self.send is not None:
            self.flush()
            self.send({"interruption": self.interruptions.facts, "node": self.node})

    # -- messages of the ranks ---------------------------------------------------------------------

    def on_event(self, rank: int, run: str, event: dict[str, Any]) -> None:
        """Add a rank's event to its run's journal and forward it."""
        record = self.runs.get(run)
        if record is None and self.open_short(run):
            record = self.runs[run]
        if event["kind"] == "end":
            self.tasks.on_end(run, event)
            self.inputs.on_over(rank, run)
            self.debugging.on_over(rank, run)
        if event["kind"] == "stream" and self.noise is not None:
            quiet = self.noise.sub("", event["text"])
            if quiet != event["text"]:
                if not quiet:
                    return
                event["text"] = quiet
        if event["kind"] != "end" and self.comms.on_output(rank, run, event):
            self.flush_soon()
            if record is None:
                return
        if event["kind"] == "error":
            if event["own"]:
                # The `end` event contains the error.
                return
            event = error_text(event)
        if record is None:
            if event["kind"] == "stream":
                self.ranks[rank].note(event["text"])
            return
        record.add(rank, event)
        if "data" in event:
            self.comms.on_shown(rank, run, event["data"])
        if record.over.is_set():
            self.active_runs.write_soon()
            self.streams.on_over(run)
        if not record.replied:
            return
        if record.over.is_set():
            # Comms are opened before the output that shows them.
            self.comms.flush()
            self.forward(record)
        else:
            self.flush_soon()

    def on_comm(self, rank: int, message: dict[str, Any], run: str) -> None:
        """Take a comm message that a rank's code sent to the pages."""
        self.open_short(run)
        self.comms.on_message(rank, message, run if run in self.runs else "")
        self.flush_soon()

    def on_ask(self, rank: RankKernel, content: dict[str, Any], data: list[bytes]) -> None:
        """Pass on a request of a rank's code; see `agent_channel`."""
        generation = rank.generation

        def tell(answer: dict[str, Any], data: Sequence[bytes] = ()) -> None:
            # If the rank has a new kernel, that one did not ask.
            if rank.generation == generation:
                rank.answer(answer, data)

        if content.get("to") == "share":
            self.sharing.on_ask(rank.number, generation, tell, content, data)
        elif content.get("to") == "stream":
            self.streams.on_ask(tell, content, data)
        elif content.get("to") == "input":
            self.open_short(rank.busy_with or "")
            self.inputs.on_ask(rank, tell, content)
        elif content.get("to") == rank_environment.TO:
            self.terminals.on_told(content)
        elif content.get("to") == debug_messages.TOPIC:
            self.debugging.on_ask(rank, content)

    def on_kernel_end(self, rank: int) -> None:
        """Clean up after a rank's kernel has ended; report an unexpected end."""
        self.comms.on_end(rank)
        self.inputs.on_end(rank)
        self.debugging.on_end(rank)
        self.sharing.on_end(rank, self.ranks[rank].generation)
        self.flush_soon()
        if self.ranks[rank].surprise and self.send is not None:
            self.send({"ended": rank, "text": self.ranks[rank].surprise, "node": self.node})

    def open_short(self, run: str) -> bool:
        """Give a short call a journal if it has none; return False if it is unknown."""
        return self.short.open(run)

    def short_calls_of(self, rank: int) -> list[RelayedCall]:
        """Return the single-rank calls that a rank is running, or has queued."""
        return self.short.calls_of(rank)

    def flush_soon(self) -> None:
        if self._flusher is None:
            self._flusher = asyncio.get_running_loop().call_later(_BATCH, self.flush)

    def flush(self) -> None:
        """Forward the buffered events of every run."""
        self._flusher = None
        self.comms.flush()
        for record in self.runs.values():
            # Most of the kept runs have nothing buffered.
            if record.replied and record.waits:
                self.forward(record)

    @property
    def may_forward(self) -> bool:
        """Whether the manager has acknowledged enough of what was forwarded."""
        return self.forwarded - self.taken_in <= part_of(_MOST_AHEAD, len(self.beside))

    def forward_comms(self, batch: dict[str, Any], size: int) -> None:
        if self.send is not None:
            self.send({**batch, "node": self.node, **self.count(size)})

    def count(self, size: int) -> dict[str, Any]:
        """Count bytes to forward; return a mark and whether an acknowledgement is wanted.

        It is wanted once half of the bytes that may be forwarded without one are used; the manager does not know that
        limit.
        """
        self.forwarded += size
        wants = 2 * (self.forwarded - self.taken_in) > part_of(_MOST_AHEAD, len(self.beside))
        return {"mark": self.forwarded, "wants": wants}

    def forward(self, record: RunRecord) -> None:
        if not self.may_forward:
            # Forwarding resumes after the next acknowledgement.
            record.settle()
            return
        batch = record.take()
        if batch is not None and self.send is not None:
            first, count, data = batch
            message = {"run": record.id, "node": self.node, "first": first, "count": count, "data": data}
            self.send({**message, **self.count(len(data))})

    def connect(self, send: Callable[[dict[str, Any]], None] | None) -> None:
        """Forward through a new connection from now on, or not at all (None).

        Batches that the previous connection held are lost.
        """
        self.send, self.taken_in = send, self.forwarded

    # -- parts -------------------------------------------------------------------------------------

    def obey(self, manager: int) -> None:
        """Accept a call of the current manager, or of a newer one.

        Raises PoolError when the caller has been replaced: another manager has taken the pool over.
        """
        if manager < self.manager:
            raise PoolError(REPLACED)
        if manager > self.manager:
            # Batches that were sent to the previous manager do not reach this one.
            self.taken_in = self.forwarded
        self.manager, self.heard = manager, time.monotonic()

    def admit(self, guest: str, call: AgentCall) -> None:
        """Accept a call of a guest; it does not count as the manager's.

        Raises PoolError if only the manager may make it.
        """
        if not call.guests:
            raise PoolError(f"only the notebook that manages the pool may do that ({call.name})")
        self.guests_heard[guest] = time.monotonic()

    @property
    def working(self) -> bool:
        """Whether a run is active."""
        return any(not record.over.is_set() for record in self.runs.values())

    async def renew_lease(self, renew: Callable[[], None], interval: float) -> None:
        """Renew the node's lease while a manager is heard or a run is active."""
        while True:
            if self.working or time.monotonic() - self.heard < interval:
                renew()
            await asyncio.sleep(interval)

    def begin(self, run: str, ranks: list[int], content: dict[str, Any], about: dict[str, Any] | None) -> RunRecord:
        """Register a run and start it on this node's share of the ranks."""
        chosen = self.mine(ranks)
        mine = [rank.number for rank in chosen]
        shape = self.config.shape
        kept = kept_content(content)
        begin = {"kind": "begin", "ranks": ranks, "mine": mine, "shape": shape, "content": kept, **(about or {})}
        record = self.open(run, mine, begin)
        # The manager that starts the run knows its begin event: with very many nodes, that would be most of the reply.
        record.pass_over_begin()
        record.answered_by = self.manager if content.get("asks") is True else None
        record.guest = str((about or {}).get("guest") or "")
        for rank in chosen:
            self.background(rank.request(run, {**content, "partial": self.is_partial(ranks)}))
        return record

    def is_partial(self, ranks: Iterable[int]) -> bool:
        """Return True if a run on these ranks leaves out some of the pool's."""
        return len(set(ranks)) < self.config.total_nodes * self.config.ranks_per_node

    def open(self, run: str, mine: list[int], begin: dict[str, Any]) -> RunRecord:
        """Open a run's journal and return its record."""
        record = self.runs[run] = RunRecord(
            run,
            mine,
            self.journal(run),
            begin=begin,
            limit=self.config.journal,
            spares=self.spares,
            sharers=len(self.beside),
        )
        self.forget_oldest()
        self.active_runs.write_soon()
        return record

    def journal(self, run: str) -> Path:
        """Return the path of a run's journal."""
        return self.folder / "journal" / f"{run}.jsonl"

    def reopen_runs(self) -> None:
        """Load the journals that an earlier agent of this node left."""
        for path in Journal.found(self.folder / "journal"):
            with contextlib.suppress(OSError, ValueError):
                self.runs[path.stem] = RunRecord.reopen(path.stem, path, limit=self.config.journal)

    def forget_oldest(self) -> None:
        """Remove the oldest finished runs beyond the limit."""
        many = len(self.runs) - _KEEP_RUNS
        if many > 0:
            finished = (key for key, item in self.runs.items() if item.over.is_set())
            for key in list(itertools.islice(finished, many)):
                self.background(self.forget(key))

    def known(self, run: str) -> RunRecord:
        if run not in self.runs and not self.open_short(run):
            raise LookupError(f"node {self.node} knows no run {run}")
        return self.runs[run]

    def mine(self, ranks: Iterable[int] | None) -> list[RankKernel]:
        """Return this node's ranks among the given ones; all of them for None."""
        return [rank for number, rank in self.ranks.items() if ranks is None or number in ranks]

    async def all_well(self, name: str, contents: dict[int, dict[str, Any]], patience: float) -> bool:
        """Send each rank a request; return True if all succeed in time."""
        if not contents:
            return True
        requests = [
            asyncio.ensure_future(self.ranks[rank].request(f"{name}-{rank}", content))
            for rank, content in contents.items()
        ]
        done, _ = await asyncio.wait(requests, timeout=patience)
        for rank, task in zip(contents, requests, strict=True):
            if task in done and task.result()["status"] != "ok":
                lines = task.result().get("traceback") or [str(task.result().get("text"))]
                self.ranks[rank].note("\n".join([f"{name}:", *map(plain, lines), ""]))
        return len(done) == len(requests) and all(task.result()["status"] == "ok" for task in done)

    def info(self, rank: int, ports: dict[str, int], job: str) -> InstanceInfo:
        per_node = self.config.ranks_per_node
        if not self.config.cluster:
            return self.info_alone(rank % per_node, job)
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

    def info_alone(self, local_rank: int, job: str) -> InstanceInfo:
        """Return the info of a rank that is a world of its own.

        It is its own coordinator, at its own port.
        """
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        return InstanceInfo(
            node=self.node,
            rank=0,
            total_nodes=self.config.total_nodes,
            world_size=1,
            ranks_per_node=self.config.ranks_per_node,
            local_rank=local_rank,
            head_addr="127.0.0.1",
            head_port=port,
            job_id=job,
            cluster=False,
            accelerators=self.accelerators[0],
            accelerator=self.accelerators[1],
        )

    def background(self, work: Any) -> None:
        self._waiting.start(work)


def _shares(devices: Devices, config: HostConfig, node: int) -> list[Devices]:
    """Return each rank's share of the machine's devices.

    Nodes with the same address share a machine. If its ranks cannot have equal shares, none gets a share and every
    rank may use all devices.
    """
    before, ranks = _beside(config, node)
    return devices.shares(ranks)[before : before + config.ranks_per_node]


def _beside(config: HostConfig, node: int) -> tuple[int, int]:
    """Return how many ranks of the machine precede this node's, and the total."""
    nodes = [number for number, address in enumerate(config.addresses) if address == config.addresses[node]]
    return nodes.index(node) * config.ranks_per_node, len(nodes) * config.ranks_per_node
