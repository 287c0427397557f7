"""The sources of the notebook's cells in a rank: tracebacks and `inspect` show functions as the notebook would."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Sequence
from typing import Any

Source = Sequence[Any]
"""A cell's file name as its code has it, its number or None, and its text."""


def learn(sources: Iterable[Source], namespace: dict[str, Any]) -> None:
    """Have Python know the texts, and IPython the numbers, of cells that the notebook has run.

    Parameters
    ----------
    sources : iterable of Source
        Those of functions that have come.
    namespace : dict
        The rank's, with its shell.
    """
    numbers = numbers_of(namespace)
    for file, number, text in sources:
        linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
        if number is not None and numbers is not None:
            # Behind the newest: what is forgotten first is what came first.
            numbers.pop(file, None)
            numbers[file] = number


def numbers_of(namespace: dict[str, Any]) -> dict[str, int] | None:
    """What IPython has noted of the numbers of cells, by file name; None without IPython."""
    get_shell = namespace.get("get_ipython")
    compiler = getattr(get_shell(), "compile", None) if callable(get_shell) else None
    numbers = getattr(compiler, "_filename_map", None)
    return numbers if isinstance(numbers, dict) else None
