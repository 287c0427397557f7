"""Operators of calls: capture, send, show, wait for and stop a call."""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, Union, overload

from ..capture.collect import collect_value
from ..display import views as display
from ..display.base.background_prompts import background_prompts
from ..display.base.prompts import can_ask
from ..errors import PoolError, SpecError
from ..pool.base.events import Event, NoticeEvent
from ..pool.execution.short_call import ShortCall
from ..pool.open_pools import pools
from ..pool.pool import Pool
from ..pool.runs.broadcast_error import BroadcastError
from ..pool.runs.result import CellResult, Outcome
from ..pool.runs.run import Run
from ..session import calls_view, cells
from ..session.pools import Holder, live_pool, renew_taken
from ..util.validate import brief
from . import short_way, streaming_functions, streams
from .batch import Batch, InFlightTask
from .futures import Future, settle, settler
from .short_way import main, name_of, note_restarts

if TYPE_CHECKING:
    from ..display.views import RunView
    from .context import AwaitedGroup, BoundCall, BoundGroup

T = TypeVar("T")
R = TypeVar("R")


class Runner:
    """Right operand of the operators: it runs the calls that they send.

    The left operand calls the method for its own type and for the operator: ``call >> pool`` is ``pool.run(call)``. A
    `Compute` is a runner, and so is ``sky``; `runner_of` returns one for a pool.
    """

    @property
    def live_pool(self) -> Pool:
        """The live pool that runs the calls; PoolError if there is none."""
        raise NotImplementedError

    def run(self, call: BoundCall[T]) -> T:
        """Run a call on one rank, as ``call >> compute`` does.

        Parameters
        ----------
        call : BoundCall
            The call.

        Returns
        -------
        object
            The function's result; an iterator of its items if it is a generator function.
        """
        _check_call(call, "run")
        live = self.live_pool
        if call.function.is_streaming:
            return streams.begin(live, call)
        title = f"{name_of(call)} >> {live.spec.name}"
        if (sent := short_way.begin(live, call)) is not None:
            presses, batch = short_way.run(live, sent, lambda: _opened_batch(live, call, sent, title))
            if batch is not None:
                return _run_opened(batch, presses)
            if presses:
                raise KeyboardInterrupt(f"{title} was interrupted")
            return sent.take_values(live.calls.short.spare)[0]
        (result,) = run_all(live, [call], title, many=False)
        return result

    def run_async(self, call: BoundCall[T]) -> Future[T]:
        """Submit a call to one rank, as ``call > compute`` does.

        Parameters
        ----------
        call : BoundCall
            The call.

        Returns
        -------
        Future
            A future of the result.
        """
        _check_call(call, "run_async")
        live = self.live_pool
        future: Future[Any] | None = None
        if not call.function.is_streaming:
            future = _submit_short(live, call)
        return future or _submit(live, [call], repr(call.function), lambda values: values[0])

    def broadcast(self, call: BoundCall[T]) -> list[T]:
        """Run a call on every rank, as ``call @ compute`` does.

        Parameters
        ----------
        call : BoundCall
            The call.

        Returns
        -------
        list
            One result per rank.
        """
        _check_call(call, "broadcast")
        live = self.live_pool
        if call.rank is not None:
            raise SpecError(
                f"`@` runs a call on every rank, and on({call.rank}) on one: `call.on({call.rank}) >> pool`"
            )
        if call.function.is_streaming:
            if streaming_functions.iterator_names(call.function.__wrapped__):
                streaming_functions.refuse(call, "with `@`: its iterator can be read once")
            return [streams.begin(live, call.on(rank)) for rank in range(live.spec.world_size)]
        notes: list[Event] = []
        opened, presses = None, 0
        if (sent := short_way.begin(live, call, everywhere=True, notes=notes)) is not None:
            presses, opened = short_way.run(live, sent, lambda: _opened_run(live, call, sent))
            if not sent.opened and not presses:
                if live.calls.ended:
                    live.calls.note_writes(main())
                return sent.take_values(live.calls.short.spare)
            if opened is None and presses:
                raise KeyboardInterrupt(f"{call.function!r} was interrupted")
        left = call.retries or 0
        while True:
            run, result = _broadcast(live, call, left, opened, presses, notes)
            opened, presses, notes = None, 0, []
            if not (left and _lost(run)):
                break
            left -= 1
            # Before the next attempt, repair what this one broke, and note which kernels are new, to send what they
            # lack.
            renew_taken(live)
            cells.settle(live)
        if run.failed:
            raise BroadcastError(result, list(run.outcomes.values()))
        return list(result)

    @overload
    def run_parallel(self, group: BoundGroup[Iterator[T]]) -> Iterator[T]: ...
    @overload
    def run_parallel(self, group: AwaitedGroup[R]) -> R: ...
    def run_parallel(self, group: Any) -> Any:
        """Run several calls at the same time, as ``group >> compute`` does.

        Parameters
        ----------
        group : BoundGroup
            The calls.

        Returns
        -------
        tuple or Iterator
            One result per call; an iterator of them if the group streams.
        """
        _check_group(group, "run_parallel")
        live, calls = self.live_pool, group.calls
        title = f"{len(calls)} calls >> {live.spec.name}"
        if group.streamed:
            return Results(Batch(live, calls, title, waited=False), ordered=group.ordered)
        return tuple(run_all(live, calls, title))

    def run_parallel_async(self, group: AwaitedGroup[R]) -> Future[R]:
        """Submit several calls, as ``group > compute`` does.

        Parameters
        ----------
        group : AwaitedGroup
            The calls.

        Returns
        -------
        Future
            A future of the tuple of results.
        """
        _check_group(group, "run_parallel_async")
        return _submit(self.live_pool, group.calls, f"{len(group.calls)} calls", tuple)


class Sky(Runner):
    """Stand-in for the current pool, which is looked up when a call is sent.

    The current pool is that of the innermost ``with`` block, or that of ``%%sky``.
    """

    @property
    def pool(self) -> Pool | None:
        """The current pool, or None."""
        return pools.current

    @property
    def live_pool(self) -> Pool:
        """The current pool; PoolError if there is none."""
        if pools.current is None:
            if (gone := pools.gone()) is not None:
                raise PoolError(gone.refusal("with sky.Compute() as pool:", pools.names))
            raise PoolError(
                "there is no current pool: use `with sky.Compute(...) as pool:`, or make one with `%sky up`"
            )
        return pools.current

    def __repr__(self) -> str:
        live = self.pool
        return f"<sky: the current pool, {'none' if live is None else repr(live.spec.name)}>"


sky = Sky()
"""The current pool: ``train() >> sky``. The package itself works as well, under ``import sky_jupyter as sky``."""

# A Union, since in Python 3.10 a Protocol does not support ``|``.
Target = Union[Holder, Pool, Sky, ModuleType]  # noqa: UP007


class OnPool(Runner):
    """Runner for a live pool; made by `runner_of`.

    Parameters
    ----------
    pool : Pool
        The pool.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    @property
    def live_pool(self) -> Pool:
        """The pool."""
        return self._pool


def runner_of(target: Target) -> Runner:
    """Return the runner for an operator's right operand.

    Parameters
    ----------
    target : Compute, Pool, sky or module
        The right operand; `sky` and the package itself are the current pool.

    Returns
    -------
    Runner
        The right operand itself, if it is a runner.

    Raises
    ------
    PoolError
        When the operand is not started, or is no pool.
    """
    if isinstance(target, Runner):
        return target
    if getattr(target, "__name__", "") == __name__.partition(".")[0]:
        return sky
    return OnPool(live_pool(target))


def _check_call(call: object, method: str) -> None:
    """Raise SpecError unless a method was given a single call."""
    if not hasattr(call, "function"):
        hint = "; several go to run_parallel" if hasattr(call, "calls") else ""
        raise SpecError(f"{method} takes one call, such as f(x), not {brief(call)}{hint}")


def _check_group(group: object, method: str) -> None:
    """Raise SpecError unless a method was given several calls."""
    if not hasattr(group, "calls"):
        raise SpecError(f"{method} takes several calls, such as f(x) & g(y), not {brief(group)}")


def _view_of(live: Pool, call: BoundCall[Any]) -> RunView:
    """Return the view of a broadcast."""
    title = f"{name_of(call)} @ {live.spec.name}"
    return display.run_view(title, range(live.spec.world_size), results=False, pool=live.spec.name, cost=live.pricing)


def _opened_run(live: Pool, call: BoundCall[Any], sent: ShortCall) -> tuple[RunView, Run] | None:
    """Continue an opened broadcast as a run; return None if it was not sent."""
    if not sent.sent:
        return None
    view = _view_of(live, call)
    return view, live.submission.take_up(sent, view.on_event, asks=can_ask())


def _broadcast(
    live: Pool,
    call: BoundCall[T],
    left: int,
    opened: tuple[RunView, Run] | None,
    presses: int,
    notes: Sequence[Event],
) -> tuple[Run, CellResult]:
    """Make one attempt at a call on every rank, with ``left`` retries after it.

    ``opened`` is the view and the run of a short call that was opened, ``presses`` its number of interrupts so far.
    """
    with live.stopping():
        if opened is not None:
            view, run = opened
        else:
            note_restarts(live)
            payload = call.function.__wrapped__, call.args, call.kwargs
            blob, capture = collect_value(payload, main(), live.ledger, label=repr(call.function))
            view = _view_of(live, call)
            for note in notes:
                view.on_event(note)
            with display.DelayedView("values", pool=live.spec.name) as late:
                listeners: dict[str, Any] = {"listener": view.on_event, "on_send": late.on_event, "tick": late.refresh}
                run = live.submission.begin_call(
                    blob, capture, timeout=call.timeout, asks=can_ask(), title=name_of(call), **listeners
                )
        try:
            interrupted = live.wait(run, background_prompts.looking(view.refresh), pressed=presses)
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

    The list is empty if the time limit has stopped the broadcast.
    """
    if run.timed_out is not None:
        return []
    return [outcome for outcome in run.outcomes.values() if outcome.status == "lost"]


def _opened_batch(live: Pool, call: BoundCall[Any], sent: ShortCall, title: str) -> Batch:
    """Continue an opened call to one rank as a task."""
    batch = Batch(live, (), title, waited=True, many=False)
    try:
        batch.take_up(sent, call)
    except BaseException:
        batch.close()
        raise
    return batch


def _run_opened(opened: Batch, presses: int) -> Any:
    """Wait for an opened call to one rank; return its value.

    ``presses`` is its number of interrupts so far.
    """
    with opened as batch:
        batch.pressed = presses
        values: dict[int, Any] = {}
        for one in batch:
            values.update(batch.take(one))
    return values[0]


def run_all(
    live: Pool, calls: Iterable[BoundCall[Any]], title: str, *, many: bool = True, total: int = -1
) -> list[Any]:
    """Run calls and wait for all; the first failure stops the others."""
    values: dict[int, Any] = {}
    with Batch(live, calls, title, waited=True, many=many, joins=many, total=total) as batch:
        for sent in batch:
            values.update(batch.take(sent))
    return [values[place] for place in range(len(values))]


def _submit_short(live: Pool, call: BoundCall[T]) -> Future[T] | None:
    """Submit a short call and return its future; None if it must go the long way."""
    sent = short_way.begin(live, call)
    if sent is None:
        return None
    future: Future[Any] = Future(repr(call.function))
    # What it prints belongs to the cell that sends it.
    context = contextvars.copy_context()
    held = calls_view.HeldView(live, f"{name_of(call)} > {live.spec.name}")

    def take(sent: ShortCall) -> None:
        """Handle a call that has ended or was opened, in the thread that settles futures."""
        try:
            if not sent.opened:
                settle(future, lambda: sent.values()[0])
                sent.forget()
            elif not sent.dropped:
                context.run(_go_on, live, call, sent, future)
        except BaseException as error:
            settle(future, _raiser(error))
        finally:
            held.end()

    # A short call has ended, or was opened, before anybody can ask whether it runs.
    future.belong_to(lambda: live.calls.short.drop(sent), lambda: False)
    try:
        short_way.submit(live, sent, lambda sent: settler.do(lambda: take(sent)))
    except BaseException:
        held.end()
        future.cancel()
        raise
    return future


def _go_on(live: Pool, call: BoundCall[Any], sent: ShortCall, future: Future[Any]) -> None:
    """Continue the opened call of a future the long way."""
    batch = Batch(live, (), f"{name_of(call)} > {live.spec.name}", waited=False, many=False)

    def take(one: InFlightTask) -> None:
        settle(future, lambda: batch.take(one)[0])
        batch.close()

    batch.on_end = lambda one: settler.do(lambda: take(one))
    try:
        batch.take_up(sent, call)
    except BaseException:
        batch.close()
        raise
    future.belong_to(batch.stop, lambda: any(one.placed for one in list(batch.left.values())))
    if future.cancelled():
        batch.stop()


def _submit(
    live: Pool, calls: Sequence[BoundCall[Any]], name: str, put_together: Callable[[list[Any]], Any]
) -> Future[Any]:
    future: Future[Any] = Future(name)
    title = name_of(calls[0]) if len(calls) == 1 else f"{len(calls)} calls"
    batch = Batch(live, calls, f"{title} > {live.spec.name}", waited=False, many=len(calls) > 1)
    values: dict[int, Any] = {}
    # What calls that are sent later print belongs to this cell, too.
    context = contextvars.copy_context()
    # Whether this thread sends no more: then the thread that settles futures does, and closes the batch.
    handed_over = False

    def send() -> None:
        """Send the calls that there is room for."""
        while batch.send() and not batch.is_full:
            pass

    def take(sent: InFlightTask) -> None:
        """Handle a call that has ended, in the thread that settles futures."""
        try:
            values.update(batch.take(sent))
        except BaseException as error:
            batch.stop()
            go_on()
            settle(future, _raiser(error))
        else:
            go_on()

    def go_on() -> None:
        """Send more calls, or settle the future after the last one."""
        if not handed_over:
            return
        over = len(values) == len(calls)
        try:
            if over or future.cancelled():
                batch.stop()
            context.run(send)
        except BaseException as error:
            batch.stop()
            settle(future, _raiser(error))
        if not batch.left:
            batch.close()
        if over:
            settle(future, lambda: put_together([values[at] for at in range(len(values))]))

    future.belong_to(batch.stop, lambda: any(sent.placed for sent in list(batch.left.values())))
    batch.on_end = lambda sent: settler.do(lambda: take(sent))
    try:
        send()
        handed_over = True
        # For calls that have ended before.
        settler.do(go_on)
    except BaseException:
        batch.stop()
        batch.close()
        raise
    return future


def _raiser(error: BaseException) -> Callable[[], Any]:
    def work() -> Any:
        raise error

    return work


class Results(Iterator[T]):
    """Iterator of results as they arrive.

    It is closed at its end, or when it is dropped before that.
    """

    def __init__(self, batch: Batch, *, ordered: bool) -> None:
        self._batch = batch
        self._ordered = ordered
        self._early: dict[int, InFlightTask] = {}
        self._at = 0
        self._over = False
        try:
            batch.send()
        except BaseException:
            self._over = True
            batch.close()
            raise

    def __next__(self) -> T:
        if self._over:
            raise StopIteration
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
        self._over = True
        for sent in self._early.values():
            sent.drop()
        self._early.clear()
        self._batch.close()

    def __enter__(self) -> Results[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # While the interpreter ends, the modules that close it may be gone.
        if sys is not None and not sys.is_finalizing() and hasattr(self, "_batch"):
            self._batch.close(patience=0.0)
