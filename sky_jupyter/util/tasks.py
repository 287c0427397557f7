"""Run tasks of an event loop in the background, and calls in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

A = TypeVar("A")
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


def run_all(work: Callable[[A], T], items: Iterable[A], name: str, *, most: int = MOST_THREADS) -> list[Future[T]]:
    """Run work for each item, all at once in threads, and return the futures when each is done.

    Parameters
    ----------
    work : callable
        What to run, with an item.
    items : iterable
        What to run it for.
    name : str
        How the threads' names begin.
    most : int
        How many run at once.
    """
    items = list(items)
    with ThreadPoolExecutor(min(len(items), most) or 1, thread_name_prefix=name) as threads:
        return [threads.submit(work, item) for item in items]


def map_all(work: Callable[[A], T], items: Iterable[A], name: str, *, most: int = MOST_THREADS) -> list[T]:
    """Run work for each item as `run_all` does, and return the results; the first error is raised."""
    return [future.result() for future in run_all(work, items, name, most=most)]
