"""Context of a rank's requests; its context variables persist between cells.

ipykernel keeps one for messages of its shell channel. Cells and calls come by a socket too, and so the rank has its
own, for whichever way they come.
"""

from __future__ import annotations

import contextvars
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


class RequestContext:
    """Context in which requests run, one after the other; made by the kernel."""

    def __init__(self) -> None:
        self._context = contextvars.copy_context()
        self._is_entered = False

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in the context."""
        if self._is_entered:
            # A loop that runs within a cell: this is its context already.
            return function(*arguments)
        self._is_entered = True
        try:
            return self._context.run(function, *arguments)
        finally:
            self._is_entered = False

    def run_in_copy(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in a copy of the context: what it sets there ends with it."""
        return self._context.copy().run(function, *arguments)

    @types.coroutine
    def attend(self, coroutine: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Await a coroutine step by step, so that others can use the context in between."""
        step: Callable[..., Any] = coroutine.send
        given: Any = None
        while True:
            try:
                waited = self.run(step, given)
            except StopIteration as stop:
                result: T = stop.value
                return result
            try:
                given = yield waited
                step = coroutine.send
            except BaseException as error:
                given, step = error, coroutine.throw
