"""Prefault of mapped values: their first use then meets no page faults, which take as long as a pass over the data."""

from __future__ import annotations

import contextlib
import mmap
import sys
import threading

# Larger values are rarely used as a whole at once.
_LEAST, _MOST = 8 << 20, 4 << 30
# The call holds the interpreter's lock: 4 MB take 0.2 ms.
_PIECE = 4 << 20
# From linux/mman.h, since Linux 5.14: it reads all pages, and copies none. The module mmap has no name for it.
_MADV_POPULATE_READ = 22


def prefault(mapped: mmap.mmap) -> None:
    """Begin to map the pages of a large file that is in memory, in a thread."""
    if sys.platform == "linux" and _LEAST <= len(mapped) <= _MOST:
        threading.Thread(target=_populate, args=(mapped,), name="sky-prefault", daemon=True).start()


def _populate(mapped: mmap.mmap) -> None:
    # An older kernel, or memory is short: pages are mapped as they are used.
    with contextlib.suppress(OSError):
        for start in range(0, len(mapped), _PIECE):
            mapped.madvise(_MADV_POPULATE_READ, start, min(_PIECE, len(mapped) - start))
