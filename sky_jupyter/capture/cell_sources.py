"""The texts of cells whose functions are sent: without them a traceback there shows no line of theirs."""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from typing import Any

from ..node.serialization.cell_sources import Source, numbers_of

# A text that is longer stays here: it goes with each call of a function.
_MOST = 1 << 16


def sources_of(files: Iterable[str], namespace: dict[str, Any]) -> tuple[Source, ...]:
    """What nodes are to know of the files that code is from, where those are no files but cells.

    Parameters
    ----------
    files : iterable of str
        As the code has them.
    namespace : dict
        The notebook's, with its shell.
    """
    found: list[Source] = []
    numbers = numbers_of(namespace) or {}
    for file in sorted(files):
        entry = linecache.cache.get(file)
        # What was read of a file has the time at which that was written.
        if entry is not None and len(entry) == 4 and entry[1] is None and entry[0] <= _MOST:
            found.append((file, numbers.get(file), "".join(entry[2])))
    return tuple(found)
