"""Relay between the page's debugger and ranks: requests, answers and events.

A stopped rank is also noted in its run: the journal reaches the manager even if the connection breaks, and the note
stops the run's clock.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..protocol import rpc
from ..protocol.debug_messages import TOPIC, Message, failure
from ..protocol.journal_events import stop_of
from .stream_relay import PATIENCE

if TYPE_CHECKING:
    from .context import AgentContext
    from .kernel_client import RankKernel

_LOOK = 0.5
_DETACH = {"type": "request", "seq": 0, "command": "disconnect", "arguments": {"terminateDebuggee": False}}


@dataclass
class _Debugged:
    """Rank that a manager debugs.

    Parameters
    ----------
    manager : int
        Generation of the manager.
    answers : dict of str to Future
        Its unanswered requests.
    stopped : (str, str), optional
        Where it is stopped: the run, and the id of the stop.
    """

    manager: int
    answers: dict[str, asyncio.Future[Message]] = field(default_factory=dict)
    stopped: tuple[str, str] | None = None


class DebugRelay:
    """Relay for the debuggers of a node's ranks; made by the agent.

    Parameters
    ----------
    agent : AgentContext
        The agent.
    """

    def __init__(self, agent: AgentContext) -> None:
        self._agent = agent
        self._debugged: dict[int, _Debugged] = {}
        self._guard: asyncio.Task[None] | None = None
        idle = agent.config.idle_timeout
        self.patience = PATIENCE if idle is None else min(PATIENCE, idle / 2)

    async def sky_debug_rank(self, rank: int, request: Message) -> Message:
        """Send a Debug Adapter Protocol request to a rank and return its response."""
        kernel = self._agent.ranks[rank]
        if not (kernel.pid and kernel.entered):
            return failure(request, f"rank {rank} has no kernel that is ready")
        one = self._debugged.setdefault(rank, _Debugged(self._agent.manager))
        one.manager = self._agent.manager
        if self._guard is None:
            self._guard = asyncio.ensure_future(self._watch())
        id = uuid.uuid4().hex
        answer = one.answers[id] = asyncio.get_running_loop().create_future()
        try:
            kernel.answer({"for": TOPIC, "id": id, "request": request})
            found: Message = await asyncio.wait_for(answer, rpc.DEBUG_RANK.timeout)
        except asyncio.TimeoutError:
            found = failure(request, f"rank {rank} does not answer")
        finally:
            one.answers.pop(id, None)
        if request.get("command") == "disconnect":
            self._forget(rank)
        return found

    def on_ask(self, rank: RankKernel, content: Message) -> None:
        """Handle a rank's response or event."""
        one, event = self._debugged.get(rank.number), content.get("event")
        if one is None:
            return
        answer = one.answers.get(str(content.get("id")))
        if answer is not None and not answer.done() and isinstance(content.get("reply"), dict):
            answer.set_result(content["reply"])
        if isinstance(event, dict):
            if event.get("event") == "stopped":
                self._hold(rank, one)
            elif event.get("event") == "continued":
                self._release(rank.number, one)
            self._tell(rank.number, event)

    def on_end(self, rank: int) -> None:
        """Note that a rank's kernel has ended, and its debugger with it."""
        if rank in self._debugged:
            self._forget(rank, f"the kernel of rank {rank} has ended")
            self._tell(rank, {"type": "event", "event": "exited"})

    def on_over(self, rank: int, run: str) -> None:
        """Note that a run has ended on a rank, and with it any stop of the rank."""
        one = self._debugged.get(rank)
        if one is not None and one.stopped is not None and one.stopped[0] == run:
            one.stopped = None

    def _hold(self, rank: RankKernel, one: _Debugged) -> None:
        run = rank.busy_with
        if run is not None and one.stopped is None:
            one.stopped = run, uuid.uuid4().hex
            self._agent.on_event(rank.number, run, {**stop_of(one.stopped[1]), "t": time.time()})

    def _release(self, rank: int, one: _Debugged) -> None:
        if one.stopped is not None:
            (run, id), one.stopped = one.stopped, None
            self._agent.on_event(rank, run, {"kind": "asked", "id": id, "t": time.time()})

    def _forget(self, rank: int, why: str = "the debugger is off") -> None:
        one = self._debugged.pop(rank, None)
        if one is not None:
            self._release(rank, one)
            for answer in one.answers.values():
                if not answer.done():
                    answer.set_result(failure({}, why))

    def _tell(self, rank: int, event: Message) -> None:
        if self._agent.send is not None:
            self._agent.send({TOPIC: event, "rank": rank, "node": self._agent.node})

    async def _watch(self) -> None:
        """Let ranks continue whose manager is gone."""
        try:
            while self._debugged:
                await asyncio.sleep(_LOOK)
                agent = self._agent
                is_late = time.monotonic() - agent.heard > self.patience
                for rank, one in list(self._debugged.items()):
                    if one.manager != agent.manager or is_late:
                        agent.ranks[rank].answer({"for": TOPIC, "id": "", "request": _DETACH})
                        self._forget(rank)
        finally:
            self._guard = None
