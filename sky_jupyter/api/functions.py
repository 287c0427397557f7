"""Functions that run on a pool: `function` and the class of what it returns."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, overload

from ..errors import SpecError
from .calls import PendingCall, check_retries, check_timeout
from .streaming_functions import is_generator, is_streaming

P = ParamSpec("P")
T = TypeVar("T")


class Function(Generic[P, T]):
    """Function that runs on a pool; made by `function`.

    Calling it returns a `PendingCall`.
    """

    def __init__(self, wrapped: Callable[P, T], timeout: float | None = None, retries: int | None = None) -> None:
        self.__wrapped__ = wrapped
        self.timeout, self.retries = timeout, retries
        # Looked at once, however often it is called.
        self._signature: inspect.Signature | None = None
        self._is_streaming: bool | None = None
        functools.update_wrapper(self, wrapped)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> PendingCall[T]:
        """Bind the arguments and return a `PendingCall`; nothing runs yet."""
        # A wrong call is told here and not on a node.
        if self._signature is None:
            # Some that are built in have none.
            with contextlib.suppress(ValueError):
                self._signature = inspect.signature(self.__wrapped__)
        if self._signature is not None:
            self._signature.bind(*args, **kwargs)
        return PendingCall(self, args, kwargs)

    @property
    def is_streaming(self) -> bool:
        """Whether its calls stream, out of a rank or into it."""
        if self._is_streaming is None:
            self._is_streaming = is_streaming(self.__wrapped__)
        return self._is_streaming

    def local(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call the wrapped function in this process, without a pool."""
        return self.__wrapped__(*args, **kwargs)

    def _rewrap(self, wrapped: Callable[P, T]) -> Function[P, T]:
        """Return one around another function; for decorators above ``@sky.function``."""
        return Function(wrapped, self.timeout, self.retries)

    def __repr__(self) -> str:
        return f"<sky.function {getattr(self.__wrapped__, '__qualname__', self.__wrapped__)}>"


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
        The function; left out where the decorator is called with arguments.
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
        When it is not callable, or a limit is not valid.

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
    """Return a function that runs on a pool, from one that does not yet."""
    if isinstance(wrapped, Function):
        timeout = wrapped.timeout if timeout is None else timeout
        return Function(wrapped.__wrapped__, timeout, wrapped.retries if retries is None else retries)
    if not callable(wrapped):
        raise SpecError(f"@sky.function decorates a function, not {wrapped!r}")
    return Function(wrapped, timeout, retries)


def stream(wrapped: Callable[..., Any] | None = None, /, *, timeout: float | None = None) -> Any:
    """Decorate a generator function so that it runs on a pool.

    `sky.function` does the same for any function; this one refuses a function that does not yield.

    Parameters
    ----------
    wrapped : callable, optional
        The generator function; left out where the decorator is called with arguments.
    timeout : float, optional
        Seconds on a rank after which a call is stopped. No limit by default.

    Returns
    -------
    Function or callable
        The function that runs on a pool, or a decorator that makes one.

    Raises
    ------
    SpecError
        When the function does not yield.
    """

    def make(inner: Callable[..., Any]) -> Function[..., Any]:
        made = function_of(inner, timeout)
        if not is_generator(made.__wrapped__):
            raise SpecError(f"@sky.stream decorates a function that yields; use @sky.function for {made!r}")
        return made

    return make if wrapped is None else make(wrapped)
