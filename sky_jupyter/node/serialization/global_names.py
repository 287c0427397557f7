"""Analysis of which global names a function, class or other object reads."""

from __future__ import annotations

import contextlib
import dis
import functools
import itertools
import types
from collections.abc import Iterator
from typing import Any

# Most objects that are visited for one value, and most parts of each: objects that hold functions are small.
_MOST = 1000
_SIMPLE = {int, float, complex, bool, str, bytes, type(None)}


def nested_code(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a code object and all code objects inside it.

    These are nested functions, class bodies and comprehensions.
    """
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from nested_code(const)


def code_reads(code: types.CodeType) -> set[str]:
    """Return global names that code, with its nested code, may read or delete."""
    return {name for inner in nested_code(code) for name in read_here(inner)}


def read_here(code: types.CodeType) -> set[str]:
    """Return global names that this code object itself may read or delete."""
    # A class body uses LOAD_NAME; opcodes for type parameters end in ..._OR_GLOBALS.
    return {
        step.argval
        for step in dis.get_instructions(code)
        if step.opname in ("LOAD_NAME", "DELETE_GLOBAL") or ("LOAD" in step.opname and "GLOBAL" in step.opname)
    }


def global_reads(obj: Any, namespace: dict[str, Any]) -> set[str]:
    """Return the names of a namespace that `obj` reads when called or used.

    Parameters
    ----------
    obj : Any
        A function, method, class, partial, property or instance, or a container of such. Wrapped functions, defaults,
        closures, attributes and bases are searched too, as far as that is fast.
    namespace : dict
        Namespace of a ``__main__``: only functions defined there count.

    Returns
    -------
    set of str
        The names.
    """
    reads: set[str] = set()
    met: dict[int, Any] = {}
    left = [obj]
    while left and len(met) < _MOST:
        value = left.pop()
        if id(value) in met:
            continue
        met[id(value)] = value
        if isinstance(value, types.FunctionType) and value.__globals__ is namespace:
            reads |= code_reads(value.__code__)
        with contextlib.suppress(Exception, SystemExit):  # An object's own attributes may do anything.
            related = itertools.islice(_related(value, namespace), _MOST)
            left.extend(part for part in related if type(part) not in _SIMPLE)
    return reads


def _related(value: Any, namespace: dict[str, Any]) -> Iterator[Any]:
    """Yield objects that belong to a callable and may hold functions."""
    if isinstance(value, (list, tuple, set, frozenset)):
        yield from value
    elif isinstance(value, dict):
        if value is not namespace:
            yield from value.values()
    elif isinstance(value, type):
        if value.__module__ == namespace.get("__name__", "__main__"):
            yield from [*vars(value).values(), *value.__bases__, type(value)]
    elif isinstance(value, types.CellType):
        try:
            yield value.cell_contents
        except ValueError:
            return
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, property):
        yield from (value.fget, value.fset, value.fdel)
    elif isinstance(value, (types.MethodType, staticmethod, classmethod)):
        yield from (value.__func__, getattr(value, "__self__", None))
    elif isinstance(value, functools.cached_property):
        yield value.func
    else:
        yield type(value)
        if callable(value) or type(value).__module__ == namespace.get("__name__", "__main__"):
            names = ("__closure__", "__defaults__", "__kwdefaults__", "__dict__", "__wrapped__")
            yield from (getattr(value, name, None) for name in names)
