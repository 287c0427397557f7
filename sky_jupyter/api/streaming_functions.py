"""Which functions stream: generators, and readers of an iterator.

The second kind has a parameter annotated as ``Iterator[T]``.
"""

from __future__ import annotations

import collections.abc
import contextlib
import inspect
import re
import sys
import types
import typing
from typing import TYPE_CHECKING, Any

from ..errors import SpecError

if TYPE_CHECKING:
    from .context import BoundCall

# An annotation that is a string, possibly in Optional.
_ITERATOR = re.compile(r"(?:(?:\w+\.)*Optional\[)?(?:\w+\.)*Iterator\b(?:\[|\W|$)")
_UNIONS = (typing.Union, getattr(types, "UnionType", typing.Union))


def is_generator(function: Any) -> bool:
    """Tell whether a function is seen to yield."""
    inner = inspect.unwrap(function)
    return any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in (function, inner))


def iterator_names(function: Any) -> list[str]:
    """Return the parameters that are annotated as an ``Iterator[T]``."""
    inner = inspect.unwrap(function)
    found = [name for name, hint in _hints(inner).items() if name != "return" and _is_iterator(hint)]
    if not found:
        return []
    # `*args` and `**kwargs` hold several of them, and are sent whole.
    several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    parameters = inspect.signature(inner).parameters
    # A class's annotations are those of its attributes.
    return [name for name in found if name in parameters and parameters[name].kind not in several]


def _hints(function: Any) -> dict[str, Any]:
    """Evaluate a function's annotations; they stay strings if that fails."""
    with contextlib.suppress(Exception):
        return typing.get_type_hints(function)
    if sys.version_info >= (3, 14):
        import annotationlib

        with contextlib.suppress(Exception):
            return dict(annotationlib.get_annotations(function, format=annotationlib.Format.FORWARDREF))
    with contextlib.suppress(Exception):
        return dict(getattr(function, "__annotations__", {}))
    return {}


def _is_iterator(hint: Any) -> bool:
    if isinstance(hint, str):
        return _ITERATOR.match(hint.strip(" \"'")) is not None
    parts = typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else (hint,)
    return any((typing.get_origin(part) or part) in (collections.abc.Iterator, typing.Iterator) for part in parts)


def is_streaming(function: Any) -> bool:
    """Tell whether a function's items stream, out of it or into it."""
    return is_generator(function) or bool(iterator_names(function))


def refuse(call: BoundCall[Any], how: str) -> None:
    """Raise SpecError if a call streams, and so cannot be sent in this way.

    Parameters
    ----------
    call : BoundCall
        The call.
    how : str
        How it was to be sent, for the message.

    Raises
    ------
    SpecError
        When the call streams.
    """
    if call.function.is_streaming:
        raise SpecError(
            f"{call.function!r} streams, and somebody has to read meanwhile: send it with `>>`, not {how}. "
            "Several can be read side by side: `[call.on(rank) >> pool for rank in …]`, and `zip`"
        )
