"""Failure detection: which nodes of a pool answer, are late, silent or lost."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from ...node.protocol.agent_process import process_of
from ..base.timeouts import TIMEOUTS

if TYPE_CHECKING:
    from distributed import Client

Place: TypeAlias = "tuple[Client | None, str]"
_POLL = TIMEOUTS.polls.control
# After this long without an answer, or twice the last round trip, other machines are asked about the silent one.
DOUBT, LATE_DOUBT = TIMEOUTS.liveness.doubt, TIMEOUTS.liveness.late_doubt
# After this long without an answer, a node or the whole pool is reported as unreachable.
SILENCE = TIMEOUTS.liveness.silence
# A node that left the scheduler is declared lost after this long.
ABSENCE = TIMEOUTS.liveness.absence
# The same for a node behind our own link, which reconnects with back-off.
FAR_ABSENCE = TIMEOUTS.liveness.far_absence


class NodeWatcher(Protocol):
    """Receiver of events on nodes; called on the loop."""

    def on_lost(self, node: int, why: str, *, revived: bool) -> None:
        """Handle a lost node; ``revived`` says that its agent restarts."""

    def on_back(self, node: int, *, kept: bool) -> None:
        """Handle a returned node; ``kept`` says that its kernels survived."""

    def on_doubt(self, node: int | None) -> None:
        """Handle a late answer of a node, or of the pool (None)."""

    def on_silent(self, nodes: Sequence[int] | None, *, silent: bool) -> None:
        """Handle nodes, or the pool (None), that go silent or return.

        Nodes whose agents share a process do so together.
        """


class FailureDetector:
    """Detector of nodes that are late, silent or lost; used on the loop only.

    Parameters
    ----------
    watcher : NodeWatcher
        Receives each change.
    look_soon : callable
        Makes the control client poll the nodes again.
    """

    def __init__(self, watcher: NodeWatcher, look_soon: Callable[[], None]) -> None:
        self.watcher = watcher
        self._look_soon = look_soon
        # Once set, late answers are not reported.
        self.closed = False
        # The incarnation of each node's agent: another one has other kernels.
        self.incarnations: dict[int, str] = {}
        # Nodes that do not answer but are not lost (None: the scheduler); nodes that are lost, and why.
        self.silent: set[int | None] = set()
        self.lost: set[int] = set()
        self.whys: dict[int, str] = {}
        # Nodes whose answer is late.
        self.doubted: set[int | None] = set()
        # Nodes whose machines are off, even if the scheduler has their agents: they are only pinged.
        self.off: set[int] = set()
        # For remote nodes, whether our link is down; nodes that the scheduler reaches only by that link.
        self.away: dict[int, Callable[[], bool]] = {}
        self.apart: set[int] = set()
        # The time of each node's last answer, and its round trip.
        self._answered: dict[int | None, float] = {}
        self._took: dict[int | None, float] = {}
        # The client and the address by which each node was met last.
        self._met: dict[int, Place] = {}
        self._absent: dict[int, float] = {}
        self._quiet_since: dict[int | None, float] = {}

    def begin(self, incarnations: dict[int, str], places: dict[int, Place]) -> None:
        """Note the agents that have answered for the first time, and where."""
        self.incarnations.update(incarnations)
        self._met = places

    @contextlib.contextmanager
    def doubting(self, node: int | None, beside: Sequence[int] = ()) -> Iterator[None]:
        """Report doubt if the block takes long; record its duration.

        The agents of the nodes ``beside`` share the process of that node's.
        """
        began = time.monotonic()
        patience = min(max(DOUBT, 2 * self._took.get(node, 0.0)), LATE_DOUBT)
        timer = asyncio.get_running_loop().call_later(patience, self.doubt, node, beside)
        try:
            yield
        finally:
            timer.cancel()
        self._took[node] = time.monotonic() - began

    def doubt(self, node: int | None, beside: Sequence[int] = ()) -> None:
        """Note a late answer of a node (None: the scheduler) and of nodes ``beside`` it."""
        self.doubted.update((node, *beside))
        if not self.closed:
            self.watcher.on_doubt(node)

    def hear(self, node: int | None) -> None:
        """Note an answer of a node, or of the scheduler (None)."""
        self._answered[node] = time.monotonic()
        self.doubted.discard(node)

    def unheard(self, node: int | None) -> float:
        """Return the seconds since a node, or the scheduler, answered."""
        now = time.monotonic()
        return now - self._answered.get(node, now)

    def note_scheduler(self, answers: bool, began: float) -> None:
        """Update whether the scheduler is silent."""
        if self._changes(None, answers, began):
            self.watcher.on_silent(None, silent=not answers)

    def note(self, answers: dict[int, bool], began: float) -> None:
        """Update which of these nodes are silent."""
        changed = [node for node, answer in answers.items() if self._changes(node, answer, began)]
        for nodes in self.by_process(changed):
            for silent in (True, False):
                told = [node for node in nodes if answers[node] != silent and not (silent and node in self.off)]
                if told:
                    self.watcher.on_silent(told, silent=silent)

    def _changes(self, node: int | None, answers: bool, began: float) -> bool:
        if answers:
            self._quiet_since.pop(node, None)
            is_back = node in self.silent
            self.silent.discard(node)
            return is_back
        since = self._quiet_since.setdefault(node, began)
        if node in self.silent or time.monotonic() - since < SILENCE - _POLL:
            return False
        self.silent.add(node)
        return True

    def by_process(self, nodes: Iterable[int]) -> list[list[int]]:
        """Return nodes by the processes of their agents, as far as they are known."""
        found: dict[object, list[int]] = defaultdict(list)
        for node in sorted(nodes):
            incarnation = self.incarnations.get(node)
            found[node if incarnation is None else process_of(incarnation)].append(node)
        return list(found.values())

    def miss(self, node: int, now: float) -> bool:
        """Note that the scheduler lacks a node's agent; return whether to look soon."""
        is_away, apart = self.away.get(node), node in self.apart
        if is_away is not None and is_away() == apart:
            # Its absence is not counted: either it is reached by our link, which is down, or our link is up and the
            # machines do not reach each other.
            self._absent[node] = now
            self.note({node: False}, now)
        elif now - self._absent.setdefault(node, now) > (FAR_ABSENCE if apart else ABSENCE):
            self.lose(node, "it does not answer")
        else:
            return True
        return False

    def meet(self, node: int, incarnation: str, place: Place) -> None:
        """Note which agent answered, by which client and at which address."""
        # A silent node may answer long after the client was replaced.
        moved = self._met.get(node) != place
        self._met[node] = place
        was_lost = node in self.lost
        kept = self.incarnations.get(node) == incarnation
        self._absent.pop(node, None)
        self.incarnations[node] = incarnation
        if kept and not moved and not was_lost:
            return
        if not kept:
            self.lose(node, "its agent ended")
        self.lost.discard(node)
        self.whys.pop(node, None)
        self.off.discard(node)
        self.watcher.on_back(node, kept=kept and not was_lost)

    def lose(self, node: int, why: str, *, revived: bool = False) -> None:
        """Declare a node lost; ``revived`` says that its agent restarts."""
        if node not in self.lost:
            self.lost.add(node)
            self.whys[node] = why
            self.watcher.on_lost(node, why, revived=revived)
        self._look_soon()

    def give_up(self, node: int, why: str) -> None:
        """Declare a node lost whose machine is off."""
        self.off.add(node)
        self.lose(node, why)
