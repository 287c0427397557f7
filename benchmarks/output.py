"""Two ranks that print, to the last byte: 100,000 lines each, lines flushed one by one, and progress bars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .engines import BARE, IPP, OURS, live
from .measure import Figures, Options, Row, by_turns, clock, rows

LINES = 100_000
QUICK_LINES = 20_000
# Lines that are flushed one by one, and steps of a bar that is drawn at each: both cost a message each.
FLUSHED = 5_000
BAR = """
from tqdm import tqdm
for _ in tqdm(range({count}), mininterval=0):
    pass
"""


def measure(options: Options) -> list[Row]:
    """Time, lines and bytes a second, and lines lost, beside each peer."""
    lines, times = QUICK_LINES if options.quick else LINES, options.times(5, quick=1)
    with live(OURS, IPP, BARE) as engines:
        plain = by_turns({name: job(engine, lines) for name, engine in engines.items()}, times)
        flushed = by_turns({name: job(engine, FLUSHED, ", flush=True") for name, engine in engines.items()}, times)
        bars = by_turns({name: bar(engine, FLUSHED) for name, engine in engines.items()}, times)
    what = f"{lines:,} lines on each of 2 ranks"
    return [
        *rows(what, plain, "s", ours=OURS, best=1.0),
        *rows(f"{what}: lines a second", plain, "rate", ours=OURS, unit="lines/s"),
        *rows(f"{what}: bytes a second", plain, "bytes", ours=OURS, unit="MB/s"),
        *rows(f"{what}: lost", plain, "lost", ours=OURS, unit="lines", most=0),
        *rows(f"{FLUSHED:,} flushed lines on each of 2 ranks", flushed, "s", ours=OURS, best=1.2),
        *rows(f"{FLUSHED:,} steps of a tqdm bar on each of 2 ranks", bars, "s", ours=OURS, best=1.2),
    ]


def job(engine: Any, lines: int, options: str = "") -> Callable[[], Figures]:
    """One cell that prints lines, with these options of `print`."""

    def run() -> Figures:
        figures: Figures = {}
        with clock(figures, "s"):
            said = engine.run(f"for i in range({lines}): print('line', i{options})")
        _take_off_waits(engine, figures)
        want = "".join(f"line {i}\n" for i in range(lines))
        figures["rate"] = 2 * lines / figures["s"]
        figures["bytes"] = 2 * len(want) / figures["s"] / 1e6
        figures["lost"] = sum(lines - text.count("\n") for text in said)
        if not figures["lost"] and any(text != want for text in said):
            raise RuntimeError("every line came, but not in order")
        return figures

    return run


def bar(engine: Any, count: int) -> Callable[[], Figures]:
    """One cell that draws a progress bar at each of its steps."""

    def run() -> Figures:
        figures: Figures = {}
        with clock(figures, "s"):
            engine.run(BAR.format(count=count))
        _take_off_waits(engine, figures)
        return figures

    return run


def _take_off_waits(engine: Any, figures: Figures) -> None:
    """Take off what was spent on making sure that nothing more comes, where lines were lost."""
    kernels = getattr(engine, "kernels", None)
    if kernels is not None and kernels.lost:
        from .kernels import QUIET

        figures["s"] -= QUIET
