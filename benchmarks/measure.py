"""Repetitions by turns, medians, and the rows that come of them."""

from __future__ import annotations

import math
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
    sure : bool
        Take the mean of the turns' ratios with its 95 % interval for ours/peer: it keeps the budget, or is over it,
        only where all of the interval does. For many short turns.
    """

    what: str
    ours: Sequence[float]
    peer: Sequence[float]
    peer_name: str
    unit: str
    most_ratio: float | None = None
    most: float | None = None
    sure: bool = False

    @property
    def ratio(self) -> float:
        """Ours/peer: of the medians, or where the row is to be `sure` the mean of the turns."""
        if self.sure:
            return mean_ratio(self.ours, self.peer)[0]
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
        """Whether the budget is kept; None where there is none, or where the interval does not tell."""
        if self.most_ratio is not None and self.sure:
            _, low, high = mean_ratio(self.ours, self.peer)
            return True if high <= self.most_ratio else False if low > self.most_ratio else None
        if self.most_ratio is not None:
            return self.ratio <= self.most_ratio
        return None if self.most is None else statistics.median(self.ours) <= self.most

    @property
    def cells(self) -> tuple[str, ...]:
        """The row's texts, for the columns of `HEAD`."""
        verdict = {True: "kept", False: "OVER", None: "not told" if self.budget else ""}[self.within]
        ratio = f"{self.ratio:.3f} ({self._ratio_spread})"
        return (
            self.what,
            figure(self.ours, self.unit),
            self.peer_name,
            figure(self.peer, self.unit),
            ratio if any(self.peer) else "",
            f"{self.budget} {verdict}".strip(),
        )

    @property
    def _ratio_spread(self) -> str:
        """What stands in brackets behind the ratio."""
        if not self.sure:
            return _spread(_pairwise(self.ours, self.peer), "{:.2f}")
        _, low, high = mean_ratio(self.ours, self.peer)
        return "too few turns" if math.isnan(low) else f"{low:.3f}-{high:.3f}, 95 %"


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


def mean_ratio(ours: Sequence[float], peer: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of the turns' ratios, and the bounds of its 95 % interval.

    Two turns that follow each other are taken as one, since each job comes first in one of them: what
    coming first does, and what drifts, cancels. The interval is Student's, of the logarithms; its
    bounds are NaN where there are too few turns to tell.
    """
    logarithms = [math.log(ratio) for ratio in _pairwise(ours, peer)]
    both = [statistics.fmean(logarithms[first : first + 2]) for first in range(0, len(logarithms), 2)]
    middle, degrees = statistics.fmean(both), len(both) - 1
    if degrees < _FEWEST_DEGREES:
        return math.exp(middle), math.nan, math.nan
    half = _student(degrees) * statistics.stdev(both) / math.sqrt(len(both))
    return math.exp(middle), math.exp(middle - half), math.exp(middle + half)


# Below, the approximation of Student's distribution is not good enough.
_FEWEST_DEGREES = 4


def _student(degrees: int) -> float:
    """The factor of a 95 % interval, by its series around the normal distribution's: within 2 % from 4 degrees on."""
    normal = statistics.NormalDist().inv_cdf(0.975)
    first = (normal**3 + normal) / 4
    second = (5 * normal**5 + 16 * normal**3 + 3 * normal) / 96
    return normal + first / degrees + second / degrees**2


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
    sure: bool = False,
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
    sure : bool
        Give the ratio's interval, and a verdict only where it tells.
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
            sure=sure,
        )
        for place, peer in enumerate(chosen)
    ]


@contextmanager
def clock(figures: Figures, name: str, scale: float = 1.0) -> Iterator[None]:
    """Put the seconds that the block takes, times `scale`, under a name."""
    began = time.perf_counter()
    yield
    figures[name] = (time.perf_counter() - began) * scale
