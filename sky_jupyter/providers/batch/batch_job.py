"""Job of a pool as its scheduler describes it, and the mark that identifies it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from ..provisioning_types import ENDED, QUEUED, RUNNING, MachineRecord, Order

_BEGIN = "sky"
_PARTS = 8


@dataclass(frozen=True)
class JobMark:
    """Mark of a pool's job: facts in a text that all users of the cluster can read.

    Attributes
    ----------
    pool, token, owner, name : str
        Those of the `Order`.
    count : int
        Nodes that were asked for.
    until : float or None
        Time from which any sweeper may end it.
    hosts : str
        Once it runs: the number of its start, and all nodes that it began with, separated by commas. The scheduler no
        longer lists nodes that the job has lost; this list lets the others keep their numbers.
    """

    pool: str
    token: str
    count: int
    until: float | None = None
    owner: str = ""
    name: str = ""
    hosts: str = ""

    @classmethod
    def of(cls, order: Order, count: int) -> JobMark:
        """Return the mark of an order's job."""
        return cls(order.pool, order.token, count, order.until, order.owner, order.name)

    @classmethod
    def parse(cls, text: str) -> JobMark | None:
        """Return the mark in a text; None if there is none."""
        begin, *parts = text.strip().split(":")
        if begin != _BEGIN or len(parts) != _PARTS - 1:
            return None
        pool, token, count, until, owner, name, hosts = map(unquote, parts)
        if not count.isdecimal():
            return None
        try:
            limit = float(until) if until else None
        except ValueError:
            return None
        return cls(pool, token, int(count), limit, owner, name, hosts)

    def __str__(self) -> str:
        limit = "" if self.until is None else f"{self.until:.0f}"
        parts = (self.pool, self.token, str(self.count), limit, self.owner, self.name, self.hosts)
        return ":".join([_BEGIN, *(quote(part, safe="@,.-_[]/ ").replace(" ", "%20") for part in parts)])


@dataclass(frozen=True)
class BatchJob:
    """Job of a pool.

    Attributes
    ----------
    id : str
        The scheduler's id.
    mark : JobMark
        The mark that names its pool.
    state : str
        A state of `provisioning_types`: ``"queued"`` until all its nodes are there.
    reason : str
        Why it waits, or how it ended, in words.
    nodes : tuple of str
        The nodes that it has now, as the scheduler calls them; in a fixed order.
    restarts : int
        How often it was requeued.
    queue : str
        Partition or queue.
    submitted, started, ends : float or None
        Unix times; ``started`` is the expected one while it waits, ``ends`` that of its time limit.
    failed : bool
        Whether its own script failed, so that its log says why.
    """

    id: str
    mark: JobMark
    state: str
    reason: str = ""
    nodes: tuple[str, ...] = ()
    restarts: int = 0
    queue: str = ""
    submitted: float | None = None
    started: float | None = None
    ends: float | None = None
    failed: bool = False

    @property
    def incarnation(self) -> str:
        """Its id and the number of its start."""
        return f"{self.id}.{self.restarts}"

    @property
    def first_nodes(self) -> tuple[str, ...]:
        """The nodes that this start began with: machine ``JOB/2`` is the third node."""
        start, _, hosts = self.mark.hosts.partition("/")
        return tuple(hosts.split(",")) if hosts and start == str(self.restarts) else self.nodes

    def machine(self, index: int) -> str:
        """Return the id of a machine."""
        return f"{self.id}/{index}"

    def records(self) -> list[MachineRecord]:
        """Return its machines."""
        return [self._record(index) for index in range(self.mark.count)]

    def _record(self, index: int) -> MachineRecord:
        state, reason, nodes = self.state, self.reason, self.first_nodes
        node = nodes[index] if index < len(nodes) else ""
        waits = state == QUEUED
        # (A job that ends loses its nodes one by one.)
        if state == RUNNING and self.nodes and node not in self.nodes:
            state, reason = ENDED, f"node {node or index} does not belong to job {self.id} any more"
        return MachineRecord(
            self.machine(index),
            state,
            pool=self.mark.pool,
            zone=node,
            kind=self.queue,
            launched=self.submitted if self.started is None or waits else self.started,
            until=self.mark.until,
            reason=reason,
            owner=self.mark.owner,
            name=self.mark.name,
            incarnation="" if waits else f"{self.incarnation}.{node}",
        )


def waiting(state: str, reason: str, expected: float | None, ahead: int | None = None) -> str:
    """Return a text that says why a job waits, and until when."""
    words = f"the job is {state.lower()}"
    words += f" ({reason})" if reason and reason != "None" else ""
    if ahead is not None:
        words += f", {ahead} {'job' if ahead == 1 else 'jobs'} before it"
    if expected is not None and expected > time.time():
        words += f", expected to start at {time.strftime('%a %H:%M', time.localtime(expected))}"
    return words


def split(id: str) -> tuple[str, int] | None:
    """Return job and index of a machine's id; None for another form."""
    job, slash, index = id.partition("/")
    return (job, int(index)) if job and slash and index.isdecimal() else None


def by_job(ids: Sequence[str]) -> dict[str, dict[int, str]]:
    """Return machines' ids by job and index; others are left out."""
    found: dict[str, dict[int, str]] = {}
    for id in ids:
        if (parts := split(id)) is not None:
            found.setdefault(parts[0], {})[parts[1]] = id
    return found


__all__ = ["BatchJob", "JobMark", "by_job", "split", "waiting"]
