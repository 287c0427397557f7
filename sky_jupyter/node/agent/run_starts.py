"""Start of a run on agents that share a process; they answer together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from ..journal.run_record import RunRecord
from .context import AgentContext
from .run_turns import RunTurns

# Seconds that the reply waits for a run's end, so that a short run needs no second message. If several agents start a
# run together, it waits again if ranks have ended meanwhile, at most so often: the others are likely to end soon.
_LINGER, _MOST_TURNS = 0.02, 5
_KNOWN = {"state": "known", "first": 0, "count": 0, "data": b""}


class StartingAgent(AgentContext, Protocol):
    """Agent of a node, as the start of a run uses it."""

    turns: RunTurns

    def begin(self, run: str, ranks: list[int], content: dict[str, Any], about: dict[str, Any] | None) -> RunRecord:
        """Register a run and start it on this node's share of the ranks."""
        ...


A = TypeVar("A", bound=StartingAgent)


def present(agents: Iterable[A], incarnations: Mapping[int, str]) -> list[A]:
    """Return the connected agents that have these incarnations.

    Nobody would receive the events of a run on another agent.
    """
    return [agent for agent in agents if agent.send is not None and incarnations.get(agent.node) == agent.incarnation]


async def start(
    agents: Sequence[StartingAgent], run: str, ranks: list[int], content: dict[str, Any], about: dict[str, Any] | None
) -> dict[int, dict[str, Any]]:
    """Start a run on each agent's ranks; return the first output by node.

    An agent that knows the id returns its state instead. ``about`` is what a later manager needs to know of the run,
    besides its ranks and content.
    """
    answers: dict[int, dict[str, Any]] = {}
    begun: dict[int, RunRecord] = {}
    try:
        for agent in agents:
            if run in agent.runs or agent.open_short(run):
                answers[agent.node] = _KNOWN
            else:
                agent.turns.begin((about or {}).get("turn"))
                begun[agent.node] = agent.begin(run, ranks, content, about)
                # Its ranks begin while the other agents' journals are opened.
                await asyncio.sleep(0)
        await _linger(begun.values())
        return {**answers, **{node: _answer(record) for node, record in begun.items()}}
    finally:
        # Later events are forwarded, even if there is no reply.
        for record in begun.values():
            record.replied = True


async def _linger(records: Iterable[RunRecord]) -> None:
    """Wait a short time until runs are over; longer while some of them end."""
    left = [record for record in records if not record.over.is_set()]
    for _ in range(_MOST_TURNS):
        before = len(left)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_all_over(left), _LINGER)
        left = [record for record in left if not record.over.is_set()]
        if len(left) in (0, before):
            return


async def _all_over(records: Iterable[RunRecord]) -> None:
    for record in records:
        await record.over.wait()


def _answer(record: RunRecord) -> dict[str, Any]:
    first, count, data = record.take() or (0, 0, b"")
    return {"state": "over" if record.over.is_set() else "running", "first": first, "count": count, "data": data}
