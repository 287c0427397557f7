"""One large array on four local ranks: the first time, again unchanged, and the memory in all."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import psutil

from . import fresh
from .engines import BARE, ENGINES, IPP, OURS, there
from .measure import Figures, Options, Row, by_turns, clock, rows

RANKS = 4
MEGABYTES = 1000
QUICK_MEGABYTES = 256


def measure(options: Options) -> list[Row]:
    """Ours, ipyparallel's push, and a pickle in a file that bare kernels load."""
    megabytes = QUICK_MEGABYTES if options.quick else MEGABYTES
    jobs = {
        name: (lambda name=name: fresh.call("array", "once", engine=name, megabytes=megabytes))
        for name in there(OURS, IPP, BARE)
    }
    samples = by_turns(jobs, options.times(3, quick=1))
    what, whole = f"{megabytes} MB to {RANKS} ranks", not options.quick
    return [
        *rows(what, samples, "first", ours=OURS, most=1.0 if whole else None),
        *rows(f"{what}: again, unchanged", samples, "again", ours=OURS, most=0.2 if whole else None),
        *rows(f"{what}: every rank adds it up", samples, "sum", ours=OURS),
        # What a rank needs besides, to load and add up anything, is not the array's.
        *rows(f"{what}: memory of the ranks", samples, "ranks", ours=OURS, unit="MB", most=1.02 * megabytes),
        *rows(f"{what}: memory of all processes", samples, "all", ours=OURS, unit="MB"),
    ]


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
