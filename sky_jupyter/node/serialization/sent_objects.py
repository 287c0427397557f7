"""The objects of the notebook that a rank has been sent: what is sent later and shares one with them finds it here.

Values that are sent together are one pickle, a unit. Each object in it that can change has a place there, by
which the notebook names it: the unit and the object's number in the pickle's memo. Unpickling gives objects
the same numbers.
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
"""A unit, the number of an object in it and, of a part of a Keras model, the place in that."""

_SIMPLE = frozenset(
    {str, bytes, int, float, complex, bool, type(None), tuple, frozenset, range, slice, type, types.CodeType}
    | {types.ModuleType, types.BuiltinFunctionType, types.MethodType, types.GetSetDescriptorType, property}
    | {staticmethod, classmethod, functools.partial, functools._lru_cache_wrapper}
)
# What types of these modules hold does not change, or is one for the whole process.
_FIXED = {"datetime", "decimal", "fractions", "uuid", "pathlib", "re", "zoneinfo", "ipaddress", "typing", "operator"}
_FIXED |= {"logging", "abc", "types", "_io", "io", "dataclasses", "inspect"}
_FRAMEWORKS = {"numpy", "pandas", "jax", "jaxlib", "pyarrow", "polars"}
# In them, these change; of torch, most do.
_CHANGING = {"ndarray", "memmap", "matrix", "recarray", "MaskedArray", "Generator", "RandomState", "DataFrame"}
_CHANGING |= {"Series", "BitGenerator"}


@functools.lru_cache(4096)
def _may_change(kind: Any) -> bool:
    """Whether two names for an instance of this type can be told from two names for two equal ones."""
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
    """Whether it matters that two names have this very object, and not two that are equal."""
    kind = type(obj)
    if kind is str:  # What there may be very many of.
        return False
    if kind is dict or kind is list:
        return True
    if kind is types.FunctionType:
        return bool(vars(obj))
    try:
        return kind not in _SIMPLE and _may_change(kind)  # type: ignore[arg-type]
    except TypeError:  # A type that cannot be hashed.
        return True


class Unresolved(LookupError):
    """An object that a pickle names is not here any more."""


class SentObjects:
    """One a process: what it holds of each unit, and the names that keep units.

    What can be referred to weakly is; lists, dicts and the like are kept as long as a name has what was sent for
    it with them.
    """

    def __init__(self) -> None:
        self._weak: dict[str, dict[int, Callable[[], Any]]] = {}
        self._kept: dict[str, dict[int, Any]] = {}
        # By unit, those of which it has objects.
        self._uses: dict[str, set[str]] = {}
        self._names: dict[str, tuple[int, str]] = {}

    def load(self, pickled: Any, buffers: Collection[Any], unit: str = "") -> Any:
        """Unpickle what may name objects that are here; note those in it under the unit's name.

        Raises
        ------
        Unresolved
            When one of them is not here.
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
        # One that is sent again takes the place of what was there.
        weak, kept = self._weak[unit], self._kept[unit] = {}, {}
        # What nobody else has was only on the way to something: a state that an object has taken over.
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
        """The object of a handle.

        Raises
        ------
        Unresolved
            When it is not here any more.
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
        """A name has been bound to a value of a unit."""
        self._names[name] = id(value), unit

    def sweep(self, namespace: dict[str, Any]) -> None:
        """Let go of units whose names have other values by now."""
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
            # What else holds such an object may still be named.
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
"""This process's."""
