"""Check that a function and all that it reads are unchanged, by their identities.

Pickling would show it too, but takes a hundred times as long. Values that may change in place cannot be checked so.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, GenericAlias, ModuleType
from typing import Any

_ABSENT = object()
_ATOMS = (type(None), bool, int, float, complex, str, bytes, ModuleType, BuiltinFunctionType)


class Unchanged:
    """Identities of a function and of the values that it reads; made by `of`."""

    def __init__(self) -> None:
        self._names: list[tuple[str, Any]] = []
        self._functions: list[tuple[FunctionType, CodeType, Any, int]] = []
        self._cells: list[tuple[CellType, Any]] = []
        self._attributes: list[tuple[dict[str, Any], str, Any]] = []
        self._seen: set[int] = set()

    @classmethod
    def of(cls, value: Any, names: Iterable[str], namespace: Mapping[str, Any]) -> Unchanged | None:
        """Return the identities of a value and what it reads; None if not sufficient.

        Parameters
        ----------
        value : Any
            The value, such as a function.
        names : iterable of str
            The names that its functions read, and those that their values read in turn.
        namespace : mapping
            The notebook's namespace.

        Returns
        -------
        Unchanged or None
            The identities.
        """
        self = cls()
        if not self._add(value, namespace):
            return None
        for name in names:
            one = namespace.get(name, _ABSENT)
            if one is not _ABSENT and not self._add(one, namespace):
                return None
            self._names.append((name, one))
        return self

    def holds(self, namespace: Mapping[str, Any]) -> bool:
        """Return True if all is unchanged."""
        for name, value in self._names:
            if namespace.get(name, _ABSENT) is not value:
                return False
        for function, code, defaults, count in self._functions:
            same = function.__code__ is code and function.__defaults__ is defaults and len(vars(function)) == count
            if not same or function.__kwdefaults__:
                return False
        for cell, value in self._cells:
            if _content(cell) is not value:
                return False
        return all(attributes.get(name) is value for attributes, name, value in self._attributes)

    def _add(self, value: Any, namespace: Mapping[str, Any]) -> bool:
        """Add a value; return False for one that may change in place."""
        kind = type(value)
        if kind in _ATOMS:
            return True
        if kind is tuple:
            return all(self._add(part, namespace) for part in value)
        if kind is GenericAlias:
            # Such as `Pair = tuple[int, int]`, which annotations name.
            return self._add((value.__origin__, *value.__args__), namespace)
        if not isinstance(value, (FunctionType, type)):
            return False
        home = value.__module__
        if home != namespace.get("__name__") and getattr(sys.modules.get(home), value.__qualname__, None) is value:
            # Nodes import it by its name.
            return True
        return isinstance(value, FunctionType) and self._add_function(value, namespace)

    def _add_function(self, function: FunctionType, namespace: Mapping[str, Any]) -> bool:
        if id(function) in self._seen:
            return True
        self._seen.add(id(function))
        if function.__kwdefaults__ or not self._add(function.__defaults__, namespace):
            return False
        self._functions.append((function, function.__code__, function.__defaults__, len(vars(function))))
        for name, value in vars(function).items():
            if not self._add(value, namespace):
                return False
            self._attributes.append((vars(function), name, value))
        for cell in function.__closure__ or ():
            value = _content(cell)
            if value is not _ABSENT and not self._add(value, namespace):
                return False
            self._cells.append((cell, value))
        return True


def _content(cell: CellType) -> Any:
    with contextlib.suppress(ValueError):
        return cell.cell_contents
    return _ABSENT
