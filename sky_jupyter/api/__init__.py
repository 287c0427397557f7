"""The library API: `Compute`, `@function` and the operators.

It uses Skyward's vocabulary, on the same pools as ``%%sky``.

::

    @sky.function
    def train(data): ...

    with sky.Compute(nodes=2, plugins=[sky.plugins.jax()]) as pool:
        losses = train(data) @ pool      # every rank, a list in rank order
        first = train(data) >> pool      # one rank
        future = train(data) > pool      # one rank, without waiting
        a, b = (train(x) & train(y)) >> pool
"""

from __future__ import annotations

from ..session.pools import (
    attach_pool,
    describe,
    get_files,
    join_pool,
    kept_row,
    pull_value,
    put_files,
    resize_pool,
    start_pool,
)
from .calls import Function, Group, PendingCall, StreamedGroup, gather
from .compute import Compute
from .files_of_rank import files
from .functions import function, stream
from .futures import Future
from .operators import Sky, sky
from .spec_fallbacks import Spec

__all__ = [
    "Compute",
    "Function",
    "Future",
    "Group",
    "PendingCall",
    "Sky",
    "Spec",
    "StreamedGroup",
    "attach_pool",
    "describe",
    "files",
    "function",
    "gather",
    "get_files",
    "join_pool",
    "kept_row",
    "pull_value",
    "put_files",
    "resize_pool",
    "sky",
    "start_pool",
    "stream",
]
