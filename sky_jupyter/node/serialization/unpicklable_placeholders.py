"""Placeholders for values of a rank that cannot be pickled."""

from __future__ import annotations

import contextlib
import reprlib
import time
from typing import Any

from .diagnose_pickling import explain, one_line, refusal
from .pickling import Pickler

_MOST_TEXT = 4000
# Time limit of the search for the cause: a cell's end waits for it.
_PATIENCE = 1.0
_CONTAINERS = (dict, list, tuple, set, frozenset)


class RemoteRepr:
    """Placeholder for a value that stayed on its rank; it has the value's repr.

    Parameters
    ----------
    text : str
        The value's repr, which becomes this object's repr.
    type : str
        Name of the value's type.
    reason : str
        Why it could not be sent.
    rank : int or None
        The rank that has it.
    """

    def __init__(self, text: str, type: str, reason: str, rank: int | None = None) -> None:
        self.text, self.type, self.reason, self.rank = text, type, reason, rank

    def __getattr__(self, name: str) -> Any:
        # Called only for missing attributes; during unpickling there may be none yet.
        if name.startswith("_") or "reason" not in vars(self):
            raise AttributeError(name)
        raise AttributeError(f"{name!r}: only the repr of this {self.type} is here. It {self._where}: {self.reason}")

    def __repr__(self) -> str:
        return self.text

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(f"{self.text}\n(it {self._where}: {self.reason})")

    @property
    def _where(self) -> str:
        return "stayed there" if self.rank is None else f"stayed on rank {self.rank}"

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteRepr, (self.text, self.type, self.reason, self.rank)


def type_of(value: Any) -> str:
    """Return the full name of a value's type."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def text_of(value: Any) -> str:
    """Return a value's repr, shortened if it is long."""
    try:
        text = _SHORT.repr(value) if type(value) in _CONTAINERS else repr(value)
        if isinstance(text, str):
            return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return f"<{type_of(value)} object, whose repr raised {type(error).__name__}>"
    return f"<{type_of(value)} object>"


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxtuple, _SHORT.maxdict, _SHORT.maxset = 6, 50, 50, 50, 50
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 400


def replace_unpicklable(
    value: Any,
    error: BaseException,
    namespace: dict[str, Any],
    pickler: type[Pickler],
    rank: int | None = None,
    name: str = "value",
) -> Any:
    """Return a replacement for a value whose pickling raised `error`.

    A list, tuple or dict is copied, with a placeholder for each item that cannot be pickled. Any other value is
    replaced by a placeholder. `name` is the value's name in messages.
    """
    end = time.monotonic() + _PATIENCE
    if type(value) in (dict, list, tuple):
        with contextlib.suppress(_Given):
            kept = _Replacing(namespace, pickler, rank, end).container(value, name)
            if refusal(kept, namespace, pickler) is None:
                return kept
    return placeholder(value, error, namespace, pickler, rank, name, _PATIENCE)


def placeholder(
    value: Any,
    error: BaseException,
    namespace: dict[str, Any],
    pickler: type[Pickler],
    rank: int | None,
    path: str,
    within: float,
) -> RemoteRepr:
    """Return the placeholder for a value; `path` is its name in messages."""
    try:
        reason = explain(path, value, namespace, error, pickler, within)
    except KeyboardInterrupt:
        raise
    except BaseException:
        # Inspecting a value runs its own code.
        reason = f"{path}: {type_of(value)} cannot be pickled ({one_line(error)})"
    return RemoteRepr(text_of(value), type_of(value), reason, rank)


class _Given(Exception):
    """Raised to give up the search: a timeout, or a recursive value."""


class _Replacing:
    """Replacement of unpicklable items of one value by placeholders."""

    def __init__(self, namespace: dict[str, Any], pickler: type[Pickler], rank: int | None, end: float) -> None:
        self.namespace, self.pickler, self.rank, self.end = namespace, pickler, rank, end
        self.above: set[int] = set()

    def container(self, value: Any, path: str) -> Any:
        if id(value) in self.above:
            raise _Given
        self.above.add(id(value))
        try:
            if type(value) is dict:
                return {key: self.item(item, f"{path}[{key!r}]") for key, item in value.items()}
            return type(value)(self.item(item, f"{path}[{index}]") for index, item in enumerate(value))
        finally:
            self.above.discard(id(value))

    def item(self, value: Any, path: str) -> Any:
        if isinstance(value, (str, bytes, int, float, complex, bool, type(None))):
            return value
        left = self.end - time.monotonic()
        if left <= 0:
            raise _Given
        error = refusal(value, self.namespace, self.pickler)
        if error is None:
            return value
        if type(value) in (dict, list, tuple):
            return self.container(value, path)
        return placeholder(value, error, self.namespace, self.pickler, self.rank, path, left)
