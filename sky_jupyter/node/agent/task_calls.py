"""Function calls on an agent: Dask assigns them, a rank runs each.

Dask's tasks decide which node runs a call, and move it to another node if this one is lost. The name of an attempt
contains the agent's incarnation, so that output of a lost attempt is not mixed up with that of a later one.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from distributed import Reschedule

if TYPE_CHECKING:
    from .context import AgentContext
    from .kernel_client import RankKernel

_PAUSE, _LOOK = 0.05, 0.01
# Seconds after an ignored interrupt until a blocking collective is aborted, and again until the kernel is killed.
_PATIENCE = 1.0
# Most ids of calls that are remembered, because the calls may arrive late: cancelled ones, and ones that are over and
# forgotten.
_REMEMBERED = 10_000


def attempt_name(call: str, node: int, incarnation: str) -> str:
    """Return the name of a call's attempt on one agent."""
    return f"{call}.{node}-{incarnation}"


class TaskRunner:
    """Runner of function calls on a node's ranks; made by the agent.

    Parameters
    ----------
    agent : AgentContext
        The agent whose ranks run the calls.
    """

    def __init__(self, agent: AgentContext) -> None:
        self.agent = agent
        # Active attempts: the rank, and the task that waits for it.
        self.working: dict[str, tuple[RankKernel, asyncio.Task[Any]]] = {}
        # Why attempts were stopped, for their end events.
        self.stopped: dict[str, dict[str, Any]] = {}
        # Calls that must not start if they arrive.
        self.cancelled: OrderedDict[str, None] = OrderedDict()
        # Attempts whose Dask tasks are here; calls that wait for a place, with the functions that begin them.
        self.held: set[str] = set()
        self._placing: dict[str, Callable[[], None]] = {}
        # Calls that were searched for here, but not found: if their frames arrive later, they have begun elsewhere.
        self.missed: OrderedDict[str, None] = OrderedDict()

    # -- calls of Dask and the manager -------------------------------------------------------------

    async def call(self, call: str, content: dict[str, Any], rank: int | None = None) -> dict[str, Any]:
        """Run a call on a rank and wait for its end; return the attempt.

        The rank with the least to do is chosen unless one is given. A known attempt is not started again: a repeated
        call waits for the same end.

        Raises Reschedule for a call that another node may run sooner.
        """
        name = attempt_name(call, self.agent.node, self.agent.incarnation)
        if name not in self.agent.runs and not self.agent.open_short(name):
            if call in self.cancelled:
                return {"attempt": None}
            self._placing[call] = lambda: self.begin(call, name, content, self.choose(rank))
            try:
                if rank is None:
                    await self.find_place(call)
                self.begin_placed(call)
            finally:
                self._placing.pop(call, None)
        if (record := self.agent.runs.get(name)) is None:
            # `sky_find_calls` began it, and it was stopped and forgotten since.
            return {"attempt": None}
        self.held.add(name)
        try:
            await record.over.wait()
        finally:
            self.held.discard(name)
        return {"attempt": name, "node": self.agent.node}

    async def sky_find_calls(self, calls: Sequence[str]) -> dict[str, str]:
        """Return the attempt names of known calls; a short call gets a journal.

        The other calls cannot begin as short calls any more, even if their frames arrive later.
        """
        names = {call: attempt_name(call, self.agent.node, self.agent.incarnation) for call in calls}
        for call in calls:
            # Begin it now: a call that is not found here is begun elsewhere.
            self.begin_placed(call)
            # A call on all ranks has no attempts.
            self.agent.open_short(call)
        known = {call: name for call, name in names.items() if name in self.agent.runs or self.agent.open_short(name)}
        _remember(self.missed, [call for call in calls if call not in known])
        return known

    async def sky_cancel_calls(self, calls: Sequence[str], hard: bool = False) -> list[str]:
        """Cancel calls; signal a rank that is running one.

        Returns the calls that were running or queued; their end events follow. Calls that arrive later are not
        started.
        """
        known = await self.sky_find_calls(calls)
        _remember(self.cancelled, calls)

        def runs(name: str) -> bool:
            return name in self.working and self.working[name][0].busy_with == name

        # Waiting calls first: they would begin when another ends.
        for name in sorted(known.values(), key=runs):
            await self.stop(
                name, {"why": " by you"}, to_the_end=False, number=signal.SIGKILL if hard else signal.SIGINT
            )
        return list(known)

    async def sky_forget_calls(self, attempts: Sequence[str]) -> None:
        """Remove the journals of calls whose ends the manager has."""
        # Dask may bring an opened call's task only now.
        _remember(self.cancelled, [name.partition(".")[0] for name in attempts])
        for name in attempts:
            if name in self.agent.runs and self.agent.runs[name].over.is_set():
                await self.agent.forget(name)

    # -- parts -------------------------------------------------------------------------------------

    def choose(self, rank: int | None) -> RankKernel:
        """Return the rank for a call: one with a kernel, and the least to do."""
        ranks = self.agent.ranks
        if rank is not None:
            return ranks[rank]
        return min(ranks.values(), key=lambda item: (not item.entered, item.waiting, item.number))

    async def find_place(self, call: str) -> None:
        """Wait for the short calls ahead of a call; give it back if one takes long.

        That one is opened, and becomes a Dask task too: so Dask gives the returned call to another node, if one is
        free.

        Raises Reschedule to give the call back.
        """
        ahead = self.agent.short_calls_of(self.choose(None).number)
        while call in self._placing and self.choose(None).waiting:
            left = [one for one in ahead if one.left and one.run not in self.held]
            if not left:
                return
            if any(one.record is not None for one in left):
                # Its Dask task may be on its way, or have no place here.
                await asyncio.sleep(_PAUSE)
                if call in self._placing and any(one.left for one in left):
                    raise Reschedule
            await asyncio.sleep(_LOOK)

    def begin_placed(self, call: str) -> None:
        """Begin a call that waits for a place."""
        if (begin := self._placing.pop(call, None)) is not None:
            begin()

    def begin(self, call: str, name: str, content: dict[str, Any], rank: RankKernel) -> None:
        """Open a call's journal and queue it on a rank."""
        about: dict[str, Any] = {"kind": "begin", "call": call, "ranks": [rank.number], "mine": [rank.number]}
        about.update(shape=self.agent.config.shape, code=content.get("title", ""), began=time.time())
        record = self.agent.open(name, [rank.number], about)
        record.replied = True
        if "stream" in content:
            # The stream's reader must learn at once where the call runs.
            self.agent.forward(record)
        # Report the start, even if the call prints nothing for long.
        self.agent.flush_soon()
        self.watch(name, rank, self.work(name, content, rank))

    def adopt(self, name: str, rank: RankKernel, timeout: float | None, on_cancel: Callable[[], None]) -> None:
        """Take over a call that began as a short one, and has a journal now."""

        async def work() -> None:
            await self.agent.runs[name].over.wait()

        task = self.watch(name, rank, work())
        task.add_done_callback(lambda done: on_cancel() if done.cancelled() else None)
        if timeout is not None:
            timer = asyncio.ensure_future(self.time_out(name, timeout))
            task.add_done_callback(lambda _: timer.cancel())

    def watch(self, name: str, rank: RankKernel, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a call's coroutine; end its journal if it is cancelled in the queue."""
        record = self.agent.runs[name]
        task = asyncio.ensure_future(work)

        def on_done(_: object) -> None:
            self.working.pop(name, None)
            if not record.over.is_set():
                # Cancelled while it was queued.
                self.agent.on_event(rank.number, name, {"kind": "end", "status": "interrupted", "t": time.time()})
            self.stopped.pop(name, None)

        self.working[name] = rank, task
        task.add_done_callback(on_done)
        return task

    async def work(self, name: str, content: dict[str, Any], rank: RankKernel) -> None:
        """Run a call on a rank, and stop it on timeout."""
        while not rank.entered:  # noqa: ASYNC110 - the agent sets it at many places
            # Its kernel is restarting, or was lost in an earlier run.
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
        """Stop an attempt: cancel it if it is queued, else signal its rank.

        With ``to_the_end``, if the rank ignores the interrupt, its collectives are aborted, and at last it is killed.
        """
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
        """Abort the collectives of a rank that ignores an interrupt, then kill it."""
        await asyncio.wait([task], timeout=_PATIENCE)
        if not task.done() and rank.busy_with == name:
            rank.abort()
            await asyncio.wait([task], timeout=_PATIENCE)
        if not task.done() and rank.busy_with == name:
            await rank.kill()

    def on_end(self, name: str, event: dict[str, Any]) -> None:
        """Add the reason to the end of an attempt that was stopped."""
        why = self.stopped.get(name)
        if why is not None and event.get("status") in ("interrupted", "died"):
            event.update(why, status="interrupted")


def _remember(remembered: OrderedDict[str, None], calls: Sequence[str]) -> None:
    """Add calls; forget those that were added longest ago."""
    remembered.update(dict.fromkeys(calls))
    while len(remembered) > _REMEMBERED:
        remembered.popitem(last=False)
