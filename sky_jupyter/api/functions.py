"""Decorators of functions that run on a pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from ..errors import SpecError
from .calls import Function, check_retries, check_timeout
from .streaming_functions import is_generator

P = ParamSpec("P")
T = TypeVar("T")


@overload
def function(wrapped: Callable[P, T], /) -> Function[P, T]: ...
@overload
def function(
    *, timeout: float | None = None, retries: int | None = None
) -> Callable[[Callable[P, T]], Function[P, T]]: ...
def function(wrapped: Any = None, *, timeout: float | None = None, retries: int | None = None) -> Any:
    """Decorate a function so that it runs on a pool.

    Parameters
    ----------
    wrapped : callable, optional
        The function; left out if the decorator is called with arguments.
    timeout : float, optional
        Seconds on a rank after which a call is stopped with a TimeoutError. No limit by default.
    retries : int, optional
        How often a call is retried when its node is lost; see `PendingCall.with_retries`.

    Returns
    -------
    Function or callable
        The function that runs on a pool, or a decorator that makes one.

    Raises
    ------
    SpecError
        When `wrapped` is not callable, or `timeout` or `retries` is not valid.

    Examples
    --------
    >>> @function
    ... def double(x):
    ...     return 2 * x
    """
    check_timeout(timeout)
    check_retries(retries)
    if wrapped is None:
        return lambda inner: function_of(inner, timeout, retries)
    return function_of(wrapped, timeout, retries)


def function_of(wrapped: Callable[P, T], timeout: float | None = None, retries: int | None = None) -> Function[P, T]:
    """Return a `Function` around a callable, or a copy of one with other limits."""
    if isinstance(wrapped, Function):
        timeout = wrapped.timeout if timeout is None else timeout
        return Function(wrapped.__wrapped__, timeout, wrapped.retries if retries is None else retries)
    if not callable(wrapped):
        raise SpecError(f"@sky.function decorates a function, not {wrapped!r}")
    return Function(wrapped, timeout, retries)


def stream(wrapped: Callable[..., Any] | None = None, /, *, timeout: float | None = None) -> Any:
    """Decorate a generator function so that it runs on a pool.

    `sky.function` does the same for any function; `stream` refuses a function that does not yield.

    Parameters
    ----------
    wrapped : callable, optional
        The generator function; left out if the decorator is called with arguments.
    timeout : float, optional
        Seconds on a rank after which a call is stopped. No limit by default.

    Returns
    -------
    Function or callable
        The function that runs on a pool, or a decorator that makes one.

    Raises
    ------
    SpecError
        When the function does not yield, or ``timeout`` is not above 0.
    """
    check_timeout(timeout)

    def make(inner: Callable[..., Any]) -> Function[..., Any]:
        made = function_of(inner, timeout)
        if not is_generator(made.__wrapped__):
            raise SpecError(f"@sky.stream decorates a function that yields; use @sky.function for {made!r}")
        return made

    return make if wrapped is None else make(wrapped)
