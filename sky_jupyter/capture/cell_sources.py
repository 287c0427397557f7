"""Source text of cells whose functions are sent, for tracebacks on the nodes."""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from typing import Any

from ..node.serialization.cell_linecache import Source, numbers_of

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
