"""Two ranks that print 100,000 lines each, to the last byte, and how many lines come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .engines import BARE, IPP, OURS, live
from .measure import Figures, Options, Row, by_turns, clock, rows

LINES = 100_000
QUICK_LINES = 20_000


def measure(options: Options) -> list[Row]:
    """Time, and lines lost, beside each peer."""
    lines = QUICK_LINES if options.quick else LINES
    with live(OURS, IPP, BARE) as engines:
        samples = by_turns({name: job(engine, lines) for name, engine in engines.items()}, options.times(3, quick=1))
    what = f"{lines:,} lines on each of 2 ranks"
    return [
        *rows(what, samples, "s", ours=OURS),
        *rows(f"{what}: lost", samples, "lost", ours=OURS, unit="lines", most=0),
    ]


def job(engine: Any, lines: int) -> Callable[[], Figures]:
    """One such cell."""

    def run() -> Figures:
        figures: Figures = {}
        with clock(figures, "s"):
            said = engine.run(f"for i in range({lines}): print('line', i)")
        kernels = getattr(engine, "kernels", None)
        if kernels is not None and kernels.lost:
            from .kernels import QUIET

            figures["s"] -= QUIET  # spent on making sure that nothing more comes
        want = "".join(f"line {i}\n" for i in range(lines))
        figures["lost"] = sum(lines - text.count("\n") for text in said)
        if not figures["lost"] and any(text != want for text in said):
            raise RuntimeError("every line came, but not in order")
        return figures

    return run
