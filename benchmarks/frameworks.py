"""A pool with jax and keras until it is ready, and until it is back, beside two processes started by hand."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from . import fresh
from .measure import Figures, Options, Row, by_turns, clock, rows

OURS = "sky_jupyter"
BY_HAND = "2 processes by hand"
# By hand each imports the frameworks, in a pool its forkserver does for all.
MORE = (4, 8)
PLUGINS = ("jax", "keras")
TOGETHER = "import jax; assert jax.process_count() == 2; jax.experimental.multihost_utils.sync_global_devices('on')"
PATIENCE = 60.0


def measure(options: Options) -> list[Row]:
    """Start, restart, and the time from the kill of a rank to the end of the next cell."""
    jobs = {OURS: lambda: fresh.call("frameworks", "ours"), BY_HAND: lambda: fresh.call("frameworks", "by_hand")}
    samples = by_turns(jobs, options.times(5, quick=1))
    # By hand there is but one way to be back: to start anew.
    for again in ("restart", "kill"):
        samples[BY_HAND][again] = samples[BY_HAND]["ready"]
    found = [
        *rows("jax, keras on 2 nodes ready", samples, "ready", ours=OURS, best=1.0),
        *rows("all ranks restarted", samples, "restart", ours=OURS, most=2.0),
        *rows("a rank killed, next cell done", samples, "kill", ours=OURS, most=2.0),
    ]
    for ranks in () if options.quick else MORE:
        alone = {OURS: lambda n=ranks: fresh.call("frameworks", "start", ranks=n)}
        alone[f"{ranks} processes by hand"] = lambda n=ranks: fresh.call("frameworks", "by_hand", ranks=n)
        started = by_turns(alone, options.times(3, quick=1))
        found += rows(f"jax, keras on {ranks} nodes ready", started, "ready", ours=OURS, best=0.9)
    return found


def ours() -> Figures:
    """Start a pool, restart it, kill a rank of it; called in a process of its own."""
    fresh.like_a_notebook()
    figures: Figures = {}
    from .engines import Ours

    subject = Ours()
    with clock(figures, "ready"):
        subject.start(2, PLUGINS)
    try:
        subject.run(TOGETHER)
        with clock(figures, "restart"):
            subject.pool.restart()
        subject.run(TOGETHER)
        os.kill(subject.pool.status()[1]["ranks"][1]["pid"], signal.SIGKILL)
        with clock(figures, "kill"):
            until_it_works(lambda: subject.run(TOGETHER), subject.pool.settle)
    finally:
        subject.close()
    return figures


def until_it_works(cell: Callable[[], object], settle: Callable[[], None]) -> None:
    """Run a cell as often as it takes: one that meets the dead rank fails, and the next one works."""
    from sky_jupyter.pool.runs.result import CellError

    end = time.monotonic() + PATIENCE
    while True:
        settle()
        try:
            cell()
        except CellError:
            if time.monotonic() > end:
                raise
        else:
            return


def start(ranks: int) -> Figures:
    """Start a pool of so many nodes, and end it; called in a process of its own."""
    fresh.like_a_notebook()
    figures: Figures = {}
    from .engines import Ours

    subject = Ours()
    with clock(figures, "ready"):
        subject.start(ranks, PLUGINS)
    subject.close()
    return figures


def by_hand(ranks: int = 2) -> Figures:
    """Processes until they have met; called in a process of its own."""
    from .byhand import ByHand

    figures: Figures = {}
    with clock(figures, "ready"):
        processes = ByHand(ranks)
    processes.close()
    return figures
