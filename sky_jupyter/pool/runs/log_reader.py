"""Printed output of ranks, read from journals in pages: a tail or all."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...node.protocol.journal_events import Gap, gap_text
from .journal_pages import MOST_COUNT, Page

# The number of events before the end that are read first, and the factor by which it grows.
_BACK, _FURTHER = 4, 8


@dataclass
class Tail:
    """Tail of a rank's printed output.

    Parameters
    ----------
    most : int
        Limit in characters.
    lines : int, optional
        Limit in lines.
    """

    most: int
    lines: int | None = None
    cut: bool = False
    _texts: deque[str] = field(default_factory=deque)
    _size: int = 0
    _ends: int = 0
    # Whether the kept text begins in the middle of a line.
    _within: bool = False

    def add(self, text: str) -> None:
        self._texts.append(text)
        self._size += len(text)
        self._ends += text.count("\n")
        while self._texts and self._is_full_without(self._texts[0]):
            oldest = self._texts.popleft()
            self._size -= len(oldest)
            self._ends -= oldest.count("\n")
            self.cut, self._within = True, not oldest.endswith("\n")

    def _is_full_without(self, text: str) -> bool:
        by_lines = self.lines is not None and self._ends - text.count("\n") > self.lines
        return by_lines or self._size - len(text) >= self.most

    @property
    def is_full(self) -> bool:
        """Whether older text would not fit in."""
        return self._size >= self.most or (self.lines is not None and self._ends > self.lines)

    def text(self) -> str:
        """Return the last whole lines within the limits; set `cut`."""
        text = "".join(self._texts)
        start = max(0, len(text) - self.most)
        if start or self._within:
            start = max(start, text.find("\n", max(0, start - 1), -1) + 1)
        if self.lines is not None:
            at = len(text) - text.endswith("\n")
            for _ in range(self.lines):
                at = text.rfind("\n", 0, max(0, at))
                if at < 0:
                    break
            start = max(start, at + 1)
        self.cut = self.cut or start > 0
        return text[start:]


def texts_of(page: Page, rank: int | None = None, stream: str | None = None) -> Iterator[tuple[int, int, str]]:
    """Yield (number, rank, text) of output, with a line for each gap."""
    for event in page.events:
        number = event["seq"]
        if event["kind"] == "stream" and rank in (None, event["rank"]) and stream in (None, event["name"]):
            yield number, event["rank"], event["text"]
        elif event["kind"] == "gap":
            yield from ((number, whose, text) for whose, text in _missing(event, rank, stream))


def _missing(event: Mapping[str, Any], rank: int | None, stream: str | None) -> Iterator[tuple[int, str]]:
    gap = Gap.from_json(event)
    sizes: dict[int, int] = {}
    for (whose, name), size in (gap.tally if gap is not None else {}).items():
        if rank in (None, whose) and name and stream in (None, name):
            sizes[whose] = sizes.get(whose, 0) + size
    for whose, size in sizes.items():
        why = " ".join("".join(letter if letter.isprintable() else " " for letter in gap.why).split()) if gap else ""
        yield whose, "\n" + gap_text(size, why or "it is not known why")


class PagesContext(Protocol):
    """The pool as seen by readers of its journals."""

    def page(
        self,
        id: str,
        rank: int | None = None,
        start: int = 0,
        count: int = ...,
        *,
        nodes: Collection[int] | None = None,
    ) -> list[Page]:
        """Return a page of a run's events; see `JournaledRuns.page`."""
        ...

    def homes(self, id: str) -> dict[int, int]:
        """Return each rank's node that has its journal."""
        ...


def walk(
    pool: PagesContext, run: str, rank: int | None = None, node: int | None = None, start: int = 0
) -> Iterator[Page]:
    """Yield the pages of a run's events so far, node by node."""
    nodes = None if node is None else {node}
    for page in pool.page(run, rank, start, MOST_COUNT, nodes=nodes):
        end = page.end
        while True:
            yield page
            if not page.first < page.next < end:
                break
            (page,) = pool.page(run, rank, page.next, MOST_COUNT, nodes={page.node})


def newest(
    pool: PagesContext, run: str, ranks: Collection[int], most: int, lines: int | None = None
) -> dict[int, Tail]:
    """Return the tail of each rank's printed output.

    Parameters
    ----------
    pool : PagesContext
        The pool.
    run : str
        The run's id.
    ranks : collection of int
        The ranks.
    most : int
        Limit in characters for all ranks together, shared equally.
    lines : int, optional
        Limit in lines per rank.

    Returns
    -------
    dict
        Rank -> its tail.

    Raises
    ------
    PoolError
        If no node that answers knows the run.
    """
    share = max(1, most // max(1, len(ranks)))
    found = {rank: Tail(share, lines) for rank in ranks}
    homes = pool.homes(run)
    ends = pool.page(run, None, -1, 1)
    for rank in ranks:
        if homes.get(rank) not in {last.node for last in ends}:
            found[rank].add("… the node that has its output does not answer, or was removed …\n")
    for last in ends:
        here = {rank for rank in ranks if homes.get(rank) == last.node}
        back = _BACK
        while here:
            start = max(0, last.end - back)
            tails = {rank: Tail(share, lines) for rank in here}
            for page in walk(pool, run, node=last.node, start=start):
                for _, rank, text in texts_of(page):
                    if rank in tails:
                        tails[rank].add(text)
            if start == 0 or all(tail.is_full for tail in tails.values()):
                for tail in tails.values():
                    tail.cut = tail.cut or start > 0
                found.update(tails)
                break
            back *= _FURTHER
    return found


def before(pool: PagesContext, run: str, rank: int, stream: str, number: int) -> Iterator[str]:
    """Yield a rank's output to a stream before the event of this number.

    Raises PoolError if no node that answers knows the run.
    """
    for page in walk(pool, run, rank):
        for at, _, text in texts_of(page, rank, stream):
            if at >= number:
                break
            yield text
