"""Runs on the manager's loop: started, watched over, and mended after; each in its turn."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import secrets
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any

from ...errors import NodeLost, PoolError, SkyError, first_line
from ...node.journal.segments import is_number
from ...node.protocol import rpc
from ...node.protocol.rpc import AgentCall
from ...spec.pool_spec import PoolSpec
from ...util.tasks import BackgroundTasks
from ...util.text import rank_label
from ..base.events import NoticeEvent
from ..base.timeouts import TIMEOUTS
from ..control.client import Control
from ..runs.hang_detector import AFTER, Watch
from ..runs.run import Run
from ..runs.stacks import Where, ask
from .abort_progress import Held, held
from .comms import Comms
from .watchdog import Watchdog

_log = logging.getLogger(__name__)
_INTERRUPT_PATIENCE = TIMEOUTS.interrupts.agents
# Who has not heeded an interrupt by then is looked at.
_HEED_PATIENCE = TIMEOUTS.interrupts.heed
_SHOWN_PATIENCE = TIMEOUTS.interrupts.shown
# A rank may still be compiling what will then fail at once.
_ABORT_PATIENCE = TIMEOUTS.interrupts.abort
_KILL_PATIENCE = TIMEOUTS.repairs.kill
_CHECK_PATIENCE = TIMEOUTS.repairs.check
_REACH_PATIENCE = TIMEOUTS.repairs.reach
# Of a second interrupt the person has the prompt back after this, whatever does not answer.
FREE_PATIENCE = TIMEOUTS.interrupts.freed
# A restart is gone on with so often when a connection breaks or an agent ends in it.
_RESTARTS = 3
_PAUSE = TIMEOUTS.polls.repairs
# After so many bytes of output an agent is told that they have been taken in.
_TELL = 1 << 20
# A node whose agent ended is back before that; where it is not, what is run on it says so.
_RETURN_PATIENCE, _REVIVAL_PATIENCE = TIMEOUTS.repairs.returned, TIMEOUTS.repairs.revived
# A kernel that ends by itself more often than this, in so many seconds, is not replaced any more.
_REPLACEMENTS, _REPLACEMENT_SPAN = 5, TIMEOUTS.repairs.ends_within


class Supervisor:
    """One a pool, made with it; everything in it runs on the loop, and its state changes there only.

    Parameters
    ----------
    spec : PoolSpec
        The pool's.
    renew : callable
        ``await renew(ranks)`` replaces kernels and has the new ones enter the plugins.
    again : callable
        ``await again(ended)`` has the ranks set their frameworks up anew, those that ended in new
        kernels; whether all could.
    on_broken : callable
        Told why the pool can run nothing more.
    on_taken : callable
        Told that another manager has taken the pool over.
    """

    def __init__(
        self,
        spec: PoolSpec,
        renew: Callable[[Sequence[int]], Coroutine[Any, Any, None]],
        again: Callable[[Sequence[int]], Awaitable[bool]],
        on_broken: Callable[[str], None],
        on_taken: Callable[[], None],
    ) -> None:
        self.comms = Comms(self._ask)
        self.suit(spec)
        self.renew = renew
        self.again = again
        self.on_broken = on_broken
        self.on_taken = on_taken
        self._control: Control | None = None
        # Who stands still or does not answer, and who is told besides those who watch runs; set by the pool.
        self.watchdog = Watchdog(dict, self.announce)
        # Nodes' machines, as messages name them; what sees to a node that may be off, where that can be done.
        self.names: dict[int, str] = {}
        self.examine: Callable[[int], Coroutine[Any, Any, None]] | None = None
        self._examined: set[int] = set()
        self.runs: dict[str, Run] = {}
        # Runs whose ranks were given up while they could not be reached: they may still be on.
        self.given_up: set[str] = set()
        # Ranks whose kernels are new; whoever keeps the ledger takes them out.
        self.restarted: set[int] = set()
        # After how many seconds of silence a run is looked at.
        self.silence = AFTER
        # For the pool's log: told in words what happens to its nodes and runs.
        self.note: Callable[[int, str], None] = lambda level, text: None
        # Has kernels end in order that are about to be replaced; ``busy`` says whether one works.
        self.finish: Callable[..., Awaitable[None]] = _at_once
        # What happened after a run was over and shown.
        self.news: list[str] = []
        # What is mended last, for which the next cell waits; and all of it.
        self._repair: asyncio.Future[None] | None = None
        self._repairs: set[asyncio.Task[None]] = set()
        # Whether nothing more is to be mended: the pool is broken.
        self._is_broken = False
        # Whether frameworks that user code has ended are about to be set up again.
        self._rejoining = False
        self._returned: dict[int, asyncio.Event] = {}
        # Nodes that are given up, until they are back and have new kernels.
        self._lost: set[int] = set()
        # Runs that ranks work on: what waits for a repair is not among them.
        self.working: set[Run] = set()
        # Runs and nodes whose missing events are being asked for.
        self._reading: set[tuple[str, int]] = set()
        # Up to which mark each node has been told that its output was taken in.
        self._told: dict[int, int] = {}
        # When kernels ended by themselves while they were idle, by rank.
        self._ends: dict[int, list[float]] = {}
        # Two broadcasts at once could reach two ranks in different orders, and their collectives
        # would wait for each other.
        self._turn = asyncio.Lock()
        self._tasks = BackgroundTasks()

    def suit(self, spec: PoolSpec) -> None:
        """Be the supervisor of a pool like this from now on."""
        self.spec = spec
        self.comms.suit(spec)
        collective = [plugin for plugin in spec.plugins if plugin.collective] if spec.world_size > 1 else []
        # Whether the loss of one rank, or a broken collective, concerns all.
        self.together = bool(collective)
        # Whether blocked ranks can be freed with their namespaces kept.
        self.gentle = all(plugin.again for plugin in collective) and any(plugin.abort for plugin in collective)
        # Whether the others cannot outlive rank 0.
        self.head_bound = any(plugin.head_bound for plugin in collective)

    @property
    def control(self) -> Control:
        """What agents are asked by; set whenever the pool has a new one. PoolError where it has none yet."""
        if self._control is None:
            raise PoolError(f"pool {self.spec.name!r} has not been started")
        return self._control

    @control.setter
    def control(self, control: Control) -> None:
        self._control = control

    def add(self, run: Run) -> None:
        """Take in a run that is about to be started."""
        self.runs[run.id] = run
        self.note(logging.DEBUG, f"run {run.id} begins")

    def discard(self, run: Run) -> None:
        """Forget a run that is over."""
        if any(outcome.status == "lost" for outcome in run.outcomes.values()):
            self.given_up.add(run.id)
        if self.runs.pop(run.id, None) is not None:
            failed = f": {rank_label(run.failed)} failed" if run.failed else ""
            self.note(logging.DEBUG, f"run {run.id} is over{failed}")

    async def _ask(self, call: AgentCall, nodes: Sequence[int], **arguments: Any) -> dict[int, Any]:
        if self._control is None:
            raise NodeLost("the pool is not connected")
        return await self.control.ask(call, nodes, **arguments)

    def close(self) -> None:
        """Stop what is still to be done for the pool."""
        self.comms.close()
        for task in list(self._tasks):
            task.cancel()
        self._repair = None
        self._rejoining = self._is_broken = False
        self._examined.clear()
        self._returned.clear()
        self._lost.clear()

    async def execute(self, run: Run, content: dict[str, Any], grace: float, timeout: float | None) -> None:
        """A run's whole life on the loop: start it, watch over it, and mend what it broke."""
        async with self._turn:
            # What was given up before its turn came is not begun.
            if run.left:
                await self._execute_alone(run, content, grace, timeout)

    async def _execute_alone(self, run: Run, content: dict[str, Any], grace: float, timeout: float | None) -> None:
        settled, over = self.keep_task(self.settle()), self.keep_task(run.until(lambda: not run.left, None))
        await asyncio.wait([settled, over], return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if not settled.done():
            settled.cancel()
            return
        run.start_clock()
        if run.shape != self.control.shape:
            run.lose(run.left, "the pool's nodes were changed just as it was to begin: run it again")
        about = {"code": run.code, "grace": grace, "timeout": timeout, "began": time.time()}
        start = self.keep_task(self._start(run, content, about))
        await self._attend(run, grace, timeout)
        start.cancel()

    async def _start(self, run: Run, content: dict[str, Any], about: dict[str, Any]) -> None:
        """Have the agents begin a run; one that cannot be reached does not keep the others from it."""
        while run.left:
            nodes = sorted({run.outcomes[rank].node for rank in run.left})
            if lost := self.control.lost.intersection(nodes):
                # An agent that has come in its place by now has kernels that are replaced at once.
                for node in lost:
                    there = [rank for rank in run.left if run.outcomes[rank].node == node]
                    run.lose(there, str(self.control.is_lost(node)))
                continue
            ranks = list(run.outcomes)
            try:
                answers = await self.control.ask(
                    rpc.START_RUN, nodes, run=run.id, ranks=ranks, content=content, about=about
                )
            except NodeLost as error:
                gone = self.control.lost & set(nodes) or set(nodes)
                run.lose([rank for rank in run.left if run.outcomes[rank].node in gone], str(error))
            except Exception as error:
                run.lose(run.left, f"the run could not be started: {type(error).__name__}: {error}")
            else:
                for node, answer in answers.items():
                    if answer["state"] == "known":
                        # The first answer got lost with its connection.
                        self.keep_task(self.read(run, node, run.next(node)))
                    self._take(run, node, answer["first"], answer["count"], answer["data"])
                return

    async def adopt(self, run: Run, begin: dict[str, Any], begun: Sequence[int], *, over: bool) -> None:
        """The rest of the life of a run that another manager began, on the nodes ``begun``.

        Where that one ended between two nodes, the others have not begun yet. Of a run that is over,
        they never will.
        """
        async with self._turn:
            about = {key: begin.get(key) for key in ("code", "grace", "timeout", "began")}
            for node in begun:
                await self.read(run, node, 0)
            if over:
                self.lose_unbegun(run, begun)
                await run.until(lambda: not run.left, None)
                if run.failed or _ended_by(run):
                    # What it broke may have been mended long ago, and lives.
                    self._mend_with(self._recover())
                return
            if {outcome.node for outcome in run.outcomes.values()} - set(begun):
                self.keep_task(self._start(run, begin["content"], about))
            await self._attend(run, float(begin.get("grace") or 0.0), begin.get("timeout"))

    def lose_unbegun(self, run: Run, begun: Sequence[int]) -> None:
        """Of a run that is over, give up the nodes that had been lost before they began it."""
        ranks = [rank for rank in run.left if run.outcomes[rank].node not in begun]
        run.lose(ranks, "its node had been lost before it began")

    async def _attend(self, run: Run, grace: float, timeout: float | None) -> None:
        """Watch over a run to its end, and begin to mend what it broke."""
        silence = self.keep_task(Watch(run, self.look, after=self.silence).attend())
        self.working.add(run)
        for text in self.watchdog.troubles.values():
            run.listener(NoticeEvent(text, run.id))
        try:
            await self._watch(run, grace, timeout)
        finally:
            silence.cancel()
            self.working.discard(run)
        self.mend(run)

    async def look(self, run: Run, native: bool) -> Where:
        """Where the ranks are, for the watch over a silent run: there is time enough to be sure."""
        return await ask(self.control, self.spec, run, native=native, window=0.5)

    async def _watch(self, run: Run, grace: float, timeout: float | None) -> None:
        """Wait for the end; where a rank fails or time is up, the others are stopped after their grace."""
        end = None if timeout is None else time.monotonic() + timeout
        in_time = await run.until(lambda: not run.left or bool(run.failed) or bool(run.why), timeout)
        if self.gentle and any(outcome.status == "died" for outcome in run.outcomes.values()):
            # No collective can end that a dead rank is part of.
            await self.abort(run)
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
            run.why, run.timed_out = f": the run took longer than {timeout:g} s ({run.limit})", timeout
        await self._stop(run, to_the_end=not asked)

    async def _stop(self, run: Run, *, to_the_end: bool) -> None:
        """Stop the ranks that are left: by an interrupt, by breaking what blocks them, by a kill.

        A kill loses a namespace: what the user interrupted waits for a second interrupt instead.
        """
        await self.signal(run, signal.SIGINT)
        if not to_the_end:
            await self.free(run)
        elif not await run.until(lambda: not run.left, _INTERRUPT_PATIENCE):
            if self.gentle:
                await self.abort(run)
            # A kill loses the names of a rank that is only slow to end.
            if await run.until(lambda: not run.left, _ABORT_PATIENCE if self.gentle else _SHOWN_PATIENCE):
                return
            await self.signal(run, signal.SIGKILL)
            await self._ended_or_silent(run)
            run.lose(run.left, "it was to be stopped, and its node does not answer; `%sky restart` makes it anew")
        await run.until(lambda: not run.left, None)

    async def free(self, run: Run) -> None:
        """See to the ranks of a run, or of a call, that a person has interrupted, and that do not heed it."""
        looking = self.keep_task(self._look_at_held(run)) if self.gentle else None
        if await run.until(lambda: not run.left, _INTERRUPT_PATIENCE):
            return
        if looking is not None:
            await asyncio.wait([looking], timeout=_INTERRUPT_PATIENCE)
            await self._free_gently(run, looking.result() if looking.done() else None)
        else:
            await run.until(lambda: not run.left, _INTERRUPT_PATIENCE)
            self._tell(run, Held(run.left).warning(run.left, failed=False))

    async def _ended_or_silent(self, run: Run) -> None:
        """Wait for ranks that were killed; those of a node that does not answer cannot say that they have ended."""
        end = time.monotonic() + _KILL_PATIENCE
        while time.monotonic() < end and {run.outcomes[rank].node for rank in run.left} & self.control.there:
            await run.until(lambda: not run.left, _REACH_PATIENCE)

    async def _look_at_held(self, run: Run) -> Where | None:
        """Where the ranks are that do not heed an interrupt at once; None where nobody can say."""
        if await run.until(lambda: not run.left, _HEED_PATIENCE):
            return None
        with contextlib.suppress(SkyError, OSError):
            return await ask(self.control, self.spec, run, native=False)
        return None

    async def _free_gently(self, run: Run, where: Where | None) -> None:
        """Free the ranks that do not heed a person's interrupt, who learns of it; and where it fails, what can be done.

        Who is being freed is not called deaf meanwhile, however long the machine takes for it.
        """
        found = held(run.left, where)
        self._tell(run, found.freeing)
        await self.abort(run)
        await run.until(lambda: not run.left, _INTERRUPT_PATIENCE)
        self._tell(run, found.warning(run.left, failed=False))
        if not await run.until(lambda: not set(run.left) - set(found.deaf), _ABORT_PATIENCE):
            self._tell(run, found.warning(set(run.left) - set(found.deaf), failed=True))

    def _tell(self, run: Run, text: str) -> None:
        """A person who has interrupted a run learns what comes of it, if there is something to say."""
        if text and run.left:
            run.listener(NoticeEvent(text, run.id))

    async def interrupt(self, run: Run, *, hard: bool) -> None:
        """What the user's interrupt does; `_watch` sees to ranks that do not heed it."""
        if hard:
            silent = self.control.silent
            far = [rank for rank in run.left if None in silent or run.outcomes[rank].node in silent]
            run.lose(far, "its node does not answer, and you gave it up; `%sky restart` makes it anew")
        run.changed.set()
        if hard:
            self.keep_task(self._free(run))
        await self.signal(run, signal.SIGKILL if hard else signal.SIGINT)

    async def _free(self, run: Run) -> None:
        """Give up what does not end although its kernels were to be replaced: nobody is kept waiting by it."""
        if await run.until(lambda: not run.left, FREE_PATIENCE):
            return
        stuck = run.left
        run.lose(stuck, f"it does not end, and you gave it up{self.watchdog.why}")
        self._mend_with(self._replace_stuck(run, stuck))

    async def _replace_stuck(self, run: Run, ranks: Sequence[int]) -> None:
        """New kernels for those that are still at a run that was given up, or at what it waits for there: as soon as
        it can be seen."""
        states = await self.control.ask(rpc.STATUS, sorted({run.outcomes[rank].node for rank in ranks}))
        known = {int(rank): its for state in states.values() for rank, its in state["ranks"].items()}
        well = {rank for rank, its in known.items() if its["pid"] and its["entered"] and not its["busy_with"]}
        if still := sorted(set(ranks) - well):
            await self._replace_at_once(still)

    async def abort(self, run: Run) -> None:
        """Break the collectives that a run's ranks are blocked in: on all ranks, whatever they are at.

        Of two ranks of a group that a cell has made, only the one that was called knows their connection as the
        framework's, and that one may have ended, or not be part of the run.
        """
        run.aborted.update(run.left)
        await self._reach(self.control.addresses, rpc.ABORT_COLLECTIVES)

    async def signal(self, run: Run, number: int) -> None:
        """Signal the kernels that still work on a run."""
        nodes = {run.outcomes[rank].node for rank in run.left}
        key = secrets.token_hex(8)
        bringing = [self.keep_task(self._bring_signal(run, node, int(number), key)) for node in nodes]
        if bringing:
            await asyncio.wait(bringing, timeout=_REACH_PATIENCE)

    async def _bring_signal(self, run: Run, node: int, number: int, key: str) -> None:
        """Signal a node's kernels: again and again until its agent says that it has, for as long as they work.

        An agent that is told twice does it once: it knows the signal by its key.
        """
        while ranks := [rank for rank in run.left if run.outcomes[rank].node == node]:
            if node not in self.control.silent | self.control.off:
                try:
                    asking = self.control.ask(
                        rpc.SIGNAL_KERNELS, [node], number=number, ranks=ranks, run=run.id, key=key
                    )
                    await asyncio.wait_for(asking, _REACH_PATIENCE)
                    return
                except (SkyError, OSError, asyncio.TimeoutError) as error:
                    if self.control.closing or isinstance(error, PoolError):
                        return
            await asyncio.sleep(_PAUSE)

    async def _reach(self, nodes: Iterable[int], call: AgentCall, /, **arguments: Any) -> None:
        """Ask those of some nodes for something that answer at once."""
        nodes = set(nodes) & set(self.control.addresses)
        nodes = set() if None in self.control.silent else nodes - self.control.silent - self.control.off
        with contextlib.suppress(NodeLost, OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self.control.ask(call, sorted(nodes), **arguments), _REACH_PATIENCE)

    async def read_all(self, run: Run) -> None:
        """Take in all that the nodes' journals have of a run."""
        for node in sorted({outcome.node for outcome in run.outcomes.values() if outcome.node >= 0}):
            await self.read(run, node, 0)

    @property
    def busy(self) -> bool:
        """Whether a rank works on a run, as far as is known here."""
        return any(run.left for run in self.runs.values())

    @property
    def mending(self) -> bool:
        """Whether what earlier runs broke is still being mended."""
        return self._repair is not None

    async def settle(self) -> None:
        """Wait until what earlier runs broke has been mended, and what was found broken meanwhile."""
        while self._repair is not None:
            await asyncio.wait([self._repair])

    def mend(self, run: Run) -> None:
        """Begin to replace what the run lost; the next run waits for it."""
        if run.abandoned:
            return
        lost = [rank for rank, outcome in run.outcomes.items() if outcome.end.get("text") and outcome.status != "lost"]
        if lost:
            ranks = self._to_replace(lost)
            told = [f"{rank_label(lost)} ended; {_fresh(ranks)}"]
            if self.together and len(ranks) < self.spec.world_size:
                kept = min(set(range(self.spec.world_size)) - set(ranks))
                # A line each, as they are read one by one.
                told += f"the others keep every name{self._gone(kept)}".split(", but ")
            for text in told:
                run.listener(NoticeEvent(text, run.id))
            self.restarted.update(ranks)
            self._mend_with(self._set_up_again(ranks) if self.together else self.renew(ranks))
        elif run.aborted:
            text = f"{rank_label(run.aborted)} freed from a collective; every name is kept{self._gone()}"
            run.listener(NoticeEvent(text, run.id))
            # With a node that is lost they are set up again when it is back.
            if not self._lost:
                self._mend_with(self._set_up_again())
        elif ended := _ended_by(run):
            what = " and ".join(dict.fromkeys(ended.values()))
            text = f"{rank_label(ended)} ended {what}: it is set up again, and every name is kept{self._gone()}"
            run.listener(NoticeEvent(text, run.id))
            if not self._rejoining:
                self._rejoining = True
                self._mend_with(self._rejoin())
        elif run.failed and self.together:
            self._mend_with(self._resume())

    def _gone(self, kept: int | None = None) -> str:
        """What of the frameworks' has to be made anew; ``kept`` is a rank that lives on beside new kernels."""
        gone = [plugin.gone for plugin in self.spec.plugins]
        if kept is not None:
            gone += [plugin.gone_beside.format(rank=kept) for plugin in self.spec.plugins]
        return f"; recreate {'; '.join(filter(None, gone))}" if any(gone) else ""

    def _mend_with(self, work: Coroutine[Any, Any, None]) -> None:
        if self._is_broken:
            work.close()
            return
        before = self._repair

        async def mend() -> None:
            try:
                if before is not None:
                    await asyncio.wait([before])
                await work
            except NodeLost:
                # What is run next says which; a node that comes back is mended then.
                pass
            except Exception as error:
                self.on_broken(f"the kernels could not be replaced: {error}")
            finally:
                if self._repair is task:
                    self._repair = None

        task = self._repair = self.keep_task(mend())
        self._repairs.add(task)
        task.add_done_callback(self._repairs.discard)
        # Where it was cancelled before its turn came.
        task.add_done_callback(lambda _: work.close())

    def give_up_repairs(self) -> None:
        """Mend nothing more of a pool that is broken: a node that is waited for cannot be heard of again."""
        self._repair, self._is_broken = None, True
        for task in list(self._repairs):
            if task is not asyncio.current_task():
                task.cancel()

    async def restart(self, ranks: Sequence[int] | None = None) -> None:
        """New kernels for ranks, all unless given; what runs there is given up.

        Where all are new, what was being mended is mended by this.
        """
        why, busy = "its kernel was replaced by `%sky restart`", self.busy
        everyone = list(range(self.spec.world_size))
        if ranks is not None and (chosen := self._to_replace(ranks)) != everyone:
            for run in list(self.runs.values()):
                run.lose([rank for rank in run.left if rank in chosen], why)
            self._mend_with(self._renew_some(chosen, busy=busy))
            await self.settle()
            return
        self.lose_all(why)
        if self._repair is not None:
            self._repair.cancel()
            self._rejoining = False

        async def replace() -> None:
            # A node that goes meanwhile is waited for below, and has no kernels to finish.
            with contextlib.suppress(NodeLost):
                await self.finish(everyone, busy=busy)
            await self._renew_through_breaks(everyone)
            self.restarted.update(everyone)

        work = self.keep_task(replace())

        async def until_done() -> None:
            await asyncio.wait([work])

        repair = self._repair = self.keep_task(until_done())
        try:
            await work
        except Exception as error:
            # Kernels that never entered the plugins can run nothing.
            self.on_broken(f"its kernels could not be made anew ({first_line(error)})")
            raise
        finally:
            if self._repair is repair:
                self._repair = None

    async def _renew_through_breaks(self, ranks: Sequence[int]) -> None:
        """Replace kernels; where a connection breaks or an agent ends meanwhile, from the start when it is back."""
        for attempt in range(1, _RESTARTS + 1):
            try:
                await self.renew(ranks)
                return
            except NodeLost as error:
                if attempt == _RESTARTS or not await self._all_back():
                    raise
                self.tell(f"{first_line(error).partition('; ')[0]}; the kernels are made when it is back")

    async def _all_back(self) -> bool:
        """Wait for the pool to be reached again, and for nodes that were lost; whether they are all there."""
        await self.control.up.wait()
        end = time.monotonic() + _RETURN_PATIENCE
        while not self.control.closing and time.monotonic() < end:
            if len(self.control.there) == self.spec.nodes:
                return True
            await asyncio.sleep(_PAUSE)
        return False

    def on_kernel_end(self, rank: int, text: str) -> None:
        """A kernel has ended by itself while it was idle: a new one is made now, and the next cell is told."""
        if 0 <= rank < self.spec.world_size:
            self._mend_with(self._replace_ended(rank, text))

    async def look_for_ended(self, nodes: Sequence[int] | None = None) -> None:
        """Replace kernels that ended by themselves while nobody could be told."""
        for state in (await self.control.ask(rpc.STATUS, nodes)).values():
            for rank, its in state["ranks"].items():
                if its.get("surprise"):
                    self.on_kernel_end(int(rank), str(its["surprise"]))

    async def _replace_ended(self, rank: int, text: str) -> None:
        if rank not in await self._ended():
            # A run that came at the same moment has seen to it.
            return
        now = time.monotonic()
        recent = [when for when in self._ends.get(rank, ()) if now - when < _REPLACEMENT_SPAN]
        if len(recent) >= _REPLACEMENTS:
            self.on_broken(f"the kernel of rank {rank} ends again and again: {text}")
            return
        self._ends[rank] = [*recent, now]
        ranks = self._to_replace([rank])
        self.tell(f"the kernel of rank {rank} ended while it was idle: {text}; {_fresh(ranks)}")
        self.restarted.update(ranks)
        if self.together:
            await self._idle()
            await self._set_up_again(ranks)
        else:
            await self.renew(ranks)

    async def _renew_some(self, ranks: Sequence[int], *, busy: bool) -> None:
        """New kernels for some ranks, whatever they are at; the others keep theirs."""
        await self.finish(ranks, busy=busy)
        await self._replace_at_once(ranks)

    async def _replace_at_once(self, ranks: Sequence[int]) -> None:
        self.restarted.update(ranks)
        if not self.together:
            await self.renew(ranks)
            return
        await self._kill(ranks)
        await self._idle()
        await self._set_up_again(ranks)

    async def _kill(self, ranks: Sequence[int]) -> None:
        """End kernels, and wait until their agents have seen it."""
        await self.control.ask(rpc.SIGNAL_KERNELS, number=int(signal.SIGKILL), ranks=ranks)
        for _ in range(round(_KILL_PATIENCE / _PAUSE)):
            if set(ranks) <= set(await self._ended()):
                return
            await asyncio.sleep(_PAUSE)

    async def _idle(self) -> None:
        """Wait until no rank works: none sets its frameworks up beside what it still works on."""
        for run in list(self.working):
            await run.until(lambda run=run: not run.left, None)  # type: ignore[misc]

    async def _resume(self) -> None:
        """After a failure: see whether the ranks are still in step, and set up anew where not.

        A rank that stopped before a collective and one that stopped after it, or that has one on its
        way in the background, would wait for each other, or mix their numbers up.
        """
        checks = await self.control.ask(rpc.CHECK_PLUGINS, patience=_CHECK_PATIENCE)
        if all(answer for answer in checks.values()):
            return
        if self.gentle:
            # Those that are out of step may wait in the check itself.
            await self.control.ask(rpc.ABORT_COLLECTIVES)
            if stuck := await self._still_checking():
                await self._kill(stuck)
        self.news.append(f"the ranks were out of step: their frameworks are set up again{self._gone()}")
        await self._set_up_again()

    async def _rejoin(self) -> None:
        """Set up again what the user's code has ended, when no rank works."""
        await self._idle()
        self._rejoining = False
        if self.together:
            await self._set_up_again()
        elif not await self.again(()):
            self.news.append("the frameworks could not be set up again in the old kernels")
            everyone = list(range(self.spec.world_size))
            self.restarted.update(everyone)
            await self.renew(everyone)

    async def _still_checking(self) -> list[int]:
        """The ranks that a check holds although it was broken: the others would wait for them."""
        end = time.monotonic() + _ABORT_PATIENCE
        while True:
            states = await self.control.ask(rpc.STATUS)
            held = [
                int(rank)
                for state in states.values()
                for rank, its in state["ranks"].items()
                if str(its["busy_with"] or "").startswith("check-")
            ]
            if not held or time.monotonic() > end:
                return held
            await asyncio.sleep(_PAUSE)

    async def _recover(self) -> None:
        """Mend what an earlier run broke, where nobody has."""
        if self.together:
            await self._resume()
        elif ended := await self._ended():
            self.restarted.update(ended)
            await self.renew(ended)

    async def _ended(self) -> list[int]:
        """The ranks that have no kernel, or one that never entered the plugins."""
        states = await self.control.ask(rpc.STATUS)
        known = {int(rank): its for state in states.values() for rank, its in state["ranks"].items()}
        return [rank for rank, its in known.items() if not (its["pid"] and its["entered"])]

    def _to_replace(self, ended: Sequence[int]) -> list[int]:
        """The ranks that need new kernels where these have ended."""
        alone = not self.together or (self.gentle and not (self.head_bound and 0 in ended))
        return sorted(ended) if alone or not ended else list(range(self.spec.world_size))

    async def _set_up_again(self, told: Sequence[int] = ()) -> None:
        """Have the frameworks set up anew, in new kernels where the old have ended or never entered them.

        Where the living ranks cannot do so, all get new kernels. Of the ranks ``told`` it is known
        that their kernels are new.
        """
        ranks = self._to_replace(await self._ended())
        everyone = list(range(self.spec.world_size))
        if self.gentle and ranks != everyone:
            if await self.again(ranks):
                self.restarted.update(set(ranks) - set(told))
                return
            self.news.append("the frameworks could not be set up again in the old kernels")
        if len(told) < len(everyone):
            self.restarted.update(everyone)
        await self.renew(everyone)

    # -- what the control plane tells --------------------------------------------------------------

    def on_batch(self, batch: dict[str, Any]) -> None:
        """Events of a run that an agent forwards."""
        try:
            if "standstill" in batch:
                for change in batch["standstill"]:
                    self.watchdog.on_standstill(change, self._place(batch["node"]))
                return
            if "ended" in batch:
                self.on_kernel_end(int(batch["ended"]), str(batch["text"]))
                return
            if "comms" in batch:
                self.comms.on_batch(batch)
                self._note_taken(batch.get("node"), batch.get("mark"))
                return
            # What a call is named by while a rank does it begins with its own id.
            run = self.runs.get(batch["run"]) or self.runs.get(batch["run"].partition(".")[0])
            if run is not None and run.accepts(batch["run"], batch["node"]):
                self._take(run, batch["node"], batch["first"], batch["count"], batch["data"])
        except (KeyError, TypeError, AttributeError) as error:
            # An agent is input from outside.
            _log.warning("a batch of events cannot be read: %s: %s", type(error).__name__, error)
        if isinstance(batch, dict):
            self._note_taken(batch.get("node"), batch.get("mark"))

    def _place(self, node: Any) -> str:
        """A node's machine, as messages have it; empty where that is this one."""
        name = self.names.get(node, "") if is_number(node) else ""
        return f" on {name[2:-1]}" if name else ""

    def _note_taken(self, node: Any, mark: Any) -> None:
        """Tell an agent now and then how far its output was taken in: it does not go far ahead of that."""
        if not (is_number(node) and is_number(mark)) or node >= self.spec.nodes:
            return
        told = self._told.get(node, 0)
        # An agent that is new counts from the beginning.
        if not told <= mark < told + _TELL:
            self._told[node] = mark
            self.keep_task(self._tell_heard(node, mark))

    async def _tell_heard(self, node: int, mark: int | None = None) -> None:
        with contextlib.suppress(OSError, SkyError):
            await self.control.ask(rpc.ACK_OUTPUT, [node], mark=mark)

    def on_lost(self, node: int, why: str, *, revived: bool) -> None:
        """A node is given up: so are its ranks in what they work on. It is mended when it is back."""
        self.comms.lose(node)
        for run in list(self.runs.values()):
            run.lose_node(node, why, self.names.get(node, ""))
        self._lost.add(node)
        # Made now: the node may be back before its turn to be mended comes.
        returned = self._returned[node] = asyncio.Event()
        self._mend_with(self._take_back(node, why, returned, _REVIVAL_PATIENCE if revived else _RETURN_PATIENCE))

    def on_back(self, node: int, *, kept: bool) -> None:
        """A node is there again: with its kernels, or with new ones."""
        # What was forwarded to a connection that broke does not come any more.
        self.keep_task(self._tell_heard(node))
        self.comms.look(node)
        if kept:
            self.keep_task(self._catch_up(node))
        elif node in self._returned:
            self._returned.pop(node).set()
        else:
            self._mend_with(self._replace(node, "it is back"))

    def on_doubt(self, node: int | None) -> None:
        """A node, or the whole pool, has not answered for a moment: its machine, or the head's, may be off."""
        number = node or 0
        if self.examine is not None and number not in self._examined:
            self._examined.add(number)
            self.keep_task(self.examine(number)).add_done_callback(lambda _: self._examined.discard(number))

    def on_silent(self, node: int | None, *, silent: bool) -> None:
        """A node, or the whole pool, does not answer, or does again: those who watch a run are told."""
        who = "the pool" if node is None else f"node {node}{self.names.get(node, '')}"
        if silent:
            self.watchdog.trouble(f"silent {node}", f"{who} does not answer; trying again, and what runs there goes on")
        else:
            self.watchdog.over(f"silent {node}", f"{who} answers again")

    def on_replaced(self) -> None:
        """Another manager has taken the pool over."""
        self.on_taken()
        self.lose_all("another notebook has taken the pool over, and sees to this run now")

    def tell(self, text: str) -> None:
        """Tell those who watch runs, or where there are none whoever asks next."""
        self.announce(NoticeEvent(text))

    def announce(self, event: NoticeEvent) -> None:
        """The same for an event; one without words is for those who show what lasts."""
        if event.text:
            self.note(logging.WARNING, event.text)
        on = [run for run in self.runs.values() if run.left]
        for run in on if event.text else ():
            run.listener(dataclasses.replace(event, run=run.id))
        if not self.watchdog.tell(event) and not on and event.text:
            self.news.append(event.text)

    async def _take_back(self, node: int, why: str, returned: asyncio.Event, patience: float) -> None:
        try:
            await asyncio.wait_for(returned.wait(), patience)
        except asyncio.TimeoutError:
            # Whenever it comes back after all, it is mended then.
            if self._returned.get(node) is returned:
                del self._returned[node]
            return
        await self._replace(node, why)

    async def _replace(self, node: int, why: str) -> None:
        """New kernels for a node that is back, and for all others that cannot go on without the old ones."""
        per_node = self.spec.ranks_per_node
        ranks = self._to_replace(list(range(node * per_node, (node + 1) * per_node)))
        self.restarted.update(ranks)
        self.tell(f"node {node}: {why}; new kernels are made for {rank_label(ranks)}")
        try:
            if not self.together:
                with contextlib.suppress(NodeLost):
                    # Others may have been left without their plugins when this node went.
                    ranks = sorted({*ranks, *await self._ended()})
                await self.renew(ranks)
                return
            await self._idle()
            await self._set_up_again(ranks)
        finally:
            self._lost.discard(node)

    async def _catch_up(self, node: int) -> None:
        """Take in what a node could not send while it was cut off; stop what was given up meanwhile."""
        with contextlib.suppress(NodeLost, OSError):
            there = (await self.control.ask(rpc.LIST_RUNS, [node]))[node]
            await self.look_for_ended([node])
            for run in list(self.runs.values()):
                if run.id in there and run.concerns(node):
                    await self.read(run, node, run.next(node))
            for key in [key for key, facts in there.items() if not facts["over"] and key in self.given_up]:
                await self.control.ask(rpc.SIGNAL_KERNELS, [node], number=int(signal.SIGINT), run=key)

    def _take(self, run: Run, node: int, first: int, count: int, data: bytes) -> None:
        missing = run.take(node, first, count, data)
        if missing is not None and (run.id, node) not in self._reading:
            self.keep_task(self.read(run, node, missing))

    async def read(self, run: Run, node: int, start: int) -> None:
        """Ask for events that did not come."""
        key = (run.id, node)
        self._reading.add(key)
        try:
            while True:
                answer = (await self.control.ask(rpc.READ_EVENTS, [node], run=run.id, start=start))[node]
                following, data = answer["next"], answer["data"]
                if not isinstance(following, int) or following <= start:
                    if not run.waits(node):
                        break
                    # Events have come since that those that were read do not reach up to.
                    await asyncio.sleep(_PAUSE)
                    start = run.next(node)
                    continue
                run.take(node, start, following - start, data)
                start = following
            if answer["over"]:
                # An agent that died may have left a journal that tells of no end.
                run.lose([rank for rank in run.left if run.outcomes[rank].node == node], f"node {node} had lost it")
        except (LookupError, TypeError, NodeLost):
            # It was not begun there, or the node is given up: whoever watches the nodes tells.
            pass
        finally:
            self._reading.discard(key)

    def lose_all(self, text: str) -> None:
        """Nobody can be reached any more: give up what runs."""
        self.comms.close()
        for run in list(self.runs.values()):
            run.abandoned = True
            run.give_up(text)

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what the pool's runs need, unless the pool is made anew or ends first."""
        self.keep_task(work)

    def keep_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self._tasks.start(work)


def _ended_by(run: Run) -> dict[int, str]:
    """What of the frameworks a run's code has ended, by rank."""
    said = {rank: outcome.end.get("ended") for rank, outcome in run.outcomes.items()}
    return {rank: text for rank, text in said.items() if text}


def _fresh(ranks: Sequence[int]) -> str:
    return f"{'a new kernel is' if len(ranks) == 1 else 'new kernels are'} made for {rank_label(ranks)}"


async def _at_once(ranks: Sequence[int], *, busy: bool) -> None:
    """For a supervisor without a pool: kernels are killed."""
