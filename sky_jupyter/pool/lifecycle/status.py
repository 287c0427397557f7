"""Status of a pool as JSON: nodes, active runs and start-up phases.

Nodes are asked on demand, all at once, and the answers are cached for a moment. They run the user's code, so their
answers are validated.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ...node.protocol import rpc
from ...util import pool_cost
from ...util.validate import is_number, is_whole
from ..base.event_loop import loop
from ..base.run_titles import title_of
from ..base.timeouts import TIMEOUTS
from ..context import PoolContext

if TYPE_CHECKING:
    from ...util.pool_cost import PoolCost
    from ..base.phases import PhaseLog
    from ..execution.supervisor import Supervisor
    from ..hosts.launch import Host

_log = logging.getLogger(__name__)
# How long the answers are cached.
_FRESH = TIMEOUTS.answers.fresh
# Samples of a node, one a second: as many as the node keeps.
_KEPT = 300
_WITHIN = TIMEOUTS.answers.status
_CODE = 500
# Lines of a phase in an incremental answer.
_LINES = 3
_MOST_RANKS = 1024
_MOST_GPUS = 64
_MOST_TEXT = 200
# Facts of a node that has not answered yet.
_UNKNOWN: Mapping[str, Any] = {
    "uptime": 0.0,
    "pid": 0,
    "accelerators": 0,
    "accelerator": None,
    "ranks": (),
    "cores": 0.0,
    "memory": 0.0,
    "gpus": (),
}
Sample = tuple[float, ...]


@dataclass
class NodeStatus:
    """Last known facts of one node.

    Attributes
    ----------
    samples : deque of (float, tuple of float)
        The time and the values of each sample; see `node.system.metrics`.
    """

    incarnation: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    next: int = 0
    heard: float = -math.inf
    samples: deque[tuple[float, Sample]] = field(default_factory=lambda: deque(maxlen=_KEPT))


class StatusCache:
    """Cache of the nodes' facts of one pool; changed on the loop only."""

    def __init__(self, pool: PoolContext) -> None:
        self.pool = pool
        self.nodes: dict[int, NodeStatus] = {}
        self._at = -math.inf
        self._asking: asyncio.Future[None] | None = None

    def renumber(self, numbers: Mapping[int, int]) -> None:
        """Renumber the nodes, old to new; forget the others."""
        self.nodes = {numbers[node]: seen for node, seen in self.nodes.items() if node in numbers}

    async def look(self) -> None:
        """Refresh the facts unless they are fresh; share a refresh that is under way."""
        if self._asking is None:
            if time.monotonic() - self._at < _FRESH:
                return
            self._asking = asyncio.ensure_future(self._ask())
        with contextlib.suppress(asyncio.TimeoutError):
            # Shielded: others wait for it too.
            await asyncio.wait_for(asyncio.shield(self._asking), _WITHIN)

    async def _ask(self) -> None:
        try:
            if not self.pool.has_control or self.pool.control.closing:
                return
            control = self.pool.control
            nodes = sorted(control.there)
            if not nodes:
                return
            since = {str(node): self.nodes[node].next for node in nodes if node in self.nodes}
            answers = await asyncio.wait_for(control.ask(rpc.STATUS, nodes, since=since), _WITHIN)
            now = time.monotonic()
            for node, answer in answers.items():
                take(self.nodes.setdefault(node, NodeStatus()), answer, now)
        except Exception as error:
            # A node that is lost, or an agent of another version: the old facts stay.
            _log.debug("the nodes of pool %s were not seen: %s: %s", self.pool.spec.name, type(error).__name__, error)
        finally:
            self._at, self._asking = time.monotonic(), None


def take(seen: NodeStatus, answer: Any, now: float) -> None:
    """Store a node's answer, as far as it is valid."""
    if not isinstance(answer, Mapping):
        return
    incarnation = _text(answer.get("incarnation"))
    if incarnation != seen.incarnation:
        seen.incarnation, seen.next = incarnation, 0
        seen.samples.clear()
    seen.heard = now
    accelerators = answer.get("accelerators")
    count, kind = accelerators if isinstance(accelerators, (list, tuple)) and len(accelerators) == 2 else (0, None)
    ranks = answer.get("ranks")
    seen.facts = {
        "pid": _whole(answer.get("pid")),
        "uptime": _number(answer.get("uptime")),
        "accelerators": _whole(count),
        "accelerator": _text(kind) or None,
        "ranks": [
            _rank(number, facts)
            for number, facts in list(ranks.items() if isinstance(ranks, Mapping) else ())[:_MOST_RANKS]
            if isinstance(facts, Mapping)
        ],
    }
    metrics = answer.get("metrics")
    if isinstance(metrics, Mapping):
        _take_metrics(seen, metrics, now)


def _take_metrics(seen: NodeStatus, metrics: Mapping[str, Any], now: float) -> None:
    gpus = metrics.get("gpus")
    gpus = gpus[:_MOST_GPUS] if isinstance(gpus, (list, tuple)) else []
    named = [gpu for gpu in gpus if isinstance(gpu, (list, tuple)) and len(gpu) == 2]
    seen.metrics = {
        "cores": _number(metrics.get("cores")),
        "memory": _number(metrics.get("memory")),
        "gpus": [{"name": _text(name), "memory": _number(memory)} for name, memory in named],
    }
    width, samples = 2 + 2 * len(named), metrics.get("samples")
    if not isinstance(samples, (list, tuple)):
        return
    fresh = [sample for sample in samples[-_KEPT:] if isinstance(sample, (list, tuple)) and len(sample) == width]
    for index, sample in enumerate(fresh):
        # Samples are a second apart; the last one is current.
        at = now - (len(fresh) - 1 - index)
        seen.samples.append((at, tuple(_number(value) for value in sample)))
    seen.next = _whole(metrics.get("next"))


class StatusContext(PoolContext, Protocol):
    """The pool, and all that its status shows."""

    @property
    def state(self) -> str: ...

    @property
    def ids(self) -> Sequence[str]:
        """The ids of its machines, by node."""
        ...

    @property
    def condition(self) -> str:
        """The state in one word, as users see it."""
        ...

    @property
    def broken(self) -> str:
        """The reason why the pool is broken; "" if it is not."""
        ...

    @property
    def began(self) -> float:
        """The time when its start began, on this process's clock."""
        ...

    @property
    def away(self) -> dict[str, str]:
        """The machines that cannot be reached."""
        ...

    @property
    def apart(self) -> dict[str, str]:
        """The machines that the head does not reach."""
        ...

    @property
    def cost(self) -> PoolCost | None:
        """The cost of its machines; None if nothing is bought."""
        ...

    @property
    def phases(self) -> PhaseLog: ...

    @property
    def status_cache(self) -> StatusCache: ...

    @property
    def supervisor(self) -> Supervisor: ...

    @property
    def detached(self) -> Mapping[str, object]:
        """The runs that nothing waits for, by id."""
        ...

    def retry_links(self) -> None:
        """Retry connections to unreachable machines at once."""
        ...


def of(pool: StatusContext, since: int | None = None, lines: int | None = None) -> dict[str, Any]:
    """Return a pool's status as JSON; not for the loop's own thread.

    Parameters
    ----------
    pool : StatusContext
        The pool.
    since : int, optional
        The ``mark`` of an earlier answer: newer samples are included. 0 includes all.
    lines : int, optional
        Number of last lines of each phase, with the nodes' parts. By default all for a ``since`` of 0, else a
        few, with the nodes' parts of the current phase only.

    Returns
    -------
    dict
        The status.
    """
    status_cache = pool.status_cache
    if not since:
        # A user asks, not a page that polls: retry unreachable machines at once.
        pool.retry_links()
    with contextlib.suppress(FutureTimeout):
        loop().call(status_cache.look(), timeout=_WITHIN + 1)
    now = time.monotonic()
    spec = pool.spec
    return {
        "name": spec.name,
        "id": pool.id,
        "state": pool.condition,
        "why": pool.broken,
        "provider": spec.provider.kind,
        "about": str(spec.provider),
        "remaining": _remaining(pool),
        "ranks_per_node": spec.ranks_per_node,
        "world_size": spec.world_size,
        "plugins": [str(plugin) for plugin in spec.plugins],
        "keep": spec.keep,
        "uptime": round(time.perf_counter() - pool.began, 1) if pool.began else 0.0,
        "cost": pool_cost.to_json(pool.cost),
        "runs": [_run(pool, run, now) for run in list(pool.supervisor.runs.values()) if not run.over.is_set()],
        "away": {**pool.away, **pool.supervisor.interruptions.told, **_waiting(pool)},
        "apart": pool.apart,
        "phases": _phases(pool, since, lines),
        "nodes": [_node(pool, node, since, now) for node in range(spec.nodes)],
        # Milliseconds of this process's monotonic clock.
        "mark": math.ceil(now * 1000),
    }


def _remaining(pool: StatusContext) -> str:
    """Return the time left of a scheduler's allocation, or ""."""
    left = getattr(pool.spec.provider, "time_left", None)
    return str((left and left(pool.ids)) or "")


def _waiting(pool: StatusContext) -> dict[str, str]:
    """Return what is known of machines that are queued or being replaced."""
    text = pool.phases.line_of("queue") or pool.supervisor.watchdog.troubles.get("replacement", "")
    return {"machines": text} if text else {}


def _phases(pool: StatusContext, since: int | None, lines: int | None) -> list[dict[str, Any]]:
    if lines is not None:
        return pool.phases.facts(lines)
    return pool.phases.facts() if since == 0 else pool.phases.facts(_LINES, parts=False)


def _run(pool: StatusContext, run: Any, now: float) -> dict[str, Any]:
    return {
        "id": run.id,
        "code": run.code[:_CODE],
        "title": title_of(run.code),
        "count": run.count,
        "elapsed": round(run.since_began, 1),
        "silent": round(now - run.heard, 1),
        "ranks": list(run.outcomes),
        "left": run.left,
        "failed": run.failed,
        "interrupted": run.presses > 0,
        "timed_out": run.timed_out is not None,
        "detached": run.id in pool.detached,
    }


def _node(pool: StatusContext, node: int, since: int | None, now: float) -> dict[str, Any]:
    seen = pool.status_cache.nodes.get(node, NodeStatus())
    host = _host_of(pool, node)
    address = pool.control.addresses.get(node, "") if pool.has_control else ""
    samples = [(at, sample) for at, sample in list(seen.samples) if since is not None and at * 1000 > since]
    return {
        "node": node,
        "state": state_of(pool, node, seen),
        "host": host.name if host is not None else "",
        "address": address.partition("://")[2].rpartition(":")[0],
        **_UNKNOWN,
        **seen.facts,
        **seen.metrics,
        "heard": round(now - seen.heard, 1) if seen.heard > 0 else None,
        "now": list(seen.samples[-1][1]) if seen.samples else None,
        "samples": [[round(now - at, 1), *sample] for at, sample in samples],
    }


def _host_of(pool: PoolContext, node: int) -> Host | None:
    return next((host for host in pool.hosts if node in host.nodes), None)


def state_of(pool: StatusContext, node: int, seen: NodeStatus) -> str:
    """Return a node's state in one word."""
    host = _host_of(pool, node)
    if host is not None and host.name in pool.away:
        return "unreachable"
    if not pool.has_control or pool.state == "new":
        return "starting"
    control = pool.control
    if pool.state in ("broken", "ended", "taken") or node in control.lost or node in control.off:
        return "lost"
    if None in control.silent or node in control.silent or node not in control.addresses:
        return "silent"
    ranks: Sequence[Mapping[str, Any]] = seen.facts.get("ranks") or ()
    if any(not rank["pid"] or not rank["entered"] for rank in ranks):
        return "replacing"
    return "busy" if any(rank["run"] for rank in ranks) else "idle"


def _rank(number: Any, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "rank": _whole(number),
        "pid": _whole(facts.get("pid")),
        "run": _text(facts.get("busy_with")) or None,
        "entered": facts.get("entered") is True,
        "memory": _number(facts.get("memory")),
    }


def _whole(value: Any) -> int:
    return value if is_whole(value, 0, 1 << 53) else 0


def _number(value: Any) -> float:
    return float(value) if is_number(value, 0, 1e18) else 0.0


def _text(value: Any) -> str:
    return value[:_MOST_TEXT] if isinstance(value, str) and value.isprintable() else ""
