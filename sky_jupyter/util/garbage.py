"""Python's collection of garbage, around what makes many objects and no garbage."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collections_paused() -> Iterator[None]:
    """Collect no garbage inside the context.

    What is made stays: a collection meanwhile would find nothing, and look at all that the process has.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
