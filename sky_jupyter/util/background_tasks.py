"""Tasks of an event loop in the background, and calls in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

A = TypeVar("A")
T = TypeVar("T")

# Thread limit of `run_all`: each thread only waits for a machine.
MOST_THREADS = 32


class BackgroundTasks(set["asyncio.Task[Any]"]):
    """Set of tasks that nobody awaits: an event loop keeps weak references only."""

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start work on the running loop and return its task."""
        task = asyncio.ensure_future(work)
        self.add(task)
        task.add_done_callback(self.discard)
        return task


def run_all(work: Callable[[A], T], items: Iterable[A], name: str, *, most: int = MOST_THREADS) -> list[Future[T]]:
    """Run work for each item, in threads, and return the finished futures.

    ``name`` is the prefix of the threads' names, ``most`` their maximum number.
    """
    items = list(items)
    with ThreadPoolExecutor(min(len(items), most) or 1, thread_name_prefix=name) as threads:
        return [threads.submit(work, item) for item in items]


def map_all(work: Callable[[A], T], items: Iterable[A], name: str, *, most: int = MOST_THREADS) -> list[T]:
    """Return the results of `run_all`; raise the first error."""
    return [future.result() for future in run_all(work, items, name, most=most)]
