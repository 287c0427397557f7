"""Reduction by value of objects that pickle would reference by name.

Such objects are a function behind `functools.lru_cache`, a `typing.NewType`, and a type alias: pickle assumes that the
other side's ``__main__`` has them too. A `typing.TypedDict` has other bases than those it was created from.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import types
import typing
from typing import Any

import cloudpickle

_ALIAS: Any = getattr(typing, "TypeAliasType", None)
_TYPE_LISTS: tuple[Any, ...] = tuple(
    filter(None, (getattr(typing, name, None) for name in ("ParamSpec", "TypeVarTuple")))
)

_OF_TYPED_DICTS = (
    "__module__",
    "__qualname__",
    "__doc__",
    "__total__",
    "__required_keys__",
    "__optional_keys__",
    "__readonly_keys__",
    "__mutable_keys__",
    "__parameters__",
    "__orig_bases__",
)


def reduce(obj: Any, module: str) -> Any:
    """Return a reduction of `obj` by value; NotImplemented if pickle needs none.

    ``module`` is the notebook's module: objects of other modules are found there by name.
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
    if kind.__name__ == "_TypedDictMeta" and kind.__module__ in ("typing", "typing_extensions"):
        # Tracked as cloudpickle does with classes: later pickles find the same one again.
        args = kind.__module__, obj.__name__, cloudpickle.cloudpickle._get_or_create_tracker_id(obj)
        return _typed_dict, args, _typed_dict_state(obj), None, None, _set_typed_dict_state
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


def _typed_dict_state(obj: Any) -> dict[str, Any]:
    state = {name: getattr(obj, name) for name in _OF_TYPED_DICTS if hasattr(obj, name)}
    with contextlib.suppress(Exception):  # Lazily evaluated since 3.14: they may refer to undefined names.
        state["__annotations__"] = obj.__annotations__
    return state


def _typed_dict(module: str, name: str, tracked: str) -> Any:
    made = importlib.import_module(module).TypedDict(name, {})
    return cloudpickle.cloudpickle._lookup_class_or_track(tracked, made)


def _set_typed_dict_state(made: Any, state: dict[str, Any]) -> None:
    # Its annotations may refer to itself.
    for name, value in state.items():
        setattr(made, name, value)


def _aliased(name: str, value: Any, parameters: tuple[Any, ...]) -> Any:
    return _ALIAS(name, value, type_params=parameters)
