"""Copying what some nodes have to others: a tree, in which whoever has it serves the next.

The agents copy; this decides who takes from whom, and looks how far they are. A source that fails is
replaced by another one, and a connection of the notebook's that breaks holds nothing up but the news.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import NodeLost
from ...node.protocol import rpc
from ...node.protocol.rpc import AgentCall
from ..base.event_loop import NoAnswer
from ..base.timeouts import TIMEOUTS
from ..control.control_client import Control

_FIRST_POLL, _LAST_POLL = TIMEOUTS.polls.first_copy, TIMEOUTS.polls.last_copy
# One at a time is soonest for all, unless who takes is slow: others do not wait for that one.
_SLOW_AGE, _SLOW_RATE, _MOST_SERVED = TIMEOUTS.transfers.slow_age, 8e6, 4
# What is small is there before anybody could serve the next.
_SMALL, _MOST_SERVED_SMALL = 16 << 20, 16
_MOST_ATTEMPTS = 6
# An agent that ends is revived; a node that is still lost after this long gets nothing.
_ABSENCE = TIMEOUTS.transfers.absence
# One that stands still may go on where it was.
_SILENCE = TIMEOUTS.transfers.silence
_LOOK = TIMEOUTS.polls.copies


@dataclass(frozen=True)
class NodePath:
    """Where a thing is on a node, or goes: its path, and where it may have come to over the link; as they travel."""

    path: bytes
    spool: bytes = b""


@dataclass(frozen=True)
class Failure:
    """Why a node does not have it: ``kind`` is source, full, error or lost."""

    kind: str
    why: str


@dataclass
class _Job:
    name: str
    source: int | None
    began: float = field(default_factory=time.monotonic)
    heard: float = field(default_factory=time.monotonic)
    there: int = 0

    @property
    def slow(self) -> bool:
        age = time.monotonic() - self.began
        return age > _SLOW_AGE and self.there / age < _SLOW_RATE


class Spread:
    """One transfer on the agents' side; made by `upload` and `files`, used on the manager's loop, closed by it.

    Parameters
    ----------
    control : Control
        The agents.
    plan : str
        A name for it.
    listing : bytes
        What it consists of, with the hashes of what is to be copied.
    size : int
        Bytes of all that is to be copied.
    places : mapping of int to NodePath
        By node.
    tell : callable
        Told how many bytes each node has, when that changes.
    """

    def __init__(
        self,
        control: Control,
        plan: str,
        listing: bytes,
        size: int,
        places: Mapping[int, NodePath],
        tell: Callable[[Mapping[int, int]], None],
    ) -> None:
        self._control, self._plan, self._listing, self._places, self._tell = control, plan, listing, places, tell
        self._size = size
        self._jobs: dict[int, _Job] = {}
        self._there: dict[int, int] = {}
        self._tried: dict[int, set[int | None]] = {node: set() for node in places}
        self._attempts = dict.fromkeys(places, 0)
        self._failures: dict[int, Failure] = {}
        self._lost_since: dict[int, float] = {}
        self._names: list[str] = []

    async def begin(self) -> None:
        """Give all nodes the listing, in one message."""
        await ask(self._control, rpc.PREPARE_TRANSFER, self._places, plan=self._plan, listing=self._listing)

    async def settle(self, node: int) -> list[int]:
        """Have a node put in place what has come to it; the places in the listing of what has not.

        Raises
        ------
        NodeLost
            When the node is lost.
        OSError
            When it cannot.
        """
        await self._take(node, None)
        answer: dict[str, Any] = {}
        pause = _FIRST_POLL
        while node in self._jobs:
            answer = (await self._look()).get(node, answer)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LAST_POLL)
        failure = self._failures.pop(node, None)
        if failure is not None:
            if failure.kind == "lost":
                raise NodeLost(failure.why)
            raise OSError(failure.why)
        return list(answer.get("missing", []))

    async def run(self, holders: Iterable[int], others: Iterable[int]) -> dict[int, Failure]:
        """Copy from the nodes that have it to others; the failures of those that do not have it in the end."""
        have, waiting = set(holders), set(others)
        pause = _FIRST_POLL
        while waiting or self._jobs:
            if await self._dispatch(have, waiting):
                pause = _FIRST_POLL
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LAST_POLL)
            before = set(self._jobs)
            await self._look()
            for node in before - set(self._jobs):
                failure = self._failures.get(node)
                if failure is None:
                    have.add(node)
                elif failure.kind in ("source", "lost"):
                    waiting.add(node)
        return dict(self._failures)

    async def close(self) -> None:
        """Have the agents end and forget all of it."""
        await self._control.ask(
            rpc.CANCEL_TRANSFER,
            [n for n in self._places if n not in self._control.lost],
            plan=self._plan,
            jobs=self._names,
        )

    async def _dispatch(self, have: set[int], waiting: set[int]) -> bool:
        """Give each node that waits a source that is free; whether any got one."""
        begun = False
        for node in sorted(waiting):
            if node in self._control.lost | self._control.silent:
                if time.monotonic() - self._lost_since.setdefault(node, time.monotonic()) > _ABSENCE:
                    self._failures[node] = _lost(node)
                    waiting.discard(node)
                continue
            self._lost_since.pop(node, None)
            left = have - self._tried[node] - self._control.lost
            if (not left and not self._jobs) or self._attempts[node] >= _MOST_ATTEMPTS:
                # Nobody is left who could serve it; it has its failure.
                self._failures.setdefault(node, Failure("source", "no other node has it"))
                waiting.discard(node)
                continue
            free = [source for source in sorted(left) if self._is_free(source)]
            if free:
                waiting.discard(node)
                self._failures.pop(node, None)
                await self._take(node, min(free, key=self._served))
                if node not in self._jobs:
                    waiting.add(node)
                begun = True
        return begun

    def _served(self, source: int) -> int:
        return sum(job.source == source for job in self._jobs.values())

    def _is_free(self, source: int) -> bool:
        if source not in self._control.addresses:
            return False
        serves = [job for job in self._jobs.values() if job.source == source]
        if self._size <= _SMALL:
            return len(serves) < _MOST_SERVED_SMALL
        return len(serves) < _MOST_SERVED and all(job.slow for job in serves)

    async def _take(self, node: int, source: int | None) -> None:
        place = self._places[node]
        job = _Job(f"{self._plan}.{len(self._names)}", source)
        self._names.append(job.name)
        self._tried[node].add(source)
        self._attempts[node] += 1
        where = None
        if source is not None:
            where = {"address": self._control.addresses[source], "path": self._places[source].path}
        arguments = {"plan": self._plan, "job": job.name, "path": place.path, "spool": place.spool, "source": where}
        try:
            if not (await ask(self._control, rpc.START_TRANSFER, [node], **arguments))[node]:
                # Its agent is a new one.
                await ask(self._control, rpc.PREPARE_TRANSFER, [node], plan=self._plan, listing=self._listing)
                await ask(self._control, rpc.START_TRANSFER, [node], **arguments)
        except NodeLost:
            self._failures[node] = _lost(node)
            return
        self._jobs[node] = job

    async def _look(self) -> dict[int, dict[str, Any]]:
        """How far the jobs are; those that have ended are taken out, with their failures noted."""
        for node in [node for node, job in self._jobs.items() if node in self._control.lost or self._is_gone(job)]:
            self._end(node, _lost(node))
        answers = dict(await asyncio.gather(*map(self._ask_how_far, self._jobs)))
        found = {}
        for node, job in list(self._jobs.items()):
            answer = answers[node]
            if answer is None:
                continue
            job.heard, facts = time.monotonic(), answer.get(job.name)
            if facts is None:
                # Another agent than the one that was asked to take it.
                self._end(node, Failure("source", "its agent ended meanwhile"))
                self._tried[node].discard(job.source)
                continue
            found[node] = facts
            job.there = self._there[node] = facts["there"]
            if facts["state"] == "failed":
                self._end(node, Failure(facts["kind"], facts["why"]))
            elif facts["state"] == "done":
                self._end(node, None)
        self._tell(self._there)
        return found

    async def _ask_how_far(self, node: int) -> tuple[int, dict[str, Any] | None]:
        """What an agent says of its job; None where it does not answer now."""
        asking = self._control.ask(rpc.TRANSFER_STATUS, [node], jobs=[self._jobs[node].name])
        try:
            return node, (await asking)[node]
        except (NodeLost, NoAnswer):
            return node, None

    def _is_gone(self, job: _Job) -> bool:
        """Whether a job's node has said nothing for too long, where it could."""
        if not self._control.up.is_set() or None in self._control.silent:
            job.heard = time.monotonic()
        return time.monotonic() - job.heard > _SILENCE

    def _end(self, node: int, failure: Failure | None) -> None:
        self._jobs.pop(node, None)
        if failure is None:
            self._failures.pop(node, None)
        else:
            self._failures[node] = failure


async def ask(control: Control, call: AgentCall, nodes: Iterable[int], **arguments: Any) -> dict[int, Any]:
    """Ask agents; NodeLost where one of them is not heard of any more, which they would be waited for otherwise."""
    chosen = list(nodes)
    asking = asyncio.ensure_future(control.ask(call, chosen, **arguments))
    try:
        while not (await asyncio.wait([asking], timeout=_LOOK))[0]:
            if silent := sorted(node for node in chosen if node in control.silent):
                raise NodeLost(f"node {silent[0]} does not answer; `%sky restart` makes it anew")
        return asking.result()
    finally:
        asking.cancel()


def _lost(node: int) -> Failure:
    return Failure("lost", f"node {node} is lost: its agent does not answer")
