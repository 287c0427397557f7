"""Termination of runs: interrupts, aborted collectives, killed ranks."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import PoolError, SkyError
from ...node.protocol import rpc
from ...node.protocol.rpc import AgentCall
from ...util.text import rank_label
from ..base.events import NoticeEvent
from ..base.timeouts import TIMEOUTS
from ..runs.run import Run
from ..runs.stacks import StackReport, ask
from .abort_progress import UninterruptedRanks, held
from .supervisor_context import SupervisorContext

if TYPE_CHECKING:
    from .turns import Turns
    from .unresponsive_notices import Watchdog

_INTERRUPT_PATIENCE = TIMEOUTS.interrupts.agents
# The stacks of ranks that have not stopped after this long are sampled.
_HEED_PATIENCE = TIMEOUTS.interrupts.heed
_SHOWN_PATIENCE = TIMEOUTS.interrupts.shown
# A rank may still be compiling what then fails at once.
_ABORT_PATIENCE = TIMEOUTS.interrupts.abort
_KILL_PATIENCE = TIMEOUTS.repairs.kill
_REACH_PATIENCE = TIMEOUTS.repairs.reach
# A second interrupt returns the prompt after this, even if ranks do not answer.
FREE_PATIENCE = TIMEOUTS.interrupts.freed
_PAUSE = TIMEOUTS.polls.repairs


class TerminationContext(SupervisorContext, Protocol):
    """The supervisor as the termination of runs sees it."""

    @property
    def turns(self) -> Turns: ...

    @property
    def watchdog(self) -> Watchdog: ...

    @property
    def gentle(self) -> bool:
        """Whether blocked ranks can be freed with their namespaces kept."""
        ...

    async def reach(self, nodes: Iterable[int], call: AgentCall, /, **arguments: Any) -> None:
        """Call those of the nodes that answer, once, with a timeout."""
        ...


class RunTermination:
    """Termination of one pool's runs, whatever they do; used on the loop only.

    Parameters
    ----------
    supervisor : TerminationContext
        The pool's supervisor.
    replace_stuck : callable
        Called with a run and ranks that were given up; replaces the kernels that are still busy with the run.
    """

    def __init__(self, supervisor: TerminationContext, replace_stuck: Callable[[Run, Sequence[int]], None]) -> None:
        self._supervisor, self._replace_stuck = supervisor, replace_stuck

    async def watch(self, run: Run, grace: float, timeout: float | None) -> None:
        """Wait for a run's end; stop all ranks after a failure or timeout."""
        end = None if timeout is None else run.worked + timeout
        in_time = await run.until_in_work(run.is_troubled_or_over, timeout)
        has_died = any(outcome.status == "died" for outcome in run.outcomes.values())
        if has_died and self._supervisor.gentle and not run.apart:
            # Collectives of a dead rank cannot end.
            await self.abort(run)

        def at_most(patience: float) -> float:
            return patience if end is None else min(patience, end - run.worked)

        if in_time:
            # The user's interrupt ends the grace: nothing more can come.
            await run.until_in_work(run.is_stopped_or_over, at_most(grace))
            if run.why:
                # An interrupted run does not wait for the user's answers, so all time counts.
                await run.until(lambda: not run.left, at_most(_INTERRUPT_PATIENCE))
        if not run.left:
            return
        asked = bool(run.why)
        if not asked and in_time:
            run.why = f": {rank_label(run.failed)} had failed, and it did not end within {grace:g} s (--grace)"
        elif not asked:
            run.why, run.timed_out = f": the run took longer than {timeout:g} s ({run.limit})", timeout
        await self.stop(run, asked=asked)

    async def stop(self, run: Run, *, asked: bool) -> None:
        """Stop the remaining ranks; ``asked`` says that the user has interrupted the run."""
        if run.apart:
            await self._stop_apart(run, asked=asked)
        else:
            await self._stop(run, to_the_end=not asked)

    async def _stop(self, run: Run, *, to_the_end: bool) -> None:
        """Interrupt the remaining ranks, abort their collectives, and kill them.

        A kill loses a namespace: if the user has interrupted the run, ranks are only killed at a second interrupt.
        """
        # The user's interrupt may have come before a rank had begun; code that has heeded it gets no second one.
        await self.signal(run, signal.SIGINT, run.left if to_the_end else sorted(set(run.left) - run.interrupted))
        if not to_the_end:
            await self.free(run)
        elif not await run.until(lambda: not run.left, _INTERRUPT_PATIENCE):
            if self._supervisor.gentle:
                await self.abort(run)
            # A kill loses the names of a rank that is only slow to end.
            if await run.until(lambda: not run.left, _ABORT_PATIENCE if self._supervisor.gentle else _SHOWN_PATIENCE):
                return
            await self.signal(run, signal.SIGKILL)
            await self._ended_or_silent(run)
            run.lose(run.left, "it was to be stopped, but its node does not answer; `%sky restart` recreates it")
        await run.until(lambda: not run.left, None)

    async def _stop_apart(self, run: Run, *, asked: bool) -> None:
        """Stop the remaining ranks of a script.

        A rank passes the first interrupt on to it, and kills it at the second. The user's interrupts have been sent
        already.
        """
        if not asked:
            for patience in (_SHOWN_PATIENCE, _ABORT_PATIENCE):
                await self.signal(run, signal.SIGINT)
                if await run.until(lambda: not run.left, patience):
                    return
            await self.signal(run, signal.SIGKILL)
            await self._ended_or_silent(run)
            run.lose(run.left, "it was to be stopped, but its node does not answer; `%sky restart` recreates it")
        elif not await run.until(lambda: not run.left, _SHOWN_PATIENCE):
            text = "has the interrupt and has not ended: it is killed in half a minute, or by another interrupt"
            self._tell(run, f"the script on {rank_label(run.left)} {text}")
        await run.until(lambda: not run.left, None)

    async def free(self, run: Run) -> None:
        """Free ranks that the user has interrupted, and that do not stop."""
        looking = self._supervisor.keep_task(self._look_at_held(run)) if self._supervisor.gentle else None
        if await run.until(lambda: not run.left, _INTERRUPT_PATIENCE):
            return
        if looking is not None:
            await asyncio.wait([looking], timeout=_INTERRUPT_PATIENCE)
            await self._free_gently(run, looking.result() if looking.done() else None)
        else:
            await run.until(lambda: not run.left, _INTERRUPT_PATIENCE)
            self._tell(run, UninterruptedRanks(run.left).warning(run.left, failed=False))

    async def _ended_or_silent(self, run: Run) -> None:
        """Wait until killed ranks have ended, or their nodes do not answer."""

        def has_node() -> bool:
            return bool({run.outcomes[rank].node for rank in run.left} & self._supervisor.control.there)

        end = time.monotonic() + _KILL_PATIENCE
        while time.monotonic() < end and has_node():
            await run.until(lambda: not run.left, _REACH_PATIENCE)

    async def _look_at_held(self, run: Run) -> StackReport | None:
        """Return the stacks of ranks that do not stop at once, or None."""
        if await run.until(lambda: not run.left, _HEED_PATIENCE):
            return None
        with contextlib.suppress(SkyError, OSError):
            return await ask(self._supervisor.control, self._supervisor.spec, run, native=False)
        return None

    async def _free_gently(self, run: Run, where: StackReport | None) -> None:
        """Abort collectives of ranks that do not stop; report on them.

        A rank that is being freed is not reported as deaf meanwhile, however slow the machine is.
        """
        found = held(run.left, where)
        self._tell(run, found.freeing)
        await self.abort(run)
        await run.until(lambda: not run.left, _INTERRUPT_PATIENCE)
        self._tell(run, found.warning(run.left, failed=False))
        if not await run.until(lambda: not set(run.left) - set(found.deaf), _ABORT_PATIENCE):
            self._tell(run, found.warning(set(run.left) - set(found.deaf), failed=True))

    def _tell(self, run: Run, text: str) -> None:
        """Send a notice to a run's listener while the run lasts."""
        if text and run.left:
            run.listener(NoticeEvent(text, run.id))

    async def interrupt(self, run: Run, *, hard: bool) -> None:
        """Interrupt a run's ranks; kill them if ``hard``."""
        if hard:
            silent = self._supervisor.control.silent
            far = [rank for rank in run.left if None in silent or run.outcomes[rank].node in silent]
            run.lose(far, "its node does not answer, and you cancelled it; `%sky restart` recreates it")
        run.changed.set()
        if hard:
            self._supervisor.keep_task(self._free(run))
        await self.signal(run, signal.SIGKILL if hard else signal.SIGINT)

    async def _free(self, run: Run) -> None:
        """Give up ranks that outlive the replacement of their kernels."""
        if await run.until(lambda: not run.left, FREE_PATIENCE):
            return
        stuck = run.left
        run.lose(stuck, f"it does not end, and you cancelled it{self._supervisor.watchdog.why}")
        self._replace_stuck(run, stuck)

    async def abort(self, run: Run) -> None:
        """Abort the collectives that a run waits in, on all of the pool.

        A cell may have made a group of two ranks. Only the called rank knows their connection as the framework's, and
        it may have ended, or not be part of the run.
        """
        if self._supervisor.turns.guest and not await self._is_sure_of_turn():
            # The collectives may be those of another notebook's run.
            return
        run.aborted.update(run.left)
        await self._supervisor.reach(self._supervisor.control.addresses, rpc.ABORT_COLLECTIVES)

    async def _is_sure_of_turn(self) -> bool:
        with contextlib.suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(self._supervisor.turns.still_held(), _REACH_PATIENCE)
        return False

    async def signal(self, run: Run, number: int, chosen: Sequence[int] | None = None) -> None:
        """Signal the kernels that still work on a run, by default all of them."""
        by_node: dict[int, list[int]] = {}
        for rank in run.left if chosen is None else chosen:
            by_node.setdefault(run.outcomes[rank].node, []).append(rank)
        key = secrets.token_hex(8)
        bringing = [
            self._supervisor.keep_task(self._bring_signal(run, node, there, int(number), key))
            for node, there in by_node.items()
        ]
        if bringing:
            await asyncio.wait(bringing, timeout=_REACH_PATIENCE)

    async def _bring_signal(self, run: Run, node: int, there: Sequence[int], number: int, key: str) -> None:
        """Signal a node's kernels; retry until its agent confirms.

        An agent ignores a repeated signal: it knows its key.
        """
        while ranks := [rank for rank in there if run.outcomes[rank].status == "running"]:
            if node not in self._supervisor.control.silent | self._supervisor.control.off:
                try:
                    asking = self._supervisor.control.ask(
                        rpc.SIGNAL_KERNELS, [node], number=number, ranks=ranks, run=run.id, key=key
                    )
                    reached = (await asyncio.wait_for(asking, _REACH_PATIENCE)).get(node)
                    if number == signal.SIGINT:
                        run.interrupted.update(set(ranks).intersection(reached or ()))
                    return
                except (SkyError, OSError, asyncio.TimeoutError) as error:
                    if self._supervisor.control.closing or isinstance(error, PoolError):
                        return
            await asyncio.sleep(_PAUSE)
