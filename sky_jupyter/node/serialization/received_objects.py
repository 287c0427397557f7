"""Registry of objects that a rank has received, for references in later values.

Values that are sent together are one pickle, a unit. The notebook refers to a mutable object in it by the unit and the
object's number in the pickle's memo; unpickling assigns the same numbers.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
import types
import weakref
from collections.abc import Callable, Collection
from enum import Enum
from typing import Any

from .keras_models import Place, part

Handle = tuple[str, int] | tuple[str, int, Place]
"""A unit, an object's number in it and, for a part of a Keras model, its place in the model."""

_SIMPLE = frozenset(
    {str, bytes, int, float, complex, bool, type(None), tuple, frozenset, range, slice, type, types.CodeType}
    | {types.ModuleType, types.BuiltinFunctionType, types.MethodType, types.GetSetDescriptorType, property}
    | {staticmethod, classmethod, functools.partial, functools._lru_cache_wrapper}
)
# Types of these modules are immutable, or have one instance per process.
_FIXED = {"datetime", "decimal", "fractions", "uuid", "pathlib", "re", "zoneinfo", "ipaddress", "typing", "operator"}
_FIXED |= {"logging", "abc", "types", "_io", "io", "dataclasses", "inspect"}
_FRAMEWORKS = {"numpy", "pandas", "jax", "jaxlib", "pyarrow", "polars"}
# Mutable types of these frameworks; in torch most types are.
_CHANGING = {"ndarray", "memmap", "matrix", "recarray", "MaskedArray", "Generator", "RandomState", "DataFrame"}
_CHANGING |= {"Series", "BitGenerator"}


@functools.lru_cache(4096)
def _may_change(kind: Any) -> bool:
    """Return True if instances of this type are mutable, so that identity matters."""
    if kind in _SIMPLE or issubclass(kind, (type, Enum, BaseException, types.ModuleType)):
        return False
    home = kind.__module__
    first = home.partition(".")[0]
    if home in _FIXED or first in ("pathlib", "re"):
        return False
    if first == "torch":
        return kind.__name__ not in ("dtype", "device", "Size", "layout", "memory_format", "TypedStorage")
    return first not in _FRAMEWORKS or kind.__name__ in _CHANGING


def may_change(obj: Any) -> bool:
    """Return True if an object is mutable, so that identity matters."""
    kind = type(obj)
    if kind is str:  # Fast path: there may be very many.
        return False
    if kind is dict or kind is list:
        return True
    if kind is types.FunctionType:
        return bool(vars(obj))
    try:
        return kind not in _SIMPLE and _may_change(kind)  # type: ignore[arg-type]
    except TypeError:  # An unhashable type.
        return True


class Unresolved(LookupError):
    """Raised when an object that a pickle refers to is gone."""


class SentObjects:
    """Registry of received objects of a process.

    Objects are referenced weakly where possible. Lists, dicts and the like are kept as long as a name has the value
    that was sent with them.
    """

    def __init__(self) -> None:
        self._weak: dict[str, dict[int, Callable[[], Any]]] = {}
        self._kept: dict[str, dict[int, Any]] = {}
        # For each unit, the units whose objects it contains.
        self._uses: dict[str, set[str]] = {}
        self._names: dict[str, tuple[int, str]] = {}

    def load(self, pickled: Any, buffers: Collection[Any], unit: str = "") -> Any:
        """Unpickle a value that may refer to registered objects.

        Objects in it are registered under ``unit``. Raises Unresolved when a referenced object is gone.
        """
        reader = _Reader(io.BytesIO(pickled), buffers=buffers)
        reader.held, reader.used = self, set()
        value = reader.load()
        if unit:
            found = [(number, obj) for number, obj in reader.memo.copy().items() if may_change(obj)]
            reader.memo.clear()
            self._note(unit, found)
            self._uses[unit] = {unit}.union(*({used} | self._uses.get(used, set()) for used in reader.used))
        return value

    def _note(self, unit: str, found: list[tuple[int, Any]]) -> None:
        # A unit that is sent again replaces the former one.
        weak, kept = self._weak[unit], self._kept[unit] = {}, {}
        # Objects without another reference were temporary, such as a state that was copied into an object.
        alone = 0
        for number, obj in [(-1, {}), *found]:
            try:
                weak[number] = weakref.ref(obj)
            except TypeError:
                if number < 0:
                    alone = sys.getrefcount(obj)
                elif sys.getrefcount(obj) > alone:
                    kept[number] = obj

    def find(self, handle: Handle) -> Any:
        """Return the object of a handle.

        Raises Unresolved when it is gone.
        """
        unit, number, *place = handle
        kept = self._kept.get(unit, {})
        weak = self._weak.get(unit, {}).get(number)
        obj = kept[number] if number in kept else None if weak is None else weak()
        try:
            if obj is None:
                raise LookupError("it is gone")
            return part(obj, place[0]) if place else obj
        except LookupError as error:
            raise Unresolved(f"{unit}:{number}: {error}") from None

    def name(self, name: str, value: Any, unit: str) -> None:
        """Note that a name has been bound to a value of a unit."""
        self._names[name] = id(value), unit

    def sweep(self, namespace: dict[str, Any]) -> None:
        """Drop units whose names have other values by now."""
        if not self._names:
            return
        missing = object()
        for name, (value, _) in list(self._names.items()):
            if id(namespace.get(name, missing)) != value:
                del self._names[name]
        units: set[str] = set().union(*(self._uses[unit] for _, unit in self._names.values()))
        self._uses = {unit: uses for unit, uses in self._uses.items() if unit in units}
        for unit in self._kept.keys() - units:
            del self._kept[unit]
        for unit in self._weak.keys() - units:
            # Other references may keep such an object alive; then it can still be found.
            self._weak[unit] = {number: ref for number, ref in self._weak[unit].items() if ref() is not None}
            if not self._weak[unit]:
                del self._weak[unit]


class _Reader(pickle.Unpickler):
    held: SentObjects
    used: set[str]

    def persistent_load(self, pid: Any) -> Any:
        self.used.add(pid[0])
        return self.held.find(pid)


HELD = SentObjects()
"""Received objects of this process."""
