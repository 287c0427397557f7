"""Function calls on a pool: each a Dask task that a rank does, begun again elsewhere where its node is lost.

Which rank, in which order and how often is Dask's business. What is here brings the values there, puts
together what the ranks tell, and stops calls that nobody wants any more.
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
from typing import TYPE_CHECKING, Any, Protocol

from ...capture.blobs import Blob
from ...capture.collect import Capture
from ...errors import NodeLost, SkyError
from ...node.journal.segments import is_number
from ...node.protocol import rpc
from ...util.tasks import BackgroundTasks
from ..base.event_loop import Tick, loop, no_tick
from ..base.events import Listener, NoticeEvent, ignore
from ..base.timeouts import TIMEOUTS
from ..hosts import host
from ..runs.hang_detector import Watch
from ..runs.result import CellResult, Outcome, exception_of
from ..runs.run import Run
from ..transfer import blobs as values
from ..transfer.fetch_values import Bringing, Brought, ValuesContext, discard, value_in
from .supervisor import FREE_PATIENCE

if TYPE_CHECKING:
    from distributed import Client, Future

    from ..transfer.python_versions import PoolPythons
    from .supervisor import Supervisor


_log = logging.getLogger(__name__)
# Arguments up to this size go with the task itself.
_INLINE = 32 << 10
_LOOK = TIMEOUTS.polls.calls
_PAUSE = TIMEOUTS.polls.calls_again
_PATIENCE = TIMEOUTS.answers.calls
# Nodes are told of so many calls at once that their journals are needed no more.
_TOLD = 64
# Calls that were made one by one leave their journals, but not so many that those of cells have to go.
_KEPT = 20


class CallRun(Run):
    """One call as the manager sees it: on one rank, and where that is lost, on another.

    Parameters
    ----------
    id : str
        Made by the manager. From when a rank begins it has the name of that attempt.
    listener : callable
        As for any run.
    rank : int, optional
        The one that it is to be on.
    retries : int
        How often it is begun again whose node is lost.
    """

    def __init__(self, id: str, listener: Listener, rank: int | None = None, retries: int = 3) -> None:
        super().__init__(id, {}, listener)
        self.call = id
        self.rank = rank
        self.retries = retries
        self.losses = 0
        # What is to be done on the loop when it is over, once.
        self.on_over: Callable[[CallRun], None] = lambda run: None
        # Told when a rank has begun it.
        self.on_begun: Callable[[CallRun], None] = lambda run: None
        # Told of each node that it was on and has left.
        self.on_left: Callable[[int], None] = lambda node: None
        self.cancelled = False
        # A large value, in a file.
        self.file: Brought | None = None
        # Holds the files that were sent for it alone.
        self.carrier: Run | None = None
        # Whether journals and files of it are needed no more.
        self.passing = False
        # Whether the ledger hears of it from whoever waits for it.
        self.noted = False
        # Whether it makes several calls, and its value is a list.
        self.together = False
        self._former: set[str] = set()

    @property
    def outcome(self) -> Outcome:
        """How it went, once it is over."""
        (outcome,) = self.outcomes.values()
        return outcome

    @property
    def placed(self) -> bool:
        """Whether a rank has begun it."""
        return self.id != self.call

    def accepts(self, id: str, node: int) -> bool:
        """Whether events are of this call as it is being done now; the first of a new attempt make it that one."""
        if id == self.id:
            return True
        if id in self._former or self.over.is_set():
            return False
        if self.placed:
            # Dask has noticed sooner than we have that it was lost.
            self._leave(f"node {self.node} was lost")
            if self.over.is_set():
                return False
        self.id = id
        self._next, self._early, self._anywhere = {node: 0}, {}, True
        return True

    @property
    def node(self) -> int:
        """Where it is, as far as that is known; -1 where it is nowhere."""
        return next((outcome.node for outcome in self.outcomes.values()), next(iter(self._next), -1))

    def lose_node(self, node: int, why: str, name: str = "") -> None:
        """A node is given up: where the call was on it, it is begun again on another, which Dask sees to."""
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

    def lose(self, ranks: Iterable[int], text: str) -> None:
        """It is given up, wherever it is."""
        for rank in ranks:
            self._end_as(rank, self.outcomes[rank].node, {"kind": "end", "rank": rank, "status": "lost", "text": text})

    def give_up(self, text: str) -> None:
        """Nobody can be reached any more."""
        if not self.over.is_set():
            rank = next(iter(self.outcomes), self.rank or 0)
            end = {"kind": "end", "rank": rank, "status": "lost", "text": text, "unbegun": not self.outcomes}
            self._end_as(rank, self.node, end)

    def end_unbegun(self) -> None:
        """It was cancelled before a rank had begun it."""
        if not self.over.is_set():
            rank = self.rank or 0
            self._end_as(rank, -1, {"kind": "end", "rank": rank, "status": "interrupted", "why": self.why})

    def _end_as(self, rank: int, node: int, event: dict[str, Any]) -> None:
        outcome = self.outcomes.setdefault(rank, Outcome(rank, node))
        if outcome.status == "running":
            self._on_end(event, outcome)

    def _on_event(self, event: dict[str, Any], node: int) -> None:
        if event.get("kind") == "begin" and not self.outcomes:
            # Before it has said anything: whoever asks knows that it is on, and where.
            ranks = event.get("ranks")
            if isinstance(ranks, list) and len(ranks) == 1 and is_number(ranks[0]):
                self.place(ranks[0], node)
                self.on_begun(self)
        super()._on_event(event, node)

    def _on_end(self, event: dict[str, Any], outcome: Outcome) -> None:
        if event["status"] == "lost" and event.get("seq") is not None:
            # An agent that was made anew says it of the one before.
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
        """What the function returned.

        Raises
        ------
        Exception
            What it raised, with the remote traceback as a note; or why it did not end.
        """
        if self.outcome.failed:
            raise exception_of(self.outcome)
        if self.file is not None:
            return value_in(self.file)
        return CellResult([self.outcome], self.elapsed, run=self.id).head

    def drop(self) -> None:
        """Nobody wants what it returned."""
        if self.file is not None:
            discard(self.file)


@dataclass
class Parcel:
    """What calls have in common, where the nodes find it: a function, and what it reads."""

    content: dict[str, Any]
    capture: Capture
    # Holds the files.
    run: Run
    # What the nodes have been given that calls of it import.
    modules: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.modules |= self.capture.modules


@dataclass
class Order:
    """One call that is to be made."""

    parcel: Parcel
    # A list of what each call is given; None where the function's blob has it.
    arguments: Blob | None = None
    capture: Capture = field(default_factory=Capture)
    rank: int | None = None
    timeout: float | None = None
    listener: Listener = ignore
    # What was sent for it alone, whether somebody else tells the ledger of it, and what its journal is to say of it.
    carrier: Run | None = None
    noted: bool = False
    # Whether its arguments are those of several calls, one after the other, whose values come as a list.
    together: bool = False
    title: str = ""
    # Which of its items stream, where any do; it is not begun again then: somebody may have read some.
    stream: dict[str, Any] | None = None
    # How often it is begun again whose node is lost; as the pool's options say where it is None.
    retries: int | None = None


class TaskContext(ValuesContext, Protocol):
    """The pool, and what a call needs that is to be sent."""

    @property
    def supervisor(self) -> Supervisor:
        """Who runs and mends what is on the pool."""
        ...

    @property
    def pythons(self) -> PoolPythons:
        """Which Pythons the nodes run."""
        ...

    def new_run(self, ranks: Sequence[int], listener: Listener, capture: Capture) -> Run:
        """Make a run that is to be sent."""
        ...

    def ship(self, run: Run, on_send: Listener, tick: Tick, call: Blob | None = None) -> dict[str, Any]:
        """Bring what a run needs to its nodes."""
        ...

    def note_writes(self, run: Run, namespace: dict[str, Any]) -> None:
        """Note what a run has assigned on the nodes."""
        ...


class Calls:
    """One a pool, made with it.

    Attributes
    ----------
    ended : deque of CallRun
        Those whose writes the ledger has not heard of yet.
    """

    def __init__(self, pool: TaskContext) -> None:
        self.pool = pool
        self.ended: deque[CallRun] = deque()
        # Calls may be sent by several threads at once, and the ledger is one.
        self.lock = threading.RLock()
        # By call, what watches over one that a rank works on, or will once that has been silent for long.
        self._silences: dict[str, asyncio.TimerHandle | asyncio.Task[None]] = {}
        self._futures: dict[str, Future[Any]] = {}
        self._finishing = BackgroundTasks()
        self._forgotten: dict[int, list[str]] = {}
        # Those whose journals the nodes keep.
        self._kept: deque[tuple[int, str]] = deque()
        self._sent = 0

    # -- main thread -------------------------------------------------------------------------------

    def parcel(self, function: Blob, capture: Capture, on_send: Listener = ignore, tick: Tick = no_tick) -> Parcel:
        """Bring a function, with what it reads, to where the nodes find it; `discard` takes it away.

        Raises
        ------
        CaptureError
            When there is no room for it, or the code that it needs cannot go.
        """
        carrier = self.pool.new_run([], ignore, capture)
        return Parcel(self.pool.ship(carrier, on_send, tick, function), capture, carrier)

    def discard(self, parcel: Parcel) -> None:
        """Nobody needs it any more."""
        self.discard_of(parcel.run)

    def begin(self, orders: Sequence[Order], on_send: Listener = ignore, tick: Tick = no_tick) -> list[CallRun]:
        """Have calls made; they are in the order of Dask's queue, which is the order in which they are given."""
        self.pool.require_live()
        usual = self.pool.spec.options.retry_on_interruption
        runs, owns = [], []
        for order in orders:
            retries = usual if order.retries is None else order.retries
            run = CallRun(host.new_id(), order.listener, order.rank, 0 if order.stream else retries)
            run.capture = order.parcel.capture if order.arguments is None else order.capture
            run.on_over, run.on_left = self._on_over, self._on_left
            # No rank sets its frameworks up anew beside what it works on.
            run.on_begun = self._on_begun
            run.shape, run.carrier, run.noted = self.pool.shape, order.carrier, order.noted
            run.code, run.together = order.title, order.together
            owns.append(self._own(run, order, on_send, tick))
            runs.append(run)
        contents = [order.parcel.content for order in orders]
        for run in runs:
            self.pool.supervisor.add(run)
        loop().submit(self._attend(list(zip(runs, contents, owns, strict=True))))
        return runs

    def _own(self, run: CallRun, order: Order, on_send: Listener, tick: Tick) -> dict[str, Any]:
        """What a call does not share with others: its arguments, as text where they are small."""
        own: dict[str, Any] = {"kind": "call", "title": order.title}
        if order.together:
            own["together"] = True
        if order.timeout is not None:
            own["timeout"] = order.timeout
        if order.stream is not None:
            own["stream"] = order.stream
        self.pool.pythons.fitting(order.capture)
        blob, blobs, parcel = order.arguments, order.capture.blobs, order.parcel
        if blob is None:
            return own
        if not order.capture.modules <= parcel.modules:
            # Arguments of the user's own types need his modules there, as functions do.
            carrier = run.carrier = self.pool.new_run([], ignore, order.capture)
            told = self.pool.ship(carrier, on_send, tick, blob)
            own.update(arguments=told.pop("blob"), more=told.pop("manifest"))
            parcel.modules |= order.capture.modules
            parcel.content.update(told)
            return own
        if not blob.buffers and len(blob.pickled) <= _INLINE and not blobs:
            own["inline"] = base64.b64encode(blob.pickled).decode()
            if order.capture.bindings or order.capture.imports:
                own["more"] = order.capture.manifest(lambda blob: "")
            return own
        carrier = run.carrier = self.pool.new_run([], ignore, order.capture)
        try:
            told = values.ship(self.pool, carrier, blob, on_send, tick)
        except BaseException:
            values.discard(self.pool, carrier)
            raise
        return {**own, "arguments": told["blob"], "more": told["manifest"]}

    def cancel(self, runs: Sequence[CallRun], *, hard: bool = False) -> None:
        """Stop calls: those that wait are not begun, and the others interrupted, or where it is ``hard`` ended."""
        runs = [run for run in runs if not run.over.is_set()]
        if runs:
            for run in runs:
                run.cancelled, run.why = True, run.why or " by you"
            loop().submit(self._cancel(runs, hard))

    def note_writes(self, namespace: dict[str, Any]) -> None:
        """Tell the ledger what calls have assigned on the nodes since it was last told."""
        with self.lock:
            while self.ended:
                self.pool.note_writes(self.ended.popleft(), namespace)

    # -- the loop ----------------------------------------------------------------------------------

    async def _attend(self, sent: list[tuple[CallRun, dict[str, Any], dict[str, Any]]]) -> None:
        """Have Dask see to calls until they are over, through whatever becomes of its scheduler."""
        supervisor = self.pool.supervisor
        try:
            await supervisor.settle()
            for run, _, _ in sent:
                run.start_clock()
            for text in self.pool.watchdog.troubles.values():
                sent[0][0].listener(NoticeEvent(text))
            known: dict[str, int] = {}
            while left := [item for item in sent if not item[0].over.is_set()]:
                control = self.pool.control
                if control.closing:
                    for run, _, _ in left:
                        run.give_up(self.pool.broken or "the pool has ended")
                    return
                await control.up.wait()
                client = control.client
                if client is None or client.status != "running":
                    await asyncio.sleep(_PAUSE)
                    continue
                self._submit(client, [item for item in left if not item[0].cancelled], known)
                await self._watch(client, [run for run, _, _ in left])
                # A scheduler that is started anew knows nothing of the calls; the agents that have them do.
                known = await self._known([run for run, _, _ in left if not run.over.is_set()])
        except Exception as error:
            _log.exception("function calls could not be seen to")
            for run, _, _ in sent:
                run.give_up(f"it could not be sent: {type(error).__name__}: {error}")

    def _submit(
        self, client: Client, sent: Sequence[tuple[CallRun, dict[str, Any], dict[str, Any]]], known: dict[str, int]
    ) -> None:
        """Make Dask tasks of calls; those that a node knows are asked for there."""
        import dask

        from ...node.agent.dask_worker import call, rank_resource
        from ...node.dask.scheduler import CALL, RETRIES

        control = self.pool.control
        groups: dict[Any, list[tuple[CallRun, dict[str, Any], dict[str, Any]]]] = {}
        for item in sent:
            left = max(0, item[0].retries - item[0].losses)
            groups.setdefault((item[0].rank, known.get(item[0].call), left), []).append(item)
        for (rank, node, left), items in groups.items():
            self._sent += 1
            keys = [f"{CALL}-{run.call}-{self._sent}" for run, _, _ in items]
            where: dict[str, Any] = {}
            if node is not None and node in control.addresses:
                where = {"workers": [control.addresses[node]]}
            elif rank is not None:
                where = {"resources": {rank_resource(rank): 1}}
            elif control.crowded:
                where = {"workers": list(control.addresses.values())}
            calls = [run.call for run, _, _ in items]
            contents, owns = [content for _, content, _ in items], [own for _, _, own in items]
            with dask.annotate(**{RETRIES: left}):
                futures = client.map(call, calls, contents, owns, [rank] * len(items), key=keys, pure=False, **where)
            self._futures.update(zip(calls, futures, strict=True))

    async def _watch(self, client: Client, runs: Sequence[CallRun]) -> None:
        """Until all are over, or this client is none any more."""
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

    async def _until_over(self, runs: Sequence[CallRun]) -> None:
        for run in runs:
            await run.until(run.over.is_set, None)

    async def _look(self, run: CallRun) -> None:
        """See to a call that Dask has done with, and that has not ended for us."""
        from distributed import KilledWorker

        future = self._futures.get(run.call)
        if run.over.is_set() or future is None or future.status == "pending":
            return
        if future.status == "finished":
            answer = await future.result()
            if answer["attempt"] is not None and run.accepts(answer["attempt"], answer["node"]):
                await self.pool.supervisor.read(run, answer["node"], run.next(answer["node"]))
            return
        if future.status == "error":
            with contextlib.suppress(Exception):
                error = await future.exception()
                text = f"the control plane could not bring it to a rank: {type(error).__name__}: {error}"
                run.give_up(f"node {run.node} was lost" if isinstance(error, KilledWorker) else text)

    async def _known(self, runs: Sequence[CallRun]) -> dict[str, int]:
        """The nodes that know calls, by call; what they have told meanwhile is taken in."""
        control = self.pool.control
        if not runs or control.closing:
            return {}
        await control.up.wait()
        known: dict[str, int] = {}
        by_call = {run.call: run for run in runs}
        with contextlib.suppress(NodeLost, OSError):
            answers = await control.ask(rpc.FIND_CALLS, sorted(control.there), calls=list(by_call))
            for node, names in answers.items():
                for call, name in names.items():
                    known[call] = node
                    if by_call[call].accepts(name, node):
                        await self.pool.supervisor.read(by_call[call], node, by_call[call].next(node))
        return known

    async def _cancel(self, runs: Sequence[CallRun], hard: bool) -> None:
        """Take calls out of Dask's queue, and stop those that ranks are at."""
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
                # Who does not answer now is asked for as long as there is something to stop.
                asking = self._finishing.start(self._cancel_on(node, runs, begun, hard))
                if node in control.there:
                    there.append(asking)
            if there:
                await asyncio.wait(there, timeout=_PATIENCE)
        for run in runs:
            if not run.placed and run.call not in begun:
                run.end_unbegun()
            elif hard and run.node not in control.there:
                run.give_up("its node does not answer, and you gave it up; `%sky restart` makes it anew")
            elif not hard:
                self.pool.supervisor.do(self.pool.supervisor.free(run))

    async def _cancel_on(self, node: int, runs: Sequence[CallRun], begun: set[str], hard: bool) -> None:
        """Have a node stop calls, as soon as it can be reached; those that it had begun are noted."""
        control = self.pool.control
        while not control.closing and (left := [run for run in runs if not run.over.is_set()]):
            with contextlib.suppress(SkyError, OSError):
                if node not in control.silent:
                    answers = await control.ask(rpc.CANCEL_CALLS, [node], calls=[run.call for run in left], hard=hard)
                    begun.update(*answers.values())
                    return
            await asyncio.sleep(_PAUSE)

    async def _free(self, runs: Sequence[CallRun]) -> None:
        """Give up calls that do not end although they were interrupted twice: nobody is kept waiting by them."""
        await asyncio.sleep(FREE_PATIENCE)
        for run in runs:
            run.give_up(f"it does not end, and you gave it up{self.pool.watchdog.why}")

    def _on_begun(self, run: CallRun) -> None:
        """A rank has begun a call: where that is silent for long, it is looked at."""
        supervisor = self.pool.supervisor
        supervisor.working.add(run)
        if self.pool.spec.world_size > 1:
            self._stop_watching(run)
            later = asyncio.get_running_loop().call_later
            self._silences[run.call] = later(supervisor.silence, self._watch_over, run)

    def _watch_over(self, run: CallRun) -> None:
        supervisor = self.pool.supervisor
        watch = Watch(run, supervisor.look, after=supervisor.silence)
        self._silences[run.call] = supervisor.keep_task(watch.attend())

    def _stop_watching(self, run: CallRun) -> None:
        if (silence := self._silences.pop(run.call, None)) is not None:
            silence.cancel()

    def _on_left(self, node: int) -> None:
        """A call is to go on elsewhere: where only we know that its node's machine is off, Dask has to be told."""
        control = self.pool.control
        if node in control.off and node in control.addresses:
            self.pool.supervisor.do(self._let_go(node))

    async def _let_go(self, node: int) -> None:
        control = self.pool.control
        if control.client is None or node not in control.addresses:
            return
        # Where it cannot be told, it will notice by itself.
        with contextlib.suppress(Exception):
            await control.client.scheduler.unregister(address=control.addresses[node], stimulus_id=f"sky-off-{node}")

    def _on_over(self, run: CallRun) -> None:
        """A call has ended: what is left of it goes, and whoever waits for it hears of it."""
        future = self._futures.pop(run.call, None)
        if future is not None:
            future.release()
        if run.outcome.status == "lost":
            # Dask would have another node do it, and may have begun to.
            self.pool.supervisor.do(self._cancel([run], False))
        # Not among what the supervisor does for the pool: that ends with it, and whoever waits has to hear of it.
        self._finishing.start(self._finish(run))

    async def _finish(self, run: CallRun) -> None:
        supervisor = self.pool.supervisor
        self._stop_watching(run)
        try:
            outcome = run.outcome
            if outcome.end.get("large") and not outcome.failed and not run.cancelled:
                try:
                    run.file = await self._bring(run)
                except Exception as error:
                    outcome.status = "lost"
                    outcome.end = {**outcome.end, "text": f"its value could not be fetched: {error}"}
            if not run.cancelled or run.placed:
                supervisor.mend(run)
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

    async def _bring(self, run: CallRun) -> Brought:
        """Have a large value here, before newer ones push it out there."""
        rank = run.outcome.rank
        brought = (await Bringing(self.pool, [rank], ignore, "a value").bring({"of": run.id}))[rank]
        if brought.gone:
            raise NodeLost(brought.gone)
        self.pool.supervisor.do(self._release(run))
        return brought

    async def _release(self, run: CallRun) -> None:
        with contextlib.suppress(SkyError, OSError):
            await self.pool.control.ask(rpc.RELEASE_VALUE, [run.outcome.node], run=run.id, ranks=[run.outcome.rank])

    def _remove(self, carrier: Run) -> None:
        """A call's own files go; on other machines that waits for an answer, and the loop for nobody."""
        if carrier.brought:
            asyncio.get_running_loop().run_in_executor(None, self.discard_of, carrier)
        else:
            self.discard_of(carrier)

    def discard_of(self, carrier: Run) -> None:
        """Take away what was sent, as far as its machines answer."""
        with contextlib.suppress(SkyError, OSError):
            values.discard(self.pool, carrier)

    def _forget(self, node: int, attempt: str) -> None:
        """Tell a node in a while that a call's journal is needed no more."""
        forgotten = self._forgotten.setdefault(node, [])
        forgotten.append(attempt)
        if len(forgotten) >= _TOLD:
            self._tell_forgotten(node)

    def tidy(self) -> None:
        """Have the nodes drop the journals that are needed no more."""
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
