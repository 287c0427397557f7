"""Repairs of kernels: ended, lost or stuck ones, and frameworks out of step."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import NodeLost
from ...node.protocol import rpc
from ...util.background_tasks import BackgroundTasks
from ...util.text import first_line, rank_label
from ..base.events import NoticeEvent
from ..base.timeouts import TIMEOUTS
from ..runs.run import Run
from .supervisor_context import SupervisorContext

if TYPE_CHECKING:
    from ..base.run_timeline import PoolEvents
    from .turns import Turns

_KILL_PATIENCE = TIMEOUTS.repairs.kill
_CHECK_PATIENCE = TIMEOUTS.repairs.check
# Ranks whose collectives were aborted leave a check within this.
_ABORT_PATIENCE = TIMEOUTS.interrupts.abort
# A node whose agent ended during a restart must be back within this.
_RETURN_PATIENCE = TIMEOUTS.repairs.returned
# The limit of attempts of a restart, if a connection breaks or an agent ends.
_RESTARTS = 3
_PAUSE = TIMEOUTS.polls.repairs
# A kernel that ends by itself more often than this, within this time, is not replaced.
_REPLACEMENTS, _REPLACEMENT_SPAN = 5, TIMEOUTS.repairs.ends_within


class RepairsContext(SupervisorContext, Protocol):
    """The supervisor as repairs of kernels see it."""

    @property
    def events(self) -> PoolEvents: ...

    @property
    def turns(self) -> Turns: ...

    @property
    def together(self) -> bool:
        """Whether the loss of one rank, or a broken collective, affects all."""
        ...

    @property
    def gentle(self) -> bool:
        """Whether blocked ranks can be freed with their namespaces kept."""
        ...

    @property
    def head_bound(self) -> bool:
        """Whether the other ranks cannot continue without rank 0."""
        ...

    @property
    def has_lost_nodes(self) -> bool:
        """Whether a node is lost, or is back and has no new kernels yet."""
        ...

    @property
    def busy(self) -> bool:
        """Whether a rank works on a run."""
        ...

    @property
    def working(self) -> set[Run]:
        """The runs that ranks work on, without those that wait for a repair."""
        ...

    @property
    def restarted(self) -> set[int]:
        """The ranks whose kernels are new; its users add to it."""
        ...

    @property
    def news(self) -> list[str]:
        """The notices that no listener has got; its users add to it."""
        ...

    def tell(self, text: str) -> None:
        """Send a notice to the runs' listeners, or keep it in `news`."""
        ...

    def lose_all(self, text: str) -> None:
        """Fail all runs."""
        ...


class KernelRepairs:
    """Repairs of a pool's kernels, one at a time; the next run waits. Loop only.

    Parameters
    ----------
    supervisor : RepairsContext
        The pool's supervisor.
    renew : callable
        ``await renew(ranks)`` replaces kernels and enters the plugins on the new ones.
    again : callable
        ``await again(ended)`` reinitializes the frameworks, with new kernels for ``ended`` ranks, and returns
        whether that succeeded.
    on_broken : callable
        Called with the reason when the pool can run nothing more.
    """

    def __init__(
        self,
        supervisor: RepairsContext,
        renew: Callable[[Sequence[int]], Coroutine[Any, Any, None]],
        again: Callable[[Sequence[int]], Awaitable[bool]],
        on_broken: Callable[[str], None],
    ) -> None:
        self._supervisor = supervisor
        self._renew, self._again, self._on_broken = renew, again, on_broken
        # Shuts down kernels that are about to be replaced; ``busy`` says whether any of them runs something.
        self.finish: Callable[..., Awaitable[None]] = _at_once
        # Returns the replacement of lost machines, for which cells wait; None if there is none.
        self.replacing: Callable[[], asyncio.Future[None] | None] = lambda: None
        # Called when a restart of all kernels has cancelled all repairs.
        self.on_restart: Callable[[], None] = lambda: None
        # The last repair, for which the next cell waits; and all repairs.
        self._repair: asyncio.Future[None] | None = None
        self._repairs = BackgroundTasks()
        # Whether the pool is broken, and gets no more repairs.
        self._is_broken = False
        # Whether frameworks that user code has ended are about to be reinitialized.
        self._rejoining = False
        # When kernels ended by themselves while they were idle, by rank.
        self._ends: dict[int, list[float]] = {}

    def close(self) -> None:
        """Cancel all repairs: nothing of the pool is alive."""
        for task in list(self._repairs):
            task.cancel()
        self._repair = None
        self._rejoining = self._is_broken = False

    @property
    def mending(self) -> bool:
        """Whether a repair, or a replacement of machines, is under way."""
        return self.is_pending()

    def is_pending(self, nodes: Collection[int] | None = None) -> bool:
        """Return whether a run on these nodes, by default any, waits for a repair."""
        return self._repair is not None or self._awaited(nodes) is not None

    async def settle(self, nodes: Collection[int] | None = None) -> None:
        """Wait until all repairs are done, and the nodes' machines replaced.

        This includes repairs that begin meanwhile, and lost machines of these nodes, by default of any. A machine may
        come back after hours, so runs that do not need it must not wait for it.
        """
        while self.is_pending(nodes):
            await self.settle_kernels()
            if (replacement := self._awaited(nodes)) is not None:
                await asyncio.wait([replacement])

    def _awaited(self, nodes: Collection[int] | None) -> asyncio.Future[None] | None:
        """Return the replacement of lost machines that these nodes wait for, or None."""
        return self.replacing() if nodes is None or self._supervisor.control.lost.intersection(nodes) else None

    async def settle_kernels(self) -> None:
        """Wait until all repairs are done; calls on other nodes do not wait for machines."""
        while self._repair is not None:
            await asyncio.wait([self._repair])

    def mend(self, run: Run) -> None:
        """Begin to replace what a run broke; the next run waits for it."""
        ends = [outcome.end for outcome in run.outcomes.values()]
        is_whole = not (run.failed or run.aborted or any(end.get("text") or end.get("ended") for end in ends))
        if is_whole or run.abandoned:
            return
        with self._supervisor.events.caused_by(self._supervisor.events.of_or_own(run.key)):
            self._mend(run)

    def _mend(self, run: Run) -> None:
        lost = [rank for rank, outcome in run.outcomes.items() if outcome.end.get("text") and outcome.status != "lost"]
        if lost:
            ranks = self.to_replace(lost)
            told = [f"{rank_label(lost)} ended; {_fresh(ranks)}"]
            if self._supervisor.together and len(ranks) < self._supervisor.spec.world_size:
                # A notice for each.
                told += f"the others keep every name{self._gone()}".split(", but ")
            for text in told:
                run.listener(NoticeEvent(text, run.id))
            self._supervisor.restarted.update(ranks)
            self.begin(self._set_up_again(ranks) if self._supervisor.together else self.renew(ranks))
        elif run.aborted:
            text = f"{rank_label(run.aborted)} freed from a collective; every name is kept{self._gone()}"
            run.listener(NoticeEvent(text, run.id))
            # If a node is lost, they are reinitialized when it is back.
            if not self._supervisor.has_lost_nodes:
                self.begin(self._set_up_again())
        elif ended := _ended_by(run):
            what = " and ".join(dict.fromkeys(ended.values()))
            text = f"{rank_label(ended)} ended {what}: it is set up again, and every name is kept{self._gone()}"
            run.listener(NoticeEvent(text, run.id))
            if not self._rejoining:
                self._rejoining = True
                self.begin(self._rejoin())
        elif run.failed and self._supervisor.together:
            self.begin(self._resume())

    def _gone(self) -> str:
        """Return what users must recreate."""
        gone = [plugin.gone for plugin in self._supervisor.spec.plugins]
        return f"; recreate {'; '.join(filter(None, gone))}" if any(gone) else ""

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin a repair, after those before it; the next run waits for it."""
        # A guest repairs what its own runs break, while it has its turn.
        if self._is_broken or (self._supervisor.turns.guest and not self._supervisor.turns.held):
            work.close()
            return
        before = self._repair

        async def mend() -> None:
            try:
                if before is not None:
                    await asyncio.wait([before])
                async with self._repairing():
                    await work
            except NodeLost:
                # The next run reports the node; it is repaired when it is back.
                pass
            except Exception as error:
                self._on_broken(f"the kernels could not be replaced: {error}")
            finally:
                if self._repair is task:
                    self._repair = None

        task = self._repair = self._repairs.start(mend())
        # If the task is cancelled before it begins, nothing else closes the work.
        task.add_done_callback(lambda _: work.close())

    def give_up(self) -> None:
        """Cancel all repairs of a broken pool: its nodes cannot come back."""
        self._repair, self._is_broken = None, True
        for task in list(self._repairs):
            if task is not asyncio.current_task():
                task.cancel()

    async def restart(self, ranks: Sequence[int] | None = None) -> None:
        """Replace kernels, by default all; runs on them fail.

        A restart of all replaces repairs that are under way.
        """
        async with self._repairing(force=True):
            await self._restart(ranks)

    async def _restart(self, ranks: Sequence[int] | None) -> None:
        why, busy = "its kernel was replaced by `%sky restart`", self._supervisor.busy
        everyone = list(range(self._supervisor.spec.world_size))
        if ranks is not None and (chosen := self.to_replace(ranks)) != everyone:
            for run in self._supervisor.registered:
                run.lose([rank for rank in run.left if rank in chosen], why)
            self.begin(self._renew_some(chosen, busy=busy))
            await self.settle()
            return
        self._supervisor.lose_all(why)
        # All of them: what the last one waits for would go on beside the restart.
        cancelled = list(self._repairs)
        for task in cancelled:
            task.cancel()
        self.on_restart()
        self._rejoining = False

        async def replace() -> None:
            if cancelled:
                await asyncio.wait(cancelled)
            # A node that is lost meanwhile has no kernels to shut down; it is waited for below.
            with contextlib.suppress(NodeLost):
                await self.finish(everyone, busy=busy)
            await self._renew_through_breaks(everyone)
            self._supervisor.restarted.update(everyone)

        work = self._supervisor.keep_task(replace())

        async def until_done() -> None:
            await asyncio.wait([work])

        repair = self._repair = self._supervisor.keep_task(until_done())
        try:
            await work
        except Exception as error:
            # Kernels that never entered the plugins can run nothing.
            self._on_broken(f"its kernels could not be recreated ({first_line(error)})")
            raise
        finally:
            if self._repair is repair:
                self._repair = None

    async def _renew_through_breaks(self, ranks: Sequence[int]) -> None:
        """Replace kernels; retry if a connection or agent fails."""
        for attempt in range(1, _RESTARTS + 1):
            try:
                await self.renew(ranks)
                return
            except NodeLost as error:
                if attempt == _RESTARTS or not await self._all_back():
                    raise
                self._supervisor.tell(f"{first_line(error).partition('; ')[0]}; the kernels are made when it is back")

    async def _all_back(self) -> bool:
        """Wait until all nodes are back; return False on a timeout."""
        await self._supervisor.control.up.wait()
        end = time.monotonic() + _RETURN_PATIENCE
        while not self._supervisor.control.closing and time.monotonic() < end:
            if len(self._supervisor.control.there) == self._supervisor.spec.nodes:
                return True
            await asyncio.sleep(_PAUSE)
        return False

    def on_kernel_end(self, rank: int, text: str) -> None:
        """Replace a kernel that ended by itself while it was idle."""
        if 0 <= rank < self._supervisor.spec.world_size and not self._supervisor.turns.guest:
            self.begin(self._replace_ended(rank, text))

    async def _replace_ended(self, rank: int, text: str) -> None:
        if rank not in await self._ended():
            # A run's repair has replaced it already.
            return
        now = time.monotonic()
        recent = [when for when in self._ends.get(rank, ()) if now - when < _REPLACEMENT_SPAN]
        if len(recent) >= _REPLACEMENTS:
            self._on_broken(f"the kernel of rank {rank} ends again and again: {text}")
            return
        self._ends[rank] = [*recent, now]
        ranks = self.to_replace([rank])
        self._supervisor.tell(f"the kernel of rank {rank} ended while it was idle: {text}; {_fresh(ranks)}")
        self._supervisor.restarted.update(ranks)
        if self._supervisor.together:
            await self._idle()
            await self._set_up_again(ranks)
        else:
            await self.renew(ranks)

    async def _renew_some(self, ranks: Sequence[int], *, busy: bool) -> None:
        """Replace the kernels of some ranks, busy or not."""
        await self.finish(ranks, busy=busy)
        await self._replace_at_once(ranks)

    async def _replace_at_once(self, ranks: Sequence[int]) -> None:
        self._supervisor.restarted.update(ranks)
        if not self._supervisor.together:
            await self.renew(ranks)
            return
        await self._kill(ranks)
        await self._idle()
        await self._set_up_again(ranks)

    async def _kill(self, ranks: Sequence[int]) -> None:
        """Kill kernels, and wait until their agents have noticed."""
        await self._supervisor.control.ask(rpc.SIGNAL_KERNELS, number=int(signal.SIGKILL), ranks=ranks)
        for _ in range(round(_KILL_PATIENCE / _PAUSE)):
            if set(ranks) <= set(await self._ended()):
                return
            await asyncio.sleep(_PAUSE)

    async def _idle(self) -> None:
        """Wait until no rank works: only idle ones can be reinitialized."""
        for run in list(self._supervisor.working):
            await run.until(lambda run=run: not run.left, None)  # type: ignore[misc]

    async def _resume(self) -> None:
        """After a failure, reinitialize ranks that are out of step.

        If ranks stopped before and after a collective, or with one pending in the background, they would wait for each
        other, or mix up their numbers.
        """
        checks = await self._supervisor.control.ask(rpc.CHECK_PLUGINS, patience=_CHECK_PATIENCE)
        if all(answer for answer in checks.values()):
            return
        if self._supervisor.gentle:
            # Ranks that are out of step may wait in the check itself.
            await self._supervisor.control.ask(rpc.ABORT_COLLECTIVES)
            if stuck := await self._still_checking():
                await self._kill(stuck)
        self._supervisor.news.append(f"the ranks were out of step: their frameworks are set up again{self._gone()}")
        await self._set_up_again()

    async def _rejoin(self) -> None:
        """Reinitialize frameworks that user code ended, on idle ranks."""
        await self._idle()
        self._rejoining = False
        if self._supervisor.together:
            await self._set_up_again()
        elif not await self.again(()):
            self._supervisor.news.append("the frameworks could not be set up again in the old kernels")
            everyone = list(range(self._supervisor.spec.world_size))
            self._supervisor.restarted.update(everyone)
            await self.renew(everyone)

    async def _still_checking(self) -> list[int]:
        """Return the ranks that are stuck in an aborted check."""
        end = time.monotonic() + _ABORT_PATIENCE
        while True:
            states = await self._supervisor.control.ask(rpc.STATUS)
            held = [
                int(rank)
                for state in states.values()
                for rank, its in state["ranks"].items()
                if str(its["busy_with"] or "").startswith("check-")
            ]
            if not held or time.monotonic() > end:
                return held
            await asyncio.sleep(_PAUSE)

    def recover(self, run: Run) -> None:
        """Begin to repair what an earlier manager's run broke, if that was not done."""
        if run.failed or _ended_by(run):
            self.begin(self._recover())

    async def _recover(self) -> None:
        if self._supervisor.together:
            await self._resume()
        elif ended := await self._ended():
            self._supervisor.restarted.update(ended)
            await self.renew(ended)

    async def _ended(self) -> list[int]:
        """Return the ranks without a kernel that entered the plugins."""
        states = await self._supervisor.control.ask(rpc.STATUS)
        known = {int(rank): its for state in states.values() for rank, its in state["ranks"].items()}
        return [rank for rank, its in known.items() if not (its["pid"] and its["entered"])]

    def to_replace(self, ended: Sequence[int]) -> list[int]:
        """Return the ranks that need new kernels if these have ended."""
        traits = self._supervisor
        alone = not traits.together or (traits.gentle and not (traits.head_bound and 0 in ended))
        return sorted(ended) if alone or not ended else list(range(traits.spec.world_size))

    async def _set_up_again(self, told: Sequence[int] = ()) -> None:
        """Reinitialize the frameworks, in new kernels where needed.

        If the other ranks cannot, all get new kernels. New kernels of ``told`` have been announced already.
        """
        ranks = self.to_replace(await self._ended())
        everyone = list(range(self._supervisor.spec.world_size))
        if self._supervisor.gentle and ranks != everyone:
            if await self.again(ranks):
                self._supervisor.restarted.update(set(ranks) - set(told))
                return
            self._supervisor.news.append("the frameworks could not be set up again in the old kernels")
        if len(told) < len(everyone):
            self._supervisor.restarted.update(everyone)
        await self.renew(everyone)

    async def replace_lost(self, ranks: Sequence[int]) -> None:
        """Replace the kernels of nodes that are back, and those that depend on them."""
        if not self._supervisor.together:
            with contextlib.suppress(NodeLost):
                # Other kernels may have failed to enter the plugins when this node was lost.
                ranks = sorted({*ranks, *await self._ended()})
            await self.renew(ranks)
            return
        await self._idle()
        await self._set_up_again(ranks)

    def replace_stuck(self, run: Run, ranks: Sequence[int]) -> None:
        """Begin to replace kernels that are still busy with a run that was given up."""
        self.begin(self._replace_stuck(run, ranks))

    async def _replace_stuck(self, run: Run, ranks: Sequence[int]) -> None:
        states = await self._supervisor.control.ask(rpc.STATUS, sorted({run.outcomes[rank].node for rank in ranks}))
        known = {int(rank): its for state in states.values() for rank, its in state["ranks"].items()}
        # What else a rank works on, such as the run that this one waited for, goes on.
        busy = {rank for rank, its in known.items() if str(its["busy_with"] or "").partition(".")[0] == run.key}
        well = {rank for rank, its in known.items() if its["pid"] and its["entered"]} - busy
        if still := sorted(set(ranks) - well):
            await self._replace_at_once(still)

    @contextlib.asynccontextmanager
    async def _repairing(self, *, force: bool = False) -> AsyncIterator[None]:
        """Hold a turn for a repair, ahead of other notebooks' runs.

        ``force`` ends the run that has the turn.
        """
        turns = self._supervisor.turns
        if turns.held:
            yield
            return
        name, taken = f"repair-{secrets.token_hex(4)}", None
        # Without its head a pool has no order of runs.
        with contextlib.suppress(NodeLost, OSError):
            taken = await turns.take(name, lambda text: None, lambda: turns.held, ahead=True, force=force)
        if taken is not None:
            self._supervisor.restarted.update(taken[0])
        try:
            yield
        finally:
            if taken is not None:
                # Even if this repair is cancelled meanwhile.
                await asyncio.shield(self._supervisor.keep_task(turns.leave(name)))

    async def renew(self, ranks: Sequence[int]) -> None:
        """Replace kernels, and record how long that takes."""
        with self._supervisor.events.restarting(ranks, self._supervisor.spec.ranks_per_node):
            await self._renew(ranks)

    async def again(self, ended: Sequence[int]) -> bool:
        """Set the frameworks up again, and record how long that takes.

        The ``ended`` ranks get new kernels.
        """
        with self._supervisor.events.restarting(ended, self._supervisor.spec.ranks_per_node):
            return await self._again(ended)


def _ended_by(run: Run) -> dict[int, str]:
    """Return which frameworks a run's code has ended, by rank."""
    said = {rank: outcome.end.get("ended") for rank, outcome in run.outcomes.items()}
    return {rank: text for rank, text in said.items() if text}


def _fresh(ranks: Sequence[int]) -> str:
    return f"{'a new kernel is' if len(ranks) == 1 else 'new kernels are'} made for {rank_label(ranks)}"


async def _at_once(ranks: Sequence[int], *, busy: bool) -> None:
    """Do nothing, so that kernels are killed: the default without a pool."""
