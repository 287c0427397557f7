"""What pickle would write as a mere name though a notebook made it: it is taken apart, and made anew where it goes.

A function behind `functools.lru_cache`, a `typing.NewType`, a type alias: pickle trusts that
``__main__`` has them on the other side too.
"""

from __future__ import annotations

import functools
import types
import typing
from typing import Any

_ALIAS: Any = getattr(typing, "TypeAliasType", None)
_TYPE_LISTS: tuple[Any, ...] = tuple(
    filter(None, (getattr(typing, name, None) for name in ("ParamSpec", "TypeVarTuple")))
)


def taken_apart(obj: Any, module: str) -> Any:
    """How to make `obj` again, as ``__reduce__`` says it; NotImplemented where pickle does well.

    Parameters
    ----------
    obj : Any
        Something to be pickled.
    module : str
        The notebook's module: what belongs to another one is found there by its name.
    """
    kind = type(obj)
    if kind is functools.cached_property and hasattr(obj, "lock"):  # before Python 3.12
        state = {name: value for name, value in vars(obj).items() if name not in ("func", "lock")}
        return functools.cached_property, (obj.func,), state
    if getattr(obj, "__module__", None) != module:
        return NotImplemented
    if kind is functools._lru_cache_wrapper:
        state = {name: value for name, value in vars(obj).items() if name not in ("__wrapped__", "cache_parameters")}
        return _cached, (obj.__wrapped__, *obj.cache_parameters().values()), state
    if kind is types.FunctionType and obj.__globals__ is vars(functools) and hasattr(obj, "registry"):
        return _dispatching, (dict(obj.registry), _own_attributes(obj))
    if kind is typing.NewType:
        return typing.NewType, (obj.__name__, obj.__supertype__), dict(vars(obj))
    if kind is _ALIAS:
        return _aliased, (obj.__name__, obj.__value__, obj.__type_params__)
    if kind in _TYPE_LISTS:
        return kind, (obj.__name__,)
    return NotImplemented


def _cached(function: Any, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def _own_attributes(function: Any) -> dict[str, Any]:
    made = ("registry", "dispatch", "register", "_clear_cache", "__wrapped__")
    return {name: value for name, value in vars(function).items() if name not in made}


def _dispatching(registry: dict[Any, Any], attributes: dict[str, Any]) -> Any:
    function = functools.singledispatch(registry.pop(object))
    for kind, implementation in registry.items():
        function.register(kind, implementation)
    vars(function).update(attributes)
    return function


def _aliased(name: str, value: Any, parameters: tuple[Any, ...]) -> Any:
    return _ALIAS(name, value, type_params=parameters)
