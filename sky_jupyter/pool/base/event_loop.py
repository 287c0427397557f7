"""The manager's asyncio loop, which runs in a background thread.

The notebook's kernel blocks its main thread while a cell runs; the pools' events must be handled meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

from ...errors import PoolError
from .timeouts import TIMEOUTS

T = TypeVar("T")
Tick = Callable[[], None]
_TICK = TIMEOUTS.polls.loop


def no_tick() -> None:
    """Do nothing: the callback of callers without work while they wait."""


def wait_ticking(future: Future[Any], tick: Tick) -> None:
    """Wait for a future, calling ``tick`` every poll; re-raise its error.

    Raises PoolError if the future was cancelled because the pool ended.
    """
    while True:
        try:
            future.result(_TICK)
            return
        except FutureTimeout:
            if future.done():
                # It has just ended, or with a TimeoutError of its own.
                future.result()
                return
        except CancelledError:
            raise PoolError("the pool has ended meanwhile") from None
        tick()


class NoAnswer(PoolError, FutureTimeout):
    """Error of a pool that did not answer within a timeout."""


class LoopThread:
    """Daemon thread that runs the event loop; one per process, see `loop`."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="sky-loop", daemon=True)
        self.thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Schedule a coroutine; call it from any thread but the loop's own."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine and return its result; an interrupt cancels it."""
        future = self.submit(work)
        try:
            return future.result(timeout)
        except BaseException as error:
            late = isinstance(error, FutureTimeout) and not future.done()
            future.cancel()
            if late:
                raise NoAnswer(f"the pool has not answered in {timeout:g} s") from None
            raise


_lock = threading.Lock()
_loop: LoopThread | None = None


def loop() -> LoopThread:
    """Return the process's loop thread; start it if it does not run."""
    global _loop  # noqa: PLW0603 - there is one a process, and it may have to be recreated after a fork
    with _lock:
        if _loop is None or not _loop.thread.is_alive():
            _loop = LoopThread()
        return _loop


async def stoppable_in_thread(
    stop: Callable[[], None], timeout: float, call: Callable[..., T], *arguments: object
) -> T:
    """Run a call in a thread; if cancelled, ``stop`` it and wait up to ``timeout`` s."""
    future = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        stop()
        # Retrieve its error: it was asked to stop.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([future], timeout=timeout)
        raise


async def in_thread(call: Callable[..., T], *arguments: object) -> T:
    """Run a call in a thread of its own; if it hangs, its caller waits."""
    here = asyncio.get_running_loop()
    future: asyncio.Future[T] = here.create_future()

    def settle(take: Callable[[], None]) -> None:
        if not future.done():
            take()

    def work() -> None:
        try:
            result = call(*arguments)
        except Exception as error:
            take = functools.partial(future.set_exception, error)
        else:
            take = functools.partial(future.set_result, result)
        with contextlib.suppress(RuntimeError):
            here.call_soon_threadsafe(settle, take)

    threading.Thread(target=work, name="sky-beside", daemon=True).start()
    return await future
