"""What a supervisor tells an optional part of its pool, such as widgets."""

from __future__ import annotations

from typing import Any, Protocol

from ...spec.pool_spec import PoolSpec


class SupervisorExtension(Protocol):
    """Optional part of a pool; called on the event loop."""

    def suit(self, spec: PoolSpec) -> None:
        """Follow a pool like this from now on."""

    def on_batch(self, batch: dict[str, Any]) -> None:
        """Take in a batch of an agent's: input from outside."""

    def look(self, node: int) -> None:
        """Ask a node for what was missed: it is there again."""

    def lose(self, node: int) -> None:
        """Note that a node is given up."""

    def close(self) -> None:
        """Note that nothing of the pool is alive."""
