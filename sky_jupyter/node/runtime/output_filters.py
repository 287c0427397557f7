"""Filters of the output that ranks show: `stdout`, `stderr` and `silent`.

Each stream is wrapped once in a gate that checks at every write whether the writing context is muted. This is a
context variable and not a flag, so that another thread or task that prints at the same time is not muted. This module
uses only the standard library: it is sent to the nodes.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from ...errors import NotInPoolError, SpecError
from ...util.text import nearest
from ...util.validate import brief
from .instance_info import InstanceInfo, instance_info

Fn = TypeVar("Fn", bound=Callable[..., Any])
# One entry for each filter that the context is inside of: the names of the streams that it mutes.
_muted: ContextVar[tuple[frozenset[str], ...]] = ContextVar("sky_jupyter_muted", default=())


class _Gate:
    """Stream that drops what a muted context writes and delegates all else."""

    # IPython replaces `write` for each cell and restores it. The gate keeps the replacement: on the stream, it would
    # call itself.
    _OWN = frozenset({"write", "writelines"})

    def __init__(self, stream: Any, name: str) -> None:
        object.__setattr__(self, "_sky_stream", stream)
        object.__setattr__(self, "_sky_name", name)

    def _sky_open(self) -> bool:
        return not any(self._sky_name in names for names in _muted.get())

    def write(self, text: str) -> Any:
        return self._sky_stream.write(text) if self._sky_open() else len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        if self._sky_open():
            self._sky_stream.writelines(lines)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # some libraries ask `isinstance(sys.stdout, io.TextIOBase)`
        return self._sky_stream.__class__

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sky_stream, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self._sky_stream, name, value)

    def __delattr__(self, name: str) -> None:
        if name in self._OWN:
            object.__delattr__(self, name)
        else:
            delattr(self._sky_stream, name)

    # Special methods are looked up on the class, so they are passed on by hand.
    def __iter__(self) -> Any:
        return iter(self._sky_stream)

    def __enter__(self) -> Any:
        self._sky_stream.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._sky_stream.__exit__(*error)

    def __repr__(self) -> str:
        return repr(self._sky_stream)

    def __reduce__(self) -> tuple[Any, ...]:
        # A function that holds the stream gets that of the process which unpickles it.
        return getattr, (sys, self._sky_name)


def install_gates() -> None:
    """Wrap this process's standard streams, unless they are wrapped already.

    The filters call it when they are first entered. A kernel may call it at its start, so that `logging` handlers that
    keep a reference to a stream are filtered too.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # A process may have no such stream (None), or a redirected one.
        if stream is not None and not isinstance(stream, _Gate):
            setattr(sys, name, _Gate(stream, name))


@dataclass(frozen=True)
class OutputFilter:
    """Decorator and context manager that mutes streams on some ranks.

    Made by `stdout` and `stderr`.

    It filters what Python code writes in the same thread or task. Threads started inside, child
    processes and native code that writes to the file descriptor are not muted.

    Parameters
    ----------
    streams : frozenset of str
        ``"stdout"``, ``"stderr"`` or both.
    only : "head" or callable, optional
        The ranks whose output is shown; None for no rank, also outside a pool.
    """

    streams: frozenset[str]
    only: Any = None

    def __post_init__(self) -> None:
        if self.only is None or self.only == "head" or (callable(self.only) and not isinstance(self.only, type)):
            return
        hint = nearest(self.only, ["head"]) if isinstance(self.only, str) else ""
        raise SpecError(
            f"only={brief(self.only)} is not valid{hint}; "
            "use 'head', or a predicate such as `lambda info: info.rank == 1`"
        )

    def _mutes_here(self) -> bool:
        if self.only is None:
            return True
        try:
            info = instance_info()
        except NotInPoolError:
            return False
        return not (info.is_head if self.only == "head" else self.only(info))

    def __enter__(self) -> OutputFilter:
        mine = self.streams if self._mutes_here() else frozenset[str]()
        if mine:
            install_gates()
        _muted.set((*_muted.get(), mine))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _muted.set(_muted.get()[:-1])

    def __call__(self, function: Fn) -> Fn:
        """Decorate a function; a `sky.function` stays one."""
        rewrap: Any = getattr(function, "_rewrap", None)
        if rewrap is not None:
            return rewrap(self(function.__wrapped__))  # type: ignore[attr-defined]
        if not callable(function):
            raise SpecError(f"only a function can be decorated so, not {brief(function)}")
        wrapper: Any
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await function(*args, **kwargs)

        elif inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                return self._steps(function(*args, **kwargs))

        elif inspect.isasyncgenfunction(function):

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                return self._async_steps(function(*args, **kwargs))

        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return function(*args, **kwargs)

        return wrapper

    def _steps(self, generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Run a generator muted, but not the code that reads it."""
        step: Callable[[Any], Any] = generator.send
        given: Any = None
        try:
            while True:
                try:
                    with self:
                        item = step(given)
                except StopIteration as end:
                    return end.value
                try:
                    step, given = generator.send, (yield item)
                except GeneratorExit:
                    raise
                except BaseException as error:
                    step, given = generator.throw, error
        finally:
            with self:
                generator.close()

    async def _async_steps(self, generator: AsyncGenerator[Any, Any]) -> AsyncGenerator[Any, Any]:
        """Run an async generator as `_steps` runs a generator."""
        step: Callable[[Any], Any] = generator.asend
        given: Any = None
        try:
            while True:
                try:
                    with self:
                        item = await step(given)
                except StopAsyncIteration:
                    return
                try:
                    step, given = generator.asend, (yield item)
                except GeneratorExit:
                    raise
                except BaseException as error:
                    step, given = generator.athrow, error
        finally:
            with self:
                await generator.aclose()


def stdout(*, only: str | Callable[[InstanceInfo], bool] = "head") -> OutputFilter:
    """Show standard output of some ranks only.

    It is a decorator, above or below ``@sky.function``, and a context manager. Outside a pool it has no effect.

    Parameters
    ----------
    only : "head" or callable
        ``"head"`` for rank 0, or a predicate that is given the `InstanceInfo`.

    Returns
    -------
    OutputFilter
        The decorator and context manager.

    Raises
    ------
    SpecError
        When `only` is neither.

    Examples
    --------
    >>> @stdout(only=lambda info: info.local_rank == 0)
    ... def train():
    ...     print("seen once a node")
    """
    return OutputFilter(frozenset({"stdout"}), _given(only))


def stderr(*, only: str | Callable[[InstanceInfo], bool] = "head") -> OutputFilter:
    """Show standard error of some ranks only; see `stdout`.

    Parameters
    ----------
    only : "head" or callable
        ``"head"`` for rank 0, or a predicate that is given the `InstanceInfo`.

    Returns
    -------
    OutputFilter
        The decorator and context manager.

    Raises
    ------
    SpecError
        When `only` is neither.
    """
    return OutputFilter(frozenset({"stderr"}), _given(only))


def _given(only: Any) -> Any:
    if only is None:
        raise SpecError("only=None is not valid; use 'head' or a predicate, or `sky.silent` for no rank at all")
    return only


silent = OutputFilter(frozenset({"stdout", "stderr"}))
"""Decorator and context manager: nothing that is printed inside is shown, on any rank."""
