"""The manager's one event loop, in a thread of its own, entered at one place.

The notebook's kernel blocks its main thread while a cell runs; what the pools say must be heard
all the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, TypeVar

from ...errors import PoolError
from .timeouts import TIMEOUTS

T = TypeVar("T")
Tick = Callable[[], None]
_TICK = TIMEOUTS.polls.loop


def no_tick() -> None:
    """For those who have nothing to do while they wait."""


def wait_ticking(future: Future[Any], tick: Tick) -> None:
    """Wait for a future while ``tick`` is called several times a second; its error is raised.

    Raises
    ------
    PoolError
        When what is waited for was given up because the pool ended.
    """
    while True:
        try:
            future.result(_TICK)
            return
        except FutureTimeout:
            if future.done():
                # It ended in this very moment, or with an error of that type.
                future.result()
                return
        except CancelledError:
            raise PoolError("the pool has ended meanwhile") from None
        tick()


@contextlib.contextmanager
def counting_interrupts() -> Iterator[Sequence[object]]:
    """Have interrupts of this process counted, one item each, and not raised wherever the code just is.

    In other threads than the main one there are none.
    """
    presses: list[object] = []
    if threading.current_thread() is not threading.main_thread():
        yield presses
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: presses.append(number))
    try:
        yield presses
    finally:
        # One that was not installed from Python cannot be put back from here.
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)


class NoAnswer(PoolError, FutureTimeout):
    """A pool was asked for something, and has not answered in the time that it had."""


class LoopThread:
    """Made once a process, by `loop`; a daemon thread that ends with the process."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="sky-loop", daemon=True)
        self.thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin work on the loop; callable from any thread but the loop's own."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Do work on the loop and wait for it; an interrupt of the caller cancels it."""
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
    """The process's loop thread; started when first asked for."""
    global _loop  # noqa: PLW0603 - there is one a process, and it may have to be made anew after a fork
    with _lock:
        if _loop is None or not _loop.thread.is_alive():
            _loop = LoopThread()
        return _loop


async def in_thread(call: Callable[..., T], *arguments: object) -> T:
    """Call in a thread of its own, on the loop: one that hangs keeps nobody waiting but whoever asked."""
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
