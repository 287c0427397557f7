"""What a `Compute` can be asked for besides the operators: `map`, and each operator by a name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, overload

from ..pool.pool import Pool
from . import dispatch
from .calls import Group, PendingCall, StreamedGroup
from .functions import function_of
from .futures import Future

T = TypeVar("T")
R = TypeVar("R")


class Running:
    """A base of `Compute`."""

    pool: Pool | None

    @overload
    def map(self, function: Callable[[T], PendingCall[R]], items: Iterable[T]) -> list[R]: ...
    @overload
    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]: ...
    def map(self, function: Any, items: Iterable[Any]) -> list[Any]:
        """Call a function with each item, on the ranks that are free; the results in the order of the items.

        Items are taken and sent as there is room: an endless generator's are not all held at once.

        Parameters
        ----------
        function : callable
            Of one argument; a `sky.function`, with its time limit, or any other.
        items : iterable
            What it is called with.

        Raises
        ------
        Exception
            What the first call to fail raised; the others are stopped.
        """
        return dispatch.each(function_of(function), items, self)

    def run(self, call: PendingCall[T]) -> T:
        """The same as ``call >> compute``."""
        return call >> self

    def run_async(self, call: PendingCall[T]) -> Future[T]:
        """The same as ``call > compute``."""
        return call > self

    def broadcast(self, call: PendingCall[T]) -> list[T]:
        """The same as ``call @ compute``."""
        return call @ self

    @overload
    def run_parallel(self, group: Group[R]) -> R: ...
    @overload
    def run_parallel(self, group: StreamedGroup[T]) -> Iterator[T]: ...
    def run_parallel(self, group: Any) -> Any:
        """The same as ``group >> compute``."""
        return group >> self
