"""Transfer of exceptions without running their classes' own code.

The notebook builds an exception from its description, and unpickles nothing for it. Pickle would call the class with
the exception's arguments, which the class's ``__init__`` has often changed or does not accept.
"""

from __future__ import annotations

import contextlib
import copyreg
import math
import sys
import types
from typing import Any

if sys.version_info >= (3, 11):
    from builtins import BaseExceptionGroup
else:
    from exceptiongroup import BaseExceptionGroup

_MOST_KINDS = 32
_TBLIB = "tblib.pickling_support"
_MOST_TEXT = 1 << 16
_MOST_ITEMS = 64
_MOST_DEPTH = 4


def describe(error: BaseException, depth: int = 0) -> dict[str, Any]:
    """Return an exception's classes, and its content if that is plain.

    Parameters
    ----------
    error : BaseException
        The exception.
    depth : int
        Nesting depth in exception groups.

    Returns
    -------
    dict
        ``"kinds"``: module and qualified name of each class, in MRO order; ``"args"`` and ``"state"`` if the
        exception has no other content; ``"group"``: message and exceptions of an exception group.
    """
    told: dict[str, Any] = {}
    # The class may be the user's, with code behind any attribute, which may raise SystemExit too.
    with contextlib.suppress(BaseException):
        _describe(error, told, depth)
    return told


def _describe(error: BaseException, told: dict[str, Any], depth: int) -> None:
    kinds = [[kind.__module__, kind.__qualname__] for kind in type(error).__mro__ if issubclass(kind, BaseException)]
    told["kinds"] = kinds[:_MOST_KINDS]
    if isinstance(error, BaseExceptionGroup):
        if depth < _MOST_DEPTH:
            inner = [
                describe(one, depth + 1) | {"text": str(one)[:_MOST_TEXT]} for one in error.exceptions[:_MOST_ITEMS]
            ]
            told["group"] = [str(error.message)[:_MOST_TEXT], inner]
        return
    args, state = _contents(error)
    values = (*args, *state.values())
    length = sum(len(value) for value in values if isinstance(value, str))
    if all(map(is_plain, values)) and len(values) <= _MOST_ITEMS and length <= _MOST_TEXT:
        told.update(args=list(args), state=state)


def _contents(error: BaseException) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return an exception's arguments and attributes.

    Raises ValueError if its class defines its own reduction.
    """
    kind = type(error)
    reduced: tuple[Any, ...] = tuple(error.__reduce_ex__(4))
    make, args, *rest = reduced
    state = rest[0] if rest else None
    own = getattr(kind, "__setstate__", None) is not BaseException.__setstate__ or any(
        vars(one).get("__slots__") or ("__reduce__" in vars(one) or "__reduce_ex__" in vars(one))
        for one in kind.__mro__
        if one.__module__ != "builtins"
    )
    if make is not kind or own or len(rest) > 1 or any(name.startswith("__") for name in state or ()):
        raise ValueError("it is more than its arguments and attributes")
    # An AttributeError has its arguments in both.
    return args, {name: value for name, value in (state or {}).items() if name != "args" or value != args}


def native(kind: type[BaseException]) -> type[BaseException]:
    """Return the nearest built-in class, which creates the C part of an exception."""
    return next(one for one in kind.__mro__ if one.__module__ == "builtins" and issubclass(one, BaseException))


def make(kind: type[BaseException], *args: Any) -> BaseException:
    """Create an exception without its class's ``__init__``, which has run already."""
    base = native(kind)
    error = base.__new__(kind, *args)
    base.__init__(error, *args)
    return error


def reduced(obj: Any) -> Any:
    """Return a reduction of an exception; NotImplemented if pickle's is right."""
    kind = type(obj)
    if not issubclass(kind, BaseException) or not isinstance(kind.__init__, types.FunctionType):
        return NotImplemented
    own = kind.__reduce_ex__ is not object.__reduce_ex__ or kind.__reduce__ is not native(kind).__reduce__
    special = copyreg.dispatch_table.get(kind)
    # tblib, which comes with Dask, registers a reduction for all exceptions, which ignores slots.
    foreign = getattr(special, "__module__", "") == _TBLIB
    if own or not (special is None or foreign):
        return obj.__reduce_ex__(4) if foreign else NotImplemented
    if any(vars(one).get("__slots__") for one in kind.__mro__):
        # A description has no slots, so the class's own reduction is used.
        return obj.__reduce_ex__(4)
    same, args, *rest = obj.__reduce_ex__(4)
    try:
        make(kind, *args)
    except Exception:
        return NotImplemented
    return (make, (kind, *args), *rest) if same is kind else NotImplemented


def is_plain(value: Any) -> bool:
    """Return True if JSON represents the value exactly."""
    if isinstance(value, float):
        return type(value) is float and math.isfinite(value)
    if type(value) is int:
        return abs(value) < 1 << 62
    return value is None or type(value) in (bool, str)
