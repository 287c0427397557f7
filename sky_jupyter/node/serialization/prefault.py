"""Prefault of mapped values, so that their first use meets no page faults.

Page faults take as long as a pass over the data.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import threading

# Larger values are rarely used as a whole at once.
_LEAST, _MOST = 8 << 20, 4 << 30
# The call holds the interpreter's lock: 4 MB take 0.2 ms.
_PIECE = 4 << 20
# Files that were mapped: each call in a loop maps the files of its arguments, and may read little of them.
_seen: set[tuple[int, int]] = set()
_MOST_SEEN = 1000
# From linux/mman.h, since Linux 5.14: it reads all pages, and copies none. The module mmap has no name for it.
_MADV_POPULATE_READ = 22


def prefault(mapped: mmap.mmap, file: int) -> None:
    """Map a large in-memory file's pages in a thread, unless that was done before.

    ``file`` is its descriptor, which identifies it: each run has another name for it.
    """
    if sys.platform != "linux" or not _LEAST <= len(mapped) <= _MOST:
        return
    facts = os.fstat(file)
    if (which := (facts.st_dev, facts.st_ino)) not in _seen:
        if len(_seen) >= _MOST_SEEN:
            _seen.clear()
        _seen.add(which)
        threading.Thread(target=_populate, args=(mapped,), name="sky-prefault", daemon=True).start()


def _populate(mapped: mmap.mmap) -> None:
    # With an older kernel or little memory, pages are mapped when they are used.
    with contextlib.suppress(OSError):
        for start in range(0, len(mapped), _PIECE):
            mapped.madvise(_MADV_POPULATE_READ, start, min(_PIECE, len(mapped) - start))
