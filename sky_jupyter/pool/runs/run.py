"""A run as the manager sees it: arriving events, outcomes, and the end.

Events are untrusted: an agent, or the code on its ranks, may lose or forge its own ranks' output, and nothing else.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from ...capture.collect import Capture
from ...node.protocol.journal_events import Gap, checked, gap_text, is_count, parse
from ...spec.pool_spec import MAX_NODES
from ...util.text import cleaned
from ...util.validate import is_number
from ..base.events import Event, Listener, NoticeEvent, OutputEvent
from ..base.run_timeline import LATEST, NODE, EventLog
from .input_requests import Question, Questions
from .output_cache import Bound, Printed
from .result import Outcome

_log = logging.getLogger(__name__)
# Limits of the buffer for batches that arrive early; the journal has these too.
_MOST_EARLY = 256
_MOST_EARLY_BYTES = 8 << 20
# Limits of a node's own notices.
_MOST_NOTICES = 20
_MOST_NOTICE = 500


def new_id() -> str:
    """Return a new id for a pool or run: eight hex digits.

    A process never makes two equal ids: it multiplies a counter by an odd number. With random ids, ten thousand calls
    had two equal ids in one case of a hundred, and the wait for one of the two never ended. The first digits differ
    like those of random ids, so that they can stand for the whole id.
    """
    return f"{next(_ids[0]) * _FACTOR % (1 << 32):08x}"


def _begin_ids() -> None:
    """Begin the ids of this process at a random number."""
    _ids[:] = [itertools.count(secrets.randbits(32))]


# The factor of Fibonacci hashing: successive ids are far apart.
_FACTOR = 0x9E3779B1
_ids: list[Iterator[int]] = []
_begin_ids()
os.register_at_fork(after_in_child=_begin_ids)


class Run:
    """One execution on a pool; made by the manager, updated on the loop.

    Parameters
    ----------
    id : str
        Id given by the manager, known to the agents.
    nodes : dict
        Rank -> node of all ranks that take part; empty if the control plane chooses one.
    listener : callable
        Receives every event, in order for each node.
    """

    def __init__(self, id: str, nodes: dict[int, int], listener: Listener) -> None:
        self.id = id
        self.outcomes = {rank: Outcome(rank, node) for rank, node in sorted(nodes.items())}
        self.listener = listener
        self.capture = Capture()
        # The folder of its blobs.
        self.folder = Path()
        # Whether other machines have such a folder too.
        self.brought = False
        self.elapsed = 0.0
        # The log of what happens in it; its kind and title there.
        self.events = EventLog(self.key)
        self.kind, self.title = "cell", ""
        # Names that ranks bound or deleted, and which ranks did; names that are bound, with their bytes as far as
        # known (None before the first rank's end); names that are modules.
        self.writes: dict[str, set[int]] = {}
        self.sizes: dict[str, int | None] | None = None
        self.modules: set[str] = set()
        # The modules' full names, if they can be imported again.
        self.imports: dict[str, str] = {}
        self.members: dict[str, tuple[str, str]] = {}
        # For bound names, the names that their functions and classes read.
        self.uses: dict[str, frozenset[str]] = {}
        # The end, for the main thread; any change, for the loop.
        self.over = threading.Event()
        self.changed = asyncio.Event()
        # The run's task on the loop, set by the manager; done when the outcomes are final.
        self.task: Future[None] = Future()
        # Why the manager stopped ranks, if it did; the time limit, if that was exceeded.
        self.why = ""
        self.timed_out: float | None = None
        # The option or parameter that set the time limit.
        self.limit = "--timeout"
        # The number of the user's interrupts, and the time of the last.
        self.presses = 0
        # Whether an interrupt came while it was being started.
        self.early = False
        self.pressed = 0.0
        # The ranks to which agents have sent an interrupt.
        self.interrupted: set[int] = set()
        # Whether its ranks' work is in processes of its own, as a script's is: then no rank itself waits in a
        # collective.
        self.apart = False
        # Whether it was given up together with its kernels or pool, so that it needs no repair.
        self.abandoned = False
        # Ranks whose collective was aborted: their errors are caused by that.
        self.aborted: set[int] = set()
        # The cell's code and number.
        self.code = ""
        self.count = 0
        # The questions of its code to the user. Time spent waiting for answers does not count for time limits.
        self.questions = Questions()
        # The time of its last event.
        self.heard = time.monotonic()
        # How often the pool had been resized when its ranks were chosen.
        self.shape = 0
        # Incarnations of the agents that have had it since it was a short call, by node.
        self.incarnations: dict[int, str] = {}
        self._began = time.perf_counter()
        # The same by the nodes' clocks, for a run that is read from their journals.
        self._began_there: float | None = None
        self._next: dict[int, int] = dict.fromkeys(nodes.values(), 0)
        self._anywhere = not nodes
        self._early: dict[int, dict[int, tuple[int, bytes]]] = {}
        # Nodes that sent malformed data; the number of each node's notices.
        self._unreadable: set[int] = set()
        self._notices: dict[int, int] = {}
        # The memory limit of its output.
        self._bound = Bound()

    @property
    def key(self) -> str:
        """The id in the registry, without a call's attempt."""
        return self.id.partition(".")[0]

    @property
    def left(self) -> list[int]:
        """The ranks that still work."""
        return [rank for rank, outcome in self.outcomes.items() if outcome.status == "running"]

    @property
    def hard_presses(self) -> int:
        """The number of interrupts at which kernels are replaced.

        A script's first interrupt is passed on to its processes, and the second kills them: the kernels stay.
        """
        return 3 if self.apart else 2

    @property
    def is_pressed_hard(self) -> bool:
        """Whether the user has interrupted it so often that kernels are replaced."""
        return self.presses >= self.hard_presses

    def is_troubled_or_over(self) -> bool:
        """Return whether it has ended, a rank has failed, or it is being stopped."""
        return not self.left or bool(self.failed) or bool(self.why)

    def is_stopped_or_over(self) -> bool:
        """Return whether it has ended, or is being stopped."""
        return not self.left or bool(self.why)

    @property
    def failed(self) -> list[int]:
        """The ranks that ended, and not with ``ok``."""
        return [rank for rank, outcome in self.outcomes.items() if outcome.failed]

    @property
    def how_ended(self) -> str:
        """The final state, in the registry's words."""
        ends = [self.outcomes[rank].end for rank in self.failed]
        if not ends or any(end.get("status") != "interrupted" for end in ends):
            return "failed" if ends else "ok"
        return "timed out" if any("timeout" in end for end in ends) else "interrupted"

    def read_from_journals(self, began: float | None) -> None:
        """Use the nodes' times for events and duration, as another manager began it."""
        self._began_there = began
        self.events.clock = NODE
        self.events.ranks_began({rank: self.outcomes[rank].node for rank in self.left}, began)

    def waits(self, node: int) -> bool:
        """Return whether a node has buffered events after a gap."""
        return bool(self._early.get(node))

    def concerns(self, node: int) -> bool:
        """Return whether a node takes part, as far as is known."""
        return node in self._next

    def accepts(self, id: str, node: int) -> bool:
        """Return whether a node's events with this id belong to the run."""
        return id == self.id

    def lose_node(self, node: int, why: str, name: str = "") -> None:
        """Fail the ranks of a lost node; ``name`` names its machine."""
        ranks = [rank for rank in self.left if self.outcomes[rank].node == node]
        self.lose(ranks, f"node {node}{name} is lost: {why}")

    def give_up(self, text: str) -> None:
        """Fail the remaining ranks: the pool cannot be reached any more."""
        if self.left:
            self.lose(self.left, text)

    def start_clock(self) -> None:
        """Reset the start time, after the wait for repairs."""
        self._began = time.perf_counter()
        self.heard = time.monotonic()
        self.events.ranks_began({rank: outcome.node for rank, outcome in self.outcomes.items()})

    @property
    def since_began(self) -> float:
        """The seconds since it began, or its duration once it has ended."""
        if self.over.is_set():
            return self.elapsed
        there = self._began_there
        return time.perf_counter() - self._began if there is None else max(0.0, time.time() - there)

    def _took(self) -> float:
        """Return the seconds that it took, once its last rank has ended."""
        times = [outcome.end.get("t") for outcome in self.outcomes.values() if outcome.end]
        known = [time for time in times if is_number(time, 0.0, LATEST)]
        if self._began_there is None or not known:
            return self.since_began
        return max(0.0, max(known) - self._began_there)

    def pass_over_begin(self, nodes: Iterable[int]) -> None:
        """Skip the begin event of nodes' journals, which agents keep and do not forward."""
        for node in nodes:
            self._next[node] = max(1, self.next(node))

    def next(self, node: int) -> int:
        """Return the number of the next event of a node."""
        return self._next.setdefault(node, 0)

    def place(self, rank: int, node: int) -> None:
        """Add the rank that the control plane has chosen."""
        self.outcomes.setdefault(rank, Outcome(rank, node))

    def take(self, node: int, first: int, count: int, data: bytes) -> int | None:
        """Process a batch; return the first missing event's number, or None.

        A known batch is ignored; one that arrives early is buffered.
        """
        if type(node) is not int or not (node in self._next or (self._anywhere and 0 <= node < MAX_NODES)):
            return None
        awaited = self._next.setdefault(node, 0)
        if not (is_count(first) and is_count(count) and isinstance(data, (bytes, bytearray, memoryview))):
            self._note_unreadable(node, "a batch without numbers or lines")
            return None
        if first + count <= awaited:
            return None
        if first > awaited:
            self._put_early(node, first, count, bytes(data))
            return awaited
        self._take_lines(node, first, count, data)
        early = self._early.get(node, {})
        while early and (start := min(early)) <= self._next[node]:
            number, lines = early.pop(start)
            if start + number > self._next[node]:
                self._take_lines(node, start, number, lines)
        # The batch was shorter than announced.
        return self._next[node] if self._next[node] < first + count else None

    def _put_early(self, node: int, first: int, count: int, data: bytes) -> None:
        early = self._early.setdefault(node, {})
        size = sum(len(lines) for _, lines in early.values()) + len(data)
        if first not in early and len(early) < _MOST_EARLY and size <= _MOST_EARLY_BYTES:
            early[first] = (count, data)

    def _take_lines(self, node: int, first: int, count: int, data: bytes | bytearray | memoryview) -> None:
        """Process the events ``first`` to ``first + count - 1``.

        Malformed lines are skipped: asking again would return the same.
        """
        at, end = first, first + count
        for line in str(data, "utf-8", "replace").split("\n"):
            if not line:
                continue
            if at >= end:
                self._note_unreadable(node, "more lines than announced")
                return
            event = parse(line)
            gap = None
            if event is None or event.get("seq") != at:
                event = None
                self._note_unreadable(node, f"line {at} is not event {at}")
            elif event.get("kind") == "gap":
                gap = Gap.from_json(event)
                if gap is None or gap.next > end:
                    event = gap = None
                    self._note_unreadable(node, f"line {at} is no gap")
            at = at + 1 if gap is None else gap.next
            awaited = self._next[node]
            if at <= awaited:
                continue
            self._next[node] = at
            if gap is not None:
                self._on_gap(gap.clipped(awaited, at), node)
            elif event is not None:
                self._on_event(event, node)
        if at < end:
            self._note_unreadable(node, "fewer lines than announced")

    def _note_unreadable(self, node: int, what: str) -> None:
        """Report, once per node, that it sends malformed data."""
        if node not in self._unreadable:
            self._unreadable.add(node)
            self._tell(NoticeEvent(f"node {node} sent what cannot be read; it was passed over ({what})", self.id))

    def _tell(self, event: Event) -> None:
        try:
            self.listener(event)
        except Exception:
            # The failure of a view must not lose output or results.
            _log.exception("what listens to run %s failed", self.id)

    def _on_event(self, event: dict[str, Any], node: int) -> None:
        self.heard = time.monotonic()
        kind, rank, text = event.get("kind"), event.get("rank"), event.get("text")
        if kind == "notice" and isinstance(text, str):
            self._on_notice(f"node {node}: {cleaned(text)}", node)
        if kind == "notice" or not is_count(rank):
            return
        if self._anywhere and not self.outcomes:
            self.place(rank, node)
        outcome = self.outcomes.get(rank)
        if outcome is None or outcome.node != node:
            return
        sound = checked(event)
        if sound is None:
            self._note_unreadable(node, f"event {event['seq']} lacks what belongs to its kind")
            return
        if kind == "end":
            self._on_end(sound, outcome)
            return
        if kind in ("ask", "asked", "stopped"):
            self._on_question(sound, outcome)
            return
        if kind == "stream":
            kept = outcome.stdout if sound["name"] == "stdout" else outcome.stderr
            self._keep(kept, event["seq"], sound["text"])
        self.events.printed(outcome.rank, node, sound)
        self._tell(OutputEvent(self.id, outcome.rank, sound))

    def _on_end(self, event: dict[str, Any], outcome: Outcome) -> None:
        if outcome.status != "running":
            return
        ours = event["status"] in ("interrupted", "died") or outcome.rank in self.aborted
        if self.why and ours and event["status"] != "ok":
            # The manager ended it: the reason is the manager's.
            event = {**event, "status": "interrupted", "why": event.get("why") or self.why}
            if self.timed_out is not None:
                event["timeout"] = self.timed_out
        outcome.status, outcome.end = event["status"], event
        self.events.rank_ended(outcome.rank, outcome.node, event)
        for name in event.get("writes", ()):
            self.writes.setdefault(name, set()).add(outcome.rank)
        if "sizes" in event:
            self.sizes = known = self.sizes or {}
            for name, size in event["sizes"].items():
                known[name] = size if known.get(name) is None else max(size or 0, known[name] or 0)
        for name, uses in event.get("uses", {}).items():
            self.uses[name] = self.uses.get(name, frozenset()).union(uses)
        self.modules.update(event.get("modules", ()))
        self.imports.update((name, found[0]) for name, found in event.get("imports", {}).items())
        members = {name: found for name, found in event.get("members", {}).items() if len(found) == 2}
        self.members.update((name, (module, member)) for name, (module, member) in members.items())
        self._tell(OutputEvent(self.id, outcome.rank, event))
        self._note_end()

    def take_end(self, rank: int, event: dict[str, Any]) -> None:
        """Note a rank's end that is in no journal."""
        self._on_end(event, self.outcomes[rank])

    def _on_question(self, event: dict[str, Any], outcome: Outcome) -> None:
        if event["kind"] == "asked":
            self.questions.close(event["id"])
            self.events.works(outcome.rank, until_now=True)
        elif event["kind"] == "stopped" and outcome.status == "running":
            self.questions.hold(Question(event["id"], outcome.rank, "", stopped=True))
            self.events.waits(outcome.rank, outcome.node, "is stopped by a debugger")
        elif outcome.status == "running":
            self.questions.add(Question(event["id"], outcome.rank, event["prompt"], event["password"]))
            self.events.waits(outcome.rank, outcome.node, "waits for the user")
        if outcome.status == "running":
            waits = {"kind": "waits", "for": self.questions.waits_for(outcome.rank)}
            self._tell(OutputEvent(self.id, outcome.rank, waits))
        self.changed.set()

    def _on_gap(self, gap: Gap, node: int) -> None:
        """Report missing output, in the affected streams if known."""
        why = _one_line(gap.why) or "it is not known why"
        of_ranks: dict[int, int] = {}
        for (rank, name), size in gap.tally.items():
            outcome = self.outcomes.get(rank)
            if outcome is None or outcome.node != node:
                continue
            of_ranks[rank] = of_ranks.get(rank, 0) + size
            kept = {"stdout": outcome.stdout, "stderr": outcome.stderr}.get(name)
            if kept is not None:
                self._keep(kept, gap.first, "\n" * kept.line_is_open + gap_text(size, why))
        for rank, size in of_ranks.items():
            line = {"kind": "stream", "rank": rank, "name": "stderr", "text": gap_text(size, why)}
            self._tell(OutputEvent(self.id, rank, line))
        if not of_ranks:
            self._on_notice(f"node {node}: a part of its output is missing ({why})", node)

    def _keep(self, kept: Printed, number: int, text: str) -> None:
        everything = (one for outcome in self.outcomes.values() for one in (outcome.stdout, outcome.stderr))
        self._bound.add(number, text, kept, everything)

    def _on_notice(self, text: str, node: int) -> None:
        self._notices[node] = said = self._notices.get(node, 0) + 1
        if said <= _MOST_NOTICES:
            self._tell(NoticeEvent(_one_line(text), self.id))

    def lose(self, ranks: Iterable[int], text: str) -> None:
        """Fail ranks whose node is gone."""
        for rank in ranks:
            if self.outcomes[rank].status == "running":
                event = {"kind": "end", "rank": rank, "status": "lost", "text": text}
                self.outcomes[rank].status, self.outcomes[rank].end = "lost", event
                self.events.rank_ended(rank, self.outcomes[rank].node, event)
                self._tell(OutputEvent(self.id, rank, event))
        self._note_end()

    def stop(self, why: str) -> None:
        """End ranks that have not begun as interrupted; ``why`` is as in "by you"."""
        for rank in self.left:
            event = {"kind": "end", "rank": rank, "status": "interrupted", "why": why}
            self.outcomes[rank].status, self.outcomes[rank].end = "interrupted", event
            self._tell(OutputEvent(self.id, rank, event))
        self._note_end()

    def _note_end(self) -> None:
        for rank, outcome in self.outcomes.items() if self.questions.are_open else ():
            if outcome.status != "running":
                self.questions.close_rank(rank)
        self.changed.set()
        # Ranks end roughly in their order, so the search from the last one is short. A list of all at each end is slow
        # with many ranks.
        if not any(outcome.status == "running" for outcome in reversed(self.outcomes.values())):
            self.elapsed = self._took()
            if not self.over.is_set():
                self.events.ended(self.kind, f"{self.title or self.kind}: {self.how_ended}", self.elapsed)
            self.over.set()

    async def until(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait on the loop for a condition; return False on a timeout."""
        end = None if timeout is None else time.monotonic() + timeout
        while not condition():
            self.changed.clear()
            wait = None if end is None else end - time.monotonic()
            if wait is not None and wait <= 0:
                return False
            try:
                await asyncio.wait_for(self.changed.wait(), wait)
            except asyncio.TimeoutError:
                return condition()
        return True

    async def until_in_work(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait as `until` does; time in which a rank waits for the user does not count."""
        end = None if timeout is None else self.worked + timeout
        while not condition():
            if end is not None and not self.questions.are_open:
                await self.until(lambda: condition() or self.questions.are_open, end - self.worked)
                if not self.questions.are_open:
                    return condition()
            else:
                await self.until(lambda: condition() or (end is not None and not self.questions.are_open), None)
        return True

    @property
    def worked(self) -> float:
        """The time of a clock that stands still while a rank waits for the user."""
        return time.monotonic() - self.questions.seconds


def _one_line(text: str) -> str:
    """Sanitize a node's text as one line."""
    printable = text[:_MOST_NOTICE].encode(errors="replace").decode()
    return " ".join("".join(letter if letter.isprintable() else " " for letter in printable).split())
