"""Pauses of garbage collection, for work that makes objects but no garbage."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collections_paused() -> Iterator[None]:
    """Collect no garbage inside the context.

    It is for work whose objects stay: a collection would find nothing, but visit all objects of the process.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
