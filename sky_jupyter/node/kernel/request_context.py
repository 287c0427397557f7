"""Context of a rank's requests; its context variables persist between cells.

ipykernel keeps a context for messages of its shell channel. But cells and calls also come by a socket, so the rank has
its own context for all of them.
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
            # In a loop that runs within a cell, this is the context already.
            return function(*arguments)
        self._is_entered = True
        try:
            return self._context.run(function, *arguments)
        finally:
            self._is_entered = False

    def run_in_copy(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in a copy of the context: its changes end with it."""
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
