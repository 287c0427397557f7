"""``%sky up --timings``: where a start spent its time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..pool.base.phases import StartTiming

_HEAD = ("at", "took", "what")
# Shorter parts would be shown as 0.00 seconds.
_SHORTEST = 0.005
# Number of nodes that are shown in a phase, the slowest ones.
_MOST_NODES = 8


def table(timings: Sequence[StartTiming], whole: tuple[float, float] | None = None) -> str:
    """Return a table of a start's parts in order of their start times, in seconds.

    Parameters
    ----------
    timings : sequence of StartTiming
        As `PhaseLog.timings` gives them.
    whole : tuple of float, optional
        When the command began and ended (``time.time()``). Without it, the table spans the phases.

    Returns
    -------
    str
        A line for each part; the time between two phases has a line too.
    """
    if not timings:
        return "this notebook did not start the pool: it does not know where the time went"
    last = max(one.at + one.elapsed for one in timings if not one.level)
    began, ended = whole or (timings[0].at, last)
    rows = [(f"{at - began:.2f}", f"{took:.2f}", text) for at, took, text in _rows(timings, began, ended)]
    rows.append((f"{ended - began:.2f}", "", "ready"))
    widths = [max(len(row[column]) for row in [_HEAD, *rows]) for column in range(2)]
    return "\n".join(
        f"{at.rjust(widths[0])}  {took.rjust(widths[1])}  {text}".rstrip() for at, took, text in [_HEAD, *rows]
    )


def _rows(timings: Sequence[StartTiming], began: float, ended: float) -> Iterator[tuple[float, float, str]]:
    """Yield begin, duration and text of each line."""
    until, nodes = began, 0
    for one in timings:
        if one.level == 2:
            nodes += 1
            if nodes <= _MOST_NODES:
                yield one.at, one.elapsed, f"    {one.text}"
            continue
        if one.level == 1:
            if one.elapsed >= _SHORTEST:
                yield one.at, one.elapsed, f"  {one.text}"
            continue
        if one.at - until >= _SHORTEST:
            yield until, one.at - until, "in the notebook, between the phases"
        yield one.at, one.elapsed, f"{one.phase}: {one.text}"
        until, nodes = one.at + one.elapsed, 0
    if ended - until >= _SHORTEST:
        yield until, ended - until, "in the notebook, after the last phase"
