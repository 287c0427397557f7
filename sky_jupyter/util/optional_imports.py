"""Import of a library without its optional packages, as if they were missing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def left_out(*names: str) -> Iterator[None]:
    """Make imports of these packages fail in the context, unless imported already.

    Later imports find them. But a library that is imported inside has noted that they are missing.
    """
    # None makes an import fail: https://docs.python.org/3/reference/import.html#the-module-cache
    absent = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in absent:
            sys.modules.pop(name, None)
