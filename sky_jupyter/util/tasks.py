"""Run tasks of an event loop in the background, and calls in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

# Threads that `run_all` has at most: each waits for a machine, and none computes.
MOST_THREADS = 32


class BackgroundTasks(set["asyncio.Task[Any]"]):
    """Hold the tasks that nobody awaits until each is done: an event loop itself keeps weak references only."""

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start work on the running loop and return its task."""
        task = asyncio.ensure_future(work)
        self.add(task)
        task.add_done_callback(self.discard)
        return task


def run_all(calls: Iterable[Callable[[], T]], name: str, *, most: int = MOST_THREADS) -> list[Future[T]]:
    """Run calls in threads, all at once, and return their futures when each is done.

    Parameters
    ----------
    calls : iterable of callable
        What to run; each takes no argument.
    name : str
        How the threads' names begin.
    most : int
        How many run at once.
    """
    calls = list(calls)
    with ThreadPoolExecutor(min(len(calls), most) or 1, thread_name_prefix=name) as threads:
        return [threads.submit(call) for call in calls]


def results(calls: Iterable[Callable[[], T]], name: str, *, most: int = MOST_THREADS) -> list[T]:
    """Run calls in threads as `run_all` does, and return what each returned; the first error is raised."""
    return [future.result() for future in run_all(calls, name, most=most)]
