"""Names bound by ``from`` imports that a new kernel can import again."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

_ALL = "*"
_ABSENT = object()
_CONSTANTS = (str, bytes, int, float, complex, bool, type(None))


def imported(
    bound: Iterable[Sequence[str]], writes: Collection[str], namespace: Mapping[str, Any]
) -> dict[str, list[str]]:
    """Return modules and members by the names that a cell has bound to them.

    Objects that may have changed since their import, such as a model with its own state, are left out.

    Parameters
    ----------
    bound : iterable
        Names that the cell's imports may have bound, with module and member; see `capture.import_graph`.
    writes : collection of str
        Names that the cell has bound to other objects.
    namespace : mapping
        The rank's namespace.

    Returns
    -------
    dict
        A module's full name and its member, by name.
    """
    found: dict[str, list[str]] = {}
    for name, module, member in bound:
        pairs = [(one, one) for one in writes] if name == _ALL else [(name, member)]
        found.update((one, [module, of]) for one, of in pairs if of and _is_from(module, of, namespace.get(one)))
    return found


def _is_from(module: str, member: str, value: Any) -> bool:
    source = sys.modules.get(module) if module != "__main__" else None
    if source is None:
        return False
    with contextlib.suppress(Exception):
        return getattr(source, member, _ABSENT) is value and _has_no_state(value)
    return False


def _has_no_state(value: Any) -> bool:
    """Return whether a value is a constant, a function or a class.

    Pickles also refer to these by name.
    """
    return type(value) in _CONSTANTS or (callable(value) and isinstance(getattr(value, "__qualname__", None), str))
