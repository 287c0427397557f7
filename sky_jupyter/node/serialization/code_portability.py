"""Detection of code objects in values for another Python version.

A code object is valid for one minor version. Another version refuses to build it, or crashes. Cells are sent as text;
values without code need no check.
"""

from __future__ import annotations

import contextlib
import io
from typing import Any

from .pickling import PYTHON, Pickler, main_namespace

__all__ = ["PYTHON", "find_code_object"]


class _Nowhere(io.RawIOBase):
    """File that discards everything."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


def find_code_object(value: Any) -> str:
    """Return the name of a function whose code is in a value's pickle; or ""."""
    # Buffers are skipped.
    pickler = Pickler(_Nowhere(), main_namespace(), buffer_callback=lambda buffer: None)  # type: ignore[arg-type]
    pickler.reader = ""
    with contextlib.suppress(Exception):
        pickler.dump(value)
    return pickler.carried[0].co_name if pickler.carried else ""
