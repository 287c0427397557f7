"""Code in values that another version of Python is to read: it is seen before anything is sent.

Python's code objects are made for one minor version. Another one refuses to build them, or builds them and
crashes. What a cell is made of goes as text; values that hold no code go as ever.
"""

from __future__ import annotations

import contextlib
import io
from typing import Any

from .pickling import PYTHON, Pickler, main_namespace

__all__ = ["PYTHON", "find_code_object"]


class _Nowhere(io.RawIOBase):
    """A file of nothing."""

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


def find_code_object(value: Any) -> str:
    """The name of a function whose code is in a value's pickle; empty where there is none."""
    # Arrays are not written out for that.
    pickler = Pickler(_Nowhere(), main_namespace(), buffer_callback=lambda buffer: None)  # type: ignore[arg-type]
    pickler.reader = ""
    with contextlib.suppress(Exception):
        pickler.dump(value)
    return pickler.carried[0].co_name if pickler.carried else ""
