"""The manager: `Pool`, the notebook-side object that owns a pool from its start to its end."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from ..capture.blobs import Blob
from ..capture.collect import Capture
from ..capture.ledger import Ledger
from ..capture.process_settings import Settings
from ..errors import PoolError, SkyError, SpecError
from ..node.protocol import rpc
from ..spec.pool_spec import PoolSpec
from ..util.text import rank_label
from .base.event_loop import Tick, counting_interrupts, loop, no_tick, wait_ticking
from .base.events import Listener, NoticeEvent, Tape, ignore
from .base.phases import PhaseLog
from .base.timeouts import TIMEOUTS
from .control.client import Control
from .execution.executor import Call, Submitter
from .execution.orphaned_runs import take_stock
from .execution.supervisor import Supervisor
from .execution.tasks import CallRun, Calls, Order, Parcel
from .execution.watchdog import Watchdog
from .hosts import host
from .hosts import remote_host as remote
from .hosts.host import Host
from .hosts.link import PoolLink
from .lifecycle.attach import JOIN_TIMEOUT, take_up
from .lifecycle.kernel_shutdown import Tell, silently
from .lifecycle.lifecycle import PoolLifecycle
from .lifecycle.resize_plan import Plan
from .lifecycle.shared_objects import PoolShares
from .lifecycle.state import PoolState
from .lifecycle.status import Survey
from .lifecycle.ttl import Expiry
from .registry.pool_record import PoolRecord
from .registry.registry import PoolRow, Registry, refuse_elsewhere
from .registry.remote_parts import Traces
from .runs import log_pages
from .runs.log_pages import Page
from .runs.result import CellError, CellResult
from .runs.run import Run
from .runs.stacks import Where, ask
from .transfer import blobs, fetch_values, files
from .transfer import pull as pulling
from .transfer.base import Transfer
from .transfer.fetch_values import Brought, Shows, Untouched, unshown
from .transfer.packages import PoolPackages
from .transfer.project_code import PoolCode
from .transfer.python_versions import PoolPythons

if TYPE_CHECKING:
    from distributed import Client

    from ..machines.ssh.types import Prompts

DEFAULT_GRACE = 5.0
T = TypeVar("T")
_READ_TIMEOUT = TIMEOUTS.answers.read
# So long an answer is waited for that may never come, as a process of the pool stands still.
_HALTED, _LOOK = TIMEOUTS.answers.halted, TIMEOUTS.polls.answer
# After a second interrupt whoever waits goes on once the run is given up, and at the latest then.
_FREED, _LAST = TIMEOUTS.interrupts.after, TIMEOUTS.interrupts.last


class _Freed(Exception):
    """A run was interrupted twice, and nobody is to wait for it any longer."""


@dataclass(frozen=True)
class Detached:
    """A run that nobody waits for yet, what it has told so far, and the name that its result will have."""

    run: Run
    tape: Tape
    out: str | None = None


class Pool:
    """Nodes made from one spec. Made by the magics or `Compute`; ends with `down` or its owner.

    Its methods are for the main thread; what is named with an underscore and asynchronous runs on
    the manager's loop.

    Parameters
    ----------
    spec : PoolSpec
        What it shall be; nothing is started before `start`.
    prompts : Prompts, optional
        Whom to ask for passphrases, and about unknown hosts; nobody unless given.
    """

    def __init__(self, spec: PoolSpec, prompts: Prompts | None = None) -> None:
        self.lifecycle = PoolLifecycle(spec, prompts, user=self, before_end=self._close_submitter)
        self.ledger, self.settings = Ledger(), Settings()
        self.code = PoolCode(self)
        self.packages = PoolPackages(self)
        self.shared = PoolShares(self)
        self.calls = Calls(self)
        self.submitter: Submitter | None = None
        self.current: Run | None = None
        # Runs that nobody waits for yet, by id, oldest first.
        self.detached: dict[str, Detached] = {}
        # How it is shown that values come, and the names of those that do; how many results hold a run's values.
        self.shows: Shows = unshown
        self.wanted: set[str] = set()
        self.held: dict[str, int] = {}
        # Names that the nodes have as modules: nobody misses them for long.
        self.modules: set[str] = set()

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
            The pool, as the registry knows it.
        prompts : Prompts, optional
            Whom to ask for passphrases where a new link has to be made; nobody unless given.
        take_over : bool
            Whether a manager that still lives loses it.

        Raises
        ------
        PoolError
            When another live process manages it, or it cannot be reached; it stays as it was.
        """
        refuse_elsewhere(row)
        record = PoolRecord.read(row)
        pool = cls(record.spec, prompts)
        pool.listener = listener
        take_up(pool.lifecycle, row, record, take_over, tick)
        with contextlib.suppress(SkyError, OSError, FutureTimeout):
            take_stock(pool)
            remote.tidy(pool.hosts, [id for id, facts in pool.runs().items() if not facts["over"]])
        return pool

    def begin_cell(
        self,
        code: str,
        capture: Capture,
        *,
        ranks: Sequence[int] | None = None,
        count: int = 1,
        grace: float = DEFAULT_GRACE,
        timeout: float | None = None,
        sync: bool = False,
        follow: bool = True,
        listener: Listener = ignore,
        on_send: Listener = ignore,
        tick: Tick = no_tick,
    ) -> Run:
        """Start a cell on ranks (all, unless given) and return its run as soon as its values are there.

        Parameters
        ----------
        code : str
            The cell, before IPython transforms it.
        capture : Capture
            What its names need.
        count : int
            The cell's number, as tracebacks show it.
        grace : float
            Seconds that other ranks get after one has failed.
        timeout : float, optional
            Seconds after which all ranks are stopped.
        sync : bool
            Whether nodes are given the packages that its imports need, as the notebook has them.
        follow : bool
            Whether the ranks are told what the notebook has set in its process; see `Settings`.
        on_send : callable
            Told how far the values are on their way to other machines.
        tick : callable
            Called several times a second meanwhile.
        """
        run = self.new_run(self.check_ranks(ranks), listener, capture)
        shipped = self.ship(run, on_send, tick, sync=sync, follow=follow, text=code)
        content = {"kind": "cell", "code": code, "count": count, **shipped}
        return self._begin(run, content, code, grace, timeout)

    def begin_call(
        self,
        call: Blob,
        capture: Capture,
        *,
        ranks: Sequence[int] | None = None,
        timeout: float | None = None,
        listener: Listener = ignore,
        on_send: Listener = ignore,
        tick: Tick = no_tick,
    ) -> Run:
        """Start a function on ranks (all, unless given), which its blob and capture hold; see `begin_cell`."""
        run = self.new_run(self.check_ranks(ranks), listener, capture)
        run.limit = "timeout"
        content = {"kind": "call", **self.ship(run, on_send, tick, call)}
        return self._begin(run, content, "a function call", DEFAULT_GRACE, timeout)

    def begin_one(
        self,
        call: Blob,
        capture: Capture,
        *,
        rank: int | None = None,
        retries: int | None = None,
        listener: Listener = ignore,
        on_send: Listener = ignore,
        tick: Tick = no_tick,
    ) -> CallRun:
        """Start a function on one rank, the least busy unless given, as a Dask task."""
        if rank is not None:
            self.check_ranks([rank])
        carrier = self.new_run([], listener, capture)
        parcel = Parcel(self.ship(carrier, on_send, tick, call), capture, carrier)
        order = Order(parcel, rank=rank, listener=listener, carrier=carrier, noted=True, title="a function call")
        order.retries = retries
        (run,) = self.calls.begin([order], on_send, tick)
        self.registry.run_began(run.id, self.id, run.code, [] if rank is None else [rank])
        return run

    def submit(
        self,
        function: Callable[[], Any],
        shared: Mapping[str, Any] = MappingProxyType({}),
        listener: Listener = ignore,
    ) -> Call:
        """Have one rank call a function; a future. Callable from any thread; see `Submitter.submit`."""
        self.require_live()
        if self.submitter is None:
            self.submitter = Submitter(self)
        return self.submitter.submit(function, shared, listener)

    def _close_submitter(self) -> None:
        if self.submitter is not None:
            self.submitter.close()

    def new_run(self, ranks: Sequence[int], listener: Listener, capture: Capture) -> Run:
        self.require_live()
        run = Run(host.new_id(), {rank: rank // self.spec.ranks_per_node for rank in ranks}, listener)
        run.capture, run.shape = self.pythons.fitting(capture), self.shape
        return run

    def ship(
        self,
        run: Run,
        on_send: Listener,
        tick: Tick,
        call: Blob | None = None,
        *,
        sync: bool = False,
        follow: bool = True,
        text: str = "",
    ) -> dict[str, Any]:
        """Write a run's blobs where the nodes find them; what goes wrong leaves none.

        Raises
        ------
        CaptureError
            When there is no room for them, or the code that they need cannot go.
        PoolError
            When the pool has ended.
        """
        code = self.code.look(run.capture.modules)
        if code.news:
            run.listener(NoticeEvent(code.news, run.id))
        packages = self.packages.check(code.others, run.listener, on_send, tick, put=sync)
        settings = self._followed(run, text) if follow else {}
        for note in run.capture.notes:
            run.listener(NoticeEvent(note, run.id))
        try:
            shipped = {**packages, **settings, **self.pythons.reader, **blobs.ship(self, run, call, on_send, tick)}
            shipped.update(self.code.bring(code, blobs.hosts_of(self, run), on_send, tick))
        except BaseException as error:
            blobs.discard(self, run)
            if isinstance(error, FileNotFoundError) and not self._has_folders():
                # The pool has ended, and its host's word of it is on its way.
                self.lifecycle.find_gone()
                self.require_live()
            raise
        return shipped

    def _followed(self, run: Run, text: str) -> dict[str, Any]:
        """What the ranks are told of the notebook's process; of what does not follow a person is told."""
        self.settings.look()
        for note in self.settings.notes(run.capture.modules, text):
            run.listener(NoticeEvent(note, run.id))
        return self.settings.told()

    def _has_folders(self) -> bool:
        return bool(self.hosts) and self.hosts[0].folder.exists() and self.hosts[0].blobs.exists()

    def _begin(self, run: Run, content: dict[str, Any], code: str, grace: float, timeout: float | None) -> Run:
        run.code, run.count = code, int(content.get("count", 0))
        # An interrupt in the middle of this would leave a run that nobody waits for, nor stops.
        with counting_interrupts() as presses:
            self.current = run
            self.supervisor.add(run)
            # The cell goes first: what writes it down would only keep the loop from sending it.
            run.task = loop().submit(self.supervisor.execute(run, content, grace, timeout))
            self.registry.run_began(run.id, self.id, code, list(run.outcomes), max(0, run.count))
        if presses:
            run.early = True
            self.press(run, len(presses))
        return run

    @contextlib.contextmanager
    def stopping(self) -> Iterator[None]:
        """What begins a run and waits for it: an interrupt that `wait` does not count stops it too."""
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
        """A client of plain Dask workers beside the agents; see `Compute.dask`."""
        return self.lifecycle.workers.client()

    def include(self, paths: Iterable[str], excludes: Iterable[str] = ()) -> None:
        """Have files and folders sent with the user's own code, from the next run on; see `LocalCode.include`."""
        self.code.local.include(paths, excludes)

    def put(
        self,
        local: str | os.PathLike[str],
        remote: str | None = None,
        on: Sequence[int] | None = None,
        listener: Listener = ignore,
        tick: Tick = no_tick,
    ) -> Transfer:
        """Bring a file or folder to nodes, while ``tick`` is called and ``listener`` told; see `Compute.put`."""
        self.require_live()
        return files.put(self, local, remote, on, listener, tick)

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
        return files.get(self, remote, local, on, listener, tick)

    def runs(self) -> dict[str, dict[str, Any]]:
        """The runs that the nodes know: how each began (``begin``), on which nodes, and whether it is over.

        ``name`` is what they call it, ``nodes`` are those that know it, ``homes`` has each of its ranks' node as
        far as that is there, and ``former`` says that it was begun before the pool's nodes were changed the last time.

        Raises
        ------
        PoolError
            When the pool cannot be asked.
        """
        self.require_live()
        found: dict[str, dict[str, Any]] = {}
        for node, runs in self._answer(self.control.ask(rpc.LIST_RUNS), JOIN_TIMEOUT).items():
            for name, facts in runs.items():
                begin = facts["begin"]
                former = begin.get("shape", 0) != self.shape
                # A call is named by who does it, too; of one that was begun again the last attempt counts.
                id = name.partition(".")[0]
                if id in found and found[id]["name"] != name:
                    if (begin.get("began") or 0.0) < (found[id]["begin"].get("began") or 0.0):
                        continue
                    del found[id]
                new = {"begin": begin, "name": name, "nodes": [], "homes": {}, "former": former, "over": True}
                run = found.setdefault(id, new)
                run["nodes"].append(node)
                run["homes"].update(dict.fromkeys(begin.get("mine", []), node))
                run["over"] = run["over"] and facts["over"]
        partly = []
        for id, run in found.items():
            if run["former"]:
                # Its kernels are gone; what is missing was on nodes that were removed.
                continue
            wanted = {rank // self.spec.ranks_per_node for rank in run["begin"].get("ranks", [])}
            if run["over"] and not wanted <= set(run["nodes"]):
                partly.append(id)
        # Some nodes have not begun it: they are to, unless its manager had given them up.
        for id in partly:
            row = self.registry.run(id)
            found[id]["over"] = row is not None and row.state != "running"
        return found

    def adopt(self, id: str, listener: Listener = ignore) -> Run:
        """A run that another manager began, from its first byte: to be attended like one's own.

        Where that manager ended before all nodes had begun, the others begin now; none begins twice.

        Raises
        ------
        PoolError
            When no node knows it.
        """
        run, facts = self._known(id, listener)
        run.folder, run.brought = self.hosts[0].blobs / run.key, bool(self.machines)
        self.current = run
        self.supervisor.add(run)
        # Its manager may have ended before it was written down.
        self.registry.run_began(run.key, self.id, run.code, list(run.outcomes), max(0, run.count))
        run.task = loop().submit(self.supervisor.adopt(run, facts["begin"], facts["nodes"], over=facts["over"]))
        return run

    def _answer(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """What work on the loop gives; where it has not in so many seconds, PoolError says what keeps it.

        Of a pool that is known to be halted not much is waited for.
        """
        future, began = loop().submit(work), time.monotonic()
        try:
            while not futures.wait([future], timeout=_LOOK).done:
                taken = time.monotonic() - began
                if taken > (min(seconds, _HALTED) if self.watchdog.is_halted else seconds):
                    raise PoolError(f"the pool has not answered in {taken:.0f} s{self.watchdog.why or ': try again'}")
            return future.result()
        finally:
            future.cancel()

    def _known(self, id: str, listener: Listener) -> tuple[Run, dict[str, Any]]:
        facts = self.runs().get(id.partition(".")[0])
        if facts is None or not facts["begin"].get("ranks"):
            raise PoolError(f"no node of pool {self.spec.name!r} knows run {id}; `%sky runs` lists them")
        per_node, homes = self.spec.ranks_per_node, facts["homes"]
        if facts["former"]:
            nodes = {rank: homes.get(rank, -1) for rank in facts["begin"]["ranks"]}
        else:
            nodes = {rank: rank // per_node for rank in facts["begin"]["ranks"]}
        run = Run(facts["name"], nodes, listener)
        run.shape = facts["begin"].get("shape", 0)
        if gone := [rank for rank, node in nodes.items() if node < 0]:
            run.lose(gone, "its node was removed from the pool")
        run.code = str(facts["begin"].get("code") or "")
        count = (facts["begin"].get("content") or {}).get("count", 0)
        run.count = count if isinstance(count, int) else 0
        return run, facts

    def page(
        self,
        id: str,
        rank: int | None = None,
        start: int = 0,
        count: int = log_pages.COUNT,
        *,
        nodes: Collection[int] | None = None,
    ) -> list[Page]:
        """A part of what a run has told, from the nodes' journals. Callable from any thread.

        Parameters
        ----------
        rank : int, optional
            Whose; all ranks' unless given.
        start : int
            The number of the first event, as each node counts them; below 0, so many before the end.
        count : int
            How many numbers from there on; fewer come where they are long.
        nodes : collection of int, optional
            Which nodes are asked; all that may know, unless given.

        Returns
        -------
        list of Page
            One a node that knows the run and answers.

        Raises
        ------
        PoolError
            When no node knows the run.
        """
        if rank is not None and not self.shape:
            self.check_ranks([rank])
        self.require_live()
        # After a change of nodes any of them may have what a rank told before.
        wanted = nodes if nodes is not None or rank is None or self.shape else {rank // self.spec.ranks_per_node}
        return self._answer(log_pages.ask(self.control, id, rank, wanted, start, count), _READ_TIMEOUT)

    def homes(self, id: str) -> dict[int, int]:
        """The ranks of a run that is known, and the node that has the journal of each; below 0, none has.

        Raises
        ------
        PoolError
            When no node knows the run.
        """
        return {rank: outcome.node for rank, outcome in self._known(id, ignore)[0].outcomes.items()}

    def log(self, id: str) -> CellResult:
        """What a run has printed and returned so far, as the nodes' journals have it.

        Raises
        ------
        PoolError
            When no node knows the run.
        """
        run, facts = self._known(id, ignore)
        self._answer(self.supervisor.read_all(run), _READ_TIMEOUT)
        if facts["over"]:
            self.supervisor.lose_unbegun(run, facts["nodes"])
        return CellResult(list(run.outcomes.values()), run.elapsed, self._untouched(run), id)

    def _untouched(self, run: Run) -> Untouched:
        return Untouched(self, run.id, run.outcomes, run.shape)

    def check_ranks(self, ranks: Sequence[int] | None) -> list[int]:
        """The ranks, all where none are given; one that the pool does not have raises SpecError."""
        chosen = list(range(self.spec.world_size)) if ranks is None else sorted(set(ranks))
        wrong = [rank for rank in chosen if not 0 <= rank < self.spec.world_size]
        if wrong or not chosen:
            top = self.spec.world_size - 1
            raise SpecError(f"pool {self.spec.name!r} has ranks 0 to {top}, not {', '.join(map(str, wrong)) or 'none'}")
        return chosen

    def attend(self, run: Run, tick: Tick = no_tick) -> CellResult:
        """Wait for a run's end while ``tick`` is called; an interrupt goes to the ranks.

        The first interrupt raises KeyboardInterrupt in every rank; the second replaces the kernels
        of those that did not heed it.

        Raises
        ------
        CellError
            With every failed rank's exception and the other ranks' values.
        KeyboardInterrupt
            When the run ended because of an interrupt here.
        """
        interrupted = self.wait(run, tick)
        result = self.finish(run)
        if interrupted:
            raise KeyboardInterrupt(f"{rank_label(run.failed or list(run.outcomes))} interrupted")
        if run.failed:
            raise CellError(result, list(run.outcomes.values()))
        return result

    def settle(self, listener: Listener = ignore, tick: Tick = no_tick) -> None:
        """Wait until what the last run broke has been mended; ``listener`` is told of what keeps it from that."""
        if self.supervisor.mending:
            with self.watchdog.telling(listener):
                wait_ticking(loop().submit(self.supervisor.settle()), tick)

    def take_news(self) -> list[str]:
        """What happened since this was last asked, and was shown nowhere; what could not be recorded, once."""
        news, self.supervisor.news = self.supervisor.news, []
        return [*news, *self.registry.take_warnings()]

    def take_restarted(self) -> set[int]:
        """Ranks whose kernels are new since this was last asked."""
        fresh, self.supervisor.restarted = self.supervisor.restarted, set()
        return fresh

    def wait(self, run: Run, tick: Tick = no_tick) -> bool:
        """Wait until a run's task is done; whether it was interrupted from here. See `attend`."""
        heeded, before = 0, run.presses
        hard = over = 0.0
        with counting_interrupts() as presses:

            def look() -> None:
                nonlocal heeded, hard, over
                if len(presses) > heeded:
                    fresh, heeded = len(presses) - heeded, len(presses)
                    self.press(run, fresh)
                if run.presses > 1:
                    now = time.monotonic()
                    hard, over = hard or now, over or (now if run.over.is_set() else 0.0)
                    if now - (over or now) > _FREED or now - hard > _LAST:
                        raise _Freed
                tick()

            try:
                wait_ticking(run.task, look)
            except _Freed:
                # Whatever is stuck: what goes on of it goes on without us.
                run.lose(run.left, f"you gave it up, and nothing answers{self.watchdog.why}")
        return bool(presses) or run.presses > before or run.early

    def watch(self, run: Run, tick: Tick = no_tick) -> bool:
        """Wait until a run's task is done, or an interrupt, which does nothing to the run; whether it is done."""
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
        """What a person's interrupt does to a run, by whichever key or button: the second is a hard one."""
        run.presses += times
        run.pressed = time.monotonic()
        self.interrupt(run, hard=run.presses > 1)

    def finish(self, run: Run) -> CellResult:
        """A run's result once its task is done; its blobs go, and the registry and ledger hear of it."""
        if run.task.done():
            run.task.result()
        self.supervisor.discard(run)
        blobs.discard(self, run)
        self.registry.run_ended(run.key, run.how_ended, run.elapsed)
        outcomes = list(run.outcomes.values())
        # What only some of the ranks have bound is sent again.
        everywhere = len(outcomes) == self.spec.world_size
        if everywhere and all(outcome.end.get("bound") for outcome in outcomes):
            run.capture.commit(self.ledger)
        # It may be held for long, and would hold the notebook's arrays.
        run.capture = run.capture.without_bindings()
        # The run itself, with its listener and all that it showed, is not to be kept with its result.
        return CellResult(outcomes, run.elapsed, self._untouched(run), run.id, holds=True)

    def note_writes(self, run: Run, namespace: dict[str, Any]) -> None:
        """Tell the ledger what a run has assigned on the nodes, however it ended; `namespace` is the notebook's."""
        self.modules |= run.modules
        cell = run.capture.names
        # A rank sees that a name is bound anew by the object; to an equal small number, it does not.
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
        self.ledger.nodes_imported(run.imports, run.capture.modules, self.spec.world_size)

    def interrupt(self, run: Run | None = None, *, hard: bool = False) -> None:
        """Raise KeyboardInterrupt in every rank that works on the run; ``hard`` replaces their kernels."""
        run = run or self.current
        if isinstance(run, CallRun):
            self.calls.cancel([run], hard=hard)
            return
        if run is None or not run.left:
            return
        self.lifecycle.retry_links()
        run.why = " by you"
        with contextlib.suppress(FutureTimeout):
            loop().call(self.supervisor.interrupt(run, hard=hard), timeout=1.0 if hard else 1.5)

    def fetch(
        self,
        ranks: Sequence[int],
        content: Mapping[str, Any],
        what: str,
        listener: Listener = ignore,
        tick: Tick = no_tick,
        check: Callable[[Mapping[int, Brought]], None] = lambda found: None,
    ) -> dict[int, Brought]:
        """Bring values of ranks here, each as a file; see `bringing.fetch`.

        Raises
        ------
        PoolError
            When the pool has ended.
        """
        self.require_live()
        return fetch_values.fetch(self, ranks, content, what, listener, tick, check)

    def pull(
        self,
        name: str,
        ranks: Sequence[int] | None = None,
        how: str | None = None,
        listener: Listener = ignore,
        tick: Tick = no_tick,
    ) -> Any:
        """Bring a variable of the ranks here; see `pulling.pull`."""
        return pulling.pull(self, name, ranks, how, listener, tick)

    def status(self) -> dict[int, dict[str, Any]]:
        """Each node's process id and what its ranks do; lost nodes are absent."""
        self.lifecycle.retry_links()
        self.require_live()
        # One that is lost would keep the others' answers.
        gone = self.control.off | (self.control.lost - set(self.control.addresses))
        there = sorted(set(range(self.spec.nodes)) - gone)
        return self._answer(self.control.ask(rpc.STATUS, there), 5)

    def where(self, within: float = 0.8) -> Where:
        """Where each rank is: its stack, whatever it is doing. Callable from any thread.

        Parameters
        ----------
        within : float
            Seconds for the look; what is not known by then is left out. More than the default lets
            a busy machine name the C code that a rank is in.
        """
        self.lifecycle.retry_links()
        self.require_live()
        run = self.current if self.current is not None and self.current.left else None
        # It has an end in time of its own.
        return loop().call(ask(self.control, self.spec, run, within=within))

    # -- its life, which is `lifecycle`'s ----------------------------------------------------------

    @property
    def id(self) -> str:
        """The pool's own name, which no other pool has had."""
        return self.lifecycle.id

    @property
    def spec(self) -> PoolSpec:
        """What it was made from; `resize` and added packages change it."""
        return self.lifecycle.spec

    @property
    def state(self) -> PoolState:
        """What the pool can do now."""
        return self.lifecycle.state

    @property
    def condition(self) -> str:
        """The state in one word, as a person sees it; see `StateMachine.condition`."""
        return self.lifecycle.condition

    @property
    def broken(self) -> str:
        """Why the pool is broken, or has ended, in words; empty where there is nothing to say."""
        return self.lifecycle.broken

    @property
    def expired(self) -> bool:
        """Whether it has ended because its time was over."""
        return self.lifecycle.expired

    @property
    def expiry(self) -> Expiry:
        """When it ends by itself."""
        return self.lifecycle.expiry

    @property
    def owner(self) -> int:
        """The process that manages it."""
        return self.lifecycle.owner

    @property
    def began(self) -> float:
        """When its start began, on this process's clock."""
        return self.lifecycle.began

    @property
    def registry(self) -> Registry:
        """Where pools and runs are written down."""
        return self.lifecycle.registry

    @property
    def supervisor(self) -> Supervisor:
        """Who runs and mends what is on it."""
        return self.lifecycle.supervisor

    @property
    def watchdog(self) -> Watchdog:
        """Who stands still, or does not answer."""
        return self.lifecycle.watchdog

    @property
    def hosts(self) -> list[Host]:
        """Who runs its nodes."""
        return self.lifecycle.hosts

    @property
    def ids(self) -> Sequence[str]:
        """The machines, as their provider names them."""
        return self.lifecycle.ids

    @property
    def machines(self) -> list[Any]:
        """The other machines that its nodes are on."""
        return self.lifecycle.machines

    @property
    def link(self) -> PoolLink | None:
        """The link to other machines; None where it has none."""
        return self.lifecycle.link

    @property
    def control(self) -> Control:
        """What the nodes' agents are asked by; PoolError where the pool has none yet."""
        return self.lifecycle.control

    @property
    def has_control(self) -> bool:
        """Whether there is, or was, somebody to ask the agents."""
        return self.lifecycle.has_control

    @property
    def pythons(self) -> PoolPythons:
        """Which Pythons the nodes run."""
        return self.lifecycle.pythons

    @property
    def traces(self) -> Traces:
        """What the registry knows of its parts on other machines."""
        return self.lifecycle.traces

    @property
    def phases(self) -> PhaseLog:
        """What its start came through."""
        return self.lifecycle.phases

    @property
    def survey(self) -> Survey:
        """How its nodes are, for those who look."""
        return self.lifecycle.survey

    @property
    def generation(self) -> int:
        """Which manager of the pool this is: agents obey the highest."""
        return self.lifecycle.generation

    @property
    def shape(self) -> int:
        """How often its nodes were changed since its hosts were made."""
        return self.lifecycle.shape

    @property
    def scheduler_address(self) -> str:
        """Where the scheduler is reached from here."""
        return self.lifecycle.scheduler_address

    @property
    def scheduler_there(self) -> str:
        """Where the hosts reach the scheduler."""
        return self.lifecycle.scheduler_there

    @property
    def away(self) -> dict[str, str]:
        """Machines that cannot be reached from here just now, and what is said of each."""
        return self.lifecycle.away

    @property
    def apart(self) -> dict[str, str]:
        """Machines that the head does not reach, and what is said of each."""
        return self.lifecycle.apart

    @property
    def unended(self) -> list[str] | None:
        """Machines that were made for it and not seen to end; None while that is not known."""
        return self.lifecycle.unended

    @property
    def unsure(self) -> list[str]:
        """Machines of which it is not known whether all has ended there."""
        return self.lifecycle.unsure

    @property
    def exit_timeout(self) -> float:
        """Seconds that ranks get for an orderly end."""
        return self.lifecycle.exit_timeout

    @exit_timeout.setter
    def exit_timeout(self, value: float) -> None:
        self.lifecycle.exit_timeout = value

    @property
    def farewell(self) -> Callable[[str], None]:
        """Who is told when the pool ends by itself: nobody may be running anything."""
        return self.lifecycle.farewell

    @farewell.setter
    def farewell(self, value: Callable[[str], None]) -> None:
        self.lifecycle.farewell = value

    @property
    def listener(self) -> Listener:
        """Who is told of the pool's start and changes; its log hears it too."""
        return self.lifecycle.listener

    @listener.setter
    def listener(self, value: Listener) -> None:
        self.lifecycle.listener = value

    def start(self, listener: Listener = ignore, tick: Tick = no_tick) -> None:
        """Make the machines, prepare them and enter the plugins; see `PoolLifecycle.start`."""
        self.lifecycle.start(listener, tick)

    def restart(self, listener: Listener = ignore, tick: Tick = no_tick, ranks: Sequence[int] | None = None) -> None:
        """Give ranks, all unless some are named, new kernels on the same machines; see `PoolLifecycle.restart`."""
        self.lifecycle.restart(listener, tick, ranks)

    def resize(
        self,
        nodes: int | None = None,
        listener: Listener = ignore,
        tick: Tick = no_tick,
        *,
        add: Sequence[str] = (),
        remove: Sequence[int] = (),
    ) -> None:
        """Have so many nodes, or add hosts and remove nodes; see `PoolLifecycle.resize`."""
        self.lifecycle.resize(nodes, listener, tick, add=add, remove=remove)

    def planned(self, nodes: int | None = None, add: Sequence[str] = (), remove: Sequence[int] = ()) -> Plan:
        """Return what `resize` would make of it; SpecError where that cannot be."""
        return self.lifecycle.planned(nodes, add, remove)

    def stop_resizing(self) -> bool:
        """Give a change of nodes up that another thread is at; whether there is one."""
        return self.lifecycle.stop_resizing()

    def changing(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Have one thread at a time restart, resize or end the pool; see `StateMachine.changing`."""
        return self.lifecycle.changing(what)

    def release(self) -> None:
        """Let go of a kept pool: it lives on, and whoever attaches to it becomes its manager."""
        self.lifecycle.release()

    def down(self, tell: Tell = silently) -> None:
        """End the pool: every process, socket and file of it; see `PoolLifecycle.down`."""
        self.lifecycle.down(tell)

    def must_be_ours(self) -> None:
        """Refuse a fork of the process that manages it."""
        self.lifecycle.must_be_ours()

    def require_live(self, *, restarting: bool = False) -> None:
        """Refuse a pool that cannot run anything now; PoolError says why."""
        self.lifecycle.require_live(restarting=restarting)

    def phase(self, phase: str, text: str) -> contextlib.AbstractContextManager[Callable[[str], None]]:
        """Tell the listener of a phase's begin, lines and end."""
        return self.lifecycle.phase(phase, text)

    def notify(self, text: str) -> None:
        """Tell whoever listens to the pool's start and changes."""
        self.lifecycle.notify(text)

    def change_spec(self, spec: PoolSpec) -> None:
        """Have the pool be one of this spec from now on, for a later manager as well."""
        self.lifecycle.change_spec(spec)

    def retry_links(self) -> None:
        """Try at once what is away, rather than when its turn comes."""
        self.lifecycle.retry_links()

    def __repr__(self) -> str:
        return f"<Pool {self.spec.name!r}: {self.spec.nodes} nodes, {self.spec.world_size} ranks, {self.state}>"
