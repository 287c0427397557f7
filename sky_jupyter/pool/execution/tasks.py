"""Function calls on a pool: Dask tasks, each run by a rank.

Dask chooses ranks and order, and retries calls whose node is lost. This module ships values, collects results and
cancels calls.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ...capture.blobs import Blob
from ...capture.collect import Capture
from ...errors import NodeLost, SkyError
from ...node.protocol import rpc
from ...node.protocol.journal_events import is_count
from ...util.background_tasks import BackgroundTasks
from ..base.event_loop import Tick, loop, no_tick
from ..base.events import Listener, NoticeEvent, TroubleEvent, ignore
from ..base.timeouts import TIMEOUTS
from ..runs.hang_detector import HangDetector
from ..runs.result import CellResult, Outcome, exception_of
from ..runs.run import Run, new_id
from ..transfer import send_values as values
from ..transfer.fetch_values import FetchedValue, ValueFetch, discard, value_in
from .run_termination import FREE_PATIENCE
from .short_call import ShortCall
from .short_calls import ShortCalls
from .task_context import FunctionBundle, TaskContext

if TYPE_CHECKING:
    from distributed import Client, Future


_log = logging.getLogger(__name__)
# Arguments up to this size go with the task itself.
_INLINE = 32 << 10
_LOOK = TIMEOUTS.polls.calls
_PAUSE = TIMEOUTS.polls.calls_again
_PATIENCE = TIMEOUTS.answers.calls
# The number of journals that a node is told to delete in one request.
_TOLD = 64
# The limit of journals kept of single calls: more could evict those of cells.
_KEPT = 20


class TaskRun(Run):
    """One call as the manager sees it, on one rank at a time.

    Parameters
    ----------
    id : str
        Id given by the manager; while a rank runs the call, `id` is the name of that attempt.
    listener : callable
        Receives the events.
    rank : int, optional
        Rank to run it, by default any.
    retries : int
        How often it is retried after its node was lost.
    """

    def __init__(self, id: str, listener: Listener, rank: int | None = None, retries: int = 3) -> None:
        super().__init__(id, {}, listener)
        self.call = id
        self.rank = rank
        self.retries = retries
        self.losses = 0
        # Called on the loop once it is over.
        self.on_over: Callable[[TaskRun], None] = lambda run: None
        # Called when a rank has begun it.
        self.on_begun: Callable[[TaskRun], None] = lambda run: None
        # Called with each node that it was on and has left.
        self.on_left: Callable[[int], None] = lambda node: None
        self.cancelled = False
        # The file of a large value.
        self.file: FetchedValue | None = None
        # Owns the files that were sent for it alone.
        self.carrier: Run | None = None
        # Whether its journals and files can be deleted at its end.
        self.passing = False
        # Whether the caller updates the ledger.
        self.noted = False
        # Whether it makes several calls, and its value is a list.
        self.together = False
        # The rank that had begun it as a short call.
        self.begun_on = 0
        self._former: set[str] = set()

    @property
    def outcome(self) -> Outcome:
        """Its rank's outcome, once it is over."""
        (outcome,) = self.outcomes.values()
        return outcome

    @property
    def placed(self) -> bool:
        """Whether a rank has begun it."""
        return self.id != self.call

    def accepts(self, id: str, node: int) -> bool:
        """Return whether events are of this attempt; adopt a new one."""
        if id == self.id:
            return True
        if id in self._former or self.over.is_set():
            return False
        if self.placed:
            # Dask has noticed before us that its node was lost.
            self._leave(f"node {self.node} was lost")
            if self.over.is_set():
                return False
        self.id = id
        self._next, self._early, self._anywhere = {node: 0}, {}, True
        return True

    @property
    def node(self) -> int:
        """Its node; -1 if there is none or it is not known."""
        return next((outcome.node for outcome in self.outcomes.values()), next(iter(self._next), -1))

    def lose_node(self, node: int, why: str, name: str = "") -> None:
        """Handle a lost node: Dask runs a call there on another."""
        if self.placed and self.node == node and not self.over.is_set():
            self._leave(f"node {node}{name} is lost: {why}")

    def _leave(self, why: str) -> None:
        self._former.add(self.id)
        self.losses += 1
        if self.cancelled or self.losses > self.retries:
            rank = next(iter(self.outcomes), self.rank or 0)
            self._end_as(rank, self.node, {"kind": "end", "rank": rank, "status": "lost", "text": why})
            return
        text = f"{why}; the call that ran there is begun again ({self.losses} of {self.retries})"
        self._tell(NoticeEvent(text, self.id))
        self.id = self.call
        node = self.node
        self.outcomes.clear()
        self._next.clear()
        self.on_left(node)

    def lose_begun(self, node: int, why: str) -> None:
        """Handle the loss of a node that had begun it, if no event has come from there."""
        self.place(self.begun_on, node)
        self._leave(why)

    def lose_last(self, node: int, ranks_per_node: int) -> None:
        """End it as lost with its node, without a retry, even if its begin is unknown."""
        if not self.outcomes and node >= 0:
            self.place(node * ranks_per_node if self.rank is None else self.rank, node)
        self.give_up(f"node {self.node} was lost")

    def lose(self, ranks: Iterable[int], text: str) -> None:
        """End it as lost, wherever it is."""
        for rank in ranks:
            self._end_as(rank, self.outcomes[rank].node, {"kind": "end", "rank": rank, "status": "lost", "text": text})

    def give_up(self, text: str) -> None:
        """End it as lost, as the pool cannot be reached any more."""
        if not self.over.is_set():
            rank = next(iter(self.outcomes), self.rank or 0)
            end = {"kind": "end", "rank": rank, "status": "lost", "text": text, "unbegun": not self.outcomes}
            self._end_as(rank, self.node, end)

    def end_unbegun(self) -> None:
        """End it as interrupted, before any rank has begun it."""
        if not self.over.is_set():
            rank = self.rank or 0
            self._end_as(rank, -1, {"kind": "end", "rank": rank, "status": "interrupted", "why": self.why})

    def _end_as(self, rank: int, node: int, event: dict[str, Any]) -> None:
        outcome = self.outcomes.setdefault(rank, Outcome(rank, node))
        if outcome.status == "running":
            self._on_end(event, outcome)

    def _on_event(self, event: dict[str, Any], node: int) -> None:
        if event.get("kind") == "begin" and not self.outcomes:
            # Its place is known before its first output.
            ranks = event.get("ranks")
            if isinstance(ranks, list) and len(ranks) == 1 and is_count(ranks[0]):
                self.place(ranks[0], node)
                self.on_begun(self)
        super()._on_event(event, node)

    def _on_end(self, event: dict[str, Any], outcome: Outcome) -> None:
        if event["status"] == "lost" and event.get("seq") is not None:
            # A restarted agent reports this loss for its predecessor.
            self._leave(f"node {outcome.node}: {event.get('text') or 'its agent ended'}")
            return
        super()._on_end(event, outcome)

    def _note_end(self) -> None:
        if not self.outcomes:
            self.changed.set()
            return
        was_over = self.over.is_set()
        super()._note_end()
        if self.over.is_set() and not was_over:
            self.on_over(self)

    def value(self) -> Any:
        """Return the function's value, or raise its exception.

        The exception has the remote traceback as a note; a call that did not end raises the reason.
        """
        if self.outcome.failed:
            raise exception_of(self.outcome)
        if self.file is not None:
            return value_in(self.file)
        return CellResult([self.outcome], self.elapsed, run=self.id).head

    def drop(self) -> None:
        """Delete the file of an unwanted value."""
        if self.file is not None:
            discard(self.file)


@dataclass
class TaskRequest:
    """Request of one call."""

    bundle: FunctionBundle
    # A list of each call's arguments; None if the function's blob has them.
    arguments: Blob | None = None
    capture: Capture = field(default_factory=Capture)
    rank: int | None = None
    timeout: float | None = None
    listener: Listener = ignore
    # The owner of files sent for it alone; whether the caller updates the ledger.
    carrier: Run | None = None
    noted: bool = False
    # Whether it makes several calls in a row, whose values come as a list; the title in its journal.
    together: bool = False
    title: str = ""
    # Its streams, if any; it is not retried then, as items may have been read.
    stream: dict[str, Any] | None = None
    # Retries after its node was lost; by default as the pool's options say.
    retries: int | None = None


class PoolTasks:
    """Calls of one pool, made with it.

    ``ended`` holds the calls whose writes are not in the ledger yet.
    """

    def __init__(self, pool: TaskContext) -> None:
        self.pool = pool
        self.ended: deque[Run] = deque()
        # By function, the seconds that a call takes, as measured by batches.
        self.seconds: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        # Several threads may send calls, and they share the ledger.
        self.lock = threading.RLock()
        # By call, the hang detector, or the timer that starts it.
        self._silences: dict[str, asyncio.TimerHandle | asyncio.Task[None]] = {}
        self._futures: dict[str, Future[Any]] = {}
        self._finishing = BackgroundTasks()
        self._forgotten: dict[int, list[str]] = {}
        # Attempts whose journals the nodes keep.
        self._kept: deque[tuple[int, str]] = deque()
        self._sent = 0
        # Most calls go there first.
        self.short = ShortCalls(pool, self.bundle, self.discard, self.ended.append)

    # -- main thread -------------------------------------------------------------------------------

    def bundle(
        self, function: Blob, capture: Capture, on_send: Listener = ignore, tick: Tick = no_tick
    ) -> FunctionBundle:
        """Send a function with its values to the nodes; see `discard`.

        Raises CaptureError if there is no room for it, or its code cannot be sent.
        """
        carrier = self.pool.submission.new_run([], ignore, capture)
        return FunctionBundle(self.pool.submission.ship(carrier, on_send, tick, function), capture, carrier)

    def discard(self, bundle: FunctionBundle) -> None:
        """Delete a bundle on the nodes."""
        self.discard_of(bundle.run)

    def begin(self, orders: Sequence[TaskRequest], on_send: Listener = ignore, tick: Tick = no_tick) -> list[TaskRun]:
        """Start calls, queued by Dask in this order."""
        self.pool.require_live()
        usual = self.pool.spec.options.retry_on_interruption
        runs, owns = [], []
        for order in orders:
            retries = usual if order.retries is None else order.retries
            run = TaskRun(new_id(), order.listener, order.rank, 0 if order.stream else retries)
            run.capture = order.bundle.capture if order.arguments is None else order.capture
            run.on_over, run.on_left = self._on_over, self._on_left
            # Frameworks are not reinitialized while it runs.
            run.on_begun = self._on_begun
            run.shape, run.carrier, run.noted = self.pool.shape, order.carrier, order.noted
            run.code, run.together = order.title, order.together
            runs.append(run)
            try:
                with self.pool.explaining_end():
                    owns.append(self._own(run, order, on_send, tick))
            except BaseException:
                # An interrupt, or no room: none of them begins.
                for carrier in [one.carrier for one in runs if one.carrier is not None]:
                    self.discard_of(carrier)
                raise
        contents = [order.bundle.content for order in orders]
        self.pool.submission.register(runs)
        loop().submit(self._attend(list(zip(runs, contents, owns, strict=True))))
        return runs

    def take_up(self, short: ShortCall, retries: int | None, listener: Listener) -> TaskRun:
        """Continue an opened short call of one rank as a task; return the task."""
        try:
            self.pool.require_live()
        except BaseException:
            # Calls that wait for its rank must be told, too.
            self.short.release(short)
            raise
        usual = self.pool.spec.options.retry_on_interruption
        run = TaskRun(short.id, listener, short.about.get("rank"), usual if retries is None else retries)
        run.capture = short.function.bundle.capture
        run.on_over, run.on_left, run.on_begun = self._on_over, self._on_left, self._on_begun
        run.shape, run.code = self.pool.shape, short.title
        run.incarnations = short.incarnations if short.sent else {}
        # Where it was, in case that node is lost.
        run.begun_on = short.ranks[0] if short.ranks else 0
        own: dict[str, Any] = {
            "kind": "call",
            "title": short.title,
            "inline": base64.b64encode(bytes(short.arguments)).decode(),
        }
        own |= {what: short.about[what] for what in ("timeout", "together") if what in short.about}
        run.together = "together" in own
        run.task.add_done_callback(lambda _: self.short.release(short))
        self.pool.submission.register([run])
        loop().submit(self._attend([(run, short.function.content, own)]))
        return run

    def _own(self, run: TaskRun, order: TaskRequest, on_send: Listener, tick: Tick) -> dict[str, Any]:
        """Return a call's own arguments, inline if they are small."""
        own: dict[str, Any] = {"kind": "call", "title": order.title}
        if order.together:
            own["together"] = True
        if order.timeout is not None:
            own["timeout"] = order.timeout
        if order.stream is not None:
            own["stream"] = order.stream
        self.pool.pythons.fitting(order.capture)
        blob, blobs, bundle = order.arguments, order.capture.blobs, order.bundle
        if blob is None:
            return own
        if not order.capture.modules <= bundle.modules:
            # Arguments of the user's own types need their modules on the nodes.
            carrier = run.carrier = self.pool.submission.new_run([], ignore, order.capture)
            told = self.pool.submission.ship(carrier, on_send, tick, blob)
            own.update(arguments=told.pop("blob"), more=told.pop("manifest"))
            bundle.modules |= order.capture.modules
            bundle.content.update(told)
            return own
        if not blob.buffers and len(blob.pickled) <= _INLINE and not blobs:
            own["inline"] = base64.b64encode(blob.pickled).decode()
            if order.capture.bindings or order.capture.imports:
                own["more"] = order.capture.manifest(lambda blob: "")
            return own
        carrier = run.carrier = self.pool.submission.new_run([], ignore, order.capture)
        try:
            told = values.ship(self.pool, carrier, blob, on_send, tick)
        except BaseException:
            values.discard(self.pool, carrier)
            raise
        return {**own, "arguments": told["blob"], "more": told["manifest"]}

    def cancel(self, runs: Sequence[TaskRun], *, hard: bool = False) -> None:
        """Cancel calls: interrupt running ones, or kill them if ``hard``."""
        runs = [run for run in runs if not run.over.is_set()]
        if runs:
            for run in runs:
                run.cancelled, run.why = True, run.why or " by you"
            loop().submit(self._cancel(runs, hard))

    def note_writes(self, namespace: dict[str, Any]) -> None:
        """Record in the ledger what calls have assigned since last time."""
        with self.lock:
            while self.ended:
                self.pool.note_writes(self.ended.popleft(), namespace)

    # -- the loop ----------------------------------------------------------------------------------

    async def _attend(self, sent: list[tuple[TaskRun, dict[str, Any], dict[str, Any]]]) -> None:
        """Submit calls until they are over, again to a new scheduler."""
        supervisor = self.pool.supervisor
        try:
            await supervisor.repairs.settle_kernels()
            for run, _, _ in sent:
                run.start_clock()
            for about, text in self.pool.watchdog.troubles.items():
                sent[0][0].listener(TroubleEvent(text, about=about))
            known = await self._find_opened([run for run, _, _ in sent if run.incarnations])
            while left := [item for item in sent if not item[0].over.is_set()]:
                control = self.pool.control
                if control.closing:
                    for run, _, _ in left:
                        run.give_up(control.why_closed if self.pool.broken else "the pool has ended")
                    return
                await control.up.wait()
                client = control.client
                if client is None or client.status != "running":
                    await asyncio.sleep(_PAUSE)
                    continue
                self._submit(client, [item for item in left if not item[0].cancelled], known)
                await self._watch(client, [run for run, _, _ in left])
                # A restarted scheduler has lost the calls; the agents that run them have not.
                known = await self._known([run for run, _, _ in left if not run.over.is_set()])
        except Exception as error:
            _log.exception("function calls could not be handled")
            for run, _, _ in sent:
                run.give_up(f"it could not be sent: {type(error).__name__}: {error}")

    def _submit(
        self, client: Client, sent: Sequence[tuple[TaskRun, dict[str, Any], dict[str, Any]]], known: dict[str, int]
    ) -> None:
        """Submit calls as Dask tasks; a call that a node knows goes there."""
        import dask

        from ...node.agent.dask_worker import call, rank_resource
        from ...node.dask.scheduler import CALL, RETRIES

        control, anywhere = self.pool.control, self._places()
        groups: dict[Any, list[tuple[TaskRun, dict[str, Any], dict[str, Any]]]] = {}
        for item in sent:
            left = max(0, item[0].retries - item[0].losses)
            groups.setdefault((item[0].rank, known.get(item[0].call), left), []).append(item)
        for (rank, node, left), items in groups.items():
            self._sent += 1
            keys = [f"{CALL}-{run.call}-{self._sent}" for run, _, _ in items]
            where = anywhere
            if node is not None and node in control.addresses:
                # Another node may run it if this one is lost.
                where = {"workers": [control.addresses[node]], "allow_other_workers": True}
            elif rank is not None:
                where = {"resources": {rank_resource(rank): 1}}
            calls = [run.call for run, _, _ in items]
            contents, owns = [content for _, content, _ in items], [own for _, _, own in items]
            with dask.annotate(**{RETRIES: left}):
                futures = client.map(call, calls, contents, owns, [rank] * len(items), key=keys, pure=False, **where)
            self._futures.update(zip(calls, futures, strict=True))

    def _places(self) -> dict[str, Any]:
        """Return the nodes for calls of any rank, as arguments of Dask's ``map``.

        Dask does not know of cells: nodes whose ranks all run cells are left out, if there are others.
        """
        control, per_node = self.pool.control, self.pool.spec.ranks_per_node
        cells = [run for run in self.pool.supervisor.registered if not isinstance(run, TaskRun)]
        at_cells = {rank for run in cells for rank in run.left}
        free = [
            address
            for node, address in control.addresses.items()
            if not at_cells.issuperset(range(node * per_node, (node + 1) * per_node))
        ]
        if 0 < len(free) < len(control.addresses):
            return {"workers": free, "allow_other_workers": True}
        return {"workers": list(control.addresses.values())} if control.crowded else {}

    async def _watch(self, client: Client, runs: Sequence[TaskRun]) -> None:
        """Wait until all calls are over, or the client is replaced."""
        control = self.pool.control
        over = asyncio.ensure_future(self._until_over(runs))
        try:
            while not over.done():
                await asyncio.wait([over], timeout=_LOOK)
                if control.closing or control.client is not client:
                    return
                for run in runs:
                    await self._look(run)
        finally:
            over.cancel()

    async def _until_over(self, runs: Sequence[TaskRun]) -> None:
        for run in runs:
            await run.until(run.over.is_set, None)

    async def _look(self, run: TaskRun) -> None:
        """Update a call whose Dask task is over."""
        from distributed import KilledWorker

        future = self._futures.get(run.call)
        if run.over.is_set() or future is None or future.status == "pending":
            return
        if future.status == "finished":
            answer = await future.result()
            if answer["attempt"] is not None and run.accepts(answer["attempt"], answer["node"]):
                await self.pool.supervisor.journals.read(run, answer["node"], run.next(answer["node"]))
            return
        if future.status == "error":
            with contextlib.suppress(Exception):
                error = await future.exception()
                if isinstance(error, KilledWorker):
                    node = self.pool.control.node_named(error.last_worker.name)
                    run.lose_last(node, self.pool.spec.ranks_per_node)
                else:
                    run.give_up(f"the control plane could not bring it to a rank: {type(error).__name__}: {error}")

    async def _find_opened(self, runs: Sequence[TaskRun]) -> dict[str, int]:
        """Find opened short calls at their agents; lose those whose agents have ended.

        A call that an agent does not know has not reached it, and is begun now.
        """
        control = self.pool.control
        known: dict[str, int] = {}
        for run in runs:
            ((node, incarnation),) = run.incarnations.items()
            while not control.closing and not run.over.is_set():
                try:
                    names = (await control.ask(rpc.FIND_CALLS, [node], calls=[run.call]))[node]
                except (NodeLost, OSError):
                    if node not in control.lost | control.off:
                        # The node, or the scheduler, is unreachable for a moment.
                        await asyncio.sleep(_PAUSE)
                        continue
                    names = {}
                if run.call in names:
                    known[run.call] = node
                    if run.accepts(names[run.call], node):
                        await self.pool.supervisor.journals.read(run, node, run.next(node))
                elif node in control.lost | control.off or control.incarnations.get(node) != incarnation:
                    run.lose_begun(node, f"node {node}{control.names.get(node, '')} is lost: its agent ended")
                break
        return known

    async def _known(self, runs: Sequence[TaskRun]) -> dict[str, int]:
        """Return the nodes that know the calls; read their events there.

        Nodes that have not joined a new scheduler yet are waited for until they are lost. Else their calls would begin
        elsewhere, too, and run twice.
        """
        control = self.pool.control
        known: dict[str, int] = {}
        asked: set[int] = set()
        while not control.closing:
            await control.up.wait()
            left = {run.call: run for run in runs if run.call not in known and not run.over.is_set()}
            placed = {run.call: run.node for run in left.values() if run.placed}
            # A node that does not answer still runs what it had begun.
            known |= {call: node for call, node in placed.items() if node in control.silent & control.addresses.keys()}
            quiet = control.silent - set(placed.values())
            awaited = control.incarnations.keys() - asked - control.lost - control.off - quiet
            if not left or not awaited:
                break
            answers: dict[int, dict[str, str]] = {}
            with contextlib.suppress(NodeLost, OSError):
                answers = await control.ask(rpc.FIND_CALLS, sorted(awaited & control.there), calls=list(left))
            asked |= answers.keys()
            for node, names in answers.items():
                for call, name in names.items():
                    known[call] = node
                    if left[call].accepts(name, node):
                        await self.pool.supervisor.journals.read(left[call], node, left[call].next(node))
            if not answers:
                await asyncio.sleep(_PAUSE)
        return known

    async def _cancel(self, runs: Sequence[TaskRun], hard: bool) -> None:
        """Remove calls from Dask's queue, and stop those that ranks run."""
        control = self.pool.control
        futures = [future for run in runs if (future := self._futures.pop(run.call, None)) is not None]
        begun: set[str] = set()
        if hard:
            self.pool.supervisor.do(self._free(runs))
        if control.client is not None:
            with contextlib.suppress(Exception, asyncio.TimeoutError, CancelledError):
                await asyncio.wait_for(control.client.cancel(futures, force=True), _PATIENCE)
            there = []
            for node in list(control.addresses):
                # A node that does not answer is retried while there is something to stop.
                asking = self._finishing.start(self._cancel_on(node, runs, begun, hard))
                if node in control.there:
                    there.append(asking)
            if there:
                await asyncio.wait(there, timeout=_PATIENCE)
        for run in runs:
            # A call that was sent as a short call is at its agent, which ends it, however late it answers.
            if not run.placed and run.call not in begun and not run.incarnations:
                run.end_unbegun()
            elif hard and run.node not in control.there:
                run.give_up("its node does not answer, and you cancelled it; `%sky restart` recreates it")
            elif not hard:
                self.pool.supervisor.do(self.pool.supervisor.termination.free(run))

    async def _cancel_on(self, node: int, runs: Sequence[TaskRun], begun: set[str], hard: bool) -> None:
        """Stop calls on a node once it is reachable; note begun ones."""
        control = self.pool.control
        while not control.closing and (left := [run for run in runs if not run.over.is_set()]):
            with contextlib.suppress(SkyError, OSError):
                if node not in control.silent:
                    answers = await control.ask(rpc.CANCEL_CALLS, [node], calls=[run.call for run in left], hard=hard)
                    begun.update(*answers.values())
                    return
            await asyncio.sleep(_PAUSE)

    async def _free(self, runs: Sequence[TaskRun]) -> None:
        """Give up calls that do not end after two interrupts."""
        await asyncio.sleep(FREE_PATIENCE)
        for run in runs:
            run.give_up(f"it does not end, and you cancelled it{self.pool.watchdog.why}")

    def _on_begun(self, run: TaskRun) -> None:
        """Start the hang detector's timer for a call that has begun."""
        supervisor = self.pool.supervisor
        supervisor.working.add(run)
        if self.pool.spec.world_size > 1:
            self._stop_watching(run)
            later = asyncio.get_running_loop().call_later
            self._silences[run.call] = later(supervisor.silence, self._watch_over, run)

    def _watch_over(self, run: TaskRun) -> None:
        supervisor = self.pool.supervisor
        watch = HangDetector(run, supervisor.look, after=supervisor.silence)
        self._silences[run.call] = supervisor.keep_task(watch.attend())

    def _stop_watching(self, run: TaskRun) -> None:
        if (silence := self._silences.pop(run.call, None)) is not None:
            silence.cancel()

    def _on_left(self, node: int) -> None:
        """Report a node that is off to Dask, which reschedules the call."""
        if node in self.pool.control.off:
            self.pool.control.drop(node)

    def _on_over(self, run: TaskRun) -> None:
        """Release the resources of a call that is over; report its end."""
        future = self._futures.pop(run.call, None)
        if future is not None:
            future.release()
        if run.outcome.status == "lost":
            # Dask would run it on another node, and may have begun to.
            self.pool.supervisor.do(self._cancel([run], False))
        # Not a task of the supervisor, whose tasks end with the pool: the waiting thread must be notified.
        self._finishing.start(self._finish(run))

    async def _finish(self, run: TaskRun) -> None:
        supervisor = self.pool.supervisor
        self._stop_watching(run)
        supervisor.events.take_call(run.events, run.code)
        try:
            outcome = run.outcome
            if outcome.end.get("large") and not outcome.failed and not run.cancelled:
                try:
                    run.file = await self._bring(run)
                except Exception as error:
                    # As the pool ends, folders are removed and connections closed.
                    why = self.pool.control.why_closed if self.pool.control.closing else error
                    outcome.status = "lost"
                    outcome.end = {**outcome.end, "text": f"its value could not be fetched: {why}"}
            if not run.cancelled or run.placed:
                supervisor.repairs.mend(run)
        finally:
            supervisor.working.discard(run)
            supervisor.discard(run)
            supervisor.runs.pop(run.call, None)
            if not run.noted:
                self.ended.append(run)
            if run.carrier is not None:
                self._remove(run.carrier)
            if run.placed and run.passing:
                self._forget(run.outcome.node, run.id)
            elif run.placed:
                self._kept.append((run.outcome.node, run.id))
                if len(self._kept) > _KEPT:
                    self._forget(*self._kept.popleft())
            if not run.task.done():
                run.task.set_result(None)

    async def _bring(self, run: TaskRun) -> FetchedValue:
        """Fetch a large value before the node evicts it."""
        rank = run.outcome.rank
        brought = (await ValueFetch(self.pool, [rank], ignore, "a value").bring({"of": run.id}))[rank]
        if brought.gone:
            raise NodeLost(brought.gone)
        self.pool.supervisor.do(self._release(run))
        return brought

    async def _release(self, run: TaskRun) -> None:
        with contextlib.suppress(SkyError, OSError):
            await self.pool.control.ask(rpc.RELEASE_VALUE, [run.outcome.node], run=run.id, ranks=[run.outcome.rank])

    def _remove(self, carrier: Run) -> None:
        """Delete a call's own files; remote ones in a thread."""
        if carrier.brought:
            asyncio.get_running_loop().run_in_executor(None, self.discard_of, carrier)
        else:
            self.discard_of(carrier)

    def discard_of(self, carrier: Run) -> None:
        """Delete a run's files, as far as their machines answer."""
        with contextlib.suppress(SkyError, OSError):
            values.discard(self.pool, carrier)

    def _forget(self, node: int, attempt: str) -> None:
        """Queue an attempt's journal for deletion on its node."""
        forgotten = self._forgotten.setdefault(node, [])
        forgotten.append(attempt)
        if len(forgotten) >= _TOLD:
            self._tell_forgotten(node)

    def tidy(self) -> None:
        """Delete the queued journals on the nodes."""
        loop().loop.call_soon_threadsafe(self._tidy)

    def _tidy(self) -> None:
        for node in list(self._forgotten):
            self._tell_forgotten(node)

    def _tell_forgotten(self, node: int) -> None:
        attempts = self._forgotten.pop(node, [])
        if attempts:
            self.pool.supervisor.do(self._uncall(node, attempts))

    async def _uncall(self, node: int, attempts: list[str]) -> None:
        with contextlib.suppress(SkyError, OSError):
            await self.pool.control.ask(rpc.FORGET_CALLS, [node], attempts=attempts)
