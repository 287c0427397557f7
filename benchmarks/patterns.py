"""The programs of docs/calls.md as wholes: on two local ranks, in ours, Monarch, Ray and Dask, by turns."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from .measure import Figures, Options, Row, by_turns, rows
from .peer_script import Script, monarch_python, own_python, running

RAY = "ray==2.60.0"
OURS = "sky_jupyter"
RANKS = 2
# How often each is done in a turn: a generation, an evaluation, a sweep, a run of the server.
JOBS = {"rollouts": 20, "evaluation": 20, "sweep": 3, "server": 1}


def measure(options: Options) -> list[Row]:
    """All programs by turns; peers that cannot be installed are left out."""
    here = Path(sys.executable)
    given = {OURS: (here, "sky_patterns.py"), "Dask": (here, "dask_patterns.py")}
    for name, python, script in (
        ("Monarch", monarch_python("patterns"), "monarch_patterns.py"),
        ("Ray", own_python("patterns", "ray", RAY), "ray_patterns.py"),
    ):
        if python is not None:
            given[name] = (python, script)
    with contextlib.ExitStack() as stack:
        scripts = {name: stack.enter_context(running(*how)) for name, how in given.items()}
        for script in scripts.values():
            script.start(RANKS)
            # The first of each loads what it needs.
            for job in JOBS:
                script.do(job, times=1, size=0)
        turns = {name: (lambda script=script: _turn(script)) for name, script in scripts.items()}
        samples = by_turns(turns, options.times(8, quick=2))
        for script in scripts.values():
            script.end()
    found: list[Row] = []
    for figure in samples[OURS]:
        best = None if "processor" in figure else 1.0
        found += rows(figure, samples, figure, ours=OURS, unit="ms", best=best)
    return found


def _turn(script: Script) -> Figures:
    """Return the milliseconds of each program."""
    figures: Figures = {}
    for job, times in JOBS.items():
        before = script.spent()[""]
        figures[job] = script.do(job, times=times, size=0) * 1e3
        figures[f"{job}: processor time"] = (script.spent()[""] - before) * 1e3
    return figures
