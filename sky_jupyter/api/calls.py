"""Calls that wait for a pool, one or several: `PendingCall`, `Group` and `gather`. The operators send them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypedDict, TypeVar, overload

from ..errors import SpecError
from ..spec.options import MAX_ATTEMPTS
from . import dispatch
from .futures import Future
from .targets import Target

if TYPE_CHECKING:
    from typing_extensions import Self, TypeVarTuple, Unpack

    from .functions import Function

    Ts = TypeVarTuple("Ts")

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


class PendingCall(Generic[T]):
    """A function with its arguments, waiting for a pool; made by calling a `Function`.

    Nothing runs before an operator sends it: ``call >> pool`` to one rank, ``call @ pool`` to every rank,
    ``call > pool`` to one rank without waiting. It can be sent any number of times.
    """

    def __init__(self, function: Function[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.timeout, self.retries = function.timeout, function.retries
        self.rank: int | None = None

    def with_timeout(self, timeout: float | None) -> Self:
        """The same call with another time limit.

        Parameters
        ----------
        timeout : float or None
            Seconds on the rank after which it is stopped with a TimeoutError; None for no limit.
        """
        other = copy.copy(self)
        other.timeout = check_timeout(timeout)
        return other

    def with_retries(self, retries: int) -> Self:
        """The same call, begun again so often where a node is lost that it is on.

        A call to one rank is, unless this is given, as often as the pool's ``Options(retry_on_interruption=)``
        says. A broadcast is only where it is asked for, and then on every rank, those too that had ended: what
        ranks do together, they do not do alone. The function may have done a part of its work before, or all.

        Parameters
        ----------
        retries : int
            How often, at most; 0 for never.
        """
        other = copy.copy(self)
        other.retries = check_retries(retries)
        return other

    def on(self, rank: int) -> Self:
        """The same call for one rank and no other, instead of the least busy one."""
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
            raise SpecError(f"on() takes a rank's number, from 0, not {rank!r}")
        other = copy.copy(self)
        other.rank = rank
        return other

    def __rshift__(self, pool: Target) -> T:
        """Run on one rank, the least busy; its result.

        Raises
        ------
        Exception
            What the function raised, with the remote traceback as a note.
        TimeoutError
            When it took longer than its time limit.
        """
        return dispatch.one(self, pool)

    def __matmul__(self, pool: Target) -> list[T]:
        """Run on every rank; the results in rank order.

        Raises
        ------
        BroadcastError
            When ranks failed: a group of their exceptions, with the other ranks' results. It is not tried again
            unless `with_retries` asks for it.
        """
        return dispatch.everywhere(self, pool)

    def __gt__(self, pool: Target) -> Future[T]:
        """Run on one rank, the least busy, without waiting for it; a `concurrent.futures.Future`."""
        return dispatch.later(self, pool)

    @overload
    def __and__(self, other: PendingCall[B]) -> Group[tuple[T, B]]: ...
    @overload
    def __and__(self, other: Group[tuple[Unpack[Ts]]]) -> Group[tuple[T, Unpack[Ts]]]: ...
    def __and__(self, other: Any) -> Any:
        """This call and others, for different ranks at the same time: a `Group`."""
        return Group((self,)) & other

    def __repr__(self) -> str:
        return f"<pending call of {self.function!r}: `>> pool` runs it on one rank, `@ pool` on every rank>"


Call = PendingCall


class Calls:
    """Several calls that are sent together."""

    def __init__(self, calls: tuple[PendingCall[Any], ...]) -> None:
        for call in calls:
            if not isinstance(call, PendingCall):
                raise SpecError(f"only calls of a sky.function can be sent together, not {call!r}")
        self.calls = calls

    def with_timeout(self, timeout: float | None) -> Self:
        """The same calls, each with this time limit; see `PendingCall.with_timeout`."""
        other = copy.copy(self)
        other.calls = tuple(call.with_timeout(timeout) for call in self.calls)
        return other

    def with_retries(self, retries: int) -> Self:
        """The same calls, each begun again so often; see `PendingCall.with_retries`."""
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


class Group(Calls, Generic[R]):
    """Calls that run at the same time, on a rank each; made by ``&`` and `gather`. Its result is a tuple."""

    def __rshift__(self, pool: Target) -> R:
        """Run all, each on one rank, the least busy; their results, in the order of the calls.

        Raises
        ------
        Exception
            What the first to fail raised; the others are stopped.
        """
        results: Any = tuple(dispatch.together(self.calls, pool))
        return results

    def __gt__(self, pool: Target) -> Future[R]:
        """Run all without waiting for them; a future of the tuple."""
        return dispatch.together_later(self.calls, pool)

    @overload
    def __and__(self: Group[tuple[Unpack[Ts]]], other: PendingCall[A]) -> Group[tuple[Unpack[Ts], A]]: ...
    @overload
    def __and__(self, other: PendingCall[Any] | Group[Any]) -> Group[tuple[Any, ...]]: ...
    def __and__(self, other: PendingCall[Any] | Group[Any]) -> Group[Any]:
        """These calls and others."""
        if isinstance(other, PendingCall):
            return Group((*self.calls, other))
        if isinstance(other, Group):
            return Group((*self.calls, *other.calls))
        return NotImplemented


class StreamedGroup(Calls, Generic[T]):
    """Calls whose results are taken as they come; made by ``gather(..., stream=True)``."""

    def __init__(self, calls: tuple[PendingCall[T], ...], *, ordered: bool) -> None:
        super().__init__(calls)
        self.ordered = ordered

    def __rshift__(self, pool: Target) -> Iterator[T]:
        """Run all, each on one rank, the least busy; an iterator of their results.

        They are sent now. Where the iterator is closed or dropped before its end, the rest is stopped.
        """
        return dispatch.streamed(self.calls, pool, ordered=self.ordered)


class Together(TypedDict, total=False):
    """Hold the options of a `gather` whose result is one tuple."""

    stream: Literal[False]
    ordered: bool


# A type for each call: Python's types have no word for "of each one of them" yet. Past eight, they must be alike.
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
    """Calls that are to run at the same time, on a rank each.

    Parameters
    ----------
    *calls : PendingCall
        Any number of them.
    stream : bool
        Whether ``>>`` gives an iterator of the results as they come, instead of a tuple of all.
    ordered : bool
        Whether such an iterator keeps the order of the calls, or gives what is there first.

    Examples
    --------
    >>> losses = gather(*(train(rate) for rate in rates)) >> pool
    >>> for part in gather(*calls, stream=True, ordered=False) >> pool:
    ...     print(part)
    """
    return StreamedGroup(calls, ordered=ordered) if stream else Group(calls)


def check_timeout(timeout: float | None) -> float | None:
    """The time limit; one that cannot be raises SpecError."""
    sound = isinstance(timeout, (int, float)) and not isinstance(timeout, bool) and timeout > 0
    if timeout is not None and not sound:
        raise SpecError(f"timeout must be a number of seconds above 0, not {timeout!r}")
    return timeout


def check_retries(retries: int | None) -> int | None:
    """How often a call is begun again; what cannot be raises SpecError."""
    sound = isinstance(retries, int) and not isinstance(retries, bool) and 0 <= retries <= MAX_ATTEMPTS
    if retries is not None and not sound:
        raise SpecError(f"retries must be a whole number from 0 to {MAX_ATTEMPTS}, not {retries!r}")
    return retries
