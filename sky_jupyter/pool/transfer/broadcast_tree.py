"""Copies between nodes, as a tree: a node that has the data serves the next.

Agents copy; this module assigns sources and polls the progress. A failed source is replaced, and a broken connection of
the notebook delays only the progress reports.
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
# Serving one node at a time is fastest, unless that one is slow: others do not wait for it.
_SLOW_AGE, _SLOW_RATE, _MOST_SERVED = TIMEOUTS.transfers.slow_age, 8e6, 4
# Small data arrives before its receiver could serve the next: a source serves more nodes then.
_SMALL, _MOST_SERVED_SMALL = 16 << 20, 16
_MOST_ATTEMPTS = 6
# An agent that ends is restarted; a node that is still lost after this long is left out.
_ABSENCE = TIMEOUTS.transfers.absence
# How long to wait for a stopped agent, which may continue.
_SILENCE = TIMEOUTS.transfers.silence
_LOOK = TIMEOUTS.polls.copies


@dataclass(frozen=True)
class NodePath:
    """Path of the data on a node, and of its spool, as wire bytes."""

    path: bytes
    spool: bytes = b""


@dataclass(frozen=True)
class Failure:
    """Why a node lacks the data; ``kind`` is source, full, error or lost."""

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


class BroadcastTree:
    """Copies of one transfer between nodes; used on the manager's loop.

    `upload` and `files` make and close it.

    Parameters
    ----------
    control : Control
        Client of the agents.
    plan : str
        Unique name of the transfer.
    listing : bytes
        Manifest, with the hashes of what is to be copied.
    size : int
        Bytes of all that is to be copied.
    places : mapping of int to NodePath
        The data's path on each node.
    tell : callable
        Called with the bytes that each node has, when that changes.
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
        """Send the manifest to all nodes, in one message."""
        await ask(self._control, rpc.PREPARE_TRANSFER, self._places, plan=self._plan, listing=self._listing)

    async def settle(self, node: int) -> list[int]:
        """Move a node's spooled files into place; return missing ones.

        Raises NodeLost if the node is lost, OSError if that fails.
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
        """Copy from the nodes that have it to others; return the failures."""
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
        """Cancel the agents' jobs, and let them forget the transfer."""
        await self._control.ask(
            rpc.CANCEL_TRANSFER,
            [n for n in self._places if n not in self._control.lost],
            plan=self._plan,
            jobs=self._names,
        )

    async def _dispatch(self, have: set[int], waiting: set[int]) -> bool:
        """Assign free sources to waiting nodes; return whether any were assigned."""
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
                # No source is left for it; its last failure stays.
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
                # Its agent was restarted.
                await ask(self._control, rpc.PREPARE_TRANSFER, [node], plan=self._plan, listing=self._listing)
                await ask(self._control, rpc.START_TRANSFER, [node], **arguments)
        except NodeLost:
            self._failures[node] = _lost(node)
            return
        self._jobs[node] = job

    async def _look(self) -> dict[int, dict[str, Any]]:
        """Poll the jobs; remove ended ones, and record failures."""
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
                # Its agent was restarted, and does not have the job.
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
        """Return an agent's job status; None without an answer."""
        asking = self._control.ask(rpc.TRANSFER_STATUS, [node], jobs=[self._jobs[node].name])
        try:
            return node, (await asking)[node]
        except (NodeLost, NoAnswer):
            return node, None

    def _is_gone(self, job: _Job) -> bool:
        """Return whether a job's node has been silent too long."""
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
    """Call agents; raise NodeLost as soon as one becomes silent.

    `Control.ask` would wait for it.
    """
    chosen = list(nodes)
    asking = asyncio.ensure_future(control.ask(call, chosen, **arguments))
    try:
        while not (await asyncio.wait([asking], timeout=_LOOK))[0]:
            if silent := sorted(node for node in chosen if node in control.silent):
                raise NodeLost(f"node {silent[0]} does not answer; `%sky restart` recreates it")
        return asking.result()
    finally:
        asking.cancel()


def _lost(node: int) -> Failure:
    return Failure("lost", f"node {node} is lost: its agent does not answer")
