"""Pages of runs' output: from local journals, or through the manager's kernel.

`pool.runs.log_reader` reads either of them, as it reads a `Pool`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import PoolError
from ..node.journal.journal import Journal
from ..pool.registry.registry import PoolRow
from ..pool.runs import journal_pages
from ..pool.runs.journal_pages import MOST_COUNT, Page
from ..pool.runs.log_reader import PagesContext, Tail, texts_of

_MAX_NODES = 256
_MOST_BYTES = 1 << 20
# How far back a follower looks for the last lines, in events of each node.
_BACK = 2000
_MOST_TAIL = 1 << 20


class LocalPages:
    """Journals of a local pool's nodes, read while their agents may be writing them.

    Parameters
    ----------
    row : PoolRow
        The pool.
    """

    def __init__(self, row: PoolRow) -> None:
        self._row = row
        # By file prefix, a journal and the sizes of its files when it was read.
        self._read: dict[Path, tuple[tuple[tuple[str, int], ...], Journal]] = {}

    def page(
        self,
        id: str,
        rank: int | None = None,
        start: int = 0,
        count: int = journal_pages.COUNT,
        *,
        nodes: Collection[int] | None = None,
    ) -> list[Page]:
        """Return a page of a run's events; see `JournaledRuns.page`."""
        found = []
        for node, journal in self._journals(id).items():
            if nodes is not None and node not in nodes:
                continue
            first = min(start if start >= 0 else max(0, journal.next + start), journal.next)
            data, following = journal.read(first, _MOST_BYTES)
            # The first event says which ranks' ends to expect; without it, the run is not over.
            over = journal.begin is not None and journal.ended >= _ranks_of(journal)
            answer = {"first": first, "data": data, "next": following, "end": journal.next, "over": over}
            found.append(journal_pages.read(node, answer, rank, count))
        if not found:
            raise PoolError(f"no node of pool {self._row.name!r} knows run {id}")
        return found

    def homes(self, id: str) -> dict[int, int]:
        """Return each rank's node that has its journal."""
        return {rank: node for node, journal in self._journals(id).items() for rank in _ranks_of(journal)}

    def is_whole(self, id: str) -> bool:
        """Return whether each rank that a run is for has begun it."""
        journals = self._journals(id).values()
        wanted = {rank for journal in journals for rank in (journal.begin or {}).get("ranks", ())}
        return bool(wanted) and wanted <= {rank for journal in journals for rank in _ranks_of(journal)}

    def _journals(self, run: str) -> dict[int, Journal]:
        """Return the run's journal of each node; after a retry, those of the last try."""
        # A call's journal is named by its attempt too.
        tries: dict[str, dict[int, Journal]] = {}
        for folder in sorted(Path(self._row.folders[0]).glob("n*/journal"))[:_MAX_NODES]:
            number = folder.parent.name[1:]
            paths = [path for path in Journal.found(folder) if path.name.partition(".")[0] == run]
            for path in paths if number.isdecimal() else ():
                tries.setdefault(path.name, {})[int(number)] = self._journal(path)
        return max(tries.values(), key=lambda journals: max(map(began, journals.values())), default={})

    def _journal(self, path: Path) -> Journal:
        files = sorted(file for file in path.parent.glob(f"{path.name}.*"))
        sizes = tuple((file.name, _size(file)) for file in files)
        known = self._read.get(path)
        if known is None or known[0] != sizes:
            # Reading alone changes no file.
            known = self._read[path] = sizes, Journal.reopen(path)
        return known[1]


def began(journal: Journal) -> float:
    """Return when a try of a call began, by its journal; 0 for other runs."""
    value = (journal.begin or {}).get("began")
    return value if isinstance(value, float) else 0.0


def _size(file: Path) -> int:
    try:
        return os.stat(file).st_size
    except OSError:
        return 0


def _ranks_of(journal: Journal) -> set[int]:
    """Return the ranks of the journal's node that take part in the run."""
    mine = (journal.begin or {}).get("mine")
    return {rank for rank in mine if isinstance(rank, int)} if isinstance(mine, list) else set()


@dataclass(frozen=True)
class KernelPages:
    """Pages that the kernel which manages a pool brings.

    Parameters
    ----------
    ask : callable
        Sends the kernel a request about the pool; see docs/actions.md.
    """

    ask: Callable[[Mapping[str, Any]], Mapping[str, Any]]

    def page(
        self,
        id: str,
        rank: int | None = None,
        start: int = 0,
        count: int = journal_pages.COUNT,
        *,
        nodes: Collection[int] | None = None,
    ) -> list[Page]:
        """Return a page of a run's events; see `JournaledRuns.page`."""
        asked = {"action": "log", "run": id, "rank": rank, "from": start, "count": count}
        if nodes is not None and len(nodes) == 1:
            asked["node"] = next(iter(nodes))
        found = []
        for one in self.ask(asked).get("nodes", ()):
            if nodes is None or one["node"] in nodes:
                place = one["node"], one["from"], one["next"], one["end"], one["over"]
                found.append(Page(*place, tuple(one["events"])))
        return found

    def homes(self, id: str) -> dict[int, int]:
        """Return each rank's node, as the pool's ranks are now."""
        (pool,) = self.ask({"action": "status"})["pools"]
        return {rank: rank // pool["ranks_per_node"] for rank in range(pool["world_size"])}


def follow(source: PagesContext, run: str, lines: int | None, wait: Callable[[], None]) -> Iterator[tuple[int, str]]:
    """Yield the last lines of each rank's output, and new ones until the run ends.

    Parameters
    ----------
    source : PagesContext
        Where the run's events are read.
    run : str
        Its id.
    lines : int, optional
        How many earlier lines of each rank come first; None for all.
    wait : callable
        Called between two looks at the output; returns when the next one is due.

    Yields
    ------
    tuple of int and str
        A rank, and a piece of its output.
    """
    at: dict[int, int] = {}
    tails: dict[int, Tail] = {}
    for first in source.page(run, None, -_BACK, MOST_COUNT) if lines is not None else ():
        for page in _rest(source, run, first):
            for _, rank, text in texts_of(page):
                tails.setdefault(rank, Tail(_MOST_TAIL, lines)).add(text)
            at[page.node] = page.next
    yield from ((rank, text) for rank, tail in sorted(tails.items()) if (text := tail.text()))
    over = False
    while not over:
        # The end is looked for before the events are read, so that the last read has all events.
        over = all(page.over for page in source.page(run, None, -1, 1))
        for node, start in _starts(source, run, at).items():
            for first in source.page(run, None, start, MOST_COUNT, nodes={node}):
                for page in _rest(source, run, first):
                    yield from ((rank, text) for _, rank, text in texts_of(page))
                    at[node] = max(page.next, start)
        if not over:
            wait()


def _starts(source: PagesContext, run: str, at: dict[int, int]) -> dict[int, int]:
    """Return where new events begin, for each node that has any."""
    ends = {page.node: page.end for page in source.page(run, None, -1, 1)}
    return {node: at.get(node, 0) for node, end in ends.items() if end > at.get(node, 0)}


def _rest(source: PagesContext, run: str, page: Page) -> Iterator[Page]:
    """Yield a page and those after it, up to the end that it knows."""
    end = page.end
    while True:
        yield page
        if not page.first < page.next < end:
            return
        following = source.page(run, None, page.next, MOST_COUNT, nodes={page.node})
        if not following:
            return
        (page,) = following
