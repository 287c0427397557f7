"""joblib backend over pools: a batch of a loop is a call on a rank.

Only code that needs joblib imports this module. Pools start and end in any order and in any thread, while joblib's
settings can only be nested, and are a thread's own. So a single backend of ours is joblib's default while there is any
pool, and asks this module for the newest pool.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import joblib
import joblib.parallel
from joblib._parallel_backends import AutoBatchingMixin, FallbackToBackend, ParallelBackendBase, SequentialBackend

from ...errors import PoolError
from .shared_values import Shared, call_with, outlets

NAME = "sky_jupyter"
# An argument of at least this many bytes is sent to each rank once, not with each call.
_LARGE = 1 << 18
_pools: list[Any] = []
# What undoes `_set_backend`; empty without a pool.
_undo: list[Callable[[], None]] = []
_changing = threading.Lock()
# Packages whose classes of warnings the nodes have too.
_KNOWN = frozenset({"joblib", "sklearn", "numpy", "scipy", "builtins"})


class PoolBackend(AutoBatchingMixin, ParallelBackendBase):
    """joblib's backend of a pool; short calls go to the ranks in batches."""

    supports_retrieve_callback = True
    supports_inner_max_num_threads = False
    uses_threads = False
    supports_sharedmem = False
    default_n_jobs = -1

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Large arguments that were passed once, and those that were passed again, by their `id`. The latter are kept
        # alive, so that their ids stay valid. Arguments that are passed only once, such as the parts of a large whole,
        # are not.
        self._seen: dict[int, weakref.ref[Any]] = {}
        self._large: dict[int, tuple[str, Any]] = {}
        self._calls: set[Future[Any]] = set()
        # Shows the output of the loop's calls; None if nothing can.
        self._outlet: Any = None
        self._lock = threading.Lock()

    def configure(self, n_jobs: int = 1, parallel: Any = None, **options: Any) -> int:
        """Return the number of batches in flight; a loop of one job stays local."""
        self.parallel = parallel
        count = self.effective_n_jobs(n_jobs)
        if count == 1 and n_jobs in (1, None):
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        if outlets:
            # Made now, while the cell with the loop runs.
            self._outlet = outlets[-1](newest())
        return count

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return the number of jobs for ``n_jobs``; below 0 counts back from all ranks.

        None means 1 job, and -1 one for each rank. A number below 0 means at least 2 jobs, also on a pool of one rank:
        joblib would run a loop of one job in the notebook. Raise ValueError for 0.
        """
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        ranks = newest().spec.world_size
        if n_jobs is None:
            return 1
        return n_jobs if n_jobs > 0 else max(ranks + 1 + n_jobs, 2)

    def submit(self, func: Any, callback: Any = None) -> Future[Any]:
        """Submit a batch to a rank."""
        _drop_foreign_filters(func)
        batch, shared = self._lighten(func)
        keep = [key for key, _ in self._large.values()]
        work = functools.partial(call_with, functools.partial(_call, batch), list(shared), keep)
        told = {} if self._outlet is None else {"listener": self._outlet.on_event}
        call: Future[Any] = newest().submit(work if shared else func, shared, **told)
        with self._lock:
            self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        if callback is not None:
            call.add_done_callback(callback)
        return call

    def _lighten(self, batch: Any) -> tuple[Any, dict[str, Any]]:
        """Replace repeated large arguments of a batch by keys; return both.

        The calls of a loop share most of their large arguments.
        """
        shared: dict[str, Any] = {}
        fresh: dict[int, weakref.ref[Any]] = {}

        def name(value: Any) -> Any:
            if _size(value) < _LARGE:
                return value
            seen = self._seen.get(id(value))
            if seen is None or seen() is not value:
                with contextlib.suppress(TypeError):
                    fresh[id(value)] = weakref.ref(value)
                return value
            key, _ = self._large.setdefault(id(value), (uuid.uuid4().hex, value))
            shared[key] = value
            return Shared(key)

        light = copy.copy(batch)
        light.items = [
            (function, tuple(map(name, args)), {key: name(value) for key, value in kwargs.items()})
            for function, args, kwargs in batch.items
        ]
        self._seen = {key: seen for key, seen in {**self._seen, **fresh}.items() if seen() is not None}
        return light, shared

    def stop_call(self) -> None:
        """Release the arguments that the loop's calls shared, and the view of output."""
        self._large.clear()
        self._seen.clear()
        outlet, self._outlet = self._outlet, None
        if outlet is not None:
            outlet.leave()

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        """Return the results of a batch, or raise its exception."""
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancel the calls in flight after a failure or an interrupt."""
        with self._lock:
            calls, self._calls = list(self._calls), set()
        for call in calls:
            call.cancel()

    def get_nested_backend(self) -> tuple[Any, int | None]:
        """Return the sequential backend for a loop inside a batch.

        The machine of the batch's rank has many other ranks.
        """
        return SequentialBackend(nesting_level=(self.nesting_level or 0) + 1), None


def newest() -> Any:
    """Return the pool that loops run on; raise PoolError if there is none."""
    for pool in reversed(_pools):
        return pool
    raise PoolError("the pool that this parallel loop was for has ended; start one with the plugin joblib")


@contextlib.contextmanager
def serving(pool: Any) -> Iterator[None]:
    """Run parallel loops in the block on a pool, unless they name another backend."""
    with _changing:
        if not _pools:
            _undo.append(_set_backend())
        _pools.append(pool)
    try:
        yield
    finally:
        with _changing:
            _pools.remove(pool)
            if not _pools:
                _undo.pop()()


def _set_backend() -> Callable[[], None]:
    """Have all threads' loops use our backend; return what undoes it in any thread.

    This thread has it as a setting too: joblib follows ``prefer="threads"``, which forests of scikit-learn give, rather
    than the default, and a setting rather than that.
    """
    before = joblib.parallel.DEFAULT_BACKEND
    joblib.register_parallel_backend(NAME, PoolBackend, make_default=True)
    settings = joblib.parallel_config(backend=NAME)

    def undo() -> None:
        joblib.parallel.DEFAULT_BACKEND = before
        # Only the thread that made the settings could leave them; their values are shared.
        settings.parallel_config["backend"] = settings.old_parallel_config["backend"]

    return undo


def _call(batch: Any, find: Callable[[Any], Any]) -> Any:
    """Run a batch on a rank, with the values that its arguments name."""
    batch.items = [
        (function, tuple(map(find, args)), {key: find(value) for key, value in kwargs.items()})
        for function, args, kwargs in batch.items
    ]
    return batch()


def _size(value: Any) -> int:
    """Return the bytes of an array, table or sparse matrix; 0 for anything else."""
    if hasattr(value, "memory_usage"):
        with contextlib.suppress(Exception):
            return int(sum(value.memory_usage(index=False)))
    for part in (value, getattr(value, "data", None)):
        size = getattr(part, "nbytes", 0)
        if isinstance(size, int) and not isinstance(part, memoryview):
            return size
    return 0


def _drop_foreign_filters(batch: Any) -> None:
    """Drop warning filters of scikit-learn that name classes which nodes may lack."""
    for function, _, _ in getattr(batch, "items", ()):
        filters = getattr(function, "warning_filters", None)
        if filters is not None:
            function.warning_filters = [one for one in filters if _is_known(one[2])]


def _is_known(category: Any) -> bool:
    several = category if isinstance(category, tuple) else (category,)
    roots = {str(getattr(one, "__module__", "")).partition(".")[0] for one in several}
    return all(root in _KNOWN or root in sys.stdlib_module_names for root in roots)
