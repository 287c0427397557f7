"""Sources of notebook cells in a rank's linecache, for tracebacks and `inspect`."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Sequence
from typing import Any

Source = Sequence[Any]
"""File name of a cell's code, the cell's number or None, and its text."""


# A longer text is not sent: it is part of each call of a function.
_MOST = 1 << 16


def sources_of(files: Iterable[str], namespace: dict[str, Any]) -> tuple[Source, ...]:
    """Return the sources of cells among the files that code was compiled from.

    Parameters
    ----------
    files : iterable of str
        File names in the code objects.
    namespace : dict
        The notebook's namespace, with its shell.

    Returns
    -------
    tuple of Source
        File name, cell number and text of each cell.
    """
    found: list[Source] = []
    numbers = numbers_of(namespace) or {}
    for file in sorted(files):
        entry = linecache.cache.get(file)
        # An entry with a modification time was read from a real file.
        if entry is not None and len(entry) == 4 and entry[1] is None and entry[0] <= _MOST:
            found.append((file, numbers.get(file), "".join(entry[2])))
    return tuple(found)


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
