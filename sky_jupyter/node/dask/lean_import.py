"""Import of Dask without the packages that it can do without, in the pool's own processes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

# Dask asks for them as it is imported, which takes a quarter of that time: numpy for buffers of frames, which are
# bytearrays without it, and jinja2 for pages, which nobody sees here.
_OPTIONAL = ("numpy", "jinja2")


@contextlib.contextmanager
def optional_left_out() -> Iterator[None]:
    """Have imports of Dask's optional packages fail inside the context, as where they are not installed.

    Later imports find them. What is imported inside never does.
    """
    # None has an import fail: https://docs.python.org/3/reference/import.html#the-module-cache
    names = [name for name in _OPTIONAL if name not in sys.modules]
    sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in names:
            sys.modules.pop(name, None)
