"""An empty cell on two nodes, to its last byte: what everything else comes on top of."""

from __future__ import annotations

from collections.abc import Callable

from .engines import BARE, IPP, IPP_MAGIC, IPP_NOTEBOOK, JD, OURS, OURS_MAGIC, OURS_NOTEBOOK, Engine, live
from .measure import Figures, Options, Row, by_turns, clock, rows

WARM = 20


def measure(options: Options) -> list[Row]:
    """Ours through the manager, the magic and a whole notebook kernel, each beside its like."""
    with live(OURS, OURS_MAGIC, OURS_NOTEBOOK, IPP, IPP_MAGIC, IPP_NOTEBOOK, BARE, JD) as engines:
        jobs = {name: job(engine) for name, engine in engines.items()}
        by_turns(jobs, min(WARM, options.times(WARM, quick=WARM)))
        samples = by_turns(jobs, options.times(300, quick=60))
    return [
        *rows("x = 1", samples, "ms", ours=OURS, unit="ms", peers=(IPP, BARE), best=1.0),
        *rows("x = 1, magic", samples, "ms", ours=OURS_MAGIC, unit="ms", peers=(IPP_MAGIC,), best=1.0),
        *rows("x = 1, notebook", samples, "ms", ours=OURS_NOTEBOOK, unit="ms", peers=(IPP_NOTEBOOK, JD), best=1.0),
    ]


def job(engine: Engine) -> Callable[[], Figures]:
    """One cell."""

    def run() -> Figures:
        figures: Figures = {}
        with clock(figures, "ms", 1000):
            engine.run("x = 1")
        return figures

    return run
