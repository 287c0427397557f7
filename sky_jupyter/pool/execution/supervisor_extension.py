"""Protocol of an optional part of a pool, such as widgets, for its supervisor."""

from __future__ import annotations

from typing import Any, Protocol

from ...spec.pool_spec import PoolSpec


class SupervisorExtension(Protocol):
    """Optional part of a pool; called on the event loop."""

    def suit(self, spec: PoolSpec) -> None:
        """Adopt the spec of a new or resized pool."""

    def on_batch(self, batch: dict[str, Any]) -> None:
        """Handle a batch of an agent, which is untrusted input."""

    def look(self, node: int) -> None:
        """Ask a node that is back for what was missed."""

    def lose(self, node: int) -> None:
        """Note that a node is lost."""

    def close(self) -> None:
        """Note that nothing of the pool is alive."""
