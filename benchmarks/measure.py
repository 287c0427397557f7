"""Repetitions by turns, medians, and the rows that come of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

Figures = dict[str, float]
Samples = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class Options:
    """How much is measured.

    Parameters
    ----------
    quick : bool
        Fewer repetitions and smaller data.
    repeat : int, optional
        So many repetitions, instead of each benchmark's own number.
    """

    quick: bool = False
    repeat: int | None = None

    def times(self, usual: int, quick: int) -> int:
        """The number of repetitions for a benchmark that usually does `usual` of them."""
        return self.repeat or (quick if self.quick else usual)


@dataclass(frozen=True)
class Row:
    """One figure of ours beside a peer's; made by `row` and `rows`.

    Parameters
    ----------
    what : str
        What was measured.
    ours, peer : sequence of float
        Each repetition's figure; the same number of both, measured by turns.
    peer_name : str
        Whose figure stands beside ours.
    unit : str
        ``s``, ``ms``, ``MB``, ``lines`` or ``processes``.
    most_ratio, most : float, optional
        The budget: what ours/peer, or ours itself, may be at most.
    """

    what: str
    ours: Sequence[float]
    peer: Sequence[float]
    peer_name: str
    unit: str
    most_ratio: float | None = None
    most: float | None = None

    @property
    def ratio(self) -> float:
        """Ours/peer, of the medians."""
        ours, peer = statistics.median(self.ours), statistics.median(self.peer)
        return ours / peer if peer else float("nan")

    @property
    def budget(self) -> str:
        """The budget in words; empty where there is none."""
        if self.most_ratio is not None:
            return f"{self.most_ratio:g} x"
        return "" if self.most is None else f"{self.most:g} {self.unit}"

    @property
    def within(self) -> bool | None:
        """Whether the budget is kept; None where there is none."""
        if self.most_ratio is not None:
            return self.ratio <= self.most_ratio
        return None if self.most is None else statistics.median(self.ours) <= self.most

    @property
    def cells(self) -> tuple[str, ...]:
        """The row's texts, for the columns of `HEAD`."""
        verdict = {True: "kept", False: "OVER", None: ""}[self.within]
        ratio = f"{self.ratio:.3f} ({_spread(_pairwise(self.ours, self.peer), '{:.2f}')})"
        return (
            self.what,
            figure(self.ours, self.unit),
            self.peer_name,
            figure(self.peer, self.unit),
            ratio if any(self.peer) else "",
            f"{self.budget} {verdict}".strip(),
        )


HEAD = ("what", "ours", "peer", "peer's figure", "ours/peer", "budget")


def figure(samples: Sequence[float], unit: str) -> str:
    """A median with its spread: ``8.1 (7.9-8.6) ms``."""
    middle = statistics.median(samples)
    digits = (
        0 if unit in ("lines", "processes") else 3 if middle < 1 else 2 if middle < 10 else 1 if middle < 1000 else 0
    )
    form = f"{{:.{digits}f}}"
    return f"{form.format(middle)} ({_spread(samples, form)}) {unit}"


def _pairwise(ours: Sequence[float], peer: Sequence[float]) -> list[float]:
    return [mine / theirs for mine, theirs in zip(ours, peer, strict=True) if theirs] or [float("nan")]


def _spread(samples: Sequence[float], form: str) -> str:
    """The middle half of many repetitions, the lowest and highest of few."""
    if len(samples) < 8:
        low, high = min(samples), max(samples)
    else:
        low, _, high = statistics.quantiles(samples, n=4)
    return f"{form.format(low)}-{form.format(high)}"


def by_turns(jobs: Mapping[str, Callable[[], Figures]], repeat: int) -> Samples:
    """Do each job `repeat` times, by turns; each turn begins with another one.

    What else the machine does meets all of them alike, and none of them always comes after the same one.

    Returns
    -------
    dict
        Job -> name of a figure -> its values in order.
    """
    samples: Samples = {name: {} for name in jobs}
    names = list(jobs)
    for turn in range(repeat):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            for what, value in jobs[name]().items():
                samples[name].setdefault(what, []).append(value)
    return samples


def rows(
    what: str,
    samples: Samples,
    name: str,
    *,
    ours: str,
    unit: str = "s",
    peers: Iterable[str] | None = None,
    best: float | None = None,
    most: float | None = None,
) -> list[Row]:
    """A row for each peer that has the figure `name`; the best peer first, and with the budget.

    Parameters
    ----------
    ours : str
        Our job in `samples`.
    peers : iterable of str, optional
        The jobs to set it beside; all others unless given.
    best : float, optional
        What ours may be at most as a ratio to the best peer.
    most : float, optional
        What ours may be at most.
    """
    chosen = [peer for peer in (samples if peers is None else peers) if peer != ours and name in samples.get(peer, {})]
    chosen.sort(key=lambda peer: statistics.median(samples[peer][name]))
    return [
        Row(
            what,
            samples[ours][name],
            samples[peer][name],
            peer,
            unit,
            most_ratio=best if place == 0 else None,
            most=most if place == 0 else None,
        )
        for place, peer in enumerate(chosen)
    ]


@contextmanager
def clock(figures: Figures, name: str, scale: float = 1.0) -> Iterator[None]:
    """Put the seconds that the block takes, times `scale`, under a name."""
    began = time.perf_counter()
    yield
    figures[name] = (time.perf_counter() - began) * scale
