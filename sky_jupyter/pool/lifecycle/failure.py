"""Failure of a pool: it is broken, and runs nothing until it is recreated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from ..context import PoolContext
from ..runs import journal_recovery
from .lost_machines import why_ended
from .state_machine import PoolState

if TYPE_CHECKING:
    from ..execution.supervisor import Supervisor
    from .comeback import Comeback
    from .guest import Guest
    from .lost_machines import Loss
    from .provisioning import Provisioning
    from .state_machine import StateMachine
    from .teardown import Teardown


class FailureContext(PoolContext, Protocol):
    """The pool's lifecycle as seen by its failure."""

    guest: Guest | None
    farewell: Callable[[str], None]
    states: StateMachine
    supervisor: Supervisor
    provisioning: Provisioning
    teardown: Teardown
    comeback: Comeback

    @property
    def ids(self) -> Sequence[str]: ...

    @property
    def incarnations(self) -> Mapping[str, str]: ...

    @property
    def state(self) -> PoolState: ...

    @property
    def broken(self) -> str:
        """The reason why the pool is broken or has ended, or ""."""
        ...

    @property
    def is_watched(self) -> bool:
        """Whether runs have listeners that hear of failures."""
        ...

    async def disconnect(self) -> None:
        """Close the client of the agents, which go on."""
        ...

    def leave_link(self) -> None:
        """Release the link, if there is one; it lives on."""
        ...


class PoolFailure:
    """Failures of one pool; made with it.

    Parameters
    ----------
    pool : FailureContext
        The pool.
    """

    def __init__(self, pool: FailureContext) -> None:
        self.pool = pool
        # Why the next cell recreates the pool, on other machines; "" if it does not.
        self.anew = ""

    def mark_broken(self, why: str) -> None:
        """Set the state to BROKEN, and fail what runs."""
        if self.pool.guest is not None:
            # Only its manager can recreate it.
            self.lose_as_guest(self.pool.guest, why)
            return
        if not self._stop_control(why):
            return
        self.pool.supervisor.lose_all(f"{why}; `%sky restart` recreates the pool")

    def lose_as_guest(self, guest: Guest, why: str) -> None:
        """Forget a pool whose guest this process was."""
        pool = self.pool
        if pool.states.is_over:
            return
        unwatched, why = not pool.is_watched, guest.lose(why).text
        pool.states.offer(PoolState.ENDED, why)
        pool.supervisor.lose_all(why)
        if pool.has_control:
            pool.control.why_closed = why
        if unwatched:
            pool.farewell(why)
        pool.teardown.close("left: its manager has ended or changed it")
        asyncio.ensure_future(self._part())  # noqa: RUF006 - it ends by itself

    async def _part(self) -> None:
        await self.pool.disconnect()
        await asyncio.to_thread(self.pool.leave_link)

    def lose_head(self, why: str, loss: Loss | None = None) -> None:
        """Break the pool without its head; read runs from nodes' disks.

        ``loss`` is the loss of its machine, if the provider says that it took the machine away.
        """
        pool = self.pool
        if pool.guest is not None:
            self.mark_broken(why)
            return
        if taken := pool.supervisor.interruptions.why_lost(0):
            why = self.anew = f"{taken}: it was the head's"
        elif loss is not None:
            self.anew = why
        if pool.state is not PoolState.BROKEN and self._stop_control(why, pool.comeback.cure(loss)):
            pool.supervisor.tell(why)
            hosts = [host for host in pool.hosts if not host.here]
            pool.supervisor.do(journal_recovery.give_up(list(pool.supervisor.runs.values()), hosts, why))
            pool.comeback.expect()

    def make_anew(self, why: str) -> None:
        """Break the pool, until the next cell recreates it."""
        self.anew = why
        self.mark_broken(why)

    def taken_away(self) -> str:
        """Return why the next cell recreates a broken pool, or "".

        It does so if machines that were bought for the pool have ended or restarted, also while the pool restarts by
        itself. Not for the loop's own thread.
        """
        pool = self.pool
        if pool.comeback.is_on:
            return self.anew or pool.broken
        if pool.state is not PoolState.BROKEN or not pool.provisioning.buys(pool.spec):
            return ""
        return self.anew or why_ended(pool.spec, pool.ids, pool.incarnations)

    def _stop_control(self, why: str, cure: str | None = None) -> bool:
        """Break the pool and close its client; return success. ``cure`` says what helps."""
        pool = self.pool
        alone = pool.state is PoolState.READY and not pool.is_watched and not pool.states.is_changing
        if not pool.states.offer(PoolState.BROKEN, why):
            return False
        pool.supervisor.repairs.give_up()
        if alone:
            if cure is None:
                cure = f"{'the next cell' if self.anew else '`%sky restart`'} recreates it"
            pool.farewell("; ".join(filter(None, [f"pool {pool.spec.name!r} can run nothing any more: {why}", cure])))
        if pool.has_control:
            pool.control.why_closed = f"{why}; `%sky restart` recreates the pool"
            # The client would retry its scheduler forever, and log that in the notebook.
            asyncio.ensure_future(pool.control.close())  # noqa: RUF006 - it ends by itself
        return True
