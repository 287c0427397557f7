"""The operators: capture, send, show, wait for and stop calls."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..capture.collect import collect_value
from ..display import views as display
from ..errors import SpecError
from ..pool.base.events import NoticeEvent
from ..pool.pool import Pool
from ..pool.runs.failures import BroadcastError
from ..pool.runs.result import CellResult, Outcome
from ..pool.runs.run import Run
from . import kinds, streams
from .batch import Batch, Sent, main, name_of, note_restarts
from .futures import Future, settle, settler
from .targets import Target, pool_of

if TYPE_CHECKING:
    from .calls import PendingCall
    from .functions import Function

T = TypeVar("T")

# -- what the operators do ---------------------------------------------------------------------------


def one(call: PendingCall[T], pool: Target) -> T:
    """Run a call on one rank: ``call >> pool``."""
    live = pool_of(pool)
    if kinds.streams(call):
        return streams.begin(live, call)
    (result,) = _all(live, [call], f"{name_of(call)} >> {live.spec.name}", many=False)
    return result


def together(calls: Sequence[PendingCall[Any]], pool: Target) -> list[Any]:
    """Run a group: ``group >> pool``."""
    live = pool_of(pool)
    return _all(live, calls, f"{len(calls)} calls >> {live.spec.name}")


def each(function: Function[..., T], items: Iterable[Any], pool: Target) -> list[T]:
    """Call a function with each item: ``pool.map(function, items)``."""
    live = pool_of(pool)
    name = getattr(function, "__name__", "function")
    calls, total = (function(item) for item in items), operator.length_hint(items, -1)
    return _all(live, calls, f"{name} for each >> {live.spec.name}", total=total)


def streamed(calls: Sequence[PendingCall[T]], pool: Target, *, ordered: bool) -> Iterator[T]:
    """Return results as they arrive: ``gather(..., stream=True) >> pool``."""
    live = pool_of(pool)
    return Results(Batch(live, calls, f"{len(calls)} calls >> {live.spec.name}", waited=False), ordered=ordered)


def later(call: PendingCall[T], pool: Target) -> Future[T]:
    """Submit a call: ``call > pool``."""
    future: Future[Any] = _later([call], pool, repr(call.function), lambda values: values[0])
    return future


def together_later(calls: Sequence[PendingCall[Any]], pool: Target) -> Future[Any]:
    """Submit a group: ``group > pool``."""
    return _later(calls, pool, f"{len(calls)} calls", tuple)


def everywhere(call: PendingCall[T], pool: Target) -> list[T]:
    """Run a call on every rank: ``call @ pool``."""
    live = pool_of(pool)
    if call.rank is not None:
        raise SpecError(f"`@` runs a call on every rank, and on({call.rank}) on one: `call.on({call.rank}) >> pool`")
    if kinds.iterator_names(call.function.__wrapped__):
        kinds.refuse(call, "with `@`: its iterator can be read once")
    if kinds.streams(call):
        return [streams.begin(live, call.on(rank)) for rank in range(live.spec.world_size)]
    left = call.retries or 0
    while True:
        run, result = _broadcast(live, call, left)
        if not (left and _lost(run)):
            break
        left -= 1
        # The next is to find what this one broke mended, and is sent what new kernels lack.
        with display.LateView("new kernels", failed="not there", pool=live.spec.name) as late:
            live.settle(late.on_event, late.refresh)
    if run.failed:
        raise BroadcastError(result, list(run.outcomes.values()))
    return list(result)


def _broadcast(live: Pool, call: PendingCall[T], left: int) -> tuple[Run, CellResult]:
    """Make one attempt at a call on every rank, with so many retries left."""
    note_restarts(live)
    payload = call.function.__wrapped__, call.args, call.kwargs
    blob, capture = collect_value(payload, main(), live.ledger, label=repr(call.function))
    title = f"{name_of(call)} @ {live.spec.name}"
    view = display.run_view(title, range(live.spec.world_size), results=False, pool=live.spec.name)
    with live.stopping():
        with display.LateView("values", pool=live.spec.name) as late:
            listeners: dict[str, Any] = {"listener": view.on_event, "on_send": late.on_event, "tick": late.refresh}
            run = live.begin_call(blob, capture, timeout=call.timeout, **listeners)
        try:
            interrupted = live.wait(run, view.refresh)
            result = live.finish(run)
            if left and not interrupted and (lost := _lost(run)):
                text = lost[0].end.get("text", f"rank {lost[0].rank} is lost")
                often = f"{(call.retries or 0) - left + 1} of {call.retries}"
                view.on_event(NoticeEvent(f"{text}; all ranks begin {name_of(call)} again ({often})", run.id))
        finally:
            live.note_writes(run, main())
            view.finish(run.elapsed)
    if interrupted:
        raise KeyboardInterrupt(f"{call.function!r} was interrupted")
    return run, result


def _lost(run: Run) -> list[Outcome]:
    """Return the outcomes of a broadcast's ranks whose nodes were lost.

    None if it was to be stopped anyway.
    """
    if run.timed_out is not None:
        return []
    return [outcome for outcome in run.outcomes.values() if outcome.status == "lost"]


def _all(live: Pool, calls: Iterable[PendingCall[Any]], title: str, *, many: bool = True, total: int = -1) -> list[Any]:
    """Run calls and wait for all; the first failure stops the others."""
    values: dict[int, Any] = {}
    with Batch(live, calls, title, waited=True, many=many, joins=many, total=total) as batch:
        for sent in batch:
            values.update(batch.take(sent))
    return [values[place] for place in range(len(values))]


def _later(
    calls: Sequence[PendingCall[Any]], pool: Target, name: str, put_together: Callable[[list[Any]], Any]
) -> Future[Any]:
    live = pool_of(pool)
    future: Future[Any] = Future(name)
    title = name_of(calls[0]) if len(calls) == 1 else f"{len(calls)} calls"
    batch = Batch(live, calls, f"{title} > {live.spec.name}", waited=False, many=len(calls) > 1)
    values: dict[int, Any] = {}

    def take(sent: Sent) -> None:
        """Handle a call that is over, in the thread that sets futures' results."""
        error: BaseException | None = None
        try:
            values.update(batch.take(sent))
        except BaseException as raised:
            error = raised
        over = len(values) == len(calls)
        if error is not None or over or future.cancelled():
            batch.stop()
        if not batch.left:
            batch.close()
        if error is not None:
            settle(future, _raiser(error))
        elif over:
            settle(future, lambda: put_together([values[at] for at in range(len(values))]))

    future.belong_to(batch.stop, lambda: any(sent.run.placed for sent in list(batch.left.values())))
    batch.on_end = lambda sent: settler.do(lambda: take(sent))
    try:
        while batch.send():
            pass
    except BaseException:
        batch.stop()
        batch.close()
        raise
    if not calls:
        batch.close()
        settle(future, lambda: put_together([]))
    return future


def _raiser(error: BaseException) -> Callable[[], Any]:
    def work() -> Any:
        raise error

    return work


class Results(Iterator[T]):
    """Iterator of results as they arrive.

    Closed at its end, or when it is dropped before.
    """

    def __init__(self, batch: Batch, *, ordered: bool) -> None:
        self._batch = batch
        self._ordered = ordered
        self._early: dict[int, Sent] = {}
        self._at = 0
        try:
            batch.send()
        except BaseException:
            batch.close()
            raise

    def __next__(self) -> T:
        try:
            return self._next()
        except BaseException:
            self.close()
            raise

    def _next(self) -> T:
        while True:
            sent = self._early.pop(self._at, None) if self._ordered else self._batch.next()
            if sent is None:
                sent = self._batch.next()
                if sent is None:
                    raise StopIteration
                if self._ordered and sent.places[0] != self._at:
                    self._early[sent.places[0]] = sent
                    continue
            self._at += 1
            value: T = self._batch.take(sent)[sent.places[0]]
            return value

    def close(self) -> None:
        """Stop the remaining calls."""
        for sent in self._early.values():
            sent.run.drop()
        self._early.clear()
        self._batch.close()

    def __enter__(self) -> Results[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Where an interpreter ends, there may be nothing left to close it with.
        if sys is not None and not sys.is_finalizing() and hasattr(self, "_batch"):
            self._batch.close(patience=0.0)
