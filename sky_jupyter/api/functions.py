"""Functions that run on a pool: `function`, and what calling one gives."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from .. import display
from ..capture.collect import collect_value
from ..errors import SpecError
from ..pool.manager import Pool
from ..pool.results import exception_of
from .pools import Holder, live_pool

T = TypeVar("T")


class Function(Generic[T]):
    """A function that runs on a pool; made by `function`. Calling it gives a `PendingCall`."""

    def __init__(self, wrapped: Callable[..., T], timeout: float | None = None) -> None:
        self.__wrapped__ = wrapped
        self.timeout = timeout
        functools.update_wrapper(self, wrapped)

    def __call__(self, *args: Any, **kwargs: Any) -> PendingCall[T]:
        """Bind arguments; nothing runs before the call meets a pool."""
        # A wrong call is told here and not on a node.
        inspect.signature(self.__wrapped__).bind(*args, **kwargs)
        return PendingCall(self, args, kwargs)

    def local(self, *args: Any, **kwargs: Any) -> T:
        """Call it here, without a pool."""
        return self.__wrapped__(*args, **kwargs)

    def _rewrap(self, wrapped: Callable[..., T]) -> Function[T]:
        """The same around another function; for decorators above ``@sky.function``."""
        return Function(wrapped, self.timeout)

    def __repr__(self) -> str:
        return f"<sky.function {getattr(self.__wrapped__, '__qualname__', self.__wrapped__)}>"


def function(wrapped: Callable[..., T] | None = None, *, timeout: float | None = None) -> Any:
    """Make a function one that runs on a pool.

    Parameters
    ----------
    timeout : float, optional
        Seconds after which a broadcast of it is stopped; no limit unless given.

    Examples
    --------
    >>> @function
    ... def double(x):
    ...     return 2 * x
    """
    if timeout is not None and not timeout > 0:
        raise SpecError(f"timeout must be a number of seconds above 0, not {timeout!r}")
    if wrapped is None:
        return lambda inner: Function(inner, timeout)
    if not callable(wrapped):
        raise SpecError(f"@sky.function goes over a function, not {wrapped!r}")
    return Function(wrapped, timeout)


class PendingCall(Generic[T]):
    """A function with its arguments, waiting for a pool; made by calling a `Function`."""

    def __init__(self, function: Function[T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs

    def __matmul__(self, pool: Holder | Pool) -> list[T]:
        """Run on every rank; the results in rank order.

        Raises
        ------
        CellError
            When ranks failed: a group of their exceptions, with the other ranks' results.
        """
        live = live_pool(pool)
        _note_restarts(live)
        blob, capture = collect_value(self._payload(), _main(), live.ledger, label=repr(self.function))
        view = display.run_view(self._title(live), range(live.spec.world_size), results=False, pool=live.spec.name)
        with display.LateView("values") as late:
            run = live.begin_call(
                blob,
                capture,
                timeout=self.function.timeout,
                listener=view.on_event,
                on_send=late.on_event,
                tick=late.refresh,
            )
        try:
            return list(live.attend(run, view.refresh))
        finally:
            live.note_writes(run, _main())
            view.finish(run.elapsed)

    def __rshift__(self, pool: Holder | Pool) -> T:
        """Run on one rank, the least busy; its result.

        Raises
        ------
        Exception
            What the function raised, with the remote traceback as a note.
        """
        live = live_pool(pool)
        # One rank needs all that the function reads: the ledger speaks of what every rank has.
        blob, capture = collect_value(self._payload(), _main(), live.ledger.unsent(), label=repr(self.function))
        view = display.run_view(self._title(live), range(live.spec.world_size), results=False, pool=live.spec.name)
        with display.LateView("values") as late:
            run = live.begin_one(blob, capture, listener=view.on_event, on_send=late.on_event, tick=late.refresh)
        try:
            interrupted = live.wait(run, view.refresh)
            result = live.finish(run)
        finally:
            live.note_writes(run, _main())
            view.finish(run.elapsed)
        if interrupted:
            raise KeyboardInterrupt(repr(self))
        (outcome,) = run.outcomes.values()
        if outcome.failed:
            raise exception_of(outcome)
        return result.head

    def _payload(self) -> tuple[Any, ...]:
        return self.function.__wrapped__, self.args, self.kwargs

    def _title(self, pool: Pool) -> str:
        return f"{getattr(self.function, '__name__', 'function')} @ {pool.spec.name}"

    def __repr__(self) -> str:
        return f"<pending call of {self.function!r}: `>> pool` runs it on one rank, `@ pool` on every rank>"


def _note_restarts(live: Pool) -> None:
    """What kernels had been sent that are no more is sent again, to those that are new."""
    fresh = live.take_restarted()
    if len(fresh) == live.spec.world_size:
        live.ledger.forget_nodes(_main())
    elif fresh:
        live.ledger = live.ledger.unsent(fresh, live.spec.world_size)


def _main() -> dict[str, Any]:
    return vars(sys.modules["__main__"])
