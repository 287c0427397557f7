"""An empty cell, to its last byte, on two nodes and on more: what everything else comes on top of."""

from __future__ import annotations

from collections.abc import Callable

from .engines import (
    BARE,
    IPP,
    IPP_MAGIC,
    IPP_NOTEBOOK,
    JD,
    MONARCH_NOTEBOOK,
    OURS,
    OURS_MAGIC,
    OURS_NOTEBOOK,
    Engine,
    live,
)
from .measure import Figures, Options, Row, by_turns, clock, rows

WARM = 20
# Nodes of one machine beyond two, and turns there.
MANY, QUICK_MANY = {8: 100, 32: 30}, {8: 30}


def measure(options: Options) -> list[Row]:
    """Ours through the manager, the magic and a whole notebook kernel, each beside its like."""
    found = [
        *group("x = 1", options, OURS, IPP, BARE),
        *group("x = 1, magic", options, OURS_MAGIC, IPP_MAGIC),
        *group("x = 1, notebook", options, OURS_NOTEBOOK, IPP_NOTEBOOK, JD),
    ]
    for nodes, turns in (QUICK_MANY if options.quick else MANY).items():
        what = f"x = 1, notebook, {nodes} nodes"
        found += group(what, options, OURS_NOTEBOOK, IPP_NOTEBOOK, JD, nodes=nodes, turns=turns)
        # A quick run installs no peer's environment: Monarch's is 5 GB.
        if not options.quick:
            what += ", against a call of actors in a cell"
            found += group(what, options, OURS_NOTEBOOK, MONARCH_NOTEBOOK, nodes=nodes, turns=turns, best=1.5)
    return found


def group(
    what: str, options: Options, ours: str, *peers: str, nodes: int = 2, turns: int | None = None, best: float = 1.0
) -> list[Row]:
    """Ours and its like, which alone live meanwhile."""
    with live(ours, *peers, nodes=nodes) as engines:
        jobs = {name: job(engine) for name, engine in engines.items()}
        by_turns(jobs, WARM if turns is None else turns // 10)
        samples = by_turns(jobs, turns or options.times(300, quick=60))
    return rows(what, samples, "ms", ours=ours, unit="ms", best=best)


def job(engine: Engine) -> Callable[[], Figures]:
    """One cell."""

    def run() -> Figures:
        figures: Figures = {}
        with clock(figures, "ms", 1000):
            engine.run("x = 1")
        return figures

    return run
