"""Thousands of small cells, one after the other: what the memory of each side grows by."""

from __future__ import annotations

import time

import psutil

from . import fresh
from .engines import ENGINES, IPP, OURS, OURS_MAGIC, there
from .measure import Figures, Options, Row, by_turns, rows

NODES = 2
CELLS, QUICK_CELLS = 10_000, 100
_PATIENCE = 900.0


def measure(options: Options) -> list[Row]:
    """Ours through the manager and through the magic, and ipyparallel; by turns, one turn unless asked."""
    cells = QUICK_CELLS if options.quick else CELLS
    jobs = {
        name: (lambda name=name: fresh.call("many", "run", _PATIENCE, engine=name, cells=cells))
        for name in there(OURS, OURS_MAGIC, IPP)
    }
    samples = by_turns(jobs, options.times(1, quick=1))
    what, half = f"{cells:,} small cells", f"from cell {cells // 10:,} to {cells // 2:,}"
    rest = f"from {cells // 2:,} to {cells:,}"
    found = []
    for side, text in {"here": "the notebook's process", "there": "all others"}.items():
        found += rows(f"{what}: growth of {text} {half}", samples, f"{side}, half", ours=OURS, unit="MB")
        # What is left over in a heap is no growth; a byte kept of each cell would be.
        most = None if options.quick else 2.0
        found += rows(f"{what}: {rest}", samples, f"{side}, rest", ours=OURS, unit="MB", most=most)
    return [*found, *rows(f"{what}: time", samples, "s", ours=OURS)]


def run(engine: str, cells: int) -> Figures:
    """Run them, and look at the memory after a tenth, a half and all; called in a process of its own."""
    fresh.like_a_notebook()
    subject = ENGINES[engine]()
    subject.start(NODES)
    looks: list[dict[str, float]] = []
    try:
        began = time.perf_counter()
        for number in range(1, cells + 1):
            # Each is another one, as a person's are.
            subject.run(f"x = {number}")
            if number in (cells // 10, cells // 2, cells):
                looks.append(private())
        took = time.perf_counter() - began
    finally:
        subject.close()
    figures: Figures = {"s": took}
    for name, (before, after) in {"half": looks[:2], "rest": looks[1:]}.items():
        figures.update({f"{side}, {name}": after[side] - before[side] for side in before})
    return figures


def private() -> dict[str, float]:
    """Megabytes that this process, and all that it has started, have for themselves (USS)."""
    this = psutil.Process()
    others = sum(child.memory_full_info().uss for child in this.children(recursive=True))
    return {"here": this.memory_full_info().uss / 1e6, "there": others / 1e6}
