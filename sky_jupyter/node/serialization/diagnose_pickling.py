"""Diagnosis of pickling errors: the path to the part that cannot be pickled."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import io
import time
import types
from collections.abc import Iterator
from typing import Any

from .global_names import code_reads
from .pickling import Pickler

_MOST_STEPS = 100
_SIMPLE = (str, bytes, int, float, complex, bool, type(None), types.ModuleType)


class _Nowhere(io.BytesIO):
    """File that discards everything."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


def explain(
    name: str,
    value: Any,
    namespace: dict[str, Any],
    error: BaseException,
    pickler: type[Pickler] = Pickler,
    within: float | None = None,
) -> str:
    """Return a line with the path to the part of `value` that raised `error`.

    Parameters
    ----------
    name : str
        Start of the line.
    value : object
        The value whose pickling failed.
    namespace : dict
        The namespace whose functions are pickled without their globals.
    error : BaseException
        The pickler's error.
    pickler : type
        The pickler's class.
    within : float, optional
        Time limit of the search in seconds; then the path ends where the search was.

    Returns
    -------
    str
        The line.

    Examples
    --------
    ``loader.db: sqlite3.Connection cannot be pickled (cannot pickle 'sqlite3.Connection' object)``
    """
    end = None if within is None else time.monotonic() + within
    if isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError):
        return f"{name}: {_type_name(value)} is nested too deeply to be pickled"
    path, met = name, {id(value): value}
    for _ in range(_MOST_STEPS):
        found = _first_bad_part(value, namespace, met, pickler, end)
        if found is None:
            break
        step, value, error = found
        path += step
        met[id(value)] = value
    return f"{path}: {_type_name(value)} cannot be pickled ({one_line(error)})"


def one_line(error: BaseException) -> str:
    """Return an exception's text in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def refusal(value: Any, namespace: dict[str, Any], pickler: type[Pickler] = Pickler) -> BaseException | None:
    """Return the error of pickling a value; None if it succeeds."""
    try:
        pickler(_Nowhere(), namespace, buffer_callback=lambda _: False).dump(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error
    return None


def _type_name(value: Any) -> str:
    kind = type(value)
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )


def _first_bad_part(
    value: Any, namespace: dict[str, Any], met: dict[int, Any], pickler: type[Pickler], end: float | None
) -> tuple[str, Any, BaseException] | None:
    for step, part in _parts(value, namespace):
        if end is not None and time.monotonic() > end:
            return None
        if id(part) not in met and not isinstance(part, _SIMPLE):
            error = refusal(part, namespace, pickler)
            if error is not None:
                return step, part, error
    return None


def _parts(value: Any, namespace: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the parts that are pickled with `value`, and the step to each."""
    if isinstance(value, dict) and type(value).__reduce_ex__ is object.__reduce_ex__:
        for key, item in value.items():
            yield f"[{key!r}]", item
            yield f".<key {key!r}>", key
    if type(value) in (list, tuple):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
    elif type(value) in (set, frozenset):
        yield from ((".<element>", item) for item in value)
    elif isinstance(value, types.FunctionType):
        yield from _function_parts(value, namespace)
    elif isinstance(value, type):
        yield from ((f".{key}", item) for key, item in vars(value).items())
        yield from ((f".<base {base.__name__}>", base) for base in value.__bases__)
    else:
        for kind, names in _HOLDERS.items():
            if isinstance(value, kind):
                yield from ((f".{name}", getattr(value, name)) for name in names)
                return
        if type(value) is not dict:
            yield from _reduced_parts(value)


_HOLDERS: dict[Any, tuple[str, ...]] = {
    functools._lru_cache_wrapper: ("__wrapped__",),
    functools.cached_property: ("func",),
    types.MethodType: ("__self__", "__func__"),
    functools.partial: ("func", "args", "keywords"),
    property: ("fget", "fset", "fdel"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
}


def _function_parts(function: types.FunctionType, namespace: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f".<closure {variable}>", cell.cell_contents
        except ValueError:
            continue
    for name, parameter in inspect.signature(function, follow_wrapped=False).parameters.items():
        if parameter.default is not parameter.empty:
            yield f".<default {name}>", parameter.default
    yield from ((f".{key}", item) for key, item in vars(function).items())
    if function.__globals__ is not namespace:
        names = code_reads(function.__code__) & function.__globals__.keys()
        yield from ((f".<global {name}>", function.__globals__[name]) for name in sorted(names))


def _reduced_parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts that ``__reduce_ex__`` returns, as pickle would.

    This respects a class's own ``__getstate__``.
    """
    try:
        reduced = value.__reduce_ex__(5)
    except KeyboardInterrupt:
        raise
    except BaseException:
        return  # This value itself cannot be pickled.
    if not isinstance(reduced, tuple):
        return
    _, args, state, items, pairs = (*reduced, None, None, None)[:5]
    for attributes in state if isinstance(state, tuple) and len(state) == 2 else (state,):
        if isinstance(attributes, dict):
            yield from ((f".{key}", item) for key, item in attributes.items())
        elif isinstance(attributes, (list, tuple)) and dataclasses.is_dataclass(value):
            fields = dataclasses.fields(value)
            yield from ((f".{one.name}", item) for one, item in zip(fields, attributes, strict=False))
        else:
            yield ".<state>", attributes
    yield from ((f"[{index}]", item) for index, item in enumerate(items or ()))
    yield from ((f"[{key!r}]", item) for key, item in pairs or ())
    for index, argument in enumerate(args or ()):
        yield (f".<class {argument.__name__}>" if isinstance(argument, type) else f".<argument {index}>"), argument
