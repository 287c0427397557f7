"""One large array on four local ranks: the first time, again unchanged, and the memory in all, at its highest too."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from . import fresh, peak
from .engines import BARE, DASK, ENGINES, IPP, OURS, there
from .measure import Figures, Options, Row, by_turns, clock, rows

RANKS = 4
MEGABYTES = 1000
QUICK_MEGABYTES = 256
# Dask takes a minute for what others do in seconds.
_PATIENCE = 400.0


def measure(options: Options) -> list[Row]:
    """Ours, ipyparallel's push, Dask's scatter, and a pickle in a file that bare kernels load."""
    megabytes = QUICK_MEGABYTES if options.quick else MEGABYTES
    names = there(OURS, IPP, DASK, BARE)
    samples = by_turns({name: job("once", name, megabytes) for name in names}, options.times(3, quick=1))
    # By itself: to look at memory all the time takes time.
    highest = by_turns({name: job("highest", name, megabytes) for name in names}, options.times(1, quick=1))
    what, whole = f"{megabytes} MB to {RANKS} ranks", not options.quick
    return [
        *rows(what, samples, "first", ours=OURS, most=1.0 if whole else None),
        *rows(f"{what}: again, unchanged", samples, "again", ours=OURS, most=0.2 if whole else None),
        *rows(f"{what}: every rank adds it up", samples, "sum", ours=OURS),
        # What a rank needs besides, to load and add up anything, is not the array's.
        *rows(f"{what}: memory of the ranks", samples, "ranks", ours=OURS, unit="MB", most=1.02 * megabytes),
        *rows(f"{what}: memory of all processes", samples, "all", ours=OURS, unit="MB"),
        *rows(f"{what}: the same at its highest", highest, "peak", ours=OURS, unit="MB"),
    ]


def job(function: str, engine: str, megabytes: int) -> Callable[[], Figures]:
    """One of the functions below with an engine, in a process of its own."""
    return lambda: fresh.call("array", function, _PATIENCE, engine=engine, megabytes=megabytes)


def once(engine: str, megabytes: int) -> Figures:
    """Send the array twice; called in a process of its own."""
    import numpy

    value = numpy.random.default_rng(0).random(megabytes * 1_000_000 // 8)
    fresh.like_a_notebook()
    figures: Figures = {}
    subject = ENGINES[engine]()
    subject.start(RANKS)
    try:
        ranks = [int(pid) for text in subject.run("import os, numpy; print(os.getpid())") for pid in text.split()]
        subject.send(value[:1000], "float(value.sum())")  # first uses of everything
        ranks_before, all_before = memory(ranks), memory(family())
        with clock(figures, "first"):
            subject.send(value, "last = float(value[-1])")
        with clock(figures, "again"):
            subject.send(value, "last = float(value[-1])")
        with clock(figures, "sum"):
            subject.run("total = float(value.sum())")
        # Only now has every rank touched all of it: a page that nobody has touched is in no process's memory.
        figures["ranks"] = memory(ranks) - ranks_before
        figures["all"] = memory(family()) - all_before
    finally:
        subject.close()
    return figures


def highest(engine: str, megabytes: int) -> Figures:
    """The same cells, and what the memory of all processes grew by at most meanwhile; in a process of its own."""
    import numpy

    value = numpy.random.default_rng(0).random(megabytes * 1_000_000 // 8)
    fresh.like_a_notebook()
    subject = ENGINES[engine]()
    subject.start(RANKS)
    try:
        subject.run("import numpy")
        subject.send(value[:1000], "float(value.sum())")
        with peak.watching() as watch:
            subject.send(value, "last = float(value[-1])")
            subject.send(value, "last = float(value[-1])")
            subject.run("total = float(value.sum())")
        return {"peak": watch.grown}
    finally:
        subject.close()


def memory(pids: Iterable[int]) -> float:
    """The proportional set size of processes in MB: what they share is counted once."""
    kilobytes = 0
    for pid in pids:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
        kilobytes += int(found[1]) if found else 0
    return kilobytes * 1024 / 1e6


def family() -> list[int]:
    """This process and all that it has started."""
    this = psutil.Process()
    return [this.pid, *(child.pid for child in this.children(recursive=True))]
