"""Functions that other threads than the main one have done by a pool's ranks, as futures: for parallel loops.

A rank does one at a time; those that come when all are at work wait here, in order.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ..capture.collect import Capture, collect_value
from ..capture.payload import Blob
from ..errors import PoolError
from .results import exception_of

if TYPE_CHECKING:
    from .manager import Pool
    from .runs import Run


class Call(Future[Any]):
    """One function on its way; cancelling it stops it on its rank too."""

    def __init__(self, submitter: Submitter) -> None:
        super().__init__()
        self.submitter = submitter
        self.run: Run | None = None
        self.unwanted = False

    def cancel(self) -> bool:
        """Take it back, or interrupt the rank that does it."""
        if super().cancel():
            return True
        self.unwanted = True
        run = self.run
        if run is not None and not self.done():
            self.submitter.stop(run)
        return False


class Submitter:
    """One a pool, made when first used; its thread begins calls and takes their results.

    Parameters
    ----------
    pool : Pool
        Whose ranks do them.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._waiting: deque[tuple[Call, Blob, Capture]] = deque()
        self._busy: dict[int, Call] = {}
        self._todo: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="sky-submit", daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[], Any]) -> Call:
        """Have a rank call a function without arguments; what it needs is captured now.

        Raises
        ------
        CaptureError
            When it cannot be sent.
        PoolError
            When the pool has ended.
        """
        if self._closed:
            raise PoolError(f"pool {self.pool.spec.name!r} has ended")
        main = vars(sys.modules["__main__"])
        # A rank that has not had an earlier call needs all of it.
        blob, capture = collect_value((function, (), {}), main, self.pool.ledger.unsent(), label="a parallel loop")
        call = Call(self)
        self._todo.put(functools.partial(self._take, call, blob, capture))
        return call

    def stop(self, run: Run) -> None:
        """Interrupt a call that a rank does."""
        self._todo.put(functools.partial(self._interrupt, run))

    def close(self) -> None:
        """The pool ends: what waits is cancelled."""
        self._closed = True
        self._todo.put(None)

    # -- its thread --------------------------------------------------------------------------------

    def _work(self) -> None:
        while (step := self._todo.get()) is not None:
            step()
        for call, _, _ in self._waiting:
            call.cancel()
        for call in self._busy.values():
            with contextlib.suppress(Exception):
                call.set_exception(PoolError(f"pool {self.pool.spec.name!r} has ended"))

    def _take(self, call: Call, blob: Blob, capture: Capture) -> None:
        self._waiting.append((call, blob, capture))
        self._begin()

    def _begin(self) -> None:
        while self._waiting:
            free = next((rank for rank in range(self.pool.spec.world_size) if rank not in self._busy), None)
            if free is None:
                return
            call, blob, capture = self._waiting.popleft()
            if not call.set_running_or_notify_cancel():
                continue
            try:
                run = self.pool.begin_one(blob, capture, rank=free)
            except Exception as error:
                call.set_exception(error)
                continue
            call.run, self._busy[free] = run, call
            if call.unwanted:
                self._interrupt(run)
            ended = functools.partial(self._end, call, free)
            run.task.add_done_callback(functools.partial(self._note_end, ended))

    def _note_end(self, ended: Callable[[], None], task: Future[None]) -> None:
        self._todo.put(ended)

    def _end(self, call: Call, rank: int) -> None:
        del self._busy[rank]
        run = call.run
        assert run is not None
        error: BaseException | None = None
        value: Any = None
        try:
            result = self.pool.finish(run)
            (outcome,) = run.outcomes.values()
            if outcome.failed:
                error = exception_of(outcome)
            else:
                value = result.head
        except Exception as fault:
            error = fault
        # Whoever waits for it may have more at once.
        self._begin()
        if error is not None:
            call.set_exception(error)
        else:
            call.set_result(value)

    def _interrupt(self, run: Run) -> None:
        with contextlib.suppress(Exception):
            self.pool.interrupt(run)
