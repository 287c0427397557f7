"""Runs on the manager's loop: started, watched over, and mended after; each in its turn."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from ..errors import NodeLost, rank_label
from ..spec import PoolSpec
from .control import Control
from .events import NoticeEvent
from .runs import Run

_INTERRUPT_PATIENCE = 1.0
_KILL_PATIENCE = 60.0
_CHECK_PATIENCE = 3.0


class Supervisor:
    """One a pool, made with it; everything in it runs on the loop, and its state changes there only.

    Parameters
    ----------
    spec : PoolSpec
        The pool's.
    renew : callable
        ``await renew(ranks)`` replaces kernels and has the new ones enter the plugins.
    on_broken : callable
        Told why the pool can run nothing more.
    """

    def __init__(
        self, spec: PoolSpec, renew: Callable[[Sequence[int]], Awaitable[None]], on_broken: Callable[[str], None]
    ) -> None:
        self.spec = spec
        self.renew = renew
        self.on_broken = on_broken
        self.control: Control | None = None
        self.runs: dict[str, Run] = {}
        # Ranks whose kernels are new; whoever keeps the ledger takes them out.
        self.restarted: set[int] = set()
        self._repair: asyncio.Future[None] | None = None
        # Two broadcasts at once could reach two ranks in different orders, and their collectives
        # would wait for each other.
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    def add(self, run: Run) -> None:
        """Take in a run that is about to be started."""
        self.runs[run.id] = run

    def discard(self, run: Run) -> None:
        """Forget a run that is over."""
        self.runs.pop(run.id, None)

    def close(self) -> None:
        """Stop what is still to be done for the pool."""
        for task in list(self._tasks):
            task.cancel()

    async def execute(self, run: Run, content: dict[str, Any], grace: float, timeout: float | None) -> None:
        """A run's whole life on the loop: start it, watch over it, and mend what it broke."""
        async with self._turn:
            await self._execute_alone(run, content, grace, timeout)

    async def _execute_alone(self, run: Run, content: dict[str, Any], grace: float, timeout: float | None) -> None:
        assert self.control is not None
        await self.settle()
        nodes = sorted({outcome.node for outcome in run.outcomes.values()})
        run.start_clock()
        try:
            answers = await self.control.ask("start", nodes, run=run.id, ranks=list(run.outcomes), content=content)
        except (NodeLost, OSError) as error:
            run.lose(run.left, str(error))
        else:
            for node, answer in answers.items():
                self._take(run, node, answer["first"], answer["count"], answer["data"])
            await self._watch(run, grace, timeout)
        self._mend(run)

    async def _watch(self, run: Run, grace: float, timeout: float | None) -> None:
        """Wait for the end; where a rank fails or time is up, the others are stopped after their grace."""
        assert self.control is not None
        end = None if timeout is None else time.monotonic() + timeout
        in_time = await run.until(lambda: not run.left or bool(run.failed), timeout)
        if in_time and run.left:
            patience = grace if end is None else min(grace, end - time.monotonic())
            await run.until(lambda: not run.left, patience)
        if not run.left:
            return
        if in_time:
            late = f"and it did not end within {grace:g} s (--grace)"
            run.why = run.why or f": {rank_label(run.failed)} had failed, {late}"
        else:
            run.why = f": the run took longer than {timeout:g} s (--timeout)"
        await self.signal(run, signal.SIGINT)
        if not await run.until(lambda: not run.left, _INTERRUPT_PATIENCE):
            await self.signal(run, signal.SIGKILL)
            await run.until(lambda: not run.left, _KILL_PATIENCE)

    async def signal(self, run: Run, number: int) -> None:
        """Signal the kernels that still work on a run."""
        assert self.control is not None
        with contextlib.suppress(NodeLost, OSError):
            nodes = {run.outcomes[rank].node for rank in run.left} & set(self.control.addresses)
            await self.control.ask("signal", sorted(nodes), number=int(number), ranks=run.left, run=run.id)

    async def submit(self, run: Run, content: dict[str, Any], rank: int | None) -> None:
        """A function call's life on the loop: a Dask task that waits in an agent for a rank."""
        from ..node.agent import call

        assert self.control is not None
        assert self.control.client is not None
        await self.settle()
        node = None if rank is None else rank // self.spec.ranks_per_node
        where = {} if node is None else {"workers": [self.control.addresses[node]], "allow_other_workers": False}
        answer = await self.control.client.submit(call, run.id, content, rank, key=f"sky-{run.id}", pure=False, **where)
        run.place(answer["rank"], answer["node"])
        await self._read(run, answer["node"], run.next(answer["node"]))
        self._mend(run)

    async def settle(self) -> None:
        """Wait until what earlier runs broke has been mended."""
        if self._repair is not None:
            await self._repair

    def _mend(self, run: Run) -> None:
        """Begin to replace what the run lost; the next run waits for it."""
        lost = [rank for rank, outcome in run.outcomes.items() if outcome.end.get("text") and outcome.status != "lost"]
        stopped = [rank for rank, outcome in run.outcomes.items() if outcome.status == "interrupted"]
        together = self.spec.world_size > 1 and any(plugin.collective for plugin in self.spec.plugins)
        if lost:
            ranks = list(range(self.spec.world_size)) if together else lost
            self.restarted.update(ranks)
            why = f"{rank_label(lost)} ended"
            run.listener(NoticeEvent(f"{why}: new kernels for {rank_label(ranks)}", run.id))
            self._mend_with(self.renew(ranks))
        elif stopped and together:
            self._mend_with(self._resume(run))

    def _mend_with(self, work: Awaitable[None]) -> None:
        async def mend() -> None:
            try:
                await work
            except Exception as error:
                self.on_broken(f"the kernels could not be replaced: {error}")
            finally:
                self._repair = None

        self._repair = self._keep_task(mend())

    async def _resume(self, run: Run) -> None:
        """After an interrupt: see whether the ranks are still in step, and start anew where not.

        A rank that was stopped before a collective and one that was stopped after it would wait for
        each other, or mix their numbers up.
        """
        assert self.control is not None
        checks = await self.control.ask("check", patience=_CHECK_PATIENCE)
        if all(answer for answer in checks.values()):
            return
        ranks = list(range(self.spec.world_size))
        self.restarted.update(ranks)
        await self.renew(ranks)

    def on_batch(self, batch: dict[str, Any]) -> None:
        """Events of a run that an agent forwards."""
        run = self.runs.get(batch["run"])
        if run is not None:
            self._take(run, batch["node"], batch["first"], batch["count"], batch["data"])

    def _take(self, run: Run, node: int, first: int, count: int, data: bytes) -> None:
        missing = run.take(node, first, count, data)
        if missing is not None:
            self._keep_task(self._read(run, node, missing))

    async def _read(self, run: Run, node: int, start: int) -> None:
        """Ask for events that did not come."""
        assert self.control is not None
        while True:
            answer = (await self.control.ask("read", [node], run=run.id, start=start))[node]
            if answer["next"] <= start:
                return
            run.take(node, start, answer["next"] - start, answer["data"])
            start = answer["next"]

    def on_lost(self, node: int) -> None:
        """An agent is gone: its ranks are given up in the run that they work on."""
        for run in self.runs.values():
            ranks = [rank for rank in run.left if run.outcomes[rank].node == node]
            if ranks:
                run.lose(ranks, f"node {node} does not answer; `%sky restart` makes it anew")

    def lose_all(self, text: str) -> None:
        """Nobody can be reached any more: give up what runs."""
        for run in list(self.runs.values()):
            if run.left:
                run.lose(run.left, text)

    def _keep_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
