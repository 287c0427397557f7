"""Protocols of functions and calls, for the code that runs them; see `calls`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from ..session.pools import Holder
    from .futures import Future

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T_co = TypeVar("T_co", covariant=True)


class PoolFunction(Protocol[T_co]):
    """Function of a call; a `Function` is one."""

    @property
    def __wrapped__(self) -> Callable[..., T_co]: ...

    @property
    def timeout(self) -> float | None: ...

    @property
    def retries(self) -> int | None: ...

    @property
    def is_streaming(self) -> bool:
        """Whether its calls stream, out of a rank or into it."""
        ...


class BoundCall(Protocol[T_co]):
    """Function with its arguments and limits; a `PendingCall` is one."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def function(self) -> PoolFunction[T_co]: ...

    @property
    def timeout(self) -> float | None: ...

    @property
    def retries(self) -> int | None: ...

    @property
    def rank(self) -> int | None: ...

    def on(self, rank: int) -> BoundCall[T_co]:
        """Return a copy of this call for one rank, instead of the least busy one."""
        ...


class BoundGroup(Protocol[R_co]):
    """Calls that run at the same time; a `Group` is one, and a `StreamedGroup`."""

    @property
    def calls(self) -> Sequence[BoundCall[Any]]: ...

    @property
    def streamed(self) -> bool: ...

    @property
    def ordered(self) -> bool: ...

    def __rshift__(self, pool: Holder) -> R_co: ...


class AwaitedGroup(BoundGroup[R], Protocol[R]):
    """Calls whose results are returned all at once; a `Group` is one."""

    def __gt__(self, pool: Holder) -> Future[R]: ...
