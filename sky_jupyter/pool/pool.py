"""The pool's façade in the notebook: `Pool`."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..capture.changed_settings import Settings
from ..capture.ledger import Ledger
from ..errors import SkyError, SpecError
from ..node.protocol import rpc
from ..spec.pool_spec import PoolSpec
from ..util.interrupts import counting_interrupts
from ..util.pool_cost import PoolCost, TimeLeft
from ..util.text import rank_label
from . import rank_names
from .base.event_loop import Tick, loop, no_tick, wait_ticking
from .base.events import Listener, NoticeEvent, Tape, ignore
from .base.phases import PhaseLog
from .base.run_timeline import PoolEvents
from .base.timeouts import TIMEOUTS
from .control.control_client import Control
from .execution.journaled_runs import JournaledRuns
from .execution.orphaned_runs import take_stock
from .execution.parallel_loops import Call, PoolExecutor
from .execution.run_submission import CALLED, RunSubmission
from .execution.supervisor import Supervisor
from .execution.tasks import PoolTasks, TaskRun
from .execution.unresponsive_notices import Watchdog
from .hosts import remote_host as remote
from .hosts.launch import Host
from .hosts.pool_link import PoolLink
from .lifecycle import join_as_guest as joining
from .lifecycle.attach import take_up
from .lifecycle.kernel_shutdown import Tell, silently
from .lifecycle.lifecycle import PoolLifecycle
from .lifecycle.resize_plan import Plan
from .lifecycle.shared_objects import PoolShares
from .lifecycle.state_machine import PoolState
from .lifecycle.status import StatusCache
from .lifecycle.ttl import Expiry
from .rank_names import RankNames
from .registry.ended_pools import Gone
from .registry.pool_record import PoolRecord
from .registry.registry import PoolRow, Registry, refuse_elsewhere
from .registry.remote_leftovers import Traces
from .runs import journal_pages
from .runs.input_requests import AskUser
from .runs.journal_pages import Page
from .runs.result import CellError, CellResult
from .runs.run import Run
from .runs.stacks import StackReport, ask, note
from .transfer import fetch_values, files, send_values
from .transfer import pull_variable as pulling
from .transfer.fetch_values import FetchedValue, LazyValues, ViewFactory, unshown
from .transfer.packages import PoolPackages
from .transfer.project_code import PoolCode
from .transfer.python_versions import PoolPythons
from .transfer.transfer_job import Transfer

if TYPE_CHECKING:
    from distributed import Client

    from ..machines.ssh.types import Prompts

_MOST_SOURCES = 200
# After a second interrupt: how long to wait after the run is given up, and at most.
_FREED, _LAST = TIMEOUTS.interrupts.after, TIMEOUTS.interrupts.last


class _Freed(Exception):
    """Signal to stop waiting for a run, raised by an interrupt."""


@dataclass(frozen=True)
class Detached:
    """Detached run, with its recorded events and its result's name."""

    run: Run
    tape: Tape
    out: str | None = None


class Pool:
    """Nodes made from one spec, with all that runs on them.

    The magics or `Compute` make it. `down` ends it, or the end of its owner. Its methods are for the main thread unless
    they say otherwise.

    Parameters
    ----------
    spec : PoolSpec
        Spec of the pool; nothing is started before `start`.
    prompts : Prompts, optional
        Asks for passphrases, and about unknown hosts; by default nothing is asked.
    """

    def __init__(self, spec: PoolSpec, prompts: Prompts | None = None) -> None:
        self.lifecycle = PoolLifecycle(spec, prompts, user=self, before_end=self._close_submitter)
        self.ledger, self.settings = Ledger(), Settings()
        self.code = PoolCode(self)
        self.packages = PoolPackages(self)
        self.shared = PoolShares(self)
        self.calls = PoolTasks(self)
        self.submission, self.journaled = RunSubmission(self), JournaledRuns(self)
        self.submitter: PoolExecutor | None = None
        self.current: Run | None = None
        # Ranks whose last cell has failed, and can be debugged.
        self.failed: set[int] = set()
        # Runs that nothing waits for, by id, oldest first.
        self.detached: dict[str, Detached] = {}
        # The view of transfers of values, and the names under way; how many results hold each run's values.
        self.shows: ViewFactory = unshown
        self.wanted: set[str] = set()
        self.held: dict[str, int] = {}
        # Names that are modules on the nodes.
        self.modules: set[str] = set()
        # The cells that ran on the ranks, in plain Python, oldest first.
        self.sources: deque[str] = deque(maxlen=_MOST_SOURCES)

    @classmethod
    def attach(
        cls,
        row: PoolRow,
        prompts: Prompts | None = None,
        *,
        take_over: bool = False,
        listener: Listener = ignore,
        tick: Tick = no_tick,
    ) -> Pool:
        """Become the manager of a pool that outlived its own.

        Parameters
        ----------
        row : PoolRow
            The pool's row in the registry.
        prompts : Prompts, optional
            Asks for passphrases if a new link is needed; by default nothing is asked.
        take_over : bool
            Whether to take it from a manager that is alive.
        listener : callable
            Receives the phases.
        tick : callable
            Called every poll.

        Returns
        -------
        Pool
            The pool, ready.

        Raises
        ------
        PoolError
            If another live process manages it, or it cannot be reached; it stays as it was.
        """
        refuse_elsewhere(row)
        record = PoolRecord.read(row)
        pool = cls(record.spec, prompts)
        pool.listener = listener
        take_up(pool.lifecycle, row, record, take_over, tick)
        with contextlib.suppress(SkyError, OSError, FutureTimeout):
            take_stock(pool)
            pool.sources.extend(row.code for row in reversed(pool.registry.runs(pool.id, _MOST_SOURCES)) if row.cell)
            remote.tidy(pool.hosts, [id for id, facts in pool.runs().items() if not facts["over"]])
        return pool

    @classmethod
    def join(
        cls, row: PoolRow, prompts: Prompts | None = None, *, listener: Listener = ignore, tick: Tick = no_tick
    ) -> Pool:
        """Become a guest of a pool that another process manages; see docs/guests.md.

        Parameters
        ----------
        row : PoolRow
            The pool's row in the registry.
        prompts : Prompts, optional
            Asks for passphrases if a new link is needed; by default nothing is asked.
        listener : callable
            Receives the phases.
        tick : callable
            Called every poll.

        Returns
        -------
        Pool
            The pool, on which cells run in turn with those of others.

        Raises
        ------
        PoolError
            If it is not ready, or cannot be reached.
        """
        refuse_elsewhere(row)
        record = PoolRecord.read(row)
        pool = cls(record.spec, prompts)
        pool.listener = listener
        joining.join(pool.lifecycle, row, record, tick)
        return pool

    def submit(
        self,
        function: Callable[[], Any],
        shared: Mapping[str, Any] = MappingProxyType({}),
        listener: Listener = ignore,
    ) -> Call:
        """Call a function on one rank; return its future. Thread-safe."""
        self.require_live()
        self.lifecycle.refuse_guest(CALLED)
        if self.submitter is None:
            self.submitter = PoolExecutor(self)
        return self.submitter.submit(function, shared, listener)

    def _close_submitter(self) -> None:
        if self.submitter is not None:
            self.submitter.close()

    def surround(
        self,
        modules: frozenset[str],
        listener: Listener,
        hosts: Sequence[Host] | None = None,
        on_send: Listener = ignore,
        tick: Tick = no_tick,
        *,
        run: str = "",
        put: bool = False,
        again: bool = False,
        text: str = "",
        follow: bool = True,
        within: float = 0.0,
    ) -> dict[str, Any]:
        """Return what ranks need besides values; send new files, packages and settings.

        The project's files are checked, unless they were checked in the last ``within`` seconds. Calls in a loop do not
        repeat the notice of missing packages (``again``).
        """
        with self.explaining_end():
            code = self.code.local.look(modules, within=within)
            if code.news:
                listener(NoticeEvent(code.news, run))
            packages = {}
            if self.packages.may_differ:
                packages = self.packages.check(code.others, listener, on_send, tick, put=put, again=again)
            settings, notes = self.settings.follow(modules, text) if follow else ({}, [])
            for note in notes:
                listener(NoticeEvent(note, run))
            around = {**packages, **settings, **self.pythons.reader}
            if code.version:
                around.update(self.code.bring(code, self.hosts if hosts is None else hosts, on_send, tick))
            return around

    @contextlib.contextmanager
    def stopping(self) -> Iterator[None]:
        """Stop the run that the block starts if it is interrupted."""
        before = self.current
        try:
            yield
        except KeyboardInterrupt:
            run = self.current
            if run is not None and run is not before and run.left:
                self.press(run)
            raise

    @property
    def dask(self) -> Client:
        """The client of plain Dask workers; see `Compute.dask`."""
        self.lifecycle.refuse_guest("given Dask workers")
        return self.lifecycle.workers.client()

    def include(self, paths: Iterable[str], excludes: Iterable[str] = ()) -> None:
        """Add paths to the code that runs send; see `LocalCode.include`."""
        self.code.local.include(paths, excludes)

    def put(
        self,
        local: str | os.PathLike[str],
        remote: str | None = None,
        on: Sequence[int] | None = None,
        listener: Listener = ignore,
        tick: Tick = no_tick,
    ) -> Transfer:
        """Send a file or folder to nodes; see `Compute.put`."""
        self.require_live()
        with self.explaining_end(), self.events.own.timing("put", str(local)) as facts:
            done = files.put(self, local, remote, on, listener, tick)
            facts["bytes"] = done.sent or done.copied
        return done

    def get(
        self,
        remote: str,
        local: str | os.PathLike[str] | None = None,
        on: Sequence[int] | None = None,
        listener: Listener = ignore,
        tick: Tick = no_tick,
    ) -> Transfer:
        """Fetch a file or folder from nodes; see `Compute.get`."""
        self.require_live()
        with self.explaining_end(), self.events.own.timing("get", remote) as facts:
            done = files.get(self, remote, local, on, listener, tick)
            facts["bytes"] = done.sent or done.copied
        return done

    def runs(self) -> dict[str, dict[str, Any]]:
        """Return the runs that the nodes know, by id; see `JournaledRuns.all`."""
        return self.journaled.all()

    def adopt(self, id: str, listener: Listener = ignore) -> Run:
        """Attend another manager's run like an own one; see `JournaledRuns.adopt`."""
        return self.journaled.adopt(id, listener)

    def page(
        self,
        id: str,
        rank: int | None = None,
        start: int = 0,
        count: int = journal_pages.COUNT,
        *,
        nodes: Collection[int] | None = None,
    ) -> list[Page]:
        """Return a page of a run's events. Thread-safe; see `JournaledRuns.page`."""
        return self.journaled.page(id, rank, start, count, nodes=nodes)

    def homes(self, id: str) -> dict[int, int]:
        """Return the node with each rank's journal; see `JournaledRuns.homes`."""
        return self.journaled.homes(id)

    def log(self, id: str) -> CellResult:
        """Return what a run printed and returned; see `JournaledRuns.result`."""
        return self.journaled.result(id)

    def record_at_end(self, run: Run) -> None:
        """Record a run's end once it comes, whether or not anything waits for it."""
        run.task.add_done_callback(lambda _: self.registry.run_ended(run.key, run.how_ended, run.elapsed))

    def check_ranks(self, ranks: Sequence[int] | None) -> list[int]:
        """Return the ranks, by default all; raise SpecError for others."""
        chosen = list(range(self.spec.world_size)) if ranks is None else sorted(set(ranks))
        wrong = [rank for rank in chosen if not 0 <= rank < self.spec.world_size]
        if wrong or not chosen:
            top = self.spec.world_size - 1
            raise SpecError(f"pool {self.spec.name!r} has ranks 0 to {top}, not {', '.join(map(str, wrong)) or 'none'}")
        return chosen

    def first_ranks(self, ranks: Sequence[int]) -> list[int]:
        """Return the first of these ranks on each of their nodes."""
        first: dict[int, int] = {}
        for rank in sorted(ranks):
            first.setdefault(rank // self.spec.ranks_per_node, rank)
        return list(first.values())

    def attend(self, run: Run, tick: Tick = no_tick) -> CellResult:
        """Wait for a run's end; interrupts go to the ranks.

        The first interrupt raises KeyboardInterrupt in every rank; the second replaces the kernels of ranks that did
        not heed it.

        Parameters
        ----------
        run : Run
            The run.
        tick : callable
            Called every poll.

        Returns
        -------
        CellResult
            The values and outputs of all ranks.

        Raises
        ------
        CellError
            With every failed rank's exception and the other ranks' values.
        KeyboardInterrupt
            If an interrupt of this process ended the run.
        """
        interrupted = self.wait(run, tick)
        result = self.finish(run)
        if interrupted:
            raise KeyboardInterrupt(f"{rank_label(run.failed or list(run.outcomes))} interrupted")
        if run.failed:
            raise CellError(result, list(run.outcomes.values()))
        return result

    @property
    def is_shared(self) -> bool:
        """Whether other notebooks run cells on it, as far as this one has heard."""
        return self.supervisor.turns.shared

    @property
    def is_unsettled(self) -> bool:
        """Whether `settle` may have something to wait for."""
        return self.is_shared or self.supervisor.repairs.mending

    def settle(self, listener: Listener = ignore, tick: Tick = no_tick, ranks: Sequence[int] | None = None) -> None:
        """Wait for the repairs after the last run; report delays.

        Also wait for machines that come back, if any of ``ranks`` (by default of all) is on them.
        """
        if self.is_shared:
            wait_ticking(loop().submit(self.supervisor.look_at_others()), tick)
        if self.supervisor.repairs.mending:
            nodes = None if ranks is None else {rank // self.spec.ranks_per_node for rank in ranks}
            with self.explaining_end(), self.watchdog.telling(listener):
                wait_ticking(loop().submit(self.supervisor.repairs.settle(nodes)), tick)

    def take_news(self) -> list[str]:
        """Return, once, the notices and warnings that were not shown."""
        news, self.supervisor.news = self.supervisor.news, []
        return [*news, *self.registry.take_warnings()] if self.registry.has_warnings else news

    def take_restarted(self, namespace: dict[str, Any] | None = None) -> set[int]:
        """Return the ranks whose kernels are new since the last call.

        If the notebook's namespace is given, first record the names that calls and other notebooks have assigned until
        now.
        """
        if namespace is not None:
            if self.calls.ended:
                self.calls.note_writes(namespace)
            if self.supervisor.turns.has_heard_wrote:
                self.note_others(namespace)
        fresh, self.supervisor.restarted = self.supervisor.restarted, set()
        return fresh

    def wait(self, run: Run, tick: Tick = no_tick, *, pressed: int = 0) -> bool:
        """Wait for a run's task; return whether it was interrupted.

        ``pressed`` is the number of interrupts before the wait.
        """
        heeded, before = 0, run.presses
        hard = over = 0.0
        with counting_interrupts() as presses:
            presses.extend([None] * pressed)

            def look() -> None:
                nonlocal heeded, hard, over
                if len(presses) > heeded:
                    fresh, heeded = len(presses) - heeded, len(presses)
                    self.press(run, fresh)
                if run.is_pressed_hard:
                    now = time.monotonic()
                    hard, over = hard or now, over or (now if run.over.is_set() else 0.0)
                    if now - (over or now) > _FREED or now - hard > _LAST:
                        raise _Freed
                tick()

            try:
                wait_ticking(run.task, look)
            except _Freed:
                # Something does not answer; it may go on in the background.
                run.lose(run.left, f"you cancelled it, and nothing answers{self.watchdog.why}")
        return bool(presses) or run.presses > before or run.early

    def watch(self, run: Run, tick: Tick = no_tick) -> bool:
        """Wait until a run is done; return True, or False on an interrupt.

        The run itself is not interrupted.
        """
        with counting_interrupts() as presses:

            def look() -> None:
                if presses:
                    raise _Freed
                tick()

            try:
                wait_ticking(run.task, look)
            except _Freed:
                return False
        return True

    def press(self, run: Run, times: int = 1) -> None:
        """Interrupt a run for the user; replace kernels after enough interrupts.

        `Run.hard_presses` is the number of interrupts that replaces them.
        """
        run.presses += times
        run.pressed = time.monotonic()
        self.interrupt(run, hard=run.is_pressed_hard)

    def finish(self, run: Run) -> CellResult:
        """Return a finished run's result; discard its blobs."""
        if run.task.done():
            run.task.result()
        self.supervisor.discard(run)
        send_values.discard(self, run)
        self.registry.run_ended(run.key, run.how_ended, run.elapsed)
        outcomes = list(run.outcomes.values())
        # Names that only some ranks have bound are sent again.
        everywhere = len(outcomes) == self.spec.world_size
        if everywhere and all(outcome.end.get("bound") for outcome in outcomes):
            run.capture.commit(self.ledger)
        # The run may live long; its capture must not keep the notebook's arrays alive.
        run.capture = run.capture.without_bindings()
        # The result must not reference the run, with its listener and output.
        unread = LazyValues(self, run.id, tuple(run.outcomes), run.shape)
        return CellResult(outcomes, run.elapsed, unread, run.id, holds=True, events=run.events)

    def note_others(self, namespace: dict[str, Any]) -> None:
        """Record in the ledger names that other notebooks assigned and this one lacks."""
        if wrote := [name for name in self.supervisor.turns.take_wrote() if name not in namespace]:
            self.ledger.nodes_wrote(wrote, namespace, world_size=self.spec.world_size)

    def note_writes(self, run: Run, namespace: dict[str, Any]) -> None:
        """Record in the ledger which names a run has assigned."""
        cell = run.capture.names
        # A rank detects an assignment by the object's identity, so it misses equal small integers.
        sure = frozenset() if run.failed else cell.sure
        again = sure.difference(run.writes, cell.dropped)
        everyone = frozenset(run.outcomes)
        wrote = {name: everyone if name in sure else run.writes[name] for name in sure.union(run.writes)}
        self.ledger.nodes_wrote(
            wrote,
            namespace,
            uses={**cell.uses, **run.uses},
            ranks=wrote,
            world_size=self.spec.world_size,
            sizes=None if run.sizes is None else {**dict.fromkeys(again), **run.sizes},
        )
        imports = {name: module for name, module in run.imports.items() if name in wrote}
        members = {name: found for name, found in run.members.items() if name in wrote and name not in imports}
        if imports or members:
            self.ledger.nodes_imported(imports, run.capture.modules, self.spec.world_size, members)
        # A name that has been assigned since is not a module any more.
        self.modules = (self.modules.difference(run.writes) | run.modules) & self.ledger.nodes_own

    def interrupt(self, run: Run | None = None, *, hard: bool = False) -> None:
        """Interrupt all ranks of a run; ``hard`` replaces their kernels."""
        run = run or self.current
        if isinstance(run, TaskRun):
            self.calls.cancel([run], hard=hard)
            return
        if run is None or not run.left:
            return
        self.lifecycle.retry_links()
        run.why = " by you"
        with contextlib.suppress(FutureTimeout):
            loop().call(self.supervisor.termination.interrupt(run, hard=hard), timeout=1.0 if hard else 1.5)

    def fetch(
        self,
        ranks: Sequence[int],
        content: Mapping[str, Any],
        what: str,
        listener: Listener = ignore,
        tick: Tick = no_tick,
        check: Callable[[Mapping[int, FetchedValue]], None] = lambda found: None,
    ) -> dict[int, FetchedValue]:
        """Fetch values of ranks into files; see `fetch_values.fetch`.

        Raises PoolError if the pool has ended.
        """
        self.require_live()
        with self.explaining_end():
            log = self.events.of_or_own(str(content.get("of", "")).partition(".")[0])
            with log.timing("fetched", what) as facts:
                found = fetch_values.fetch(self, ranks, content, what, listener, tick, check)
                facts["bytes"] = sum(one.path.stat().st_size for one in found.values() if one.path is not None)
        return found

    def pull(
        self,
        name: str,
        ranks: Sequence[int] | None = None,
        how: str | None = None,
        listener: Listener = ignore,
        tick: Tick = no_tick,
        most: int | None = None,
    ) -> Any:
        """Fetch a variable of the ranks; see `pulling.pull`."""
        return pulling.pull(self, name, ranks, how, listener, tick, most)

    def status(self) -> dict[int, dict[str, Any]]:
        """Return each live node's process id and what its ranks do."""
        self.lifecycle.retry_links()
        self.require_live()
        # A lost node would delay the others' answers.
        gone = self.control.off | (self.control.lost - set(self.control.addresses))
        there = sorted(set(range(self.spec.nodes)) - gone)
        return self.watchdog.answer(self.control.ask(rpc.STATUS, there), 5)

    def where(self, within: float = 0.8) -> StackReport:
        """Return each rank's stack, whatever it is doing. Thread-safe.

        Parameters
        ----------
        within : float
            Timeout in seconds; ranks without an answer by then have no stack in the report. On a busy machine, a longer
            timeout than the default also finds the names of C functions.

        Returns
        -------
        StackReport
            The stacks.
        """
        self.lifecycle.retry_links()
        self.require_live()
        run = self.current if self.current is not None and self.current.left else None
        # `ask` has a timeout of its own.
        report = loop().call(ask(self.control, self.spec, run, within=within))
        if run is None:
            note(self.events.own, report, self.spec.ranks_per_node)
        return report

    def names(self) -> RankNames:
        """Return what ranks have under their names, as far as known at once. Thread-safe."""
        self.lifecycle.retry_links()
        self.require_live()
        # `ask` has a timeout of its own.
        return loop().call(rank_names.ask(self.control, self.spec))

    # -- delegation to the lifecycle ---------------------------------------------------------------

    @property
    def id(self) -> str:
        """The pool's unique id; no other pool has had it."""
        return self.lifecycle.id

    @property
    def spec(self) -> PoolSpec:
        """The spec; `resize` and added packages change it."""
        return self.lifecycle.spec

    @property
    def state(self) -> PoolState:
        return self.lifecycle.state

    @property
    def condition(self) -> str:
        """The state in one word; see `StateMachine.condition`."""
        return self.lifecycle.condition

    @property
    def broken(self) -> str:
        """The reason why the pool is broken or has ended, or ""."""
        return self.lifecycle.broken

    @property
    def expired(self) -> bool:
        """Whether it has ended by itself, such as by its ``ttl`` or budget."""
        return self.lifecycle.teardown.expired

    @property
    def why_expired(self) -> str:
        """The reason why it has ended by itself."""
        return self.lifecycle.teardown.why_expired

    @property
    def expiry(self) -> Expiry:
        """The timer of its ``ttl``."""
        return self.lifecycle.expiry

    @property
    def cost(self) -> PoolCost | None:
        """The cost of its machines, as last known; None if nothing is bought."""
        return self.lifecycle.meter.now

    def raise_budget(self, amount: float) -> None:
        """Replace its budget: the dollars that it may cost in all."""
        self.lifecycle.refuse_guest("given another budget")
        self.lifecycle.meter.raise_budget(amount)

    @property
    def ask(self) -> AskUser | None:
        """The callback that asks the user while something runs."""
        return self.lifecycle.ask

    @ask.setter
    def ask(self, value: AskUser | None) -> None:
        self.lifecycle.ask = value

    @property
    def pricing(self) -> Callable[[], PoolCost | TimeLeft | None] | None:
        """The function for `cost`, or for an allocation's time left; None for neither."""
        if self.lifecycle.meter.counts:
            return lambda: self.cost
        left = getattr(self.spec.provider, "time_left", None)
        return None if left is None else (lambda: left(self.ids))

    @property
    def owner(self) -> int:
        """The pid of the process that manages it."""
        return self.lifecycle.owner

    @property
    def began(self) -> float:
        """The time when its start began, on this process's clock."""
        return self.lifecycle.began

    @property
    def registry(self) -> Registry:
        return self.lifecycle.registry

    @property
    def supervisor(self) -> Supervisor:
        return self.lifecycle.supervisor

    @property
    def events(self) -> PoolEvents:
        """The events of the newest runs and calls, and of the pool."""
        return self.lifecycle.supervisor.events

    @property
    def watchdog(self) -> Watchdog:
        return self.lifecycle.watchdog

    @property
    def hosts(self) -> list[Host]:
        return self.lifecycle.hosts

    @property
    def ids(self) -> Sequence[str]:
        """The provider's ids of its machines."""
        return self.lifecycle.ids

    @property
    def machines(self) -> list[Any]:
        """The remote machines of its nodes."""
        return self.lifecycle.machines

    @property
    def link(self) -> PoolLink | None:
        """The link to other machines; None if there is none."""
        return self.lifecycle.link

    @property
    def control(self) -> Control:
        """The client of the agents; PoolError if there is none."""
        return self.lifecycle.control

    @property
    def has_control(self) -> bool:
        """Whether there is, or was, a client of the agents."""
        return self.lifecycle.has_control

    @property
    def is_guest(self) -> bool:
        """Whether another process manages it."""
        return self.lifecycle.guest is not None

    @property
    def gone(self) -> Gone | None:
        """The end of a guest's pool; None while it is there, and for a manager."""
        return None if self.lifecycle.guest is None else self.lifecycle.guest.gone

    @property
    def pythons(self) -> PoolPythons:
        """The nodes' Python versions."""
        return self.lifecycle.pythons

    @property
    def traces(self) -> Traces:
        """The registry's records of its parts on other machines."""
        return self.lifecycle.traces

    @property
    def phases(self) -> PhaseLog:
        """The phases of its start."""
        return self.lifecycle.phases

    @property
    def status_cache(self) -> StatusCache:
        """The cache of its nodes' facts."""
        return self.lifecycle.status_cache

    @property
    def generation(self) -> int:
        """The manager's fencing token: agents obey the highest."""
        return self.lifecycle.generation

    @property
    def shape(self) -> int:
        """The number of resizes since its hosts were made."""
        return self.lifecycle.shape

    @property
    def scheduler_address(self) -> str:
        """The scheduler's address as seen from here."""
        return self.lifecycle.scheduler_address

    @property
    def scheduler_there(self) -> str:
        """The scheduler's address as seen from the hosts."""
        return self.lifecycle.scheduler_there

    @property
    def away(self) -> dict[str, str]:
        """The unreachable machines, each with a description."""
        return self.lifecycle.away

    @property
    def apart(self) -> dict[str, str]:
        """The machines that the head does not reach, each with the reason."""
        return self.lifecycle.apart

    @property
    def unended(self) -> list[str] | None:
        """The machines that were not seen to end; None while not known."""
        return self.lifecycle.teardown.unended

    @property
    def unsure(self) -> list[str]:
        """The machines on which something may still run after its end."""
        return self.lifecycle.teardown.unsure

    @property
    def exit_timeout(self) -> float:
        """The seconds that ranks get for an orderly shutdown."""
        return self.lifecycle.exit_timeout

    @exit_timeout.setter
    def exit_timeout(self, value: float) -> None:
        self.lifecycle.exit_timeout = value

    @property
    def farewell(self) -> Callable[[str], None]:
        """The callback for a pool that ends by itself."""
        return self.lifecycle.farewell

    @farewell.setter
    def farewell(self, value: Callable[[str], None]) -> None:
        self.lifecycle.farewell = value

    @property
    def listener(self) -> Listener:
        """The sender of events to the listener and the log."""
        return self.lifecycle.listener

    @listener.setter
    def listener(self, value: Listener) -> None:
        self.lifecycle.listener = value

    def start(self, listener: Listener = ignore, tick: Tick = no_tick) -> None:
        """Create the machines and prepare them; see `PoolLifecycle.start`."""
        self.lifecycle.start(listener, tick)

    def restart(self, listener: Listener = ignore, tick: Tick = no_tick, ranks: Sequence[int] | None = None) -> None:
        """Restart kernels, by default all; see `PoolRestart.run`."""
        self.lifecycle.pool_restart.run(listener, tick, ranks)

    def resize(
        self,
        nodes: int | None = None,
        listener: Listener = ignore,
        tick: Tick = no_tick,
        *,
        add: Sequence[str] = (),
        remove: Sequence[int] = (),
    ) -> None:
        """Change the number of nodes, or the hosts; see `Compute.resize`."""
        self.lifecycle.resize(nodes, listener, tick, add=add, remove=remove)

    def planned(self, nodes: int | None = None, add: Sequence[str] = (), remove: Sequence[int] = ()) -> Plan:
        """Return the plan of a `resize`; raise SpecError if impossible."""
        return self.lifecycle.planned(nodes, add, remove)

    def stop_resizing(self) -> bool:
        """Cancel the resize of another thread; return whether there is one."""
        return self.lifecycle.stop_resizing()

    def changing(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Exclude other changes of the pool; see `StateMachine.changing`."""
        return self.lifecycle.changing(what)

    def release(self) -> None:
        """Release a kept pool, so that another manager can attach to it."""
        self.lifecycle.release()

    def down(self, tell: Tell = silently) -> None:
        """End the pool with all it has; see `PoolLifecycle.down`."""
        self.lifecycle.down(tell)

    def must_be_ours(self) -> None:
        """Raise PoolError in a fork of the process that manages it."""
        self.lifecycle.must_be_ours()

    def require_live(self, *, restarting: bool = False) -> None:
        """Raise PoolError with the reason if the pool cannot run now."""
        self.lifecycle.require_live(restarting=restarting)

    def explaining_end(self) -> contextlib.AbstractContextManager[None]:
        """Raise the reason for the pool's end instead of an error that it caused."""
        return self.lifecycle.explaining_end()

    def phase(self, phase: str, text: str) -> contextlib.AbstractContextManager[Callable[[str], None]]:
        """Report a phase; yield a function that reports a line of it."""
        return self.lifecycle.phase(phase, text)

    def notify(self, text: str) -> None:
        """Send a notice to the listener."""
        self.lifecycle.notify(text)

    def change_spec(self, spec: PoolSpec) -> None:
        """Replace the spec, for later managers as well."""
        self.lifecycle.change_spec(spec)

    def retry_links(self) -> None:
        """Reconnect to unreachable machines at once, without back-off."""
        self.lifecycle.retry_links()

    def __repr__(self) -> str:
        return f"<Pool {self.spec.name!r}: {self.spec.nodes} nodes, {self.spec.world_size} ranks, {self.state}>"
