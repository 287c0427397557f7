"""Completion and inspection of a rank's names, with its own IPython."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

from ipykernel.ipkernel import token_at_cursor
from IPython.core.completer import provisionalcompleter, rectify_completions

from ...util import jedi_cache

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
# As many as IPython's own matchers return.
_MOST = 500


def complete(shell: Any, code: str, cursor: int) -> dict[str, Any]:
    """Return the possible replacements of the text before the cursor.

    The objects themselves are tried first. That takes milliseconds; jedi takes longer, but follows expressions without
    evaluating them.

    Parameters
    ----------
    shell : Any
        The rank's IPython shell.
    code : str
        The cell.
    cursor : int
        Position of the cursor in it.

    Returns
    -------
    dict
        ``"start"``, where the text to be replaced begins, and ``"matches"``, pairs of a text and its type.
    """
    found: list[Any] = []
    for uses_jedi in (False, True):
        with _using_jedi(shell.Completer, uses_jedi), provisionalcompleter():
            found = list(rectify_completions(code, shell.Completer.completions(code, cursor)))[:_MOST]
        if any(str(one.type) != "magic" for one in found):
            break
    start = found[0].start if found else cursor
    texts = [one.text for one in found]
    # IPython's replacement of an attribute includes the dot, jedi's does not; users see only the names.
    if texts and all(text.startswith(".") for text in texts) and code[start : start + 1] == ".":
        start, texts = start + 1, [text[1:] for text in texts]
    names = shell.user_ns if code[:start][-1:] != "." else {}
    kinds = [_kind(names[text]) if text in names else str(one.type) for text, one in zip(texts, found, strict=True)]
    return {"start": start, "matches": [list(match) for match in zip(texts, kinds, strict=True)]}


def inspect(shell: Any, code: str, cursor: int, detail: int) -> dict[str, Any]:
    """Return the facts of the name at the cursor, as a mimebundle.

    Parameters
    ----------
    shell : Any
        The rank's IPython shell.
    code : str
        The cell.
    cursor : int
        Position of the cursor in it.
    detail : int
        0 as for ``name?``, 1 as for ``name??``.

    Returns
    -------
    dict
        ``"data"``: the mimebundle, or None if there is no such name.
    """
    name = token_at_cursor(code, cursor)
    try:
        return {"data": dict(shell.object_inspect_mime(name, detail_level=detail)) if name else None}
    except KeyError:
        return {"data": None}


@contextlib.contextmanager
def _using_jedi(completer: Any, uses_jedi: bool) -> Iterator[None]:
    before = completer.use_jedi
    if before and uses_jedi:
        jedi_cache.protect()
    completer.use_jedi = before and uses_jedi
    try:
        yield
    finally:
        completer.use_jedi = before


def _kind(value: Any) -> str:
    """Return a value's type in completers' terms; run none of its code."""
    if issubclass(type(value), types.ModuleType):
        return "module"
    if issubclass(type(value), type):
        return "class"
    return "function" if issubclass(type(value), _FUNCTIONS) else "instance"
