"""Sources of the notebook's cells in a rank, for tracebacks and `inspect`."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Sequence
from typing import Any

Source = Sequence[Any]
"""File name of a cell's code, the cell's number or None, and its text."""


def learn(sources: Iterable[Source], namespace: dict[str, Any]) -> None:
    """Register the sources of notebook cells with linecache and IPython.

    Parameters
    ----------
    sources : iterable of Source
        Sources of functions that were sent.
    namespace : dict
        The rank's namespace, with its shell.
    """
    numbers = numbers_of(namespace)
    for file, number, text in sources:
        linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
        if number is not None and numbers is not None:
            # Appended last: the oldest entries are dropped first.
            numbers.pop(file, None)
            numbers[file] = number


def numbers_of(namespace: dict[str, Any]) -> dict[str, int] | None:
    """Return IPython's cell numbers by file name; None without IPython."""
    get_shell = namespace.get("get_ipython")
    compiler = getattr(get_shell(), "compile", None) if callable(get_shell) else None
    numbers = getattr(compiler, "_filename_map", None)
    return numbers if isinstance(numbers, dict) else None
