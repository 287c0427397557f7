"""Methods of a `Compute` beside the operators: `map`, and each operator by name."""

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
    """Mixin of `Compute` with the methods that run calls."""

    pool: Pool | None

    @overload
    def map(self, function: Callable[[T], PendingCall[R]], items: Iterable[T]) -> list[R]: ...
    @overload
    def map(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]: ...
    def map(self, function: Any, items: Iterable[Any]) -> list[Any]:
        """Call a function with each item on the free ranks; keep the order.

        Items are taken and sent as there is room: the items of an endless generator are not all held at once.

        Parameters
        ----------
        function : callable
            Takes one argument. A `sky.function`, with its time limit, or any other function.
        items : iterable
            The arguments.

        Returns
        -------
        list
            One result per item, in the order of the items.

        Raises
        ------
        Exception
            What the first call to fail raised; the others are stopped.
        """
        return dispatch.each(function_of(function), items, self)

    def run(self, call: PendingCall[T]) -> T:
        """Run a call on one rank, as ``call >> compute`` does.

        Parameters
        ----------
        call : PendingCall
            The call.

        Returns
        -------
        object
            The function's result.
        """
        return call >> self

    def run_async(self, call: PendingCall[T]) -> Future[T]:
        """Submit a call to one rank, as ``call > compute`` does.

        Parameters
        ----------
        call : PendingCall
            The call.

        Returns
        -------
        Future
            A future of the result.
        """
        return call > self

    def broadcast(self, call: PendingCall[T]) -> list[T]:
        """Run a call on every rank, as ``call @ compute`` does.

        Parameters
        ----------
        call : PendingCall
            The call.

        Returns
        -------
        list
            One result per rank.
        """
        return call @ self

    @overload
    def run_parallel(self, group: Group[R]) -> R: ...
    @overload
    def run_parallel(self, group: StreamedGroup[T]) -> Iterator[T]: ...
    def run_parallel(self, group: Any) -> Any:
        """Run several calls at the same time, as ``group >> compute`` does.

        Parameters
        ----------
        group : Group or StreamedGroup
            The calls.

        Returns
        -------
        tuple or Iterator
            One result per call.
        """
        return group >> self
