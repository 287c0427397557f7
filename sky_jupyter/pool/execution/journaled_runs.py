"""Runs in the nodes' journals, other managers' too: list, pages and results."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import PoolError
from ...util.validate import is_number
from ..base.event_loop import loop
from ..base.events import Listener, ignore
from ..base.run_timeline import LATEST
from ..base.timeouts import TIMEOUTS
from ..runs import journal_pages, run_listing
from ..runs.journal_pages import Page
from ..runs.result import CellResult
from ..runs.run import Run
from ..transfer.fetch_values import LazyValues, ValuesContext

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..base.run_timeline import PoolEvents
    from ..registry.registry import Registry
    from .supervisor import Supervisor
    from .unresponsive_notices import Watchdog

_JOIN_TIMEOUT, _READ_TIMEOUT = TIMEOUTS.start.join, TIMEOUTS.answers.read


class JournalsContext(ValuesContext, Protocol):
    """The pool as seen by readers of its journals' runs."""

    # The run that the user waits for.
    current: Run | None

    @property
    def is_guest(self) -> bool:
        """Whether another process manages it."""
        ...

    @property
    def registry(self) -> Registry: ...

    @property
    def supervisor(self) -> Supervisor: ...

    @property
    def events(self) -> PoolEvents:
        """The events of the newest runs and calls, and of the pool."""
        ...

    @property
    def watchdog(self) -> Watchdog: ...

    def check_ranks(self, ranks: Sequence[int] | None) -> list[int]:
        """Return the ranks, by default all; raise SpecError for others."""
        ...

    def record_at_end(self, run: Run) -> None:
        """Record a run's end once it comes, whether or not anything waits for it."""
        ...


class JournaledRuns:
    """Runs of one pool's journals; made with it.

    Parameters
    ----------
    pool : JournalsContext
        The pool.
    """

    def __init__(self, pool: JournalsContext) -> None:
        self.pool = pool

    def all(self, nodes: Collection[int] | None = None) -> dict[str, dict[str, Any]]:
        """Return the runs that the nodes, or some of them, know, by id.

        Each has its ``begin`` event, its ``name`` with the attempt, the ``nodes`` that know it, the ``homes`` (rank
        -> node), whether it is ``over``, and whether it is ``former``: begun before the last resize. Raises PoolError
        if the pool does not answer.
        """
        pool = self.pool
        pool.require_live()
        found: dict[str, dict[str, Any]] = {}
        for node, runs in pool.watchdog.answer(run_listing.ask(pool.control, nodes), _JOIN_TIMEOUT).items():
            for name, facts in runs.items():
                begin = facts["begin"]
                former = begin.get("shape", 0) != pool.shape
                # A call's name includes its attempt; the last attempt counts.
                id = name.partition(".")[0]
                if id in found and found[id]["name"] != name:
                    if (begin.get("began") or 0.0) < (found[id]["begin"].get("began") or 0.0):
                        continue
                    del found[id]
                new = {"begin": begin, "name": name, "nodes": [], "homes": {}, "former": former, "over": True}
                run = found.setdefault(id, new)
                run["nodes"].append(node)
                run["homes"].update(dict.fromkeys(begin.get("mine", []), node))
                run["over"] = run["over"] and facts["over"]
        partly = []
        for id, run in found.items():
            if run["former"]:
                # Its kernels are gone, and nodes that lack it were removed.
                continue
            wanted = {rank // pool.spec.ranks_per_node for rank in run["begin"].get("ranks", [])}
            if run["over"] and not wanted <= set(run["nodes"]):
                partly.append(id)
        # Some nodes have not begun the run: they still will, unless its manager had given them up.
        for id in partly:
            row = pool.registry.run(id)
            found[id]["over"] = row is not None and row.state != "running"
        return found

    def adopt(self, id: str, listener: Listener = ignore) -> Run:
        """Return another manager's run, to be attended like an own one.

        Its events come from the beginning. Nodes that had not begun it when that manager ended begin now; none begins
        twice. Raises PoolError if no node knows it.
        """
        pool = self.pool
        if pool.is_guest:
            raise PoolError(f"run {id} is another notebook's, and shown there; `%sky logs {id}` has what it prints")
        run, facts = self._known(id, listener)
        run.folder, run.brought = pool.hosts[0].blobs / run.key, bool(pool.machines)
        pool.current = run
        pool.supervisor.add(run)
        if pool.events.of(run.key) is None:
            pool.events.add(run.events)
        # Its manager may have ended before it was recorded.
        pool.registry.run_began(run.key, pool.id, run.code, list(run.outcomes), max(0, run.count))
        run.task = loop().submit(pool.supervisor.adopt(run, facts["begin"], facts["nodes"], over=facts["over"]))
        pool.record_at_end(run)
        return run

    def _known(self, id: str, listener: Listener, nodes: Collection[int] | None = None) -> tuple[Run, dict[str, Any]]:
        """Return a run to read from the journals, and what nodes (by default all) know."""
        facts = self.all(nodes).get(id.partition(".")[0])
        if facts is None or not facts["begin"].get("ranks"):
            raise PoolError(f"no node of pool {self.pool.spec.name!r} knows run {id}; `%sky runs` lists them")
        per_node, homes = self.pool.spec.ranks_per_node, facts["homes"]
        if facts["former"]:
            nodes = {rank: homes.get(rank, -1) for rank in facts["begin"]["ranks"]}
        else:
            nodes = {rank: rank // per_node for rank in facts["begin"]["ranks"]}
        run = Run(facts["name"], nodes, listener)
        run.shape = facts["begin"].get("shape", 0)
        if gone := [rank for rank, node in nodes.items() if node < 0]:
            run.lose(gone, "its node was removed from the pool")
        run.code = str(facts["begin"].get("code") or "")
        count = (facts["begin"].get("content") or {}).get("count", 0)
        run.count = count if isinstance(count, int) else 0
        run.title = f"In[{run.count}]" if run.count > 0 else ""
        began = facts["begin"].get("began")
        run.read_from_journals(float(began) if is_number(began, 0.0, LATEST) else None)
        return run, facts

    def page(
        self,
        id: str,
        rank: int | None = None,
        start: int = 0,
        count: int = journal_pages.COUNT,
        *,
        nodes: Collection[int] | None = None,
    ) -> list[Page]:
        """Return a page of a run's events, from journals. Thread-safe.

        Parameters
        ----------
        id : str
            The run.
        rank : int, optional
            Rank whose events are read, by default all.
        start : int
            Number of the first event, as each node counts them; negative numbers count from the end.
        count : int
            Length of the page in events; fewer come if they are long.
        nodes : collection of int, optional
            Nodes to ask, by default all that may know it.

        Returns
        -------
        list of Page
            One per node that knows the run and answers.

        Raises
        ------
        PoolError
            If no node knows the run.
        """
        pool = self.pool
        if rank is not None and not pool.shape:
            pool.check_ranks([rank])
        pool.require_live()
        # After a resize, any node may have earlier events of the rank.
        wanted = nodes if nodes is not None or rank is None or pool.shape else {rank // pool.spec.ranks_per_node}
        return pool.watchdog.answer(journal_pages.ask(pool.control, id, rank, wanted, start, count), _READ_TIMEOUT)

    def homes(self, id: str) -> dict[int, int]:
        """Return, by rank, the node with its journal of a run; below 0 if it is gone.

        Raises PoolError if no node knows the run.
        """
        # All nodes of a run know its ranks: one that is silent is not waited for.
        run, _ = self._known(id, ignore, sorted(self.pool.control.there))
        return {rank: outcome.node for rank, outcome in run.outcomes.items()}

    def result(self, id: str) -> CellResult:
        """Return what a run has printed and returned, from the journals.

        Raises PoolError if no node knows the run.
        """
        pool = self.pool
        run, facts = self._known(id, ignore)
        pool.watchdog.answer(pool.supervisor.journals.read_all(run), _READ_TIMEOUT)
        if facts["over"]:
            pool.supervisor.lose_unbegun(run, facts["nodes"])
        here = pool.events.of(run.key)
        events = run.events if here is None else here
        unread = LazyValues(pool, run.id, tuple(run.outcomes), run.shape)
        return CellResult(list(run.outcomes.values()), run.elapsed, unread, id, events=events)
