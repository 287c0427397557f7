"""The plugin `joblib`: threads whose loops its pools run, and when they no longer do."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from joblib import Parallel, delayed
from joblib.parallel import get_active_backend

import sky_jupyter as sky
from sky_jupyter.plugins.joblib.backend import PoolBackend
from sky_jupyter.pool.pool import Pool
from sky_jupyter.providers import Local
from sky_jupyter.spec.pool_spec import PoolSpec


def in_thread(work: Callable[[], Any]) -> Any:
    """What a function returns in a thread of its own."""
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.append(work()))
    thread.start()
    thread.join()
    return done[0]


def where() -> set[int]:
    return set(Parallel(n_jobs=2)(delayed(os.getpid)() for _ in range(2)))


def backend() -> type:
    return type(get_active_backend()[0])


def hinted() -> type:
    return type(get_active_backend(prefer="threads")[0])


def test_all_threads_use_a_pool_and_none_does_once_another_thread_has_ended_it() -> None:
    before, hinted_before = backend(), hinted()
    pool = Pool(PoolSpec(provider=Local(), nodes=1, plugins=(sky.plugins.joblib(),)))
    pool.start()
    try:
        assert where() == in_thread(where) != {os.getpid()}
        assert hinted() is PoolBackend
    finally:
        in_thread(pool.down)
    assert (backend(), hinted()) == (in_thread(backend), in_thread(hinted)) == (before, hinted_before)
