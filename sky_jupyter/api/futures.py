"""`Future`: a `concurrent.futures.Future` whose cancel reaches the rank.

``call > pool`` returns one.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Future(concurrent.futures.Future[T]):
    """Result of a call that runs on a pool; returned by ``call > pool``.

    It is used as any other future: with `concurrent.futures.wait` and `as_completed`, with `asyncio.wrap_future`, from
    any thread. An interrupt while `result` or `exception` waits cancels the call.

    Parameters
    ----------
    name : str
        The name of the call, for the repr.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self._stop: Callable[[], None] = lambda: None
        self._is_running: Callable[[], bool] = lambda: False

    def belong_to(self, stop: Callable[[], None], is_running: Callable[[], bool]) -> None:
        """Connect the future to the call that settles it; for the sender of the call.

        Parameters
        ----------
        stop : callable
            Stops the call.
        is_running : callable
            Tells whether a rank is executing it.
        """
        self._stop, self._is_running = stop, is_running

    def cancel(self) -> bool:
        """Cancel the call: interrupt it on its rank, or remove it from the queue.

        Returns
        -------
        bool
            False if the call has ended already.
        """
        if self.cancelled():
            return True
        if not super().cancel():
            return False
        # `wait` and `as_completed` of `concurrent.futures` learn of it now.
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.set_running_or_notify_cancel()
        self._stop()
        return True

    def running(self) -> bool:
        """Tell whether a rank is executing the call.

        Returns
        -------
        bool
            False before it has started and after it has ended.
        """
        return not self.done() and self._is_running()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the call and return its result.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; without limit by default. The call goes on after that.

        Returns
        -------
        object
            What the function returned.

        Raises
        ------
        Exception
            What the function raised, with the remote traceback as a note.
        concurrent.futures.TimeoutError
            When there is no result in time.
        concurrent.futures.CancelledError
            When the call was cancelled.
        """
        # No context manager: an interrupt while it is being entered would be missed.
        try:
            return super().result(timeout)
        except KeyboardInterrupt:
            self.cancel()
            raise

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the call and return the exception that it raised.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait; without limit by default. The call goes on after that.

        Returns
        -------
        BaseException or None
            The exception; None if the call returned.

        Raises
        ------
        concurrent.futures.TimeoutError
            When the call has not ended in time.
        concurrent.futures.CancelledError
            When the call was cancelled.
        """
        try:
            return super().exception(timeout)
        except KeyboardInterrupt:
            self.cancel()
            raise

    def __repr__(self) -> str:
        state = (
            "cancelled" if self.cancelled() else "done" if self.done() else "running" if self.running() else "waiting"
        )
        return f"<Future of {self.name}: {state}>"


def settle(future: Future[T], work: Callable[[], T]) -> None:
    """Set what ``work`` returns or raises as a future's outcome, unless cancelled."""
    try:
        value = work()
    except BaseException as error:
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            future.set_exception(error)
    else:
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            future.set_result(value)


class Settler:
    """Thread that sets the results of futures.

    Callbacks of futures may take long, and the manager's loop must not wait for them.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def do(self, work: Callable[[], None]) -> None:
        """Queue a function for the thread."""
        self._work.put(work)
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="sky-futures", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            work = self._work.get()
            try:
                work()
            except Exception:
                _log.exception("a future's result could not be handled")
            # The variable would keep it until the next one comes.
            del work


settler = Settler()
