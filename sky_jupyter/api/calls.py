"""Functions of a pool and their calls: `Function`, `PendingCall`, `gather`.

The operators send the calls.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, ParamSpec, TypedDict, TypeVar, overload

from ..errors import SpecError
from ..spec.options import MAX_ATTEMPTS
from ..util.validate import check_whole, is_number, is_whole
from .futures import Future
from .operators import Target, runner_of
from .streaming_functions import is_streaming

if TYPE_CHECKING:
    from typing_extensions import Self, TypeVarTuple, Unpack

    Ts = TypeVarTuple("Ts")

# Seconds of the longest time limit: thirty years.
_LONGEST = 1e9
P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")
G = TypeVar("G")
H = TypeVar("H")


class Function(Generic[P, T]):
    """Function that runs on a pool; made by `function`.

    Calling it returns a `PendingCall`.
    """

    def __init__(self, wrapped: Callable[P, T], timeout: float | None = None, retries: int | None = None) -> None:
        self.__wrapped__ = wrapped
        self.timeout, self.retries = timeout, retries
        # Both are computed once, however often the function is called.
        self._signature: inspect.Signature | None = None
        self._is_streaming: bool | None = None
        functools.update_wrapper(self, wrapped)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> PendingCall[T]:
        """Bind the arguments and return a `PendingCall`; nothing runs yet."""
        # Wrong arguments are an error here, not on a node.
        if self._signature is None:
            # Some built-in functions have none.
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
        """Return the same for another function; for decorators above ``@sky.function``."""
        return Function(wrapped, self.timeout, self.retries)

    def __repr__(self) -> str:
        return f"<sky.function {getattr(self.__wrapped__, '__qualname__', self.__wrapped__)}>"


class PendingCall(Generic[T]):
    """Call with its arguments, to be sent to a pool; made by calling a `Function`.

    Nothing runs before an operator sends it: ``call >> pool`` to one rank, ``call @ pool`` to every rank,
    ``call > pool`` to one rank without waiting. It can be sent any number of times.
    """

    def __init__(self, function: Function[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.timeout, self.retries = function.timeout, function.retries
        self.rank: int | None = None

    def with_timeout(self, timeout: float | None) -> Self:
        """Return a copy of this call with another time limit.

        Parameters
        ----------
        timeout : float or None
            Seconds on the rank after which the call is stopped with a TimeoutError; None for no limit.

        Returns
        -------
        PendingCall
            The copy.

        Raises
        ------
        SpecError
            When the limit is not a number above 0.
        """
        other = copy.copy(self)
        other.timeout = check_timeout(timeout)
        return other

    def with_retries(self, retries: int) -> Self:
        """Return a copy of this call that is retried when its node is lost.

        Without it, a call to one rank is retried as often as the pool's ``Options(retry_on_interruption=)`` says. A
        broadcast is retried only if this asks for it, and then on every rank, also on ranks that have finished: what
        ranks do together, none can do alone. The function may have done some or all of its work before a retry.

        Parameters
        ----------
        retries : int
            The largest number of retries; 0 for none.

        Returns
        -------
        PendingCall
            The copy.

        Raises
        ------
        SpecError
            When the number is not a whole number from 0 to 1000.
        """
        other = copy.copy(self)
        other.retries = check_retries(retries)
        return other

    def on(self, rank: int) -> Self:
        """Return a copy of this call for one rank, instead of the least busy one.

        Parameters
        ----------
        rank : int
            The rank's number, from 0.

        Returns
        -------
        PendingCall
            The copy.

        Raises
        ------
        SpecError
            When it is not a whole number from 0.
        """
        if not is_whole(rank):
            raise SpecError(f"on() takes a rank's number, from 0, not {rank!r}")
        other = copy.copy(self)
        other.rank = rank
        return other

    def __rshift__(self, pool: Target) -> T:
        """Run on one rank, the least busy, and return the result.

        Parameters
        ----------
        pool : Compute, Pool or sky
            Where it runs; `sky` is the current pool.

        Returns
        -------
        object
            The function's result; an iterator of its items if it is a generator function.

        Raises
        ------
        Exception
            What the function raised, with the remote traceback as a note.
        TimeoutError
            When it took longer than its time limit.
        """
        return runner_of(pool).run(self)

    def __matmul__(self, pool: Target) -> list[T]:
        """Run on every rank and return the results in rank order.

        Parameters
        ----------
        pool : Compute, Pool or sky
            Where it runs; `sky` is the current pool.

        Returns
        -------
        list
            One result per rank.

        Raises
        ------
        BroadcastError
            When ranks failed: a group of their exceptions, with the other ranks' results. The call is not retried
            unless `with_retries` asks for it.
        """
        return runner_of(pool).broadcast(self)

    def __gt__(self, pool: Target) -> Future[T]:
        """Submit to one rank, the least busy, and return a future at once.

        Parameters
        ----------
        pool : Compute, Pool or sky
            Where it runs; `sky` is the current pool.

        Returns
        -------
        Future
            A `concurrent.futures.Future` of the result.
        """
        return runner_of(pool).run_async(self)

    @overload
    def __and__(self, other: PendingCall[B]) -> Group[tuple[T, B]]: ...
    @overload
    def __and__(self, other: Group[tuple[Unpack[Ts]]]) -> Group[tuple[T, Unpack[Ts]]]: ...
    def __and__(self, other: Any) -> Any:
        """Combine this call with others that run at the same time, on other ranks.

        Parameters
        ----------
        other : PendingCall or Group
            What runs at the same time.

        Returns
        -------
        Group
            All of the calls, in this order.
        """
        return Group((self,)) & other

    def __repr__(self) -> str:
        return f"<pending call of {self.function!r}: `>> pool` runs it on one rank, `@ pool` on every rank>"


Call = PendingCall


class PendingGroup:
    """Base of the groups of calls that are sent together."""

    # Whether their results are read as they arrive, and whether in the order of the calls.
    streamed, ordered = False, True

    def __init__(self, calls: tuple[PendingCall[Any], ...]) -> None:
        for call in calls:
            if not isinstance(call, PendingCall):
                raise SpecError(f"only calls of a sky.function can be sent together, not {call!r}")
        self.calls = calls

    def with_timeout(self, timeout: float | None) -> Self:
        """Return a copy in which each call has this time limit.

        Parameters
        ----------
        timeout : float or None
            Seconds for each call; see `PendingCall.with_timeout`.

        Returns
        -------
        Group
            The copy.
        """
        other = copy.copy(self)
        other.calls = tuple(call.with_timeout(timeout) for call in self.calls)
        return other

    def with_retries(self, retries: int) -> Self:
        """Return a copy in which each call is retried when its node is lost.

        Parameters
        ----------
        retries : int
            The largest number of retries of each call; see `PendingCall.with_retries`.

        Returns
        -------
        Group
            The copy.
        """
        other = copy.copy(self)
        other.calls = tuple(call.with_retries(retries) for call in self.calls)
        return other

    def __len__(self) -> int:
        return len(self.calls)

    def __iter__(self) -> Iterator[PendingCall[Any]]:
        return iter(self.calls)

    def __matmul__(self, pool: Target) -> NoReturn:
        raise SpecError("several calls go to one rank each: `group >> pool`. `@` sends a single call to every rank")

    def __repr__(self) -> str:
        return f"<{len(self.calls)} pending calls: `>> pool` runs each on one rank, at the same time>"


class Group(PendingGroup, Generic[R]):
    """Calls that run at the same time, one per rank; made by ``&`` and `gather`.

    The result is a tuple.
    """

    def __rshift__(self, pool: Target) -> R:
        """Run all calls, each on one rank, and return their results in order.

        Parameters
        ----------
        pool : Compute, Pool or sky
            Where they run; `sky` is the current pool.

        Returns
        -------
        tuple
            One result per call.

        Raises
        ------
        Exception
            What the first call to fail raised; the others are stopped.
        """
        return runner_of(pool).run_parallel(self)

    def __gt__(self, pool: Target) -> Future[R]:
        """Submit all calls and return a future of the tuple at once.

        At most 2,000 calls, with 256 MB of arguments, are in flight. The others are sent as those end, with their
        arguments as they are by then.

        Parameters
        ----------
        pool : Compute, Pool or sky
            Where they run; `sky` is the current pool.

        Returns
        -------
        Future
            A `concurrent.futures.Future` of the tuple.
        """
        return runner_of(pool).run_parallel_async(self)

    @overload
    def __and__(self: Group[tuple[Unpack[Ts]]], other: PendingCall[A]) -> Group[tuple[Unpack[Ts], A]]: ...
    @overload
    def __and__(self, other: PendingCall[Any] | Group[Any]) -> Group[tuple[Any, ...]]: ...
    def __and__(self, other: PendingCall[Any] | Group[Any]) -> Group[Any]:
        """Combine these calls with others.

        Parameters
        ----------
        other : PendingCall or Group
            What runs at the same time.

        Returns
        -------
        Group
            All of the calls, in this order.
        """
        if isinstance(other, PendingCall):
            return Group((*self.calls, other))
        if isinstance(other, Group):
            return Group((*self.calls, *other.calls))
        return NotImplemented


class StreamedGroup(PendingGroup, Generic[T]):
    """Calls whose results are read as they arrive.

    Made by ``gather(..., stream=True)``.
    """

    streamed = True

    def __init__(self, calls: tuple[PendingCall[T], ...], *, ordered: bool) -> None:
        super().__init__(calls)
        self.ordered = ordered

    def __rshift__(self, pool: Target) -> Iterator[T]:
        """Submit all calls and return an iterator of their results.

        The calls are sent at once. If the iterator is closed or dropped before its end, the remaining calls are
        stopped.

        Parameters
        ----------
        pool : Compute, Pool or sky
            Where they run; `sky` is the current pool.

        Returns
        -------
        Iterator
            The results, in the order of the calls or as they arrive.
        """
        return runner_of(pool).run_parallel(self)


class Together(TypedDict, total=False):
    """Options of a `gather` whose result is one tuple."""

    stream: Literal[False]
    ordered: bool


# A type for each call: Python cannot map a type over a variable number of types yet. More than eight must be alike.
@overload
def gather(a: Call[A], /, **how: Unpack[Together]) -> Group[tuple[A]]: ...
@overload
def gather(a: Call[A], b: Call[B], /, **how: Unpack[Together]) -> Group[tuple[A, B]]: ...
@overload
def gather(a: Call[A], b: Call[B], c: Call[C], /, **how: Unpack[Together]) -> Group[tuple[A, B, C]]: ...
@overload
def gather(a: Call[A], b: Call[B], c: Call[C], d: Call[D], /, **how: Unpack[Together]) -> Group[tuple[A, B, C, D]]: ...
@overload
def gather(
    a: Call[A], b: Call[B], c: Call[C], d: Call[D], e: Call[E], /, **how: Unpack[Together]
) -> Group[tuple[A, B, C, D, E]]: ...
@overload
def gather(
    a: Call[A], b: Call[B], c: Call[C], d: Call[D], e: Call[E], f: Call[F], /, **how: Unpack[Together]
) -> Group[tuple[A, B, C, D, E, F]]: ...
@overload
def gather(
    a: Call[A], b: Call[B], c: Call[C], d: Call[D], e: Call[E], f: Call[F], g: Call[G], /, **how: Unpack[Together]
) -> Group[tuple[A, B, C, D, E, F, G]]: ...
@overload
def gather(
    a: Call[A],
    b: Call[B],
    c: Call[C],
    d: Call[D],
    e: Call[E],
    f: Call[F],
    g: Call[G],
    h: Call[H],
    /,
    **how: Unpack[Together],
) -> Group[tuple[A, B, C, D, E, F, G, H]]: ...
@overload
def gather(*calls: PendingCall[T], stream: Literal[False] = False, ordered: bool = ...) -> Group[tuple[T, ...]]: ...
@overload
def gather(*calls: PendingCall[T], stream: Literal[True], ordered: bool = ...) -> StreamedGroup[T]: ...
def gather(*calls: PendingCall[Any], stream: bool = False, ordered: bool = True) -> Any:
    """Combine calls that run at the same time, one per rank.

    Parameters
    ----------
    *calls : PendingCall
        The calls; any number.
    stream : bool
        Whether ``>>`` returns an iterator of the results as they arrive, instead of a tuple of all.
    ordered : bool
        Whether that iterator keeps the order of the calls. Otherwise the first to arrive comes first.

    Returns
    -------
    Group or StreamedGroup
        The calls, to be sent by ``>>``.

    Examples
    --------
    >>> losses = gather(*(train(rate) for rate in rates)) >> pool
    >>> for part in gather(*calls, stream=True, ordered=False) >> pool:
    ...     print(part)
    """
    return StreamedGroup(calls, ordered=ordered) if stream else Group(calls)


def check_timeout(timeout: float | None) -> float | None:
    """Return the time limit; raise SpecError if it is not a number above 0."""
    if timeout is not None and not (is_number(timeout, 0, _LONGEST) and timeout > 0):
        raise SpecError(f"timeout must be a number of seconds above 0, at most {_LONGEST:.0e}, not {timeout!r}")
    return timeout


def check_retries(retries: int | None) -> int | None:
    """Return the number of retries; raise SpecError if it is not valid."""
    if retries is not None:
        check_whole("retries", retries, 0, MAX_ATTEMPTS)
    return retries
