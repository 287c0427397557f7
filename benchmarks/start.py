"""Two nodes from nothing to the end of the first cell, each time in a fresh process."""

from __future__ import annotations

from . import fresh
from .engines import BARE, ENGINES, IPP_100, IPP_DEFAULT, JD, OURS, OURS_MAGIC, there
from .measure import Figures, Options, Row, by_turns, clock, rows


def measure(options: Options) -> list[Row]:
    """Time until ready, and until the first cell is done, beside each peer."""
    names = there(OURS_MAGIC, OURS, IPP_DEFAULT, IPP_100, JD, BARE)
    jobs = {name: (lambda name=name: fresh.call("start", "once", engine=name)) for name in names}
    samples = by_turns(jobs, options.times(3, quick=1))
    return [
        *rows("2 nodes ready", samples, "ready", ours=OURS_MAGIC, most=2.0),
        *rows("2 nodes ready, first cell done", samples, "first", ours=OURS_MAGIC),
    ]


def once(engine: str) -> Figures:
    """Start an engine and run its first cell; called in a process of its own."""
    fresh.like_a_notebook()
    figures: Figures = {}
    subject = ENGINES[engine]()
    with clock(figures, "first"):
        with clock(figures, "ready"):
            subject.start(2)
        try:
            subject.run("x = 1")
        except BaseException:
            subject.close()
            raise
    subject.close()
    return figures
