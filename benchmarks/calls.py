"""Small calls beside PyTorch Monarch's: wall and processor time, start, idle cost, processes, memory.

Monarch runs in an environment of its own, which is made on the first run (5 GB with torch's libraries). Where that
fails, a line says so, and there is nothing to set ours beside.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

from .measure import Figures, Options, Row, Samples, by_turns, rows
from .peer_script import Script, monarch_python, running

OURS, PEER = "sky_jupyter", "Monarch"
RANKS, QUICK_RANKS = (2, 8, 32), (2,)
SIZES = {"": 0, ", 1 KB": 1000, ", 1 MB": 1_000_000}
# Calls a turn, and of those with 1 MB each.
CALLS, LARGE_CALLS = 250, 25
IN_A_ROW = 5000
# Much of what an idle pool does, it does every few seconds.
_IDLE = 10.0
# What each job is called.
JOBS = {
    "one": "f(x) >> pool",
    "all": "f(x) @ pool",
    "futures": "f(x) > pool, all sent and then waited for",
    "gather": "sky.gather(*calls) >> pool, against its futures",
    "map": "pool.map, against its futures",
}


def measure(options: Options) -> list[Row]:
    """Ours and Monarch by turns, for each number of ranks."""
    monarch = monarch_python("calls")
    if monarch is None:
        return []
    pythons = {OURS: (Path(sys.executable), "sky_calls.py"), PEER: (monarch, "monarch_calls.py")}
    found: list[Row] = []
    for ranks in QUICK_RANKS if options.quick else RANKS:
        found += _with(ranks, pythons, options)
    return found


def _with(ranks: int, pythons: dict[str, tuple[Path, str]], options: Options) -> list[Row]:
    """Return the rows of one number of ranks."""
    starts = by_turns({name: (lambda given=given: _start(given, ranks)) for name, given in pythons.items()}, 1)
    with contextlib.ExitStack() as stack:
        sides = {name: Side(stack.enter_context(running(*given))) for name, given in pythons.items()}
        for name, side in sides.items():
            _add(starts, name, side.start(ranks))
        _warm(sides)
        samples = by_turns({name: side.turn for name, side in sides.items()}, options.times(8, quick=2))
        if not options.quick:
            rowed = by_turns({name: side.in_a_row for name, side in sides.items()}, 1)
            for name, figures in rowed.items():
                samples[name].update(figures)
        idle = by_turns({name: side.idle for name, side in sides.items()}, options.times(3, quick=1))
        for name, side in sides.items():
            _add(starts, name, side.end())
    return _rows(ranks, starts, samples, idle)


def _start(given: tuple[Path, str], ranks: int) -> Figures:
    """Start and end once, in a process of its own: each figure is of at least two starts."""
    with running(*given) as script:
        return {**script.start(ranks), **script.end()}


def _add(samples: Samples, name: str, figures: Figures) -> None:
    for what, value in figures.items():
        samples[name].setdefault(what, []).append(value)


def _warm(sides: dict[str, Side]) -> None:
    for side in sides.values():
        for job in JOBS:
            side.do(job, times=20, size=0)


def _rows(ranks: int, starts: Samples, samples: Samples, idle: Samples) -> list[Row]:
    """Return the rows, with what they are asked to be at most."""
    found = rows(f"{ranks} ranks: start, first call to all included", starts, "start", ours=OURS, best=1.0)
    found += rows(f"{ranks} ranks: end", starts, "end", ours=OURS, best=1.0)
    for figure in samples[OURS]:
        is_cpu = "processor" in figure
        best = None if "notebook" in figure else 1.5 if is_cpu else 1.0
        found += rows(f"{ranks} ranks: {figure}", samples, figure, ours=OURS, unit="ms", best=best)
    for figure, unit in {"idle, a second": "ms", "memory (PSS)": "MB", "processes": "processes"}.items():
        # An idle pool is asked to cost a millisecond a second and rank.
        most = float(ranks) if unit == "ms" else ranks + 4.0 if unit == "processes" else None
        found += rows(f"{ranks} ranks: {figure}", idle, figure, ours=OURS, unit=unit, most=most)
    return found


class Side:
    """One of the two: the script that makes its calls."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.do, self.start, self.end = script.do, script.start, script.end

    def turn(self) -> Figures:
        """Make so many calls of each kind; return milliseconds a call."""
        figures: Figures = {}
        for job, text in JOBS.items():
            for size, number in SIZES.items() if job in ("one", "all") else {"": 0}.items():
                self._calls(figures, f"{text}{size}", job, LARGE_CALLS if number > 1000 else CALLS, number)
        return figures

    def in_a_row(self) -> Figures:
        """Make thousands of calls in a row, and in flight."""
        figures: Figures = {}
        for job in ("one", "futures"):
            self._calls(figures, f"{JOBS[job]}, {IN_A_ROW:,}", job, IN_A_ROW, 0)
        return figures

    def _calls(self, figures: Figures, text: str, job: str, times: int, size: int) -> None:
        before = self._script.spent()
        took = self._script.do(job, times=times, size=size)
        after = self._script.spent()
        figures[text] = took / times * 1e3
        for whose, seconds in after.items():
            figures[f"{text}: processor time{whose}"] = (seconds - before[whose]) / times * 1e3

    def idle(self) -> Figures:
        """Look at what nothing costs, and at the memory and processes."""
        before = self._script.spent()[""]
        time.sleep(_IDLE)
        spent = (self._script.spent()[""] - before) / _IDLE
        family = self._script.family()
        memory = sum(one.memory_full_info().pss for one in family) / 1e6
        return {"idle, a second": spent * 1e3, "memory (PSS)": memory, "processes": float(len(family))}
