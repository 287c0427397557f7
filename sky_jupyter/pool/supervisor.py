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
# A rank may still be compiling what will then fail at once.
_ABORT_PATIENCE = 8.0
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
    again : callable
        ``await again()`` has living ranks set their frameworks up anew; whether all could.
    on_broken : callable
        Told why the pool can run nothing more.
    """

    def __init__(
        self,
        spec: PoolSpec,
        renew: Callable[[Sequence[int]], Awaitable[None]],
        again: Callable[[], Awaitable[bool]],
        on_broken: Callable[[str], None],
    ) -> None:
        self.spec = spec
        self.renew = renew
        self.again = again
        collective = [plugin for plugin in spec.plugins if plugin.collective] if spec.world_size > 1 else []
        # Whether the loss of one rank, or a broken collective, concerns all.
        self.together = bool(collective)
        # Whether blocked ranks can be freed with their namespaces kept.
        self.gentle = all(plugin.again for plugin in collective) and any(plugin.abort for plugin in collective)
        self.on_broken = on_broken
        self.control: Control | None = None
        self.runs: dict[str, Run] = {}
        # Ranks whose kernels are new; whoever keeps the ledger takes them out.
        self.restarted: set[int] = set()
        # What happened after a run was over and shown.
        self.news: list[str] = []
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
        end = None if timeout is None else time.monotonic() + timeout
        in_time = await run.until(lambda: not run.left or bool(run.failed) or bool(run.why), timeout)
        if in_time and run.left:
            # After an interrupt by the user, ranks wait for nothing that could still come.
            patience = _INTERRUPT_PATIENCE if run.why else grace
            left = patience if end is None else min(patience, end - time.monotonic())
            await run.until(lambda: not run.left, left)
        if not run.left:
            return
        asked = bool(run.why)
        if not asked and in_time:
            run.why = f": {rank_label(run.failed)} had failed, and it did not end within {grace:g} s (--grace)"
        elif not asked:
            run.why = f": the run took longer than {timeout:g} s (--timeout)"
        await self._stop(run, to_the_end=not asked)

    async def _stop(self, run: Run, *, to_the_end: bool) -> None:
        """Stop the ranks that are left: by an interrupt, by breaking what blocks them, by a kill.

        A kill loses a namespace: what the user interrupted waits for a second interrupt instead.
        """
        await self.signal(run, signal.SIGINT)
        if await run.until(lambda: not run.left, _INTERRUPT_PATIENCE):
            return
        if self.gentle:
            await self.abort(run)
            if await run.until(lambda: not run.left, _ABORT_PATIENCE):
                return
        if to_the_end:
            await self.signal(run, signal.SIGKILL)
        await run.until(lambda: not run.left, _KILL_PATIENCE if to_the_end else None)

    async def interrupt(self, run: Run, *, hard: bool) -> None:
        """What the user's interrupt does; `_watch` sees to ranks that do not heed it."""
        await self.signal(run, signal.SIGKILL if hard else signal.SIGINT)
        run.changed.set()

    async def abort(self, run: Run) -> None:
        """Break the collectives that a run's ranks are blocked in."""
        assert self.control is not None
        run.aborted.update(run.left)
        with contextlib.suppress(NodeLost, OSError):
            await self.control.ask("abort", ranks=run.left)

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

    @property
    def mending(self) -> bool:
        """Whether what earlier runs broke is still being mended."""
        return self._repair is not None

    async def settle(self) -> None:
        """Wait until what earlier runs broke has been mended."""
        if self._repair is not None:
            await self._repair

    def _mend(self, run: Run) -> None:
        """Begin to replace what the run lost; the next run waits for it."""
        lost = [rank for rank, outcome in run.outcomes.items() if outcome.end.get("text") and outcome.status != "lost"]
        if lost:
            ranks = list(range(self.spec.world_size)) if self.together else lost
            self.restarted.update(ranks)
            fresh = "a new kernel is" if len(ranks) == 1 else "new kernels are"
            text = f"{rank_label(lost)} ended; {fresh} made for {rank_label(ranks)}"
            run.listener(NoticeEvent(text, run.id))
            self._mend_with(self.renew(ranks))
        elif run.aborted:
            text = f"{rank_label(run.aborted)} freed from a collective; every name is kept{self._gone()}"
            run.listener(NoticeEvent(text, run.id))
            self._mend_with(self._set_up_again())
        elif run.failed and self.together:
            self._mend_with(self._resume())

    def _gone(self) -> str:
        gone = "; ".join(plugin.gone for plugin in self.spec.plugins if plugin.gone)
        return f", but these take part no more: {gone}" if gone else ""

    def _mend_with(self, work: Awaitable[None]) -> None:
        async def mend() -> None:
            try:
                await work
            except Exception as error:
                self.on_broken(f"the kernels could not be replaced: {error}")
            finally:
                self._repair = None

        self._repair = self._keep_task(mend())

    async def _resume(self) -> None:
        """After a failure: see whether the ranks are still in step, and set up anew where not.

        A rank that stopped before a collective and one that stopped after it, or that has one on its
        way in the background, would wait for each other, or mix their numbers up.
        """
        assert self.control is not None
        checks = await self.control.ask("check", patience=_CHECK_PATIENCE)
        if all(answer for answer in checks.values()):
            return
        if self.gentle:
            # Those that are out of step may wait in the check itself.
            await self.control.ask("abort")
        self.news.append(f"the ranks were out of step: their frameworks are set up again{self._gone()}")
        await self._set_up_again()

    async def _set_up_again(self) -> None:
        """Have the frameworks set up anew in the living ranks; where that fails, in new kernels."""
        if self.gentle and await self.again():
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
