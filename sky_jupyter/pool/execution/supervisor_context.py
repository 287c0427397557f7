"""Protocol: the supervisor as its parts see it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from ...spec.pool_spec import PoolSpec

if TYPE_CHECKING:
    from ..control.control_client import Control
    from ..runs.run import Run


class SupervisorContext(Protocol):
    """The supervisor as its parts see it; parts that need more extend this."""

    @property
    def spec(self) -> PoolSpec: ...

    @property
    def control(self) -> Control:
        """The client of the agents; PoolError if there is none yet."""
        ...

    @property
    def registered(self) -> list[Run]:
        """A copy of the list of runs."""
        ...

    def keep_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start work on behalf of the pool; its restart or end cancels it."""
        ...
