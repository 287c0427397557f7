"""The state of a pool: a table of transitions, and the one object that makes them."""

from __future__ import annotations

import contextlib
import enum
import logging
import threading
from collections.abc import Callable, Iterator, Mapping

from ...errors import PoolError


class PoolState(str, enum.Enum):
    """What a pool can do; each is equal to its word, so that it can be compared with that and shown.

    Attributes
    ----------
    NEW
        Nothing runs on it yet: it is being started, restarted or changed, or was only made.
    READY
        It runs what it is given.
    BROKEN
        It can run nothing until it is restarted; `StateMachine.why` says what happened.
    TAKEN_OVER
        Another manager has it.
    ENDED
        It is gone, or was let go of.
    """

    NEW = "new"
    READY = "ready"
    BROKEN = "broken"
    TAKEN_OVER = "taken"
    ENDED = "ended"

    def __str__(self) -> str:
        return self.value

    def __format__(self, spec: str) -> str:
        # What this gives for an enum of strings differs between versions of Python.
        return format(self.value, spec)


# What may follow each state. A pool that was taken over can only be forgotten; from its end nothing leads back.
TRANSITIONS: Mapping[PoolState, frozenset[PoolState]] = {
    PoolState.NEW: frozenset({PoolState.READY, PoolState.BROKEN, PoolState.TAKEN_OVER, PoolState.ENDED}),
    PoolState.READY: frozenset({PoolState.NEW, PoolState.BROKEN, PoolState.TAKEN_OVER, PoolState.ENDED}),
    PoolState.BROKEN: frozenset({PoolState.NEW, PoolState.TAKEN_OVER, PoolState.ENDED}),
    PoolState.TAKEN_OVER: frozenset({PoolState.ENDED}),
    PoolState.ENDED: frozenset(),
}
# How much each new state matters to who reads the pool's log.
_LEVELS = {PoolState.BROKEN: logging.WARNING, PoolState.TAKEN_OVER: logging.WARNING}


class IllegalTransition(RuntimeError):
    """A transition that is not in the table: a defect of the pool, and not of its user."""


class StateMachine:
    """The state of one pool, made with it and held by its lifecycle; callable from any thread.

    Parameters
    ----------
    name : str
        The pool's, for messages.
    log : callable
        Given the level and the text of each transition.
    """

    def __init__(self, name: str, log: Callable[[int, str], None]) -> None:
        self._name, self._log = name, log
        self._state, self._why, self._ended_by = PoolState.NEW, "", ""
        self._lock = threading.Lock()
        # Held while the pool is restarted, resized or ended by one thread; which of these it is.
        self._change, self._changed = threading.Lock(), ""

    @property
    def current(self) -> PoolState:
        """The state as it is now."""
        return self._state

    @property
    def why(self) -> str:
        """Why the pool is broken, or has ended, in words; empty where there is nothing to say."""
        return self._why

    @property
    def is_over(self) -> bool:
        """Whether the pool is no business of this process any more."""
        return self._state in (PoolState.ENDED, PoolState.TAKEN_OVER)

    def to(self, state: PoolState, why: str = "") -> None:
        """Go to a state.

        Parameters
        ----------
        why : str
            What happened, in words. A pool that ends keeps what was said before unless there is something new.

        Raises
        ------
        IllegalTransition
            When the table does not have it; the state stays as it was.
        """
        before = self._try(state, why)
        if before is not None:
            raise IllegalTransition(f"pool {self._name!r} is {before}, and cannot become {state}")

    def offer(self, state: PoolState, why: str = "") -> bool:
        """Go to a state if the table allows that now; whether it did. For events that may come too late."""
        return self._try(state, why) is None

    def _try(self, state: PoolState, why: str) -> PoolState | None:
        """Make a transition; where it is illegal, return the state that forbids it."""
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

    # -- changes that take a while -----------------------------------------------------------------

    @contextlib.contextmanager
    def changing(self, what: str) -> Iterator[None]:
        """Have one thread restart, resize or end the pool; ``what`` is said as "restarted".

        Raises
        ------
        PoolError
            When another thread is at it.
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
        """The state in one word, as a person sees it: ``starting``, ``ready``, ``restarting``, ``broken`` and so on."""
        if self.is_changing and self._state is not PoolState.ENDED:
            words = {"restarted": "restarting", "resized": "resizing", "ended": "ending"}
            return words.get(self._changed, str(self._state))
        return "starting" if self._state is PoolState.NEW else str(self._state)

    def require_live(self, *, restarting: bool = False) -> None:
        """Refuse a pool that cannot run anything now.

        Parameters
        ----------
        restarting : bool
            Whether it is to be restarted: then it may be broken.

        Raises
        ------
        PoolError
            Which says what is the matter, and what helps.
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
            raise PoolError(f"pool {name!r} is broken: {self._why}; `%sky restart` makes it anew")
        if state is PoolState.NEW:
            raise self._is_being_changed() if self.is_changing and not restarting else self.not_started()

    def not_started(self) -> PoolError:
        """Return the error that says that the pool has no nodes yet."""
        return PoolError(f"pool {self._name!r} has not been started")

    def _is_being_changed(self) -> PoolError:
        return PoolError(f"pool {self._name!r} is being {self._changed} just now: try again when it is done")
