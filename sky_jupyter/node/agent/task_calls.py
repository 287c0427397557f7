"""Function calls on an agent: Dask brings them, one of its ranks does each, and it can be stopped.

Dask's tasks decide which node a call goes to, and bring it to another one where this one is lost. An
attempt has a name that no other agent gives: what a call said before it was begun again elsewhere is not
mixed up with what it says now.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .context import AgentContext
    from .kernel_client import RankKernel

_PAUSE = 0.05
# After an interrupt that is not heeded, what may block the rank is broken, and after as long again it is ended.
_PATIENCE = 1.0
# So many ids of calls that were cancelled are remembered, for those that are still on their way.
_REMEMBERED = 10_000


def attempt_name(call: str, node: int, incarnation: str) -> str:
    """What a call is named by while one agent does it."""
    return f"{call}.{node}-{incarnation[:6]}"


class TaskRunner:
    """One an agent, made with it.

    Parameters
    ----------
    agent : AgentContext
        Whose ranks do them.
    """

    def __init__(self, agent: AgentContext) -> None:
        self.agent = agent
        # Attempts that have not ended: the rank, and what waits for it.
        self.working: dict[str, tuple[RankKernel, asyncio.Task[Any]]] = {}
        # Why attempts are stopped: what their end is to say.
        self.stopped: dict[str, dict[str, Any]] = {}
        self.cancelled: OrderedDict[str, None] = OrderedDict()

    # -- what Dask and the manager ask -------------------------------------------------------------

    async def call(self, call: str, content: dict[str, Any], rank: int | None = None) -> dict[str, Any]:
        """Have a rank do a call, the one with least to do unless given, and wait for its end.

        An attempt that is known is not begun again: whoever asks anew waits for the same end.
        """
        name = attempt_name(call, self.agent.node, self.agent.incarnation)
        if name not in self.agent.runs:
            if call in self.cancelled:
                return {"attempt": None}
            self.begin(call, name, content, self.choose(rank))
        record = self.agent.runs[name]
        await record.over.wait()
        return {"attempt": name, "node": self.agent.node}

    async def sky_find_calls(self, calls: Sequence[str]) -> dict[str, str]:
        """Which of the calls this agent knows, and by which names."""
        names = {call: attempt_name(call, self.agent.node, self.agent.incarnation) for call in calls}
        return {call: name for call, name in names.items() if name in self.agent.runs}

    async def sky_cancel_calls(self, calls: Sequence[str], hard: bool = False) -> list[str]:
        """Stop calls, by a signal where a rank is at one; those that come later are not begun.

        Returns
        -------
        list of str
            Those that had begun, or wait for their rank: they end as others do.
        """
        known = await self.sky_find_calls(calls)
        for call in calls:
            self.cancelled[call] = None
        while len(self.cancelled) > _REMEMBERED:
            self.cancelled.popitem(last=False)
        for name in known.values():
            await self.stop(
                name, {"why": " by you"}, to_the_end=False, number=signal.SIGKILL if hard else signal.SIGINT
            )
        return list(known)

    async def sky_forget_calls(self, attempts: Sequence[str]) -> None:
        """Drop the journals of calls whose ends the manager has."""
        for name in attempts:
            if name in self.agent.runs and self.agent.runs[name].over.is_set():
                await self.agent.forget(name)

    # -- parts -------------------------------------------------------------------------------------

    def choose(self, rank: int | None) -> RankKernel:
        """The rank that is to do a call: one that has a kernel, and least to do."""
        ranks = self.agent.ranks
        if rank is not None:
            return ranks[rank]
        return min(ranks.values(), key=lambda item: (not item.entered, item.waiting, item.number))

    def begin(self, call: str, name: str, content: dict[str, Any], rank: RankKernel) -> None:
        """Open a call's journal, and have a rank do it when its turn comes."""
        about: dict[str, Any] = {"kind": "begin", "call": call, "ranks": [rank.number], "mine": [rank.number]}
        about.update(shape=self.agent.config.shape, code=content.get("title", ""), began=time.time())
        record = self.agent.open(name, [rank.number], about)
        record.replied = True
        if "stream" in content:
            # Who reads it is to know at once where it is.
            self.agent.forward(record)
        # The manager hears soon that it has begun, though it may say nothing for long.
        self.agent.flush_soon()
        task = asyncio.ensure_future(self.work(name, content, rank))

        def on_done(_: object) -> None:
            self.working.pop(name, None)
            if not record.over.is_set():
                # Stopped before its turn came.
                self.agent.on_event(rank.number, name, {"kind": "end", "status": "interrupted", "t": time.time()})
            self.stopped.pop(name, None)

        self.working[name] = rank, task
        task.add_done_callback(on_done)

    async def work(self, name: str, content: dict[str, Any], rank: RankKernel) -> None:
        """Have a rank do a call, within its time."""
        while not rank.entered:  # noqa: ASYNC110 - the agent sets it at many places
            # Its kernel is being made anew, or was lost with what ran on it before.
            await asyncio.sleep(_PAUSE)
        timeout = content.get("timeout")
        timer: list[asyncio.Task[None]] = []

        def on_turn() -> None:
            if timeout is not None:
                timer.append(asyncio.ensure_future(self.time_out(name, timeout)))

        try:
            partial = self.agent.is_partial([rank.number])
            await rank.request(name, {**content, "run": name, "partial": partial}, on_turn)
        finally:
            for task in timer:
                task.cancel()

    async def time_out(self, name: str, timeout: float) -> None:
        await asyncio.sleep(timeout)
        why = f": it took longer than {timeout:g} s (timeout)"
        await self.stop(name, {"why": why, "timeout": timeout}, to_the_end=True)

    async def stop(self, name: str, why: dict[str, Any], *, to_the_end: bool, number: int = signal.SIGINT) -> None:
        """Stop an attempt: by an interrupt, by breaking what blocks its rank, and ``to_the_end`` by a kill."""
        rank, task = self.working.get(name, (None, None))
        if rank is None or task is None:
            return
        self.stopped.setdefault(name, why)
        if rank.busy_with != name:
            task.cancel()
            return
        await rank.signal(number)
        if to_the_end and number != signal.SIGKILL:
            self.agent.background(self.insist(name, rank, task))

    async def insist(self, name: str, rank: RankKernel, task: asyncio.Task[Any]) -> None:
        """End the kernel of a rank that heeds no interrupt."""
        await asyncio.wait([task], timeout=_PATIENCE)
        if not task.done() and rank.busy_with == name:
            rank.abort()
            await asyncio.wait([task], timeout=_PATIENCE)
        if not task.done() and rank.busy_with == name:
            await rank.kill()

    def on_end(self, name: str, event: dict[str, Any]) -> None:
        """What an end is to say of an attempt that was stopped."""
        why = self.stopped.get(name)
        if why is not None and event.get("status") in ("interrupted", "died"):
            event.update(why, status="interrupted")
