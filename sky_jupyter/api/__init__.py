"""The library API: `Compute` and `@function`, in Skyward's vocabulary, on the same pools as ``%%sky``.

::

    @sky.function
    def train(data): ...

    with sky.Compute(nodes=2, plugins=[sky.plugins.jax()]) as pool:
        losses = train(data) @ pool      # every rank, a list in rank order
        first = train(data) >> pool      # one rank
"""

from __future__ import annotations

from .compute import Compute
from .functions import Function, PendingCall, function
from .pools import attach_pool, describe, get_files, pull_value, put_files, resize_pool, start_pool

__all__ = [
    "Compute",
    "Function",
    "PendingCall",
    "attach_pool",
    "describe",
    "function",
    "get_files",
    "pull_value",
    "put_files",
    "resize_pool",
    "start_pool",
]
