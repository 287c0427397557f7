"""Exceptions of ranks, rebuilt from descriptions; no received code is run."""

from __future__ import annotations

import contextlib
import keyword
import sys
from collections.abc import Mapping
from typing import Any

from ...errors import RemoteError
from ...node.serialization.exceptions import is_plain, make, native

if sys.version_info >= (3, 11):
    from builtins import ExceptionGroup
else:
    from exceptiongroup import ExceptionGroup

_MOST = 64
_MOST_DEPTH = 8


def exact(told: Any) -> Exception | None:
    """Return the exact exception if its class is loaded and its state is plain."""
    kinds = _kinds(told)
    kind = _loaded(*kinds[0]) if kinds else None
    args, state = (told.get("args"), told.get("state")) if kinds else (None, None)
    if kind is None or not isinstance(args, list) or not isinstance(state, dict):
        return None
    if len(args) + len(state) > _MOST or not all(map(is_plain, (*args, *state.values()))):
        return None
    with contextlib.suppress(Exception):
        return _build(kind, args, state)
    return None


def likeness(told: Any, name: str, text: str, depth: int = 0) -> Exception:
    """Return an exception of the rank's class, or of a base loaded here.

    ``name`` and ``text`` are the original's class name and message.
    """
    if depth < _MOST_DEPTH and (group := _group(told, depth)) is not None:
        return group
    for place, kind in enumerate(_loaded(*one) for one in _kinds(told)):
        if kind is None:
            continue
        with contextlib.suppress(Exception):
            bases = (RemoteError,) if issubclass(RemoteError, kind) else (RemoteError, kind)
            # A base class cannot show the original's name: the message does.
            said = text if place == 0 else f"{name}: {text}"
            called = name if name.isidentifier() and not keyword.iskeyword(name) else kind.__name__
            seeming = type(called, bases, {"__module__": kind.__module__, "__str__": lambda self, said=said: said})
            error: Exception = native(kind).__new__(seeming)
            error.args = (said,)
            assert str(error) == said
            return error
    return RemoteError(f"{name}: {text}")


def _group(told: Any, depth: int) -> Exception | None:
    group = told.get("group") if isinstance(told, Mapping) else None
    if not isinstance(group, list) or len(group) != 2 or not isinstance(group[1], list):
        return None
    message, inner = group
    found = []
    for one in inner[:_MOST]:
        kinds = _kinds(one)
        if kinds:
            name = kinds[0][1].rpartition(".")[2]
            found.append(exact(one) or likeness(one, name, str(one.get("text") or ""), depth + 1))
    return ExceptionGroup(str(message), found) if found else None


def _kinds(told: Any) -> list[tuple[str, str]]:
    kinds = told.get("kinds") if isinstance(told, Mapping) else None
    return [
        (one[0], one[1])
        for one in (kinds[:_MOST] if isinstance(kinds, list) else ())
        if isinstance(one, list) and len(one) == 2 and all(isinstance(name, str) for name in one)
    ]


def _loaded(module: str, name: str) -> type[Exception] | None:
    """Return a class that is already imported; run no module's code."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        try:
            found = object.__getattribute__(found, "__dict__").get(part)
        except AttributeError:
            return None
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def _build(kind: type[Exception], args: list[Any], state: dict[str, Any]) -> Exception:
    """Rebuild an exception without running its class's code again."""
    error, base = make(kind, *args), native(kind)
    assert isinstance(error, Exception)
    for name, value in state.items():
        if name.startswith("__"):
            raise ValueError(name)
        if hasattr(base, name):
            object.__setattr__(error, name, value)
        else:
            error.__dict__[name] = value
    return error
