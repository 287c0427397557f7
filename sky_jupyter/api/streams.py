"""Calls whose items stream: out of a rank, or from the notebook into it."""

from __future__ import annotations

import copy
import inspect
import pickle
import queue
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import SpecError
from ..node.kernel.generator_streams import Outside, dump_item
from ..node.serialization import result_values
from ..pool.execution.stream_client import StreamClient, Wanted, Yielded
from ..pool.runs.result import ValueNotHere
from ..util.interrupts import counting_interrupts, raise_again
from .batch import Batch
from .short_way import name_of
from .streaming_functions import is_generator, iterator_names

if TYPE_CHECKING:
    from ..pool.execution.tasks import TaskRun
    from ..pool.pool import Pool
    from .context import BoundCall

T = TypeVar("T")
_TICK = 0.05
# Seconds that a generator has to reach its next item once its stream is closed; then it is interrupted.
_PATIENCE = 2.0
# The limit of one item of a notebook's iterator in bytes; the limits of the items for one answer, in bytes and seconds.
_MOST_ITEM = 256 << 20
_MOST_BYTES, _MOST_SECONDS = 1 << 20, 0.02


def taken_out(call: BoundCall[T]) -> tuple[BoundCall[T], list[Iterator[Any]]]:
    """Replace the iterators among a call's arguments by placeholders.

    Parameters
    ----------
    call : BoundCall
        The call.

    Returns
    -------
    tuple of BoundCall and list
        The call as it is sent, and the iterators.

    Raises
    ------
    SpecError
        When an argument for a parameter annotated as ``Iterator[T]`` is not iterable.
    """
    function = call.function.__wrapped__
    names = iterator_names(function)
    bound = inspect.signature(function).bind(*call.args, **call.kwargs)
    sources: list[Iterator[Any]] = []
    for name in names:
        if name in bound.arguments and bound.arguments[name] is not None:
            try:
                sources.append(iter(bound.arguments[name]))
            except TypeError:
                kind = type(bound.arguments[name]).__name__
                raise SpecError(
                    f"{name} of {call.function!r} is an Iterator: {kind} cannot be read one by one"
                ) from None
            bound.arguments[name] = Outside(len(sources) - 1)
    other = copy.copy(call)
    other.args, other.kwargs = bound.args, bound.kwargs
    return other, sources


# -- reading -----------------------------------------------------------------------------------------


class StreamBatch(Batch):
    """Batch of one call whose items stream."""

    def _stream_of(self, call: BoundCall[Any]) -> dict[str, Any] | None:
        return {"out": is_generator(call.function.__wrapped__)}


class Stream(Iterator[T]):
    """Iterator of what a generator on a rank yields; made by ``call >> pool``.

    The generator runs at most a few items ahead of the reader. When this iterator is read to its end, closed or
    dropped, the generator is closed and its rank is free. An exception of the generator is raised here, in place of its
    next item.

    Parameters
    ----------
    batch : Batch
        The call, as it was sent.
    sources : list of iterator
        The call's iterators, which are read here, item by item.

    Attributes
    ----------
    result : Any
        What the generator returned; None before its end. It is also the value of ``yield from``.
    """

    def __init__(self, batch: Batch, sources: list[Iterator[Any]]) -> None:
        self._batch, self._sources = batch, sources
        self._source_error: BaseException | None = None
        self._over = False
        self.result: Any = None
        try:
            batch.send()
            self._run: TaskRun = batch.last
            self._flow = StreamClient(batch.live, self._run)
        except BaseException:
            self._over = True
            batch.close()
            raise

    def __next__(self) -> T:
        if self._over:
            raise StopIteration
        try:
            item = self._wait()
            if item is not None:
                self._flow.note_read()
                return self._load(item)
            self.result = self._outcome()
        except BaseException:
            self.close()
            raise
        self.close()
        raise StopIteration(self.result)

    def _load(self, item: Yielded) -> T:
        try:
            return pickle.loads(item.pickled)
        except Exception as error:
            raise ValueNotHere(
                f"an item of {self._batch.title} could not be rebuilt here: {type(error).__name__}: {error}"
            ) from None

    def _wait(self) -> Yielded | None:
        """Return the next item, or None when the call has ended.

        Meanwhile, send the rank the items that it requests of the notebook's iterators.
        """
        while True:
            try:
                news = self._next()
            except KeyboardInterrupt:
                self._stop()
                raise
            if not isinstance(news, Wanted):
                return news
            self._give(news)

    def _next(self) -> Yielded | Wanted | None:
        while True:
            try:
                return self._flow.next(_TICK)
            except queue.Empty:
                self._batch.run_view.refresh()

    def _stop(self) -> None:
        """Interrupt the rank; end its kernel at the second interrupt."""
        presses = 1
        with counting_interrupts() as more:
            heeded = -1
            while self._batch.left:
                if len(more) > heeded:
                    heeded = len(more)
                    self._batch.stop(hard=heeded + presses > 1)
                self._batch.run_view.refresh()
                time.sleep(_TICK)

    def _outcome(self) -> Any:
        self._batch.next()
        try:
            return self._run.value()
        except Exception as error:
            if self._source_error is not None:
                raise error from self._source_error
            raise

    # -- what the rank wants

    def _give(self, wanted: Wanted) -> None:
        """Send the items of a notebook's iterator that the rank has asked for."""
        items: list[bytes] = []
        size, began = 0, time.monotonic()
        source = self._sources[wanted.index]
        try:
            while len(items) < wanted.most and size < _MOST_BYTES:
                item = dump_item(next(source))
                if len(item) > _MOST_ITEM:
                    raise SpecError(
                        f"an item of a streamed iterator can have {_MOST_ITEM >> 20} MB, and this one has "
                        f"{len(item) / 1e6:.0f} MB"
                    )
                items.append(item)
                size += len(item)
                if time.monotonic() - began > _MOST_SECONDS:
                    break
        except StopIteration:
            self._flow.give(wanted, items, end=True)
        except Exception as error:
            self._fail(wanted, items, error)
        else:
            self._flow.give(wanted, items)

    def _fail(self, wanted: Wanted, items: list[bytes], error: Exception) -> None:
        """Send what came before the notebook's iterator raised, then its error."""
        self._source_error = error
        index = wanted.index
        self._sources[index] = _raising(error)
        if items:
            self._flow.give(wanted, items)
            return
        text = f"{type(error).__name__}: {error}"
        self._flow.give(wanted, [], error=text, exception=result_values.dump_exception(error))

    # -- the end

    def close(self) -> None:
        """Close the generator on its rank and free the rank.

        The generator's ``finally`` blocks run. If it does not reach its next item within two seconds, it is
        interrupted. An interrupt of this process ends the wait, and is raised when the stream is closed.
        """
        # An interrupt in the middle would leave the generator on its rank.
        with counting_interrupts() as presses:
            if self._over:
                return
            self._over = True
            _close(self._flow, self._batch, presses)
        raise_again(presses)

    def __enter__(self) -> Stream[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # While the interpreter ends, the modules that close the stream may be gone.
        if sys is None or sys.is_finalizing() or getattr(self, "_over", True):
            return
        if threading.current_thread().name == "sky-loop":
            # `close` waits for the loop: in the loop's own thread it would wait forever.
            threading.Thread(target=_close, args=(self._flow, self._batch), daemon=True).start()
        else:
            self.close()

    def __repr__(self) -> str:
        return f"<stream of {self._batch.title}: {'closed' if self._over else 'open'}>"


def _close(flow: StreamClient, batch: Batch, presses: Sequence[object] = ()) -> None:
    flow.close()
    end = time.monotonic() + _PATIENCE
    while batch.left and not presses and time.monotonic() < end:
        time.sleep(0.01)
    batch.close()


def _raising(error: Exception) -> Iterator[Any]:
    raise error
    yield


def begin(live: Pool, call: BoundCall[Any]) -> Any:
    """Send a call that streams to a rank.

    Return a `Stream` of what it yields, or the value of a function that only reads a stream.
    """
    if call.retries:
        raise SpecError(f"{call!r} streams, and is not begun again: some of its items may have been read")
    sent, sources = taken_out(call)
    title = f"{name_of(call)} >> {live.spec.name}"
    stream: Stream[Any] = Stream(StreamBatch(live, [sent], title, waited=False, many=False), sources)
    if is_generator(call.function.__wrapped__):
        return stream
    with stream:
        for _ in stream:
            pass
        return stream.result
