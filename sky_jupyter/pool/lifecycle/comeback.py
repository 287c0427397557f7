"""Restart of a pool by itself, once its machines that were taken away come back.

A preempted job that its scheduler queues again comes back under its id: nothing has to be bought, and nobody has to
ask. The restart is the one that a cell would do, in a thread of the manager. Cells that come meanwhile wait for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ...errors import PoolError, SkyError
from ...providers.base import has_queue
from ..base.event_loop import Tick
from ..base.events import Event, Listener, PhaseEvent
from ..base.timeouts import TIMEOUTS
from ..context import PoolContext
from .lost_machines import loss_of
from .state_machine import PoolState

if TYPE_CHECKING:
    from ..base.log import PoolLog
    from ..execution.supervisor import Supervisor
    from ..registry.registry import Registry
    from .guest import Guest
    from .lost_machines import Loss
    from .provisioning import Provisioning
    from .state_machine import StateMachine

_log = logging.getLogger(__name__)
# How long, and how often, a provider is asked whether it has taken the head's machine away.
_COMEBACK = TIMEOUTS.machines.comeback
_PAUSE, _LONGEST_PAUSE = TIMEOUTS.machines.queue, TIMEOUTS.machines.longest_queue
_TICK = TIMEOUTS.polls.loop
# The limit of starts of a pool whose machines are taken away again meanwhile.
_ATTEMPTS = 3


class ComebackContext(PoolContext, Protocol):
    """The pool's lifecycle as seen by its comeback."""

    guest: Guest | None
    generation: int
    ids: Sequence[str]
    incarnations: dict[str, str]
    farewell: Callable[[str], None]
    logger: PoolLog
    registry: Registry
    states: StateMachine
    supervisor: Supervisor
    provisioning: Provisioning

    @property
    def state(self) -> PoolState: ...

    @property
    def broken(self) -> str:
        """The reason why the pool is broken, or ""."""
        ...


class Comeback:
    """Restart of one pool by itself; made with the pool. Thread-safe.

    Parameters
    ----------
    pool : ComebackContext
        The pool.
    come_back : callable
        ``come_back(why, listener, tick)`` recreates it on the machines that it has, and on no others.
    """

    def __init__(self, pool: ComebackContext, come_back: Callable[[str, Listener, Tick], None]) -> None:
        self.pool, self._come_back = pool, come_back
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        # Set to end that thread.
        self._stop = threading.Event()
        # Set while no restart is under way.
        self._over = threading.Event()
        self._over.set()
        # Those who wait for the restart, and the phase that it is in.
        self._listeners: list[Listener] = []
        self._phase: PhaseEvent | None = None

    @property
    def is_on(self) -> bool:
        """Whether a restart is under way."""
        return not self._over.is_set()

    @property
    def _may(self) -> bool:
        """Whether this process manages a pool whose machines may come back by themselves."""
        pool = self.pool
        return pool.guest is None and has_queue(pool.spec.provider) and pool.provisioning.buys(pool.spec)

    def cure(self, loss: Loss | None) -> str | None:
        """Return how a pool without its head comes back by itself; None if it does not."""
        if not self._may or (loss is not None and not loss.returns):
            return None
        # `_restart` announces the restart once the loss is known.
        return "" if loss is not None else "if its machine comes back, the pool starts again by itself"

    def expect(self) -> None:
        """Restart the pool, whose head is lost, if its machine comes back by itself."""
        with self._lock:
            if not self._may or self.is_on or self.pool.states.is_changing:
                # The thread that changes the pool finds that its machines are gone.
                return
            self._stop.set()
            self._stop = stop = threading.Event()
            self._thread = threading.Thread(target=self._work, args=(stop,), name="sky-comeback", daemon=True)
            self._thread.start()

    def join(self, listener: Listener, tick: Tick) -> bool:
        """Wait for the restart that is under way; if there is none, prevent one.

        Parameters
        ----------
        listener : callable
            Receives the phases.
        tick : callable
            Called every poll; its exceptions end the wait, not the restart.

        Returns
        -------
        bool
            Whether there was one, after which the pool is ready.

        Raises
        ------
        PoolError
            Why the restart failed.
        """
        with self._lock:
            if not self.is_on:
                self._stop.set()
                return False
            self._listeners.append(listener)
            phase = self._phase
        try:
            if phase is not None:
                listener(phase)
            while not self._over.wait(_TICK):
                tick()
        finally:
            with self._lock:
                self._listeners.remove(listener)
        self.pool.require_live()
        return True

    def stop(self, patience: float) -> None:
        """End the restart as the pool ends or is released; wait up to ``patience`` s."""
        with self._lock:
            self._stop.set()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(patience)

    # -- in the thread -----------------------------------------------------------------------------

    def _work(self, stop: threading.Event) -> None:
        for _ in range(_ATTEMPTS):
            loss = self._lost(stop)
            if loss is None or not loss.returns:
                return
            known = dict(self.pool.incarnations)
            if self._restart(loss, stop) or self.pool.incarnations == known:
                # A restart that failed before it had machines would fail again.
                return

    def _lost(self, stop: threading.Event) -> Loss | None:
        """Poll the provider until it reports a loss of the head's machine; return that."""
        pool, pause, end = self.pool, _PAUSE, time.monotonic() + _COMEBACK
        while time.monotonic() < end and not stop.is_set() and pool.state is PoolState.BROKEN:
            # The output of runs is still read from the other nodes, which a restart would end.
            if not any(run.left for run in list(pool.supervisor.runs.values())):
                loss = loss_of(pool.spec, pool.ids[:1], pool.incarnations)
                if loss is not None:
                    return loss
            stop.wait(pause)
            pause = min(1.5 * pause, _LONGEST_PAUSE)
        return None

    def _restart(self, loss: Loss, stop: threading.Event) -> bool:
        """Restart the pool; return whether there is nothing more to do."""
        pool = self.pool
        with self._lock:
            if stop.is_set() or pool.state is not PoolState.BROKEN or not self._is_ours():
                return True
            self._phase = None
            self._over.clear()
        # The reason is not repeated if it was given when the pool broke.
        why = "" if loss.why in pool.broken else f" ({loss.why})"
        text = "starts again by itself as soon as its machines are back"
        self._say(logging.INFO, f"{text}{why}; `%sky down` ends it")

        def check() -> None:
            if stop.is_set():
                raise PoolError("the pool has ended meanwhile")

        try:
            self._come_back(loss.why, self._hear, check)
        except Exception as error:
            if not isinstance(error, (SkyError, OSError, TimeoutError)):
                _log.exception("a pool could not be started again by itself")
            if pool.state is PoolState.BROKEN and not stop.is_set():
                self._say(logging.WARNING, f"is broken: {pool.broken}; the next cell recreates it")
            return stop.is_set()
        else:
            self._say(logging.INFO, "is ready again, with new kernels on all ranks")
            return True
        finally:
            self._over.set()

    def _is_ours(self) -> bool:
        """Return whether the pool is still ours: a broken one is not told of a takeover."""
        try:
            return self.pool.registry.owns(self.pool.id, self.pool.generation)
        except PoolError:
            return False

    def _hear(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, PhaseEvent):
                self._phase = None if event.done else event
            listeners = list(self._listeners)
        for listener in listeners:
            listener(event)

    def _say(self, level: int, text: str) -> None:
        """Log what happens; tell it below the last cell if nobody waits for it."""
        pool = self.pool
        pool.logger.write(level, text)
        if not self._listeners:
            pool.farewell(f"pool {pool.spec.name!r} {text}")


__all__ = ["Comeback"]
