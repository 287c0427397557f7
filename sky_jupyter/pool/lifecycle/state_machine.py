"""The state machine of a pool, and its table of transitions."""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
from collections.abc import Callable, Iterator, Mapping

from ...errors import PoolError


class PoolState(str, enum.Enum):
    """State of a pool; each member equals its string.

    Attributes
    ----------
    NEW
        It has no nodes that run anything yet: it is being started, restarted or resized, or was only made.
    READY
        It runs cells.
    BROKEN
        It runs nothing until it is restarted; `StateMachine.why` has the reason.
    TAKEN_OVER
        Another notebook manages it.
    ENDED
        It was ended or released.
    """

    NEW = "new"
    READY = "ready"
    BROKEN = "broken"
    TAKEN_OVER = "taken"
    ENDED = "ended"

    def __str__(self) -> str:
        return self.value

    def __format__(self, spec: str) -> str:
        # The result of an enum's own `format` differs between versions of Python.
        return format(self.value, spec)


# The states that may follow each state. A pool that was taken over can only be forgotten; an end is final.
TRANSITIONS: Mapping[PoolState, frozenset[PoolState]] = {
    PoolState.NEW: frozenset({PoolState.READY, PoolState.BROKEN, PoolState.TAKEN_OVER, PoolState.ENDED}),
    PoolState.READY: frozenset({PoolState.NEW, PoolState.BROKEN, PoolState.TAKEN_OVER, PoolState.ENDED}),
    PoolState.BROKEN: frozenset({PoolState.NEW, PoolState.TAKEN_OVER, PoolState.ENDED}),
    PoolState.TAKEN_OVER: frozenset({PoolState.ENDED}),
    PoolState.ENDED: frozenset(),
}
# The log level of a transition to each state; DEBUG for the others.
_LEVELS = {PoolState.BROKEN: logging.WARNING, PoolState.TAKEN_OVER: logging.WARNING}


class IllegalTransition(RuntimeError):
    """Transition that is not in the table: a defect of this package."""


class StateMachine:
    """State of one pool, held by its lifecycle; thread-safe.

    Parameters
    ----------
    name : str
        The pool's name, for messages.
    log : callable
        Called with the level and the text of each transition.
    """

    def __init__(self, name: str, log: Callable[[int, str], None]) -> None:
        self._name, self._log = name, log
        self._state, self._why, self._ended_by = PoolState.NEW, "", ""
        self._lock = threading.Lock()
        # Held by the thread that restarts, resizes or ends the pool; and which of these it does.
        self._change, self._changed = threading.Lock(), ""

    @property
    def current(self) -> PoolState:
        return self._state

    @property
    def why(self) -> str:
        """The reason why the pool is broken or has ended, or ""."""
        return self._why

    @property
    def is_over(self) -> bool:
        """Whether this process manages the pool no more."""
        return self._state in (PoolState.ENDED, PoolState.TAKEN_OVER)

    def to(self, state: PoolState, why: str = "") -> None:
        """Change the state; raise IllegalTransition if the table forbids it.

        A pool that ends keeps the reason that it has unless ``why`` gives a new one.
        """
        before = self._try(state, why)
        if before is not None:
            raise IllegalTransition(f"pool {self._name!r} is {before}, and cannot become {state}")

    def offer(self, state: PoolState, why: str = "") -> bool:
        """Change the state if the table allows it; return whether it did."""
        return self._try(state, why) is None

    def _try(self, state: PoolState, why: str) -> PoolState | None:
        """Change the state, or return the one that forbids it."""
        with self._lock:
            before = self._state
            if state is not before and state not in TRANSITIONS[before]:
                return before
            news = state is not before or (why and why != self._why)
            if state is PoolState.ENDED and before is not state:
                self._ended_by = why
            self._state = state
            if state in (PoolState.NEW, PoolState.READY):
                self._why = ""
            elif why:
                self._why = why
        if news:
            text = f"state: {before} -> {state}" + (f" ({why})" if why else "")
            self._log(_LEVELS.get(state, logging.DEBUG), text)
        return None

    # -- changes that take time --------------------------------------------------------------------

    @contextlib.contextmanager
    def changing(self, what: str) -> Iterator[None]:
        """Exclude other changes of the pool, such as a restart.

        Raises PoolError if another thread is changing it.
        """
        if not self._change.acquire(blocking=False):
            raise self._is_being_changed()
        self._changed = what
        try:
            yield
        finally:
            self._change.release()

    @property
    def is_changing(self) -> bool:
        """Whether a thread restarts, resizes or ends the pool."""
        return self._change.locked()

    @property
    def condition(self) -> str:
        """The state as users see it, such as ``restarting``."""
        if self.is_changing and self._state is not PoolState.ENDED:
            words = {"restarted": "restarting", "resized": "resizing", "ended": "ending"}
            return words.get(self._changed, str(self._state))
        return "starting" if self._state is PoolState.NEW else str(self._state)

    def require_live(self, *, restarting: bool = False) -> None:
        """Raise PoolError, with the remedy, if the pool cannot run.

        ``restarting`` admits a broken pool.
        """
        name, state = self._name, self._state
        if state is PoolState.ENDED:
            why = f": {self._ended_by}" if self._ended_by else ""
            raise PoolError(f"pool {name!r} has ended{why}; `%sky up` makes a new one")
        if state is PoolState.TAKEN_OVER:
            raise PoolError(
                f"another notebook has taken pool {name!r} over; `%sky attach {name} --take-over` "
                "takes it back, `%sky down` forgets it here"
            )
        if state is PoolState.BROKEN and not restarting:
            raise PoolError(f"pool {name!r} is broken: {self._why}; `%sky restart` recreates the pool")
        if state is PoolState.NEW:
            raise self._is_being_changed() if self.is_changing and not restarting else self.not_started()

    def not_started(self) -> PoolError:
        """Return the error that says that the pool has no nodes yet."""
        return PoolError(f"pool {self._name!r} has not been started")

    def _is_being_changed(self) -> PoolError:
        return PoolError(f"pool {self._name!r} is being {self._changed} just now: try again when it is done")
