"""The same training in a cell and in two processes by hand, from the first step to the last.

Two per cent are less than what two starts of the same program differ by on a shared machine. So both
jobs are started once and train in many short turns, each rank on a processor that the same rank of
the other job has too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from .byhand import ByHand
from .engines import Ours
from .measure import Figures, Options, Row, by_turns, rows

OURS = "in a cell"
BY_HAND = "2 processes by hand"
SCRIPT = Path(__file__).resolve().parent / "scripts" / "digits.py"
PREPARE = "import sky_jupyter as sky; me = sky.instance_info(); train = prepared(me.rank, me.world_size)"
RANKS = 2
SECONDS = 0.5
TURNS, QUICK_TURNS = 200, 10
# What each job does before it counts, beyond what compiles.
WARM_TURNS = 3


def measure(options: Options) -> list[Row]:
    """Both jobs live side by side and train by turns; while one does, the other only waits."""
    pool = Ours()
    pool.start(RANKS, ("jax", "keras"))
    try:
        pool.run(f"{SCRIPT.read_text()}\n{PREPARE}")
        by_hand = ByHand(RANKS)
        try:
            states = pool.pool.status()
            for pids in ([states[rank]["ranks"][rank]["pid"] for rank in range(RANKS)], by_hand.pids):
                pin(pids)
            epochs = calibrated(by_hand)
            jobs = {OURS: lambda: figures(in_cell(pool, epochs)), BY_HAND: lambda: figures(by_hand.train(epochs))}
            by_turns(jobs, WARM_TURNS)
            samples = by_turns(jobs, options.times(TURNS, quick=QUICK_TURNS))
        finally:
            by_hand.close()
    finally:
        pool.close()
    what = f"{epochs} epochs of Keras on {RANKS} ranks"
    return [
        *rows(f"{what}, wall", samples, "wall", ours=OURS, best=1.02, sure=True),
        *rows(f"{what}, processor time", samples, "processor", ours=OURS, best=1.02, sure=True),
    ]


def figures(took: Iterable[tuple[float, float]]) -> Figures:
    """A turn's figures: the time of the slowest rank, and the processor time of all."""
    wall, processor = zip(*took, strict=True)
    return {"wall": max(wall), "processor": sum(processor)}


def in_cell(pool: Ours, epochs: int) -> list[tuple[float, float]]:
    """Train in a cell; each rank's seconds, on the clock and on processors."""
    lines = [line for text in pool.run(f"print(); print('took', *train({epochs}))") for line in text.splitlines()]
    words = [line.split() for line in lines if line.startswith("took")]
    assert len(words) == RANKS, lines
    return [(float(wall), float(processor)) for _, wall, processor in words]


def calibrated(by_hand: ByHand) -> int:
    """The epochs that take about as long as a turn on this machine."""
    few = 4
    took = min(max(wall for wall, _ in by_hand.train(few)) for _ in range(WARM_TURNS))
    return max(1, round(few * SECONDS / took))


def pin(pids: Iterable[int]) -> None:
    """Have each process, with the threads that it has, run on one processor of its own, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        return
    processors = sorted(os.sched_getaffinity(0))
    for rank, pid in enumerate(pids):
        for thread in os.listdir(f"/proc/{pid}/task"):
            # A thread may have ended meanwhile. Those that it starts later stay with it.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), {processors[rank % len(processors)]})
