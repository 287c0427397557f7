"""Runs on the manager's loop: executed one at a time, with repairs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from ...errors import NodeLost, PoolError
from ...node.protocol import rpc
from ...node.protocol.journal_events import is_count
from ...node.protocol.rpc import AgentCall
from ...spec.pool_spec import PoolSpec
from ...util.background_tasks import BackgroundTasks
from ...util.text import first_line, node_label, rank_label
from ..base.event_loop import loop
from ..base.events import Listener, NoticeEvent, ignore
from ..base.run_timeline import PoolEvents
from ..base.timeouts import TIMEOUTS
from ..control.control_client import Control
from ..runs.hang_detector import AFTER, HangDetector
from ..runs.run import Run
from ..runs.stacks import StackReport, ask
from .interruption_notices import InterruptionNotices
from .journal_reader import JournalReader
from .kernel_repairs import KernelRepairs
from .lost_nodes import LostNodes
from .output_acknowledgements import OutputAcknowledgements
from .run_termination import RunTermination
from .supervisor_extension import SupervisorExtension
from .turns import ThreadsafeTurn, Turns
from .unresponsive_notices import Watchdog

_log = logging.getLogger(__name__)
_REACH_PATIENCE = TIMEOUTS.repairs.reach


class Supervisor:
    """Supervisor of one pool's runs, made with it; it runs on the loop.

    Parameters
    ----------
    spec : PoolSpec
        Spec of the pool.
    renew : callable
        ``await renew(ranks)`` replaces kernels and enters the plugins on the new ones.
    again : callable
        ``await again(ended)`` reinitializes the frameworks, with new kernels for ``ended`` ranks, and returns
        whether that succeeded.
    on_broken : callable
        Called with the reason when the pool can run nothing more.
    on_taken : callable
        Called when another manager has taken the pool over.
    """

    def __init__(
        self,
        spec: PoolSpec,
        renew: Callable[[Sequence[int]], Coroutine[Any, Any, None]],
        again: Callable[[Sequence[int]], Awaitable[bool]],
        on_broken: Callable[[str], None],
        on_taken: Callable[[], None],
    ) -> None:
        # By the name of their batches.
        self.extensions: dict[str, SupervisorExtension] = {}
        self.suit(spec)
        self.events = PoolEvents()
        self.on_taken = on_taken
        self._control: Control | None = None
        # Processes that do not answer, and the listeners in addition to those of runs.
        self.watchdog = Watchdog(dict, self.announce)
        # Machines that are about to be taken away.
        self.interruptions = InterruptionNotices(self.watchdog, self._who)
        # The suffixes that name nodes' machines in messages; the check of a node that may be off, if there is one.
        self.names: dict[int, str] = {}
        self.examine: Callable[[int], Coroutine[Any, Any, None]] | None = None
        self._examined: set[int] = set()
        self.runs: dict[str, Run] = {}
        # Runs that were given up while ranks were unreachable: these may still run.
        self.given_up: set[str] = set()
        # Ranks whose kernels are new; `Pool.take_restarted` clears it.
        self.restarted: set[int] = set()
        # After how many seconds of silence a run is checked for a hang.
        self.silence = AFTER
        # Writes to the pool's log.
        self.note: Callable[[int, str], None] = lambda level, text: None
        # Notices that no listener has got.
        self.news: list[str] = []
        # Runs that ranks work on, without those that wait for a repair.
        self.working: set[Run] = set()
        self.journals, self.acknowledgements = JournalReader(self), OutputAcknowledgements(self)
        # Two broadcasts at once could reach two ranks in different orders, and their collectives would wait for each
        # other. The lock orders those of this notebook, the turns those of several notebooks.
        self._turn = ThreadsafeTurn()
        self.turns = Turns(self._ask_head)
        self._is_yielding = False
        self._tasks = BackgroundTasks()
        self.repairs = KernelRepairs(self, renew, again, on_broken)
        self.lost_nodes = LostNodes(self, self.repairs)
        self.termination = RunTermination(self, self.repairs.replace_stuck)

    def suit(self, spec: PoolSpec) -> None:
        """Adopt the spec of a new or resized pool."""
        self.spec = spec
        for extension in self.extensions.values():
            extension.suit(spec)
        collective = [plugin for plugin in spec.plugins if plugin.collective] if spec.world_size > 1 else []
        # Whether the loss of one rank, or a broken collective, affects all.
        self.together = bool(collective)
        # Whether blocked ranks can be freed with their namespaces kept.
        self.gentle = all(plugin.again for plugin in collective) and any(plugin.abort for plugin in collective)
        # Whether the other ranks cannot continue without rank 0.
        self.head_bound = any(plugin.head_bound for plugin in collective)

    @property
    def control(self) -> Control:
        """The client of the agents; PoolError if there is none yet.

        The pool sets it whenever it has a new one.
        """
        if self._control is None:
            raise PoolError(f"pool {self.spec.name!r} has not been started")
        return self._control

    @control.setter
    def control(self, control: Control) -> None:
        self._control = control

    @property
    def has_lost_nodes(self) -> bool:
        """Whether a node is lost, or is back and has no new kernels yet."""
        return bool(self.lost_nodes.nodes)

    @property
    def registered(self) -> list[Run]:
        """A copy of the list of runs, as threads add theirs."""
        return list(self.runs.values())

    def add(self, run: Run) -> None:
        """Register a run that is about to start."""
        self.runs[run.id] = run
        self.note(logging.DEBUG, f"run {run.id} begins")

    def discard(self, run: Run) -> None:
        """Forget a run that is over."""
        if any(outcome.status == "lost" for outcome in run.outcomes.values()):
            self.given_up.add(run.id)
        if self.runs.pop(run.id, None) is not None:
            failed = f": {rank_label(run.failed)} failed" if run.failed else ""
            self.note(logging.DEBUG, f"run {run.id} is over{failed}")

    def extend(self, name: str, extension: SupervisorExtension) -> None:
        """Send an extension the agents' batches of this name. Callable from any thread."""

        def add() -> None:
            extension.suit(self.spec)
            self.extensions[name] = extension

        loop().loop.call_soon_threadsafe(add)

    async def ask(self, call: AgentCall, nodes: Sequence[int], **arguments: Any) -> dict[int, Any]:
        if self._control is None:
            raise NodeLost("the pool is not connected")
        return await self.control.ask(call, nodes, **arguments)

    async def reach(self, nodes: Iterable[int], call: AgentCall, /, **arguments: Any) -> None:
        """Call those of the nodes that answer, once, with a timeout."""
        nodes = set(nodes) & set(self.control.addresses)
        nodes = set() if None in self.control.silent else nodes - self.control.silent - self.control.off
        with contextlib.suppress(NodeLost, OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self.control.ask(call, sorted(nodes), **arguments), _REACH_PATIENCE)

    async def _ask_head(self, call: AgentCall, **arguments: Any) -> Any:
        return (await self.control.ask(call, [0], **arguments))[0]

    def close(self) -> None:
        """Cancel the tasks of the pool, and forget its lost nodes."""
        self.turns.reset()
        self._is_yielding = False
        for extension in self.extensions.values():
            extension.close()
        for task in list(self._tasks):
            task.cancel()
        self.repairs.close()
        self._examined.clear()
        self.lost_nodes.forget()
        self.interruptions.forget()

    async def execute(self, run: Run, content: dict[str, Any], grace: float, timeout: float | None) -> None:
        """Execute a run to its end: start and supervise it, and begin repairs."""
        if not self._turn.take_now() and not await self._waits(run, self._turn.acquire()):
            run.stop(f"{run.why} while it waited for its turn")
            return
        try:
            # A run that was given up while it waited is not begun.
            if run.left and await self._take_turn(run):
                try:
                    await self._execute_alone(run, content, grace, timeout)
                finally:
                    self._pass_on(run)
        finally:
            self._turn.release()

    async def _waits(self, run: Run, work: Coroutine[Any, Any, None]) -> bool:
        """Wait for work on behalf of a run; return False if that is over before."""
        working, over = self.keep_task(work), self.keep_task(run.until(run.is_stopped_or_over, None))
        try:
            await asyncio.wait([working, over], return_when=asyncio.FIRST_COMPLETED)
            return working.done() and not working.cancelled()
        finally:
            over.cancel()
            working.cancel()

    def take_turn_now(self, run: str) -> bool:
        """Take the turn of cells and broadcasts for a short call, if it is free."""
        if self.turns.shared or not self._turn.take_now():
            return False
        if self.turns.take_standing(run):
            return True
        self._turn.release()
        return False

    def leave_turn_now(self, run: str) -> None:
        """Leave the turn of a short call."""
        self.turns.leave_soon(run)
        self._turn.release()

    def take_turn_directly(self) -> bool:
        """Take the turn for a direct call, in any thread; return False if it is not free."""
        return self.turns.is_standing and self._turn.take_now()

    def leave_turn_directly(self) -> None:
        """Leave the turn of such a call."""
        self._turn.release()

    async def execute_opened(
        self, run: Run, content: dict[str, Any], grace: float, timeout: float | None, ends: Mapping[int, dict[str, Any]]
    ) -> None:
        """Finish an opened call, which has its turn; ``ends`` are its ranks' ends so far."""
        try:
            # A direct call has not named itself as the turn's holder yet.
            self.turns.take_standing(run.id)
            run.start_clock()
            about = {"code": run.code, "grace": grace, "timeout": timeout, "began": time.time(), "apart": False}
            for rank, end in ends.items():
                run.take_end(rank, end)
            if done := {run.outcomes[rank].node for rank in ends} - {run.outcomes[rank].node for rank in run.left}:
                # These nodes make journals of it then, too.
                self.keep_task(self.reach(done, rpc.FIND_CALLS, calls=[run.id]))
            for node in {run.outcomes[rank].node for rank in run.left}:
                if run.incarnations.get(node) != self.control.incarnations.get(node):
                    run.lose_node(node, "its agent ended", self.names.get(node, ""))
            start = self.keep_task(self._start(run, content, about))
            await self._attend(run, grace, timeout)
            start.cancel()
        finally:
            self._pass_on(run)
            self._turn.release()

    def busy_ranks(self) -> set[int]:
        """Return the ranks that work on runs which are known here."""
        return {rank for run in self.registered for rank in run.left}

    async def _take_turn(self, run: Run) -> bool:
        """Wait for a run's turn among the notebooks; return False if it is not to begin."""

        def tell(text: str) -> None:
            if text:
                run.listener(NoticeEvent(text, run.id))

        if not run.is_stopped_or_over() and self.turns.take_standing(run.id):
            return True
        # A guest's first cell brings all that it needs, even if kernels are new.
        is_first = bool(self.turns.guest) and not self.turns.number
        taking = self.keep_task(self.turns.take(run.id, tell, run.is_stopped_or_over))
        waiting = self.keep_task(run.until(run.is_stopped_or_over, None))
        await asyncio.wait([taking, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not taking.done():
            taking.cancel()
        elif (error := taking.exception()) is not None:
            run.lose(run.left, f"it was given no turn: {first_line(error)}")
            return False
        elif (taken := taking.result()) is not None:
            if not await self._end_all_stale(run, taken[1]):
                return False
            self.restarted.update(taken[0])
            if not is_first and (ranks := taken[0] & set(run.left)):
                # The new kernels lack names that its notebook believes them to have.
                run.lose(run.left, f"another notebook replaced the kernels of {rank_label(ranks)}: run it again")
            if not run.is_stopped_or_over():
                return True
            self._pass_on(run)
        run.stop(f"{run.why} while it waited for its turn")
        return False

    async def _end_all_stale(self, run: Run, stale: Sequence[str]) -> bool:
        """End the runs of notebooks that are gone; fail ``run`` if that cannot be done."""
        try:
            for id in stale:
                await self._end_stale(id)
        except Exception as failure:
            # The run that has the next turn tries it again.
            run.lose(run.left, f"the run of a notebook that has ended could not be stopped: {first_line(failure)}")
            self._pass_on(run)
            return False
        return True

    def _pass_on(self, run: Run) -> None:
        """Leave a run's turn to others once what it broke is repaired."""
        sure = frozenset() if run.failed else run.capture.names.sure
        self.turns.leave_soon(run.id, self.repairs.settle_kernels, sure.union(run.writes))

    async def _yield_standing_turn(self) -> None:
        """End the manager's standing turn, after what runs: a guest has asked for one."""
        try:
            async with self._turn:
                await self.repairs.settle_kernels()
                # An earlier run may have been told that this notebook is alone.
                self.turns.shared = True
                await self.turns.leave()
        finally:
            self._is_yielding = False

    async def _end_stale(self, id: str) -> None:
        """End the run of a notebook that is gone, and repair what that breaks."""
        answers = await self.control.ask(rpc.LIST_RUNS, sorted(self.control.there), runs=[id])
        begun = {node: runs[id]["begin"] for node, runs in answers.items() if id in runs}
        ranks = next((begin.get("ranks") for begin in begun.values()), None)
        if ranks:
            run = Run(id, {rank: rank // self.spec.ranks_per_node for rank in ranks}, ignore)
            self.runs[id] = run
            try:
                await self._stop_stale(run, begun)
            finally:
                del self.runs[id]
            self.news.append(f"run {id} was stopped: its notebook, which had joined the pool, has ended")
        await self.turns.leave(id)

    async def _stop_stale(self, run: Run, begun: Mapping[int, Mapping[str, Any]]) -> None:
        for node in begun:
            await self.journals.read(run, node, 0)
        self.lose_unbegun(run, list(begun))
        run.apart = any(begin.get("apart") is True for begin in begun.values())
        if run.left:
            run.why = ": its notebook has ended"
            await self.termination.stop(run, asked=False)
        self.repairs.mend(run)
        await self.repairs.settle_kernels()

    async def leave_turns(self) -> None:
        """Withdraw waiting requests for turns and the standing turn, if agents answer."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.turns.leave(), _REACH_PATIENCE)

    async def look_at_others(self) -> None:
        """Learn what other notebooks have changed, if there are any."""
        if self.turns.shared:
            with contextlib.suppress(NodeLost, OSError):
                self.restarted.update(await self.turns.look())

    async def _execute_alone(self, run: Run, content: dict[str, Any], grace: float, timeout: float | None) -> None:
        nodes = {outcome.node for outcome in run.outcomes.values()}
        if self.repairs.is_pending(nodes) and not await self._waits(run, self.repairs.settle(nodes)):
            run.stop(f"{run.why} while it waited for a repair")
            return
        run.start_clock()
        if run.shape != self.control.shape:
            run.lose(run.left, "the pool's nodes were changed just as it was to begin: run it again")
        about = {"code": run.code, "grace": grace, "timeout": timeout, "began": time.time(), "apart": run.apart}
        if self.turns.shared:
            about |= {"turn": self.turns.number, "guest": self.turns.guest}
        start = self.keep_task(self._start(run, content, about))
        await self._attend(run, grace, timeout)
        start.cancel()

    async def _start(self, run: Run, content: dict[str, Any], about: dict[str, Any]) -> None:
        """Start a run on the agents that can be reached; fail the others."""
        while run.left:
            nodes = sorted({run.outcomes[rank].node for rank in run.left})
            if lost := self.control.lost.intersection(nodes):
                # The kernels of a lost node's next agent are about to be replaced.
                for node in lost:
                    there = [rank for rank in run.left if run.outcomes[rank].node == node]
                    run.lose(there, str(self.control.is_lost(node)))
                continue
            ranks = list(run.outcomes)
            run.pass_over_begin(nodes)
            try:
                answers = await self.control.ask(
                    rpc.START_RUN, nodes, run=run.id, ranks=ranks, content=content, about=about
                )
            except NodeLost as error:
                if not set(nodes) <= {run.outcomes[rank].node for rank in run.left}:
                    # Some nodes are lost, or have other agents already, and the run knows that: the others may have it.
                    continue
                gone = self.control.lost & set(nodes) or set(nodes)
                run.lose([rank for rank in run.left if run.outcomes[rank].node in gone], str(error))
            except Exception as error:
                run.lose(run.left, f"the run could not be started: {type(error).__name__}: {error}")
            else:
                for node, answer in answers.items():
                    if answer["state"] == "known":
                        # The first answer was lost with its connection.
                        self.keep_task(self.journals.read(run, node, run.next(node)))
                    self.journals.take(run, node, answer["first"], answer["count"], answer["data"])
                if self.turns.shared:
                    # Nothing that other notebooks' runs printed was acknowledged from here: acknowledge it now.
                    self.acknowledgements.send_soon(dict.fromkeys(answers))
                return

    async def adopt(self, run: Run, begin: dict[str, Any], begun: Sequence[int], *, over: bool) -> None:
        """Attend an earlier manager's run, begun on the nodes ``begun``.

        If that manager ended before all nodes had begun it, the others begin now; if the run is over, they never do.
        """
        async with self._turn:
            about = {key: begin.get(key) for key in ("code", "grace", "timeout", "began", "apart")}
            run.apart = begin.get("apart") is True
            for node in begun:
                await self.journals.read(run, node, 0)
            if over:
                self.lose_unbegun(run, begun)
                await run.until(lambda: not run.left, None)
                # What it broke may have been repaired already.
                self.repairs.recover(run)
                return
            if {outcome.node for outcome in run.outcomes.values()} - set(begun):
                self.keep_task(self._start(run, begin["content"], about))
            await self._attend(run, float(begin.get("grace") or 0.0), begin.get("timeout"))

    def lose_unbegun(self, run: Run, begun: Sequence[int]) -> None:
        """Fail the ranks of nodes that were lost before they began it."""
        ranks = [rank for rank in run.left if run.outcomes[rank].node not in begun]
        run.lose(ranks, "its node had been lost before it began")

    async def _attend(self, run: Run, grace: float, timeout: float | None) -> None:
        """Supervise a run to its end, and begin the repairs that it needs."""
        detectors: list[asyncio.Task[None]] = []

        def detect() -> None:
            detectors.append(self.keep_task(HangDetector(run, self.look, after=self.silence).attend()))

        # The detector would not look earlier, and most runs are over by then.
        silence = asyncio.get_running_loop().call_later(self.silence, detect)
        self.working.add(run)
        for text in self.watchdog.troubles.values():
            run.listener(NoticeEvent(text, run.id))
        try:
            await self.termination.watch(run, grace, timeout)
        finally:
            silence.cancel()
            for detector in detectors:
                detector.cancel()
            self.working.discard(run)
        if not (run.failed and self.turns.guest) or await self.turns.still_held():
            self.repairs.mend(run)

    async def look(self, run: Run, native: bool) -> StackReport:
        """Return the ranks' stacks, sampled over a long window."""
        return await ask(self.control, self.spec, run, native=native, window=0.5)

    @property
    def busy(self) -> bool:
        """Whether a rank works on a run, as far as is known here."""
        return any(run.left for run in self.registered)

    async def look_for_ended(self, nodes: Sequence[int] | None = None) -> None:
        """Replace kernels that ended while no manager was connected."""
        for node, state in (await self.control.ask(rpc.STATUS, nodes)).items():
            self._take_notice(node, state.get("interruption"))
            for rank, its in state["ranks"].items():
                if its.get("surprise"):
                    self.repairs.on_kernel_end(int(rank), str(its["surprise"]))

    # -- events of the control plane ---------------------------------------------------------------

    def on_batch(self, batch: dict[str, Any]) -> None:
        """Handle a batch of events that an agent forwards."""
        try:
            if "standstill" in batch:
                for change in batch["standstill"]:
                    self.watchdog.on_standstill(change, self._place(batch["node"]))
                return
            if "interruption" in batch:
                self._take_notice(batch["node"], batch["interruption"])
                return
            if "turn" in batch:
                self._on_wanted()
                return
            if "ended" in batch:
                self.repairs.on_kernel_end(int(batch["ended"]), str(batch["text"]))
                return
            if "run" not in batch:
                for name, extension in self.extensions.items():
                    if name in batch:
                        extension.on_batch(batch)
                if not self.turns.guest:
                    self.acknowledgements.take(batch)
                return
            # The name of a call's attempt begins with the call's id.
            run = self.runs.get(batch["run"]) or self.runs.get(batch["run"].partition(".")[0])
            if run is None and self.turns.shared:
                # Its own notebook acknowledges it.
                return
            if run is not None and run.accepts(batch["run"], batch["node"]):
                self.journals.take(run, batch["node"], batch["first"], batch["count"], batch["data"])
        except (KeyError, TypeError, AttributeError) as error:
            # Agents are untrusted input.
            _log.warning("a batch of events cannot be read: %s: %s", type(error).__name__, error)
        if isinstance(batch, dict):
            self.acknowledgements.take(batch)

    def _on_wanted(self) -> None:
        """Ask for turns from now on: a guest wants to run something."""
        if not self.turns.guest:
            self.turns.shared = True
            if not self._is_yielding:
                self._is_yielding = True
                self.keep_task(self._yield_standing_turn())

    def _take_notice(self, node: Any, facts: Any) -> None:
        """Handle a node's notice that its machine is taken away, or None."""
        if is_count(node) and node < self.spec.nodes and self.interruptions.take(node, facts):
            # Its journals are lost with it.
            self.keep_task(self.journals.read_active(node))

    def _who(self, *nodes: int) -> str:
        names = {self.names[node] for node in nodes if node in self.names}
        return f"{node_label(nodes)}{''.join(sorted(names))}"

    def _place(self, node: Any) -> str:
        """Return the suffix that names a node's machine in messages; "" for this one."""
        name = self.names.get(node, "") if is_count(node) else ""
        return f" on {name[2:-1]}" if name else ""

    def on_lost(self, node: int, why: str, *, revived: bool) -> None:
        """Fail the ranks of a lost node; repair it when it is back."""
        if not revived and (taken := self.interruptions.why_lost(node)):
            why = self.control.whys[node] = taken
        for extension in self.extensions.values():
            extension.lose(node)
        for run in self.registered:
            run.lose_node(node, why, self.names.get(node, ""))
        self.events.own.note("lost", why, node=node)
        self.lost_nodes.lose(node, why, revived=revived)

    def on_back(self, node: int, *, kept: bool) -> None:
        """Handle a returned node: catch up, or replace new kernels."""
        self.events.own.note("back", "with its kernels" if kept else "", node=node)
        # What was forwarded to a broken connection is lost: continue from the journal.
        self.acknowledgements.send_soon({node: None})
        for extension in self.extensions.values():
            extension.look(node)
        if kept:
            self.keep_task(self._catch_up(node))
        else:
            self.lost_nodes.renew(node)

    def on_doubt(self, node: int | None) -> None:
        """Start the check of a late node, or of the head (None)."""
        number = node or 0
        if self.examine is not None and number not in self._examined:
            self._examined.add(number)
            self.keep_task(self.examine(number)).add_done_callback(lambda _: self._examined.discard(number))

    def on_silent(self, nodes: Sequence[int] | None, *, silent: bool) -> None:
        """Report that nodes of one process, or the pool (None), go silent or return."""
        who = "the pool" if nodes is None else self._who(*nodes)
        is_one = nodes is None or len(nodes) == 1
        # The trouble has the key of the first node; more nodes may be back than were reported.
        keys = [f"silent {node}" for node in ([None] if nodes is None else nodes)]
        if silent:
            does = "does" if is_one else "do"
            self.watchdog.trouble(keys[0], f"{who} {does} not answer; trying again, and what runs there continues")
        else:
            for key in keys:
                self.watchdog.over(key, f"{who} answer{'s' if is_one else ''} again")

    def on_replaced(self) -> None:
        """Fail all runs: another manager has taken the pool over."""
        self.on_taken()
        self.lose_all("another notebook has taken the pool over, and sees to this run now")

    def tell(self, text: str) -> None:
        """Send a notice to the runs' listeners, or keep it in `news`."""
        self.announce(NoticeEvent(text))

    def announce(self, event: NoticeEvent) -> None:
        """Send an event as `tell` does; without a text, only to the watchdog's listeners."""
        if event.text:
            self.note(logging.WARNING, event.text)
        # Calls of one view have one listener.
        on = {_identity_of(run.listener): run for run in self.registered if run.left}
        for run in on.values() if event.text else ():
            run.listener(dataclasses.replace(event, run=run.id))
        if not self.watchdog.tell(event) and not on and event.text:
            self.news.append(event.text)

    async def _catch_up(self, node: int) -> None:
        """Read what a returned node has to send; stop runs that were given up."""
        with contextlib.suppress(NodeLost, OSError):
            there = (await self.control.ask(rpc.LIST_RUNS, [node]))[node]
            await self.look_for_ended([node])
            for run in self.registered:
                if run.id in there and run.concerns(node):
                    await self.journals.read(run, node, run.next(node))
            for key in [key for key, facts in there.items() if not facts["over"] and key in self.given_up]:
                await self.control.ask(rpc.SIGNAL_KERNELS, [node], number=int(signal.SIGINT), run=key)

    def lose_all(self, text: str) -> None:
        """Fail all runs: the pool cannot be reached any more."""
        for extension in self.extensions.values():
            extension.close()
        for run in self.registered:
            run.abandoned = True
            run.give_up(text)

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        """Start work on behalf of the pool; its restart or end cancels it."""
        self.keep_task(work)

    def keep_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self._tasks.start(work)


def _identity_of(listener: Listener) -> tuple[int, str]:
    """Return a key that tells listeners apart.

    A method is a new object at each access, and not every listener can be hashed.
    """
    return id(getattr(listener, "__self__", listener)), getattr(listener, "__name__", "")
