"""An empty cell on two nodes, to its last byte: what everything else comes on top of."""

from __future__ import annotations

from collections.abc import Callable

from .engines import BARE, IPP, IPP_MAGIC, IPP_NOTEBOOK, JD, OURS, OURS_MAGIC, OURS_NOTEBOOK, Engine, live
from .measure import Figures, Options, Row, by_turns, clock, rows

WARM = 20


def measure(options: Options) -> list[Row]:
    """Ours through the manager, the magic and a whole notebook kernel, each beside its like."""
    return [
        *group("x = 1", options, OURS, IPP, BARE),
        *group("x = 1, magic", options, OURS_MAGIC, IPP_MAGIC),
        *group("x = 1, notebook", options, OURS_NOTEBOOK, IPP_NOTEBOOK, JD),
    ]


def group(what: str, options: Options, ours: str, *peers: str) -> list[Row]:
    """Ours and its like, which alone live meanwhile."""
    with live(ours, *peers) as engines:
        jobs = {name: job(engine) for name, engine in engines.items()}
        by_turns(jobs, WARM)
        samples = by_turns(jobs, options.times(300, quick=60))
    return rows(what, samples, "ms", ours=ours, unit="ms", best=1.0)


def job(engine: Engine) -> Callable[[], Figures]:
    """One cell."""

    def run() -> Figures:
        figures: Figures = {}
        with clock(figures, "ms", 1000):
            engine.run("x = 1")
        return figures

    return run
