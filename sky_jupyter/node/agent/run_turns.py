"""Turns of the notebooks that share a pool; the head's agent gives one at a time.

The pool's manager has a standing turn from the start, and makes no requests until a guest makes its first one.
docs/design-guests.md has the reasons.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import PoolError
from ...util.text import cleaned
from ..protocol.journal_events import is_count

if TYPE_CHECKING:
    from .context import AgentContext

# Seconds between a waiting request's checks for runs and leases that have ended.
_LOOK = 0.25
_LONGEST_WAIT = 5.0
_MOST_NAMES = 20_000
_MOST_LABEL = 300
LATE = "its turn is over, and another notebook's run has begun since: run it again"


@dataclass
class _Ticket:
    """Request for a turn: the run's id, and its notebook ("" for the manager)."""

    run: str
    who: str
    label: str
    # The manager's fencing token at the request.
    generation: int
    # The time of the last request, and the time since which requests have come without a pause.
    heard: float
    since: float
    turn: int = 0


class RunTurns:
    """Queue of the notebooks' runs, and what they have changed for one another."""

    def __init__(self, agent: AgentContext) -> None:
        self._agent = agent
        self._waiting: list[_Ticket] = []
        self._holder: _Ticket | None = None
        # Whether the manager has the turn without a request.
        self._standing = True
        self._last = 0
        # The latest turn in which a run has begun on this node.
        self._begun = 0
        # Runs of guests that are gone; the next notebook ends them.
        self._stale: list[str] = []
        # The time at which each guest last had or requested a turn.
        self._guests: dict[str, float] = {}
        # Changes by runs: the number and notebook of the last change of each name, and of each rank's kernel.
        self._changes = 0
        self._wrote: dict[str, tuple[int, str]] = {}
        self._fresh: dict[int, tuple[int, str]] = {}
        self._moved = asyncio.Event()

    def begin(self, turn: int | None) -> None:
        """Note the start of a run; raise PoolError if one of a later turn has begun."""
        if turn is not None:
            if turn < self._begun:
                raise PoolError(LATE)
            self._begun = turn

    async def sky_take_turn(
        self,
        run: str,
        who: str,
        label: str,
        lease: float,
        seen: int = 0,
        wait: float = 0.0,
        hold: int = 0,
        ahead: bool = False,
        force: bool = False,
        gone: int = 0,
        latest: int = 0,
    ) -> dict[str, Any]:
        """Wait for a run's turn, or renew it; return the turn, or what the run waits for.

        Parameters
        ----------
        run : str
            The run, or "" to ask only for others' changes.
        who : str
            The guest's id; "" for the manager.
        label : str
            Its name for people.
        lease : float
            Seconds without a request after which a guest counts as gone.
        seen : int
            Number of the last change that it knows.
        wait : float
            Seconds to wait for the turn.
        hold : int
            The run's present turn, to renew it.
        ahead : bool
            Whether the run goes ahead of all waiting ones.
        force : bool
            Whether the run also ends another run's turn.
        gone : int
            Fencing token of a manager whose process has ended.
        latest : int
            The latest turn that the notebook knows: an earlier agent, with another clock, may have given it.

        Returns
        -------
        dict
            ``"turn"``, 0 while there is none; ``"lost"``, whether a turn that was to be renewed is another's;
            ``"alone"``, whether the manager needs no more requests; ``"stale"``, runs that have to be ended first;
            ``"ahead"``, what the run waits for; ``"wrote"``, ``"fresh"`` and ``"change"``, changes by other notebooks;
            ``"queue"``, the runs that have a turn or wait for one; and ``"latest"``, the latest turn.
        """
        self._last = max(self._last, latest if is_count(latest) else 0)
        if who and run:
            self._guests[who] = time.monotonic()
        if gone and gone >= self._agent.manager:
            self._standing = False
            if self._holder is not None and not self._holder.who:
                self._holder = None
        answer: dict[str, Any] = {"turn": 0, "lost": False, "stale": []}
        if hold:
            answer |= {"turn": hold} if self._renew(run, who, label, hold) else {"lost": True}
        elif run:
            ticket = self._ask(run, who, label, lease, ahead=ahead, force=force)
            end = time.monotonic() + min(wait, _LONGEST_WAIT)
            while self._advance(lease) is not ticket and (left := end - time.monotonic()) > 0:
                self._moved.clear()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._moved.wait(), min(left, _LOOK))
            ticket.heard = time.monotonic()
            answer |= self._told(ticket, lease)
        return {**answer, **self._news(who, seen)}

    async def sky_leave_turn(self, run: str, who: str, news: Mapping[str, Any] | None = None) -> None:
        """End a turn or a request for one; note the changed names and kernels.

        Without a run, the manager ends its standing turn.
        """
        if not who and not run:
            self._standing = False
        if self._holder is not None and (self._holder.run, self._holder.who) == (run, who):
            self._holder = None
        self._waiting = [ticket for ticket in self._waiting if (ticket.run, ticket.who) != (run, who)]
        self._stale = [one for one in self._stale if one != run]
        if news:
            self._changes += 1
            change = (self._changes, who)
            self._wrote.update({str(name): change for name in news.get("wrote", ())})
            self._fresh.update({int(rank): change for rank in news.get("fresh", ())})
            for name in list(self._wrote)[:-_MOST_NAMES]:
                del self._wrote[name]
        self._moved.set()

    # -- parts -------------------------------------------------------------------------------------

    def _ask(self, run: str, who: str, label: str, lease: float, *, ahead: bool, force: bool) -> _Ticket:
        now, generation = time.monotonic(), self._agent.manager
        known = [ticket for ticket in (self._holder, *self._waiting) if ticket is not None]
        ticket = next((one for one in known if (one.run, one.who) == (run, who)), None)
        if ticket is None:
            label = cleaned(label)[:_MOST_LABEL]
            ticket = _Ticket(run, who, label, generation, now, now)
            self._waiting.insert(0 if ahead or force else len(self._waiting), ticket)
        elif now - ticket.heard > lease / 2:
            # The requests had paused, as those of a notebook on a laptop that slept.
            ticket.since = now
        ticket.heard = now
        if force and self._holder is not ticket:
            # The replacement of the kernels ends the other run.
            self._holder = None
        if who and self._standing and self._agent.send is not None:
            self._agent.send({"turn": "wanted", "node": self._agent.node})
        return ticket

    def _renew(self, run: str, who: str, label: str, hold: int) -> bool:
        holder = self._holder
        if holder is None and hold > self._last and not self._standing:
            # An earlier agent of this node gave the turn.
            now = time.monotonic()
            self._last = hold
            self._holder = holder = _Ticket(run, who, label, self._agent.manager, now, now, hold)
        if holder is None or (holder.run, holder.turn) != (run, hold):
            return False
        holder.heard = time.monotonic()
        return True

    def _advance(self, lease: float) -> _Ticket | None:
        """Give the turn to the next run if it is free; return the turn's holder."""
        now = time.monotonic()
        self._waiting = [ticket for ticket in self._waiting if now - ticket.heard <= max(lease, _LONGEST_WAIT)]
        self._expire(lease, now)
        if self._holder is not None or not self._waiting:
            return self._holder
        # The manager may pass: its turn stands, and its restart ends what is running.
        kept = self._standing or self._occupied
        first = next((ticket for ticket in self._waiting if not (kept and ticket.who)), None)
        if first is None:
            return None
        self._waiting.remove(first)
        self._standing = False
        # The number also rises from one agent of this node to the next.
        self._last = first.turn = max(self._last + 1, int(time.time() * 1000))
        self._holder = first
        first.heard = now
        self._moved.set()
        return first

    def _expire(self, lease: float, now: float) -> None:
        """End the turn of a notebook that is gone."""
        holder = self._holder
        if holder is None:
            return
        if not holder.who:
            # A new manager has replaced the turn's holder. Only a manager's process shows whether the manager has
            # ended.
            if holder.generation < self._agent.manager:
                self._holder = None
        elif now - holder.heard > lease and any(now - ticket.since >= lease for ticket in self._waiting):
            self._stale.append(holder.run)
            self._holder = None

    @property
    def _occupied(self) -> bool:
        """Whether a run without a turn is running, such as one of a former manager."""
        return bool(self._going_on())

    def _going_on(self) -> list[str]:
        """Return the ids of the cells that run here, except stale ones.

        Calls on one rank, whose ids contain a dot, are left out.
        """
        runs = self._agent.runs.items()
        return [id for id, record in runs if not record.over.is_set() and "." not in id and id not in self._stale]

    def _told(self, ticket: _Ticket, lease: float) -> dict[str, Any]:
        if self._holder is ticket:
            now = time.monotonic()
            alone = not ticket.who and not any(now - heard < lease for heard in self._guests.values())
            if alone and not self._waiting and not self._stale:
                self._holder, self._standing, self._guests = None, True, {}
                return {"turn": ticket.turn, "alone": True}
            return {"turn": ticket.turn, "stale": self._stale}
        if self._standing:
            return {"ahead": {"who": "", "label": "", "standing": True, "runs": self._going_on()}}
        if self._holder is not None:
            return {"ahead": {"who": self._holder.who, "label": self._holder.label, "run": self._holder.run}}
        before = [one for one in self._waiting if one is not ticket][:1]
        label = before[0].label if before and before[0] is self._waiting[0] else ""
        return {"ahead": {"who": "", "label": label, "runs": self._going_on()}}

    def _news(self, who: str, seen: int) -> dict[str, Any]:
        """Return what others have changed since change number ``seen``."""
        seen = seen if is_count(seen) else 0
        return {
            "wrote": [name for name, (number, by) in self._wrote.items() if number > seen and by != who],
            "fresh": [rank for rank, (number, by) in self._fresh.items() if number > seen and by != who],
            "change": self._changes,
            "latest": self._last,
            "queue": [ticket.run for ticket in (self._holder, *self._waiting) if ticket is not None],
        }
