"""Small calls beside PyTorch Monarch's: wall and processor time, start, idle cost, processes, memory.

Monarch runs in an environment of its own, which is made on the first run (5 GB with torch's libraries). Where that
fails, a line says so, and there is nothing to set ours beside.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from .fresh import ROOT, end_with_children
from .measure import Figures, Options, Row, Samples, by_turns, rows

MONARCH = "torchmonarch==0.7.0"
MONARCH_ENVIRONMENT = ROOT / "artifacts" / "monarch"
OURS, PEER = "sky_jupyter", "Monarch"
RANKS, QUICK_RANKS = (2, 8, 32), (2,)
SIZES = {"": 0, ", 1 KB": 1000, ", 1 MB": 1_000_000}
# Calls a turn, and of those with 1 MB each.
CALLS, LARGE_CALLS = 250, 25
IN_A_ROW = 5000
_IDLE = 3.0
_MARK = "SKY_BENCHMARK_MARK"
_SCRIPTS = Path(__file__).resolve().parent / "scripts"
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
    monarch = monarch_python()
    if monarch is None:
        return []
    pythons = {OURS: (sys.executable, "sky_calls.py"), PEER: (str(monarch), "monarch_calls.py")}
    found: list[Row] = []
    for ranks in QUICK_RANKS if options.quick else RANKS:
        found += _with(ranks, pythons, options)
    return found


def _with(ranks: int, pythons: dict[str, tuple[str, str]], options: Options) -> list[Row]:
    """Return the rows of one number of ranks."""
    starts = by_turns({name: (lambda given=given: _start(given, ranks)) for name, given in pythons.items()}, 1)
    with contextlib.ExitStack() as stack:
        sides = {name: stack.enter_context(_side(given)) for name, given in pythons.items()}
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


def _start(given: tuple[str, str], ranks: int) -> Figures:
    """Start and end once, in a process of its own: each figure is of at least two starts."""
    with _side(given) as side:
        return {**side.start(ranks), **side.end()}


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
    """One of the two: the script that makes its calls, and the processes that belong to it."""

    def __init__(self, process: subprocess.Popen[str], mark: str) -> None:
        self._process = process
        self._mark = mark

    def do(self, job: str, **given: Any) -> float:
        """Have the script do a job; return the seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": job, **given}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args} ended with status {self._process.wait()}; it says why above")
        return float(json.loads(line)["s"])

    def start(self, ranks: int) -> Figures:
        """Start the ranks."""
        return {"start": self.do("start", ranks=ranks)}

    def end(self) -> Figures:
        """End the ranks, until no process is left but the script's."""
        began = time.perf_counter()
        self.do("end")
        while len(self._family()) > 1 and time.perf_counter() - began < 60:
            time.sleep(0.02)
        return {"end": time.perf_counter() - began}

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
        before = self._spent()
        took = self.do(job, times=times, size=size)
        after = self._spent()
        figures[text] = took / times * 1e3
        for whose, seconds in after.items():
            figures[f"{text}: processor time{whose}"] = (seconds - before[whose]) / times * 1e3

    def idle(self) -> Figures:
        """Look at what nothing costs, and at the memory and processes."""
        before = self._spent()[""]
        time.sleep(_IDLE)
        spent = (self._spent()[""] - before) / _IDLE
        family = self._family()
        memory = sum(one.memory_full_info().pss for one in family) / 1e6
        return {"idle, a second": spent * 1e3, "memory (PSS)": memory, "processes": float(len(family))}

    def _spent(self) -> dict[str, float]:
        """Return the processor time of all processes, and of the notebook's alone."""
        spent = {"": 0.0, " of the notebook": 0.0}
        for one in self._family():
            with contextlib.suppress(psutil.Error):
                times = one.cpu_times()
                spent[""] += times.user + times.system
                if one.pid == self._process.pid:
                    spent[" of the notebook"] = times.user + times.system
        return spent

    def _family(self) -> list[psutil.Process]:
        """Return the script's process and all that was started by it, whoever has adopted that."""
        found = []
        for one in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if one.environ().get(_MARK) == self._mark and one.status() != psutil.STATUS_ZOMBIE:
                    found.append(one)
        return found


@contextlib.contextmanager
def _side(given: tuple[str, str]) -> Iterator[Side]:
    """Start a script in a process of its own; nothing of it is left."""
    python, script = given
    mark = uuid.uuid4().hex
    environment = {**os.environ, _MARK: mark}
    if python == sys.executable:
        environment["PYTHONPATH"] = str(ROOT)
    process = subprocess.Popen(
        [python, script],
        cwd=_SCRIPTS,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # What they say of their start would be between the rows; an error is told.
        stderr=None if os.environ.get("SKY_BENCHMARK_TALK") else subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        yield Side(process, mark)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)
    finally:
        end_with_children(process)


def monarch_python() -> Path | None:
    """Return the Python of Monarch's environment, which is made where there is none; None where that fails."""
    python = MONARCH_ENVIRONMENT / "bin" / "python"
    uv = Path(sys.executable).with_name("uv")
    install = ["pip", "install", "--quiet", "--python", str(python), "--constraints", str(ROOT / "constraints.txt")]
    steps = (["venv", "--quiet", "--allow-existing", "--python", sys.executable, str(MONARCH_ENVIRONMENT)],)
    for step in (*steps, [*install, MONARCH, "torch", "numpy"]):
        done = subprocess.run([uv, *step], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            print(f"calls: left out, as {MONARCH} cannot be installed here: {reason}", file=sys.stderr)
            return None
    return python
