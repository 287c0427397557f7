"""Turns of runs: in this notebook, and among notebooks by the head's agent."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...errors import PoolError, SkyError
from ...node.protocol import rpc
from ...node.protocol.journal_events import is_count
from ...node.protocol.rpc import AgentCall
from ...util.background_tasks import BackgroundTasks
from ...util.process_identity import own_name, this
from ..base.timeouts import TIMEOUTS

_LEASE, _RENEWAL = TIMEOUTS.turns.lease, TIMEOUTS.turns.renewal
# A waiting run reports what it waits for after the first of these.
_FIRST_WAIT, _WAIT = TIMEOUTS.turns.first_wait, TIMEOUTS.turns.wait
# Calls the head's agent; raises NodeLost if there is none.
Ask = Callable[..., Any]


def label() -> str:
    """Return this notebook's name, for users who wait for it."""
    return f"{own_name()} (process {this()[0]})"


class ThreadsafeTurn:
    """Lock that the loop waits for, and that any thread may take if it is free.

    Waiters on the loop get it in order.
    """

    def __init__(self) -> None:
        # Only held for moments.
        self._mutex = threading.Lock()
        self._is_taken = False
        self._waiters: deque[asyncio.Future[None]] = deque()

    def take_now(self) -> bool:
        """Take the turn if it is free; return whether it was."""
        with self._mutex:
            if self._is_taken:
                return False
            self._is_taken = True
            return True

    async def acquire(self) -> None:
        """Wait for the turn, and take it."""
        with self._mutex:
            if not self._is_taken:
                self._is_taken = True
                return
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            with self._mutex, contextlib.suppress(ValueError):
                self._waiters.remove(waiter)
            if waiter.done() and not waiter.cancelled():
                # It has just been given the turn.
                self.release()
            raise

    def release(self) -> None:
        """Pass the turn on; in any thread."""
        with self._mutex:
            if not self._waiters:
                self._is_taken = False
                return
            waiter = self._waiters.popleft()
        waiter.get_loop().call_soon_threadsafe(self._give, waiter)

    def _give(self, waiter: asyncio.Future[None]) -> None:
        if waiter.done():
            self.release()
        else:
            waiter.set_result(None)

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()


class Turns:
    """Place of this notebook in the order of runs; used on the supervisor's loop.

    A manager that is alone has a standing turn and asks for none. See docs/design-guests.md.

    Parameters
    ----------
    ask : callable
        ``await ask(call, **arguments)`` calls the head's agent, or raises NodeLost.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        # The id of a guest; "" for the manager. Whether runs need turns.
        self.guest = ""
        self.shared = False
        # For a guest, the fencing token of a manager whose process has ended, else 0.
        self.find_gone: Callable[[], int] = lambda: 0
        # The number of the turn, and what holds it: a run's id, or a repair's.
        self.number = 0
        self._holder = ""
        self._is_lost = False
        # The latest turn of all notebooks that is known.
        self._latest = 0
        # The last change of others that is known, and names that they have assigned since `take_wrote`.
        self._seen = 0
        self._heard_wrote: set[str] = set()
        # Ranks whose new kernels are known here, and not returned by `_take_fresh` yet; by rank, the change that
        # reported it last.
        self._heard_fresh: set[int] = set()
        self._fresh_since: dict[int, int] = {}
        # Changes of this notebook that others have not been told.
        self._wrote: set[str] = set()
        self._fresh: set[int] = set()
        self._leaving: asyncio.Task[None] | None = None
        self._tasks = BackgroundTasks()

    @property
    def held(self) -> bool:
        """Whether this notebook has a turn, or needs none."""
        return not self.shared or bool(self._holder)

    def reset(self) -> None:
        """Reset, as the agents are new: they give the manager a standing turn."""
        for task in list(self._tasks):
            task.cancel()
        self.shared, self.number, self._holder, self._is_lost, self._seen = bool(self.guest), 0, "", False, 0
        self._leaving = None
        self._heard_fresh, self._fresh_since = set(), {}

    def renewed(self, ranks: Iterable[int]) -> None:
        """Note ranks that have got new kernels from this notebook."""
        self._fresh.update(ranks)

    @property
    def has_heard_wrote(self) -> bool:
        """Whether others have assigned names since the last `take_wrote`."""
        return bool(self._heard_wrote)

    def take_wrote(self) -> set[str]:
        """Return the names that others have assigned since the last call."""
        wrote, self._heard_wrote = self._heard_wrote, set()
        return wrote

    async def look(self) -> set[int]:
        """Learn what others have changed; return the ranks that have new kernels."""
        self._take_news(await self._call(run=""))
        return self._take_fresh()

    async def queued(self) -> set[str]:
        """Return the runs of all notebooks that have a turn, or wait for one."""
        return {str(run) for run in (await self._call(run="")).get("queue") or ()}

    async def take(
        self,
        run: str,
        tell: Callable[[str], None],
        over: Callable[[], bool],
        *,
        ahead: bool = False,
        force: bool = False,
    ) -> tuple[set[int], list[str]] | None:
        """Wait for a turn.

        Parameters
        ----------
        run : str
            The run's id, or a repair's.
        tell : callable
            Receives what it waits for, each time that this changes.
        over : callable
            Returns whether it needs no turn any more.
        ahead : bool
            Whether it goes ahead of all that wait.
        force : bool
            Whether it ends another's turn as well.

        Returns
        -------
        tuple, or None if it is over
            The ranks that got new kernels since the last news of others, and the runs of guests that are gone, which
            must be ended first.

        Raises
        ------
        NodeLost
            If the head has no agent.
        """
        told, since = "", self._seen
        try:
            while not over():
                if self._leaving is not None:
                    await asyncio.wait([self._leaving])
                if not self.shared:
                    self._holder = run
                    return set(), []
                answer = await self._call(run=run, wait=_WAIT if told else _FIRST_WAIT, ahead=ahead, force=force)
                self._take_news(answer)
                if answer["turn"]:
                    fresh = {rank for rank, change in self._fresh_since.items() if change > since}
                    return self._take(run, answer, fresh | self._take_fresh())
                force = False
                if (text := self._waits_for(answer.get("ahead") or {})) != told:
                    told = text
                    tell(text)
        except BaseException:
            # The agent may have got the request, and give it a turn.
            self.leave_soon(run)
            raise
        await self.leave(run)
        return None

    def take_standing(self, run: str) -> bool:
        """Begin a run in the standing turn; return whether this notebook has it."""
        if not self.is_standing:
            return False
        self._holder = run
        return True

    @property
    def is_standing(self) -> bool:
        """Whether this notebook has the standing turn, and has left the one before."""
        return not self.shared and (self._leaving is None or self._leaving.done())

    def _take(self, run: str, answer: Mapping[str, Any], fresh: set[int]) -> tuple[set[int], list[str]]:
        self.number, self._is_lost = int(answer["turn"]), False
        self._holder, self.shared = run, not answer.get("alone")
        if self.guest:
            self._tasks.start(self._renew(run))
        return fresh, [str(one) for one in answer.get("stale") or ()]

    def _waits_for(self, before: Mapping[str, Any]) -> str:
        who = str(before.get("label") or "")
        if before.get("standing"):
            # It gives the turn up at once if it runs nothing, unless its process or the machine is slow.
            does = "end what it runs" if before.get("runs", True) else "make way: it has not answered yet"
            return f"waits for the notebook that manages the pool to {does}"
        if before.get("who") == self.guest and before.get("run"):
            # An earlier run of this notebook, which leaves at once.
            return ""
        if runs := before.get("runs"):
            return f"waits for run {', '.join(map(str, runs))}, whose notebook has ended: `%sky attach` shows it"
        return f"waits for a run of {who}" if who else "waits for its turn"

    async def still_held(self) -> bool:
        """Return whether this notebook still has its turn: a manager's restart ends it."""
        if self.shared and self._holder and not self._is_lost:
            # A renewal may fail: the next one follows.
            with contextlib.suppress(Exception):
                answer = await self._call(run=self._holder, hold=self.number)
                self._is_lost = bool(answer["lost"])
        return not self._is_lost

    async def _renew(self, run: str) -> None:
        while self._holder == run and not self._is_lost:
            await asyncio.sleep(_RENEWAL)
            if self._holder == run:
                await self.still_held()

    def note_wrote(self, names: Iterable[str]) -> None:
        """Note names that a run assigned on ranks; others are told when a turn is left."""
        self._wrote.update(names)

    def leave_soon(self, run: str, after: Callable[[], Any] | None = None, wrote: Iterable[str] = ()) -> None:
        """Leave the turn in the background, after ``after()``; a standing turn stays.

        The others are told of the names that the run ``wrote`` on the ranks.
        """
        self.note_wrote(wrote)
        if not self.shared:
            self._holder = ""
            return
        before = self._leaving

        async def leave() -> None:
            if before is not None:
                await asyncio.wait([before])
            if after is not None:
                await after()
            await self.leave(run)

        self._leaving = self._tasks.start(leave())

    async def leave(self, run: str = "") -> None:
        """Give up a run's turn, or its wait for one; without a run, the standing turn.

        If the agent does not answer, it is told in the background.
        """
        if run == self._holder:
            self._holder = ""
        if not await self._told_left(run) and run and not self.guest:
            # A manager's turn does not expire: without this, all would wait for it forever.
            self._tasks.start(self._leave_later(run))

    async def _leave_later(self, run: str) -> None:
        while self.shared:
            await asyncio.sleep(_RENEWAL)
            if await self._told_left(run):
                return

    async def _told_left(self, run: str) -> bool:
        """Tell the agent that a run left, with changes; return whether it answered."""
        wrote, fresh = self._wrote, self._fresh
        self._wrote, self._fresh = set(), set()
        try:
            news = {"wrote": sorted(wrote), "fresh": sorted(fresh)}
            await self._ask(rpc.LEAVE_TURN, run=run, who=self.guest, news=news)
        except BaseException as error:
            self._wrote |= wrote
            self._fresh |= fresh
            if not isinstance(error, (SkyError, OSError)):
                raise
            return False
        return True

    async def _call(self, **arguments: Any) -> dict[str, Any]:
        gone = await asyncio.to_thread(self.find_gone) if self.guest else 0
        call: AgentCall = rpc.TAKE_TURN
        answer = await self._ask(
            call,
            who=self.guest,
            label=label(),
            lease=_LEASE,
            seen=self._seen,
            gone=gone,
            latest=self._latest,
            **arguments,
        )
        if not (isinstance(answer, dict) and is_turn(answer.get("turn"))):
            raise PoolError("the head's agent gave no turn that can be read")
        return answer

    def _take_news(self, answer: Mapping[str, Any]) -> None:
        """Record others' changes."""
        if is_count(latest := answer.get("latest")):
            self._latest = max(self._latest, latest)
        if is_count(change := answer.get("change")):
            self._seen = change
        wrote, fresh = answer.get("wrote"), answer.get("fresh")
        self._heard_wrote.update(name for name in wrote or () if isinstance(name, str) and name.isidentifier())
        ranks = {rank for rank in fresh or () if is_count(rank)}
        self._heard_fresh |= ranks
        self._fresh_since |= dict.fromkeys(ranks, self._seen)

    def _take_fresh(self) -> set[int]:
        """Return the ranks whose new kernels became known since the last call."""
        fresh, self._heard_fresh = self._heard_fresh, set()
        return fresh


def is_turn(number: Any) -> bool:
    """Return whether a value can be a turn's number, or 0 for none."""
    return type(number) is int and number >= 0
