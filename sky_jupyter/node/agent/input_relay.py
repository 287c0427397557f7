"""Relay of questions of ranks' code to the user, and of the answers.

A question is an event of its run, so that it reaches the notebook even if the connection breaks. Its answer goes only
to the rank: it may be a password.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..protocol.journal_events import question_of
from .stream_relay import PATIENCE

if TYPE_CHECKING:
    from .context import AgentContext
    from .kernel_client import RankKernel

_LOOK = 0.5
Tell = Callable[[dict[str, Any], Sequence[bytes]], None]


@dataclass(frozen=True)
class _Question:
    rank: int
    run: str
    manager: int
    guest: str
    tell: Tell


class InputRelay:
    """Relay for the questions of a node's ranks; made by the agent.

    Parameters
    ----------
    agent : AgentContext
        The agent whose ranks ask.
    """

    def __init__(self, agent: AgentContext) -> None:
        self._agent = agent
        self._open: dict[str, _Question] = {}
        self._guard: asyncio.Task[None] | None = None
        idle = agent.config.idle_timeout
        self.patience = PATIENCE if idle is None else min(PATIENCE, idle / 2)

    def on_ask(self, rank: RankKernel, tell: Tell, content: dict[str, Any]) -> None:
        """Handle a rank's question, or note that the rank has stopped waiting."""
        id, what = content.get("id"), content.get("what")
        if not isinstance(id, str):
            return
        if content.get("drop"):
            self._close(id)
            return
        run = rank.busy_with
        if run is None or not self._may_ask(rank.number, run) or not isinstance(what, dict):
            tell({"id": id}, ())
            return
        self._open[id] = _Question(rank.number, run, self._agent.manager, self._agent.runs[run].guest, tell)
        event = question_of(id, what.get("prompt", ""), password=what.get("password") is True)
        self._agent.on_event(rank.number, run, {**event, "t": time.time()})
        if self._guard is None:
            self._guard = asyncio.ensure_future(self._watch())

    def on_end(self, rank: int) -> None:
        """Close the questions of a rank whose kernel has ended."""
        for id in [id for id, question in self._open.items() if question.rank == rank]:
            self._close(id)

    def on_over(self, rank: int, run: str) -> None:
        """Refuse the questions of a run that ends on a rank: its threads may still wait."""
        for id in [id for id, question in self._open.items() if (question.rank, question.run) == (rank, run)]:
            self._answer(id, None)

    async def sky_answer_input(self, run: str, id: str, value: str | None) -> None:
        """Pass the user's answer to the rank that asks; None if nobody answers."""
        self._answer(id, value)

    def _may_ask(self, rank: int, run: str) -> bool:
        """Return whether a rank works on a run whose questions can be answered.

        The rank checks this too, but its code can bypass that, and its threads outlive their run.
        """
        record = self._agent.runs.get(run)
        if record is None or rank not in record.left or record.answered_by is None:
            return False
        return bool(record.guest) or record.answered_by == self._agent.manager

    def _answer(self, id: str, value: str | None) -> None:
        question = self._close(id)
        if question is not None:
            question.tell({"id": id} if value is None else {"id": id, "value": value}, ())

    def _close(self, id: str) -> _Question | None:
        """Forget a question, and note in its run that it does not wait any more."""
        question = self._open.pop(id, None)
        if question is not None:
            self._agent.on_event(question.rank, question.run, {"kind": "asked", "id": id, "t": time.time()})
        return question

    async def _watch(self) -> None:
        """Refuse the questions of notebooks that are gone."""
        try:
            while self._open:
                await asyncio.sleep(_LOOK)
                agent = self._agent
                for id, question in list(self._open.items()):
                    heard = agent.guests_heard.get(question.guest, 0.0) if question.guest else agent.heard
                    replaced = not question.guest and question.manager != agent.manager
                    if replaced or time.monotonic() - heard > self.patience:
                        self._answer(id, None)
        finally:
            self._guard = None
