"""How calls meet a pool: captured, sent, shown, waited for and stopped."""

from __future__ import annotations

import functools
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from .. import display
from ..capture.collect import collect_value
from ..errors import SpecError
from ..pool.calls import CallRun, Order, Parcel
from ..pool.failures import BroadcastError
from ..pool.loop import counting_interrupts
from ..pool.manager import Pool
from . import showing, streams
from .futures import Future, settler
from .targets import Target, pool_of

if TYPE_CHECKING:
    from .calls import PendingCall
    from .functions import Function

T = TypeVar("T")
_TICK = 0.05
# So many calls, or bytes of arguments, are under way at most; others wait here, not yet pickled.
_MOST_CALLS = 2000
_MOST_BYTES = 256 << 20
_AT_ONCE = 250
# So long calls that are stopped because another failed may take to end.
_GRACE = 2.0


# -- what the operators do ---------------------------------------------------------------------------


def one(call: PendingCall[T], pool: Target) -> T:
    """``call >> pool``."""
    live = pool_of(pool)
    if streams.streams(call):
        return streamed_one(live, call)  # type: ignore[no-any-return]
    (result,) = _all(live, [call], f"{_name(call.function)} >> {live.spec.name}", many=False)
    return result  # type: ignore[no-any-return]


def streamed_one(live: Pool, call: PendingCall[Any]) -> Any:
    """``call >> pool`` of a call whose items stream."""
    title = f"{_name(call.function)} >> {live.spec.name}"
    make = functools.partial(_stream_batch, live, title)
    return streams.begin(live, call, make)


def _stream_batch(live: Pool, title: str, call: PendingCall[Any], stream: dict[str, Any]) -> Batch:
    return Batch(live, [call], title, waited=False, many=False, stream=stream)


def together(calls: Sequence[PendingCall[Any]], pool: Target) -> list[Any]:
    """``group >> pool``."""
    live = pool_of(pool)
    return _all(live, calls, f"{len(calls)} calls >> {live.spec.name}")


def each(function: Function[..., T], items: Iterable[Any], pool: Target) -> list[T]:
    """``pool.map(function, items)``."""
    live = pool_of(pool)
    return _all(live, (function(item) for item in items), f"{_name(function)} for each >> {live.spec.name}")


def streamed(calls: Sequence[PendingCall[T]], pool: Target, *, ordered: bool) -> Iterator[T]:
    """``gather(..., stream=True) >> pool``."""
    live = pool_of(pool)
    return Results(Batch(live, calls, f"{len(calls)} calls >> {live.spec.name}", waited=False), ordered=ordered)


def later(call: PendingCall[T], pool: Target) -> Future[T]:
    """``call > pool``."""
    future: Future[Any] = _later([call], pool, repr(call.function), lambda values: values[0])
    return future


def together_later(calls: Sequence[PendingCall[Any]], pool: Target) -> Future[Any]:
    """``group > pool``."""
    return _later(calls, pool, f"{len(calls)} calls", tuple)


def everywhere(call: PendingCall[T], pool: Target) -> list[T]:
    """``call @ pool``."""
    live = pool_of(pool)
    if call.rank is not None:
        raise SpecError(f"`@` runs a call on every rank, and on({call.rank}) on one: `call.on({call.rank}) >> pool`")
    if streams.iterator_names(call.function.__wrapped__):
        streams.refuse(call, "with `@`: its iterator can be read once")
    if streams.streams(call):
        return [streamed_one(live, call.on(rank)) for rank in range(live.spec.world_size)]
    note_restarts(live)
    payload = call.function.__wrapped__, call.args, call.kwargs
    blob, capture = collect_value(payload, _main(), live.ledger, label=repr(call.function))
    title = f"{_name(call.function)} @ {live.spec.name}"
    view = display.run_view(title, range(live.spec.world_size), results=False, pool=live.spec.name)
    with display.LateView("values") as late:
        listeners: dict[str, Any] = {"listener": view.on_event, "on_send": late.on_event, "tick": late.refresh}
        run = live.begin_call(blob, capture, timeout=call.timeout, **listeners)
    try:
        interrupted = live.wait(run, view.refresh)
        result = live.finish(run)
    finally:
        live.note_writes(run, _main())
        view.finish(run.elapsed)
    if interrupted:
        raise KeyboardInterrupt(f"{call.function!r} was interrupted")
    if run.failed:
        raise BroadcastError(result, list(run.outcomes.values()))
    return list(result)


def _all(live: Pool, calls: Iterable[PendingCall[Any]], title: str, *, many: bool = True) -> list[Any]:
    """Run calls and wait for all; the first that fails stops the others."""
    values: dict[int, Any] = {}
    with Batch(live, calls, title, waited=True, many=many) as batch:
        for index, run in batch:
            values[index] = run.value()
    return [values[index] for index in range(len(values))]


def _later(
    calls: Sequence[PendingCall[Any]], pool: Target, name: str, put_together: Callable[[list[Any]], Any]
) -> Future[Any]:
    live = pool_of(pool)
    future: Future[Any] = Future(name)
    batch = Batch(live, calls, f"calls > {live.spec.name}", waited=False, many=len(calls) > 1)
    values: dict[int, Any] = {}

    def take(index: int, run: CallRun) -> None:
        """In the thread that sees to futures: one of the calls is over."""
        error: BaseException | None = None
        try:
            values[index] = run.value()
        except BaseException as raised:
            error = raised
        over = len(values) == len(calls)
        if error is not None or over or future.cancelled():
            batch.stop()
        if not batch.left:
            batch.close()
        if error is not None:
            future.settle(_raiser(error))
        elif over:
            future.settle(lambda: put_together([values[at] for at in range(len(values))]))

    future._stop = batch.stop
    future._is_running = lambda: any(run.placed for run in list(batch.left.values()))
    batch.on_end = lambda index, run: settler.do(lambda: take(index, run))
    try:
        while batch.send():
            pass
    except BaseException:
        batch.stop()
        batch.close()
        raise
    if not calls:
        batch.close()
        future.settle(lambda: put_together([]))
    return future


def _raiser(error: BaseException) -> Callable[[], Any]:
    def work() -> Any:
        raise error

    return work


# -- calls that are sent together --------------------------------------------------------------------


class Batch:
    """Calls that are sent together: they have one view, share what they have in common, and are stopped together.

    Parameters
    ----------
    live : Pool
        Where they go.
    calls : iterable of PendingCall
        Taken one after the other, as there is room.
    title : str
        What stands above their output.
    waited : bool
        Whether a thread waits for them that draws their output meanwhile.
    many : bool
        Whether they are too many for each to have a journal later.
    stream : dict, optional
        Of one call: which of its items stream.
    """

    def __init__(
        self,
        live: Pool,
        calls: Iterable[PendingCall[Any]],
        title: str,
        *,
        waited: bool,
        many: bool = True,
        stream: dict[str, Any] | None = None,
    ) -> None:
        note_restarts(live)
        self._stream = stream
        self.live = live
        self.many = many
        self.left: dict[int, CallRun] = {}
        self.on_end: Callable[[int, CallRun], None] = lambda index, run: self._ended.put((index, run))
        self._ended: queue.SimpleQueue[tuple[int, CallRun]] = queue.SimpleQueue()
        self._calls: Iterator[PendingCall[Any]] | None = iter(calls)
        self._count = 0
        self._bytes: dict[int, int] = {}
        self._parcels: dict[int, tuple[Function[..., Any], Parcel]] = {}
        self._late = display.LateView("values")
        self._lock = threading.RLock()
        self._closed = False
        self._began = time.perf_counter()
        self._failed = False
        self.showing = showing.joined(live, title, waited=waited)
        self.title = title

    # -- sending

    def send(self) -> bool:
        """Send as many calls as may be under way; whether there are more."""
        with self._lock:
            room = min(_AT_ONCE, _MOST_CALLS - len(self.left))
            orders: list[tuple[int, Order]] = []
            with self._late:
                while self._calls is not None and len(orders) < room and sum(self._bytes.values()) < _MOST_BYTES:
                    call = next(self._calls, None)
                    if call is None:
                        self._calls = None
                        break
                    orders.append((self._count, self._order(call)))
                    self._count += 1
                if orders:
                    self._begin(orders)
            return self._calls is not None

    def _order(self, call: PendingCall[Any]) -> Order:
        if call.rank is not None:
            self.live.check_ranks([call.rank])
        if self._stream is None:
            streams.refuse(call, "in a group, with `>` or in `map`")
        parcel = self._parcel(call.function)
        # One rank needs all that the function reads: the ledger speaks of what every rank has.
        ledger = self.live.ledger.unsent()
        blob, capture = collect_value(
            (call.args, call.kwargs), _main(), ledger, label=f"an argument of {call.function!r}"
        )
        self._bytes[self._count] = blob.size + sum(one.size for one in capture.blobs)
        title = _name(call.function)
        listener = self.showing.listener()
        return Order(parcel, blob, capture, call.rank, call.timeout, listener, title=title, stream=self._stream)

    def _parcel(self, function: Function[..., Any]) -> Parcel:
        """The function where the nodes find it, brought there once for all of its calls."""
        known = self._parcels.get(id(function))
        if known is None:
            ledger = self.live.ledger.unsent()
            blob, capture = collect_value(function.__wrapped__, _main(), ledger, label=repr(function))
            parcel = self.live.calls.parcel(blob, capture, self._late.on_event, self._tick)
            # With the function, so that no other has its id.
            known = self._parcels[id(function)] = function, parcel
        return known[1]

    def _begin(self, orders: Sequence[tuple[int, Order]]) -> None:
        runs = self.live.calls.begin([order for _, order in orders], self._late.on_event, self._tick)
        if self._count == len(orders):
            self.id = runs[0].call
            self.live.registry.run_began(self.id, self.live.id, self.title)
        self.last = runs[-1]
        for (index, _), run in zip(orders, runs, strict=True):
            run.passing = self.many
            self.left[index] = run
        for (index, _), run in zip(orders, runs, strict=True):
            run.task.add_done_callback(lambda _, index=index, run=run: self._on_end(index, run))  # type: ignore[misc]

    def _on_end(self, index: int, run: CallRun) -> None:
        """In the manager's loop: a call is over."""
        self.left.pop(index, None)
        self._bytes.pop(index, None)
        self._failed = self._failed or run.outcome.failed
        self.on_end(index, run)

    def _tick(self) -> None:
        self._late.refresh()
        self.showing.refresh()

    # -- waiting

    def __iter__(self) -> Iterator[tuple[int, CallRun]]:
        """The calls as they end, with their places among all."""
        while (item := self.next()) is not None:
            yield item

    def next(self) -> tuple[int, CallRun] | None:
        """The next call that ends, waited for; None where all have. An interrupt stops those that are left.

        Raises
        ------
        KeyboardInterrupt
            When it was interrupted here.
        """
        with counting_interrupts() as presses:
            while not presses:
                more = self.send()
                try:
                    return self._ended.get(timeout=_TICK if more or self.left else 0)
                except queue.Empty:
                    if not more and not self.left and self._ended.empty():
                        return None
                self._tick()
            self._calls = None
            self._wait_for_stop(presses)
        raise KeyboardInterrupt(f"{self.title} was interrupted")

    def _wait_for_stop(self, presses: Sequence[object]) -> None:
        """Stop what is left, and wait for it: the second interrupt ends kernels that did not heed the first."""
        heeded = 0
        while self.left:
            if len(presses) > heeded:
                heeded = len(presses)
                self.stop(hard=heeded > 1)
            self._tick()
            time.sleep(_TICK)

    def stop(self, *, hard: bool = False) -> None:
        """Stop the calls that are left: no more are begun, and those that are on are interrupted."""
        self._calls = None
        self.live.calls.cancel(list(self.left.values()), hard=hard)

    def close(self) -> None:
        """Nobody waits any more: stop what is left, and take away what was sent."""
        if self._closed:
            return
        self._closed = True
        if self.left:
            self.stop()
            end = time.monotonic() + _GRACE
            while self.left and time.monotonic() < end:
                self._tick()
                time.sleep(_TICK)
        self.showing.leave()
        for _, parcel in self._parcels.values():
            self.live.calls.discard(parcel)
        self._parcels.clear()
        if self.many:
            self.live.calls.tidy()
        if self._count:
            state = "failed" if self._failed else "ok"
            self.live.registry.run_ended(self.id, state, time.perf_counter() - self._began)

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Results(Iterator[T]):
    """The results of calls as they come; closed at its end, and where it is dropped before."""

    def __init__(self, batch: Batch, *, ordered: bool) -> None:
        self._batch = batch
        self._ordered = ordered
        self._early: dict[int, CallRun] = {}
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
            run = self._early.pop(self._at, None) if self._ordered else None
            if run is None:
                item = self._batch.next()
                if item is None:
                    raise StopIteration
                if self._ordered and item[0] != self._at:
                    self._early[item[0]] = item[1]
                    continue
                run = item[1]
            self._at += 1
            return run.value()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Stop what is left."""
        self._early.clear()
        self._batch.close()

    def __enter__(self) -> Results[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Where an interpreter ends, there may be nothing left to close it with.
        if sys is not None and not sys.is_finalizing() and hasattr(self, "_batch"):
            self._batch.close()


# -- parts -------------------------------------------------------------------------------------------


def note_restarts(live: Pool) -> None:
    """What kernels had been sent that are no more is sent again, to those that are new."""
    live.calls.note_writes(_main())
    fresh = live.take_restarted()
    if len(fresh) == live.spec.world_size:
        live.ledger.forget_nodes(_main())
    elif fresh:
        live.ledger = live.ledger.unsent(fresh, live.spec.world_size)


def _main() -> dict[str, Any]:
    return vars(sys.modules["__main__"])


def _name(function: Function[..., Any]) -> str:
    return str(getattr(function, "__name__", "function"))
