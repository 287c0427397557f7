"""Batches: calls that are sent, shown and stopped together."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import operator
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..capture.collect import collect_value
from ..capture.ledger import Ledger
from ..display import views as display
from ..pool.base.events import ignore
from ..pool.base.timed_queue import TimedQueue
from ..pool.execution.short_call import ShortCall
from ..pool.execution.task_context import FunctionBundle
from ..pool.execution.tasks import TaskRequest, TaskRun
from ..pool.pool import Pool
from ..pool.runs.result import RankInterrupted
from ..session import calls_view
from ..util.interrupts import counting_interrupts, interrupts_as_before, raise_again
from . import short_way
from .futures import settler
from .short_way import main, name_of, note_restarts
from .streaming_functions import refuse

if TYPE_CHECKING:
    from .context import BoundCall, PoolFunction

_TICK = 0.05
# Limits of the tasks in flight and of the bytes of their arguments; other calls wait here, not yet pickled.
_MOST_TASKS = 2000
_MOST_BYTES = 256 << 20
_AT_ONCE = 250
# Seconds that calls have to end when they are stopped because another one failed.
_GRACE = 2.0
# In seconds: calls shorter than `_SHORT` share a task, which takes about `_TASK`.
_SHORT, _TASK = 0.01, 0.05
# In seconds: a shorter task costs more to send than to run.
_LEAST = 0.0005
_MOST_TOGETHER = 64


@dataclass
class InFlightTask:
    """Task in flight: the calls that it makes, by their places, and their outcome.

    It has a run from the start, or is a short call until that is opened.
    """

    places: tuple[int, ...]
    calls: tuple[BoundCall[Any], ...]
    run: TaskRun | None
    size: int
    short: ShortCall | None = None
    # Why a short call that was opened could not go on.
    error: BaseException | None = None

    @property
    def together(self) -> bool:
        """Whether its value is a list, of several calls."""
        return self.run.together if self.run is not None else self.short is not None and self.short.together

    @property
    def elapsed(self) -> float:
        """The seconds that it took on its rank."""
        if self.run is not None:
            return float(self.run.outcome.end.get("elapsed") or 0.0)
        return max((one.elapsed for one in self.short.results.values()), default=0.0) if self.short is not None else 0.0

    @property
    def failed(self) -> bool:
        """Whether it has ended without success."""
        return self.run.outcome.failed if self.run is not None else self.error is not None

    @property
    def is_opened(self) -> bool:
        """Whether it is an opened short call that has not become a task yet."""
        return self.run is None and self.error is None and self.short is not None and self.short.opened

    @property
    def placed(self) -> bool:
        """Whether a rank has begun it."""
        # A short call has ended, or was opened, before anybody can look.
        return self.run is not None and self.run.placed

    def drop(self) -> None:
        """Delete the file of an unwanted value."""
        if self.run is not None:
            self.run.drop()

    def values(self) -> list[Any]:
        """Return what the calls returned; the last ones may be missing.

        Returns
        -------
        list
            The results so far, in order.

        Raises
        ------
        Exception
            What the first call to fail raised.
        """
        if self.error is not None:
            raise self.error
        if self.run is not None:
            value = self.run.value()
        else:
            assert self.short is not None
            (value,) = self.short.values()
        return value if self.together else [value]


class ChunkSizer:
    """Chunk sizer: the number of calls that go into one task.

    It is one until the calls are known to be short.

    Parameters
    ----------
    world_size : int
        The number of ranks.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        # Seconds that a call takes; None as long as none has ended.
        self.seconds: float | None = None
        self.size = 1

    def begin(self, seconds: float | None) -> None:
        """Start with the seconds that a call of the function took in other batches."""
        if self.seconds is None and seconds is not None:
            self.seconds, self.size = seconds, self._fits(seconds)

    def note(self, seconds: float, calls: int) -> None:
        """Note how long a task of ``calls`` calls has taken."""
        each = seconds / max(calls, 1)
        self.seconds = each if self.seconds is None else (self.seconds + each) / 2
        self.size = max(1, min(self._fits(self.seconds), 2 * self.size))

    def _fits(self, seconds: float) -> int:
        return min(int(_TASK / max(seconds, 1e-4)), _MOST_TOGETHER) if seconds < _SHORT else 1

    def ahead(self) -> int:
        """Return the largest number of tasks in flight."""
        if self.seconds is None or self.size > 1:
            return 3 * self.world_size
        return _MOST_TASKS

    def next(self, left: int | None) -> int:
        """Return how many calls the next task makes.

        Towards the end, tasks get fewer calls, so that the ranks end together, but not too few to be worth a message.
        """
        if left is None:
            return self.size
        least = 0 if self.seconds is None else min(int(_LEAST / max(self.seconds, 1e-5)), left)
        return max(1, min(self.size, max(least, left // (2 * self.world_size))))


class Batch:
    """Calls that share a view and their common data, and are stopped together.

    Parameters
    ----------
    live : Pool
        The pool that runs them.
    calls : iterable of BoundCall
        The calls, which are read one by one as there is room.
    title : str
        The heading of their output.
    waited : bool
        Whether a thread waits for them and draws their output meanwhile.
    many : bool
        Whether they are so many that their journals are deleted as they end.
    joins : bool
        Whether several short calls may share a task; their results then come together.
    total : int
        The number of calls; below 0 if it is not known.
    """

    def __init__(
        self,
        live: Pool,
        calls: Iterable[BoundCall[Any]],
        title: str,
        *,
        waited: bool,
        many: bool = True,
        joins: bool = False,
        total: int = -1,
    ) -> None:
        note_restarts(live)
        self.live = live
        self.many, self.waited = many, waited
        self.left: dict[int, InFlightTask] = {}
        self._ended: TimedQueue[InFlightTask] = TimedQueue()
        self.on_end: Callable[[InFlightTask], None] = self._ended.put
        self._calls: Iterator[BoundCall[Any]] | None = iter(calls)
        self._total = total if total >= 0 else operator.length_hint(calls, -1)
        self._count = 0
        # The number of tasks that were sent and whose ends have not been taken yet.
        self._open = 0
        # Calls that were read and not sent yet, with their places.
        self._next: deque[tuple[int, BoundCall[Any]]] = deque()
        self._pace = ChunkSizer(live.spec.world_size) if joins else None
        self._bundles: dict[int, tuple[PoolFunction[Any], FunctionBundle]] = {}
        self._late = display.DelayedView("values", pool=self.live.spec.name)
        self._closed = self._stopped = self._failed = False
        self._began = time.perf_counter()
        self._lock, self._taking = threading.Lock(), threading.RLock()
        # The number of interrupts before the wait began.
        self.pressed = 0
        self.id = ""
        self.title = title
        # Made when there is something to show, in the context of the cell that sent the calls.
        self._run_view: calls_view.SharedRunView | None = None
        self._context = contextvars.copy_context()
        self._held = None if waited else calls_view.HeldView(live, title)
        self._showing, self._has_left = threading.RLock(), False

    @property
    def run_view(self) -> calls_view.SharedRunView:
        """The view of what they print."""
        with self._showing:
            if self._run_view is None:
                joined = functools.partial(calls_view.joined, self.live, self.title, waited=self.waited)
                self._run_view = self._context.copy().run(joined)
            return self._run_view

    # -- sending

    def send(self) -> bool:
        """Send as many calls as may be in flight; return whether there are more."""
        self._late = display.DelayedView("values", pool=self.live.spec.name)
        most = min(_AT_ONCE, self._most_tasks - len(self.left))
        taken: list[tuple[list[tuple[int, BoundCall[Any]]], TaskRequest, int]] = []
        under_way, count = self._size, 0
        with self._late:
            while count < most and under_way < _MOST_BYTES and (calls := self._take()):
                count += 1
                if (short := self._short([call for _, call in calls])) is not None:
                    self._begin_short(calls, short)
                    under_way += len(short.arguments)
                    continue
                order, size = self._order([call for _, call in calls])
                taken.append((calls, order, size))
                under_way += size
            if taken and not self._stopped:
                self._begin(taken)
        return bool(self._next) or self._calls is not None

    @property
    def is_full(self) -> bool:
        """Whether there is no room for more calls until one ends."""
        return len(self.left) >= self._most_tasks or self._size >= _MOST_BYTES

    @property
    def _most_tasks(self) -> int:
        return self._pace.ahead() if self._pace else _MOST_TASKS

    @property
    def _size(self) -> int:
        """The bytes of the arguments in flight."""
        return sum(sent.size for sent in list(self.left.values()))

    def _take(self) -> list[tuple[int, BoundCall[Any]]]:
        """Take the calls of the next task: several of a function if they are short."""
        # Another thread may stop the batch meanwhile: a failed call of a group that nobody waits for, or `cancel`.
        with self._taking:
            return self._take_next()

    def _take_next(self) -> list[tuple[int, BoundCall[Any]]]:
        if not self._pull():
            return []
        first = self._next.popleft()
        calls, function = [first], first[1].function
        left = self._total - first[0] if self._total >= 0 else None
        if self._pace is not None:
            self._pace.begin(self.live.calls.seconds.get(function))
        count = self._pace.next(left) if self._pace else 1
        while len(calls) < count and _may_join(first[1]) and self._pull():
            if self._next[0][1].function is not function or not _may_join(self._next[0][1]):
                break
            if self._next[0][1].retries != first[1].retries:
                break
            calls.append(self._next.popleft())
        return calls

    def _pull(self) -> bool:
        """Tell whether there is a call to send next."""
        if self._stopped:
            return False
        if not self._next and self._calls is not None:
            # It may be the user's generator, which takes as long as it likes.
            with interrupts_as_before():
                call = next(self._calls, None)
            if call is None:
                self._calls = None
            else:
                self._next.append((self._count, call))
                self._count += 1
        return bool(self._next)

    def _short(self, calls: Sequence[BoundCall[Any]]) -> ShortCall | None:
        """Return calls as one short call; None if they must go the long way."""
        if any(self._stream_of(call) is not None for call in calls):
            return None
        return short_way.make(self.live, calls)

    def _begin_short(self, calls: list[tuple[int, BoundCall[Any]]], short: ShortCall) -> None:
        kept = tuple(call for _, call in calls)
        sent = InFlightTask(tuple(place for place, _ in calls), kept, None, len(short.arguments), short)
        short.on_over = lambda _: self._on_short(sent)
        self.left[sent.places[0]] = sent
        self._open += 1
        self.live.calls.short.send(short)

    def _on_short(self, sent: InFlightTask) -> None:
        """Note on the manager's loop that a short call has ended or was opened."""
        assert sent.short is not None
        if not sent.short.opened:
            self._on_end(sent)
        elif sent.short.dropped:
            sent.error = RankInterrupted("it was cancelled before a rank had begun it")
            self._on_end(sent)
        elif self.waited and not self._stopped:
            self._ended.put(sent)
        else:
            settler.do(lambda: self._context.copy().run(self._go_on, sent))

    def _go_on(self, sent: InFlightTask) -> None:
        """Continue an opened short call as a task."""
        assert sent.short is not None
        try:
            with self._showing:
                # A view that begins after its batch has left would never end.
                listener = ignore if self._has_left else self.run_view.on_event
            run = self.live.calls.take_up(sent.short, sent.calls[0].retries, listener)
        except Exception as error:
            sent.error = error
            self._on_end(sent)
            return
        sent.run, run.passing = run, self.many
        if self._stopped:
            self.live.calls.cancel([run])
        if not self.id:
            self.id = run.call
            self.live.registry.run_began(self.id, self.live.id, self.title)
        run.task.add_done_callback(lambda _: self._on_end(sent))

    def _order(self, calls: Sequence[BoundCall[Any]]) -> tuple[TaskRequest, int]:
        """Return the task's request and the bytes of arguments that it holds."""
        call = calls[0]
        if call.rank is not None:
            self.live.check_ranks([call.rank])
        bundle = self._bundle(call.function)
        arguments = [(one.args, one.kwargs) for one in calls]
        blob, capture = collect_value(arguments, main(), self._ledger(), label=f"an argument of {call.function!r}")
        size = blob.size + sum(one.size for one in capture.blobs)
        order = TaskRequest(bundle, blob, capture, call.rank, call.timeout, self.run_view.on_event, title=name_of(call))
        order.together, order.stream, order.retries = len(calls) > 1, self._stream_of(call), call.retries
        return order, size

    def _stream_of(self, call: BoundCall[Any]) -> dict[str, Any] | None:
        """Return which of a call's items stream: none here."""
        refuse(call, "in a group, with `>` or in `map`")
        return None

    def _ledger(self) -> Ledger:
        """Return an empty ledger: the call's rank needs all that the function reads.

        The pool's own ledger says only what every rank has.
        """
        with self.live.calls.lock:
            return self.live.ledger.unsent()

    def _bundle(self, function: PoolFunction[Any]) -> FunctionBundle:
        """Upload the function once for all of its calls."""
        known = self._bundles.get(id(function))
        if known is None:
            blob, capture = collect_value(function.__wrapped__, main(), self._ledger(), label=repr(function))
            bundle = self.live.calls.bundle(blob, capture, self._late.on_event, self._tick)
            # The function is kept too, so that no other object gets its id.
            known = self._bundles[id(function)] = function, bundle
        return known[1]

    def _begin(self, taken: Sequence[tuple[list[tuple[int, BoundCall[Any]]], TaskRequest, int]]) -> None:
        # An interrupt in the middle would leave calls that nobody waits for or stops.
        with counting_interrupts() as presses:

            def tick() -> None:
                """Stop the upload at an interrupt: no call has begun before it is done."""
                self._tick()
                if presses:
                    raise KeyboardInterrupt

            runs = self.live.calls.begin([order for _, order, _ in taken], self._late.on_event, tick)
            self.last = runs[-1]
            begun = []
            for (calls, order, size), run in zip(taken, runs, strict=True):
                run.passing = self.many
                kept = tuple(call for _, call in calls) if order.together else ()
                sent = InFlightTask(tuple(place for place, _ in calls), kept, run, size)
                self.left[sent.places[0]] = sent
                self._open += 1
                begun.append((sent, run))
            if not self.id:
                self.id = runs[0].call
                self.live.registry.run_began(self.id, self.live.id, self.title)
            for sent, run in begun:
                run.task.add_done_callback(lambda _, sent=sent: self._on_end(sent))  # type: ignore[misc]
            if self._stopped:
                # It was stopped in another thread, which may not have seen all of these.
                self.live.calls.cancel([run for run in runs if not run.cancelled])
        raise_again(presses)

    def take_up(self, short: ShortCall, call: BoundCall[Any]) -> None:
        """Continue an opened short call as this batch's task.

        Parameters
        ----------
        short : ShortCall
            The call.
        call : BoundCall
            The call that it was made from.
        """
        sent = self.left[0] = InFlightTask((0,), (call,), None, len(short.arguments), short)
        self._open = 1
        self._go_on(sent)

    def _on_end(self, sent: InFlightTask) -> None:
        """Note on the manager's loop that a task has ended."""
        self.left.pop(sent.places[0], None)
        self._failed = self._failed or sent.failed
        self.on_end(sent)

    def take(self, sent: InFlightTask) -> dict[int, Any]:
        """Return the results of an ended task; requeue the calls that it left.

        Parameters
        ----------
        sent : InFlightTask
            The task.

        Returns
        -------
        dict of int to object
            The results by place.

        Raises
        ------
        Exception
            What one of its calls raised.
        """
        values = sent.values()
        if self._pace is not None:
            self._pace.note(sent.elapsed, len(values))
            if sent.calls and self._pace.seconds is not None:
                self.live.calls.seconds[sent.calls[0].function] = self._pace.seconds
        rest = list(zip(sent.places, sent.calls, strict=False))[len(values) :] if sent.together else []
        self._next.extendleft(reversed(rest))
        return dict(zip(sent.places, values, strict=False))

    def _tick(self) -> None:
        self._late.refresh()
        if self._run_view is not None:
            self._run_view.refresh()

    # -- waiting

    def __iter__(self) -> Iterator[InFlightTask]:
        """Iterate over the tasks as they end."""
        while (sent := self.next()) is not None:
            yield sent

    def next(self) -> InFlightTask | None:
        """Wait for the next task that ends; an interrupt stops the remaining ones.

        Returns
        -------
        InFlightTask or None
            The task; None when all have ended.

        Raises
        ------
        KeyboardInterrupt
            When an interrupt came during the wait.
        """
        with counting_interrupts() as presses:
            presses.extend([None] * self.pressed)
            self.pressed = 0
            try:
                sent = self._wait_for_next(presses)
            except KeyboardInterrupt:
                # It came while the next call was read, or as values were sent; no call was being begun.
                presses.append(None)
                sent = None
            if presses:
                if sent is not None:
                    # It ended just as the interrupt came.
                    sent.drop()
                self._wait_for_stop(presses)
        if presses:
            raise KeyboardInterrupt(f"{self.title} was interrupted")
        return sent

    def _wait_for_next(self, presses: Sequence[object]) -> InFlightTask | None:
        """Wait as `next` does; return None on an interrupt too."""
        while not presses:
            if not self.send() and not self._open:
                return None
            try:
                sent = self._ended.get(_TICK)
            except queue.Empty:
                self._tick()
            else:
                if sent.is_opened:
                    self._go_on(sent)
                    continue
                self._open -= 1
                return sent
        return None

    def _wait_for_stop(self, presses: Sequence[object]) -> None:
        """Stop what is left and wait; a second interrupt restarts kernels.

        It restarts only those that did not heed the first one.
        """
        heeded = 0
        while True:
            if len(presses) > heeded:
                heeded = len(presses)
                self.stop(hard=heeded > 1)
            self._take_ended()
            if not self.left:
                return
            self._tick()
            time.sleep(_TICK)

    def _take_ended(self) -> None:
        """Drop tasks whose results nobody will fetch; continue opened ones, to stop them."""
        with contextlib.suppress(queue.Empty):
            while True:
                sent = self._ended.get_nowait()
                if sent.is_opened:
                    self._go_on(sent)
                else:
                    sent.drop()

    def stop(self, *, hard: bool = False) -> None:
        """Start no more calls and interrupt those that run."""
        self._stopped = True
        with self._taking:
            self._next.clear()
            self._calls = None
        left = list(self.left.values())
        for sent in left:
            if sent.run is None and sent.short is not None:
                self.live.calls.short.drop(sent.short)
        self.live.calls.cancel([sent.run for sent in left if sent.run is not None], hard=hard)

    def close(self, patience: float = _GRACE) -> None:
        """Stop the remaining calls and delete what was sent: nobody waits any more.

        An interrupt ends the wait for them, and is raised when all is done.
        """
        # An interrupt in the middle would leave a view that never ends, and takes what the program prints after it.
        with counting_interrupts() as presses:
            with self._lock:
                if self._closed:
                    return
                self._closed = True
            # Also if none is in flight: there may be calls that have not been sent.
            self.stop()
            if self.left:
                end = time.monotonic() + patience
                while self.left and not presses and time.monotonic() < end:
                    self._take_ended()
                    self._tick()
                    time.sleep(_TICK)
            self._end()
        raise_again(presses)

    def _end(self) -> None:
        """End the view and the run, and delete what was sent."""
        self._take_ended()
        with self._showing:
            self._has_left = True
            if self._run_view is not None:
                self._run_view.leave()
        if self._held is not None:
            self._held.end()
        for _, bundle in self._bundles.values():
            self.live.calls.discard(bundle)
        self._bundles.clear()
        if self.waited:
            # What the notebook assigns after this is newer.
            self.live.calls.note_writes(main())
        if self.many:
            self.live.calls.tidy()
        if self.id:
            state = "failed" if self._failed else "ok"
            self.live.registry.run_ended(self.id, state, time.perf_counter() - self._began)

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _may_join(call: BoundCall[Any]) -> bool:
    """Tell whether a call may share a task: one with a time limit is stopped alone."""
    return call.timeout is None and call.rank is None
