"""Pools for tests, and how to run a cell on one without a notebook."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sky_jupyter.capture.collect import collect
from sky_jupyter.plugins import Plugin
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.result import CellResult
from sky_jupyter.pool.runs.run import Run
from sky_jupyter.providers import Local
from sky_jupyter.spec.pool_spec import Image, PoolSpec


@contextmanager
def local_pool(
    nodes: int = 2, ranks_per_node: int = 1, plugins: tuple[Plugin, ...] = (), **more: Any
) -> Iterator[Pool]:
    """A started pool of local nodes, ended afterwards."""
    spec = PoolSpec(provider=Local(), nodes=nodes, ranks_per_node=ranks_per_node, plugins=plugins, **more)
    pool = Pool(spec)
    pool.start()
    try:
        yield pool
    finally:
        pool.down()


def begin(pool: Pool, code: str, namespace: dict[str, Any] | None = None, **options: Any) -> Run:
    """Start a cell with what it needs of a namespace."""
    capture = collect(code, {} if namespace is None else namespace, pool.ledger)
    return pool.submission.begin_cell(code, capture, **options)


def run(pool: Pool, code: str, namespace: dict[str, Any] | None = None, **options: Any) -> CellResult:
    """Run a cell to its end."""
    return pool.attend(begin(pool, code, namespace, **options))


def underway(pool: Pool, code: str, **options: Any) -> Run:
    """Start a cell, and wait until each of its ranks is at it."""
    current = begin(pool, f"print('at it', flush=True)\n{code}", **options)
    wait_until(lambda: all("at it" in "".join(outcome.stdout) for outcome in current.outcomes.values()))
    return current


def asks_directly(thread: threading.Thread) -> bool:
    """Return whether a thread is in a request to the scheduler's socket."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_filename.endswith("direct_requests.py")


def wait_until(holds: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for what is to come about by itself."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


__all__ = ["Image", "asks_directly", "begin", "local_pool", "run", "underway", "wait_until"]
