"""Interface of the connection that a machine needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ...errors import LinkLost


class MachineSession(Protocol):
    """Connection to one machine, on which shells and streams are opened; thread-safe."""

    @property
    def target(self) -> Any:
        """The machine and how to connect to it; ``name`` is its name in messages."""

    @property
    def address(self) -> str:
        """Address for the pool's other machines."""

    @property
    def alive(self) -> bool:
        """Whether the connection is alive, as far as is known."""

    def on_lost(self, tell: Callable[[LinkLost], None]) -> None:
        """Call a function when the connection breaks; at once if it has broken."""

    def channel(self, command: str) -> Any:
        """Run a command through a shell of the machine; return its streams."""

    def status(self, channel: Any) -> int:
        """Wait for a channel's command; return its status, or minus the signal."""

    def open_stream(self, host: str, port: int) -> Any:
        """Connect from the machine to an address; return the stream."""

    def close(self) -> None:
        """Close the connection."""
