"""Parallel loops, like joblib's: threads submit calls to ranks and get futures.

A rank runs one call at a time; others wait here, in order, and not in Dask's queue, since each rank must first get
the values that they share. A call whose node is lost runs on another.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from ...capture.blobs import Blob
from ...capture.collect import Capture, collect_value
from ...errors import PoolError
from ...plugins.joblib.shared_values import NotHeld, hold
from ..base.events import Listener, ignore
from ..context import PoolContext
from ..runs.result import exception_of

if TYPE_CHECKING:
    from ...capture.ledger import Ledger
    from ..runs.result import CellResult
    from ..runs.run import Run
    from .run_submission import RunSubmission
    from .tasks import TaskRun

_LABEL = "a parallel loop"


class Call(Future[Any]):
    """Future of one function call; `cancel` also interrupts its rank."""

    def __init__(self, submitter: PoolExecutor, blob: Blob, capture: Capture, shared: Mapping[str, Any]) -> None:
        super().__init__()
        self.submitter = submitter
        self.blob, self.capture, self.shared = blob, capture, shared
        self.run_there: TaskRun | None = None
        self.unwanted = False
        self.losses = 0
        self.listener: Listener = ignore
        # Whether it was retried on a new kernel, with all shared values.
        self.again = False

    def cancel(self) -> bool:
        """Remove it from the queue, or interrupt the rank that runs it."""
        if super().cancel():
            return True
        self.unwanted = True
        if self.run_there is not None and not self.done():
            self.submitter.stop(self.run_there)
        return False


class ExecutorContext(PoolContext, Protocol):
    """The pool as seen by its executor."""

    @property
    def ledger(self) -> Ledger:
        """The record of which names the nodes have."""
        ...

    @property
    def submission(self) -> RunSubmission: ...

    def interrupt(self, run: Run | None = None, *, hard: bool = False) -> None: ...

    def finish(self, run: Run) -> CellResult: ...


class PoolExecutor:
    """Executor of one pool; its thread starts and finishes calls.

    Parameters
    ----------
    pool : ExecutorContext
        The pool.
    """

    def __init__(self, pool: ExecutorContext) -> None:
        self.pool = pool
        self._waiting: deque[Call] = deque()
        self._busy: dict[int, Call] = {}
        # The shared values that each rank has.
        self._brought: dict[int, set[str]] = {}
        self._todo: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # Held as a call is queued: none comes after the end.
        self._lock, self._closed = threading.Lock(), False
        self._thread = threading.Thread(target=self._work, name="sky-submit", daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[], Any], shared: Mapping[str, Any], listener: Listener = ignore) -> Call:
        """Submit a function without arguments; capture its values now.

        Parameters
        ----------
        function : callable
            The function.
        shared : mapping of str to Any
            Values that it shares with other calls: each rank gets each of them once.
        listener : callable
            Receives the call's events.

        Returns
        -------
        Call
            The future.

        Raises
        ------
        CaptureError
            If it cannot be sent.
        PoolError
            If the pool has ended.
        """
        self._require_open()
        call = Call(self, *self._pack(function), shared)
        call.listener = listener
        with self._lock:
            # The pool may have ended while the call was packed.
            self._require_open()
            self._todo.put(functools.partial(self._take, call))
        return call

    def _require_open(self) -> None:
        if self._closed:
            raise self._ended()

    def _ended(self) -> PoolError:
        return PoolError(f"pool {self.pool.spec.name!r} has ended")

    def stop(self, run: TaskRun) -> None:
        """Interrupt a call that a rank runs."""
        self._todo.put(functools.partial(self._interrupt, run))

    def close(self) -> None:
        """Cancel the queued calls; the pool ends."""
        with self._lock:
            self._closed = True
            self._todo.put(None)

    def _pack(self, function: Callable[..., Any], *args: Any) -> tuple[Blob, Capture]:
        # Unsent: a rank that ran no earlier call needs all values that it reads.
        main = vars(sys.modules["__main__"])
        return collect_value((function, args, {}), main, self.pool.ledger.unsent(), label=_LABEL)

    # -- its thread --------------------------------------------------------------------------------

    def _work(self) -> None:
        while (step := self._todo.get()) is not None:
            step()
        # A call that was requeued after its node was lost cannot be cancelled.
        running = [call for call in self._waiting if not call.cancel()]
        for call in (*running, *self._busy.values()):
            with contextlib.suppress(Exception):
                call.set_exception(self._ended())

    def _take(self, call: Call) -> None:
        self._waiting.append(call)
        self._begin()

    def _begin(self) -> None:
        while self._waiting:
            rank = self._free()
            if rank is None:
                return
            call = self._waiting.popleft()
            if call.running() or call.set_running_or_notify_cancel():
                self._busy[rank] = call
                self._bring(call, rank)

    def _free(self) -> int | None:
        """Return an idle rank, on a live node unless nothing runs."""
        spec, control = self.pool.spec, self.pool.control
        lost: set[int | None] = control.silent.union(control.lost)
        free = [rank for rank in range(spec.world_size) if rank not in self._busy]
        there = [rank for rank in free if rank // spec.ranks_per_node not in lost]
        return next(iter(there or (free if not self._busy else [])), None)

    def _bring(self, call: Call, rank: int) -> None:
        """Send a rank the shared values that it lacks, then the call."""
        missing = set(call.shared).difference(self._brought.setdefault(rank, set()))
        if not missing:
            self._start(call, rank, call.blob, call.capture, functools.partial(self._end, call, rank))
            return
        try:
            blob, capture = self._pack(hold, {key: call.shared[key] for key in missing})
        except Exception as error:
            self._fail(call, rank, error)
            return
        self._start(call, rank, blob, capture, functools.partial(self._is_brought, call, rank, missing))

    def _start(self, call: Call, rank: int, blob: Blob, capture: Capture, ended: Callable[[], None]) -> None:
        try:
            run = self.pool.submission.begin_one(blob, capture, rank=rank, retries=0, listener=call.listener)
        except Exception as error:
            self._fail(call, rank, error)
            return
        call.run_there = run
        run.task.add_done_callback(functools.partial(self._note_end, ended))
        if call.unwanted:
            self._interrupt(run)

    def _note_end(self, ended: Callable[[], None], task: Future[None]) -> None:
        self._todo.put(ended)

    def _is_brought(self, call: Call, rank: int, keys: set[str]) -> None:
        error, _ = self._result(call)
        if self._elsewhere(call, rank):
            return
        if error is not None or call.unwanted:
            self._done(call, rank, error or PoolError("the loop was stopped"))
            return
        self._brought[rank] |= keys
        self._start(call, rank, call.blob, call.capture, functools.partial(self._end, call, rank))

    def _end(self, call: Call, rank: int) -> None:
        error, value = self._result(call)
        if self._elsewhere(call, rank):
            return
        if isinstance(error, NotHeld) and not call.again:
            # Its kernel is new: it has no shared values.
            call.again = True
            self._brought[rank] = set()
            self._bring(call, rank)
            return
        self._done(call, rank, error, value)

    def _elsewhere(self, call: Call, rank: int) -> bool:
        """Requeue a call whose node was lost; return whether it was."""
        assert call.run_there is not None
        most = self.pool.spec.options.retry_on_interruption
        if call.run_there.outcome.status != "lost" or call.unwanted or call.losses >= most:
            return False
        call.losses, call.again = call.losses + 1, False
        del self._busy[rank]
        self._brought.pop(rank, None)
        self._waiting.appendleft(call)
        self._begin()
        return True

    def _result(self, call: Call) -> tuple[BaseException | None, Any]:
        run = call.run_there
        assert run is not None
        try:
            result = self.pool.finish(run)
            (outcome,) = run.outcomes.values()
            return (exception_of(outcome), None) if outcome.failed else (None, result.head)
        except Exception as error:
            return error, None

    def _fail(self, call: Call, rank: int, error: Exception) -> None:
        """Finish a call that could not begin, later: `_done` begins others at once."""
        self._todo.put(functools.partial(self._done, call, rank, error))

    def _done(self, call: Call, rank: int, error: BaseException | None, value: Any = None) -> None:
        del self._busy[rank]
        # Before its result is set, which may submit more.
        self._begin()
        if error is not None:
            call.set_exception(error)
        else:
            call.set_result(value)

    def _interrupt(self, run: TaskRun) -> None:
        with contextlib.suppress(Exception):
            self.pool.interrupt(run)
