"""Local port that leads to a host's port and survives breaks of the connection."""

from __future__ import annotations

from typing import Any

from ..forwards import LocalForward
from .reconnecting_host import ReconnectingHost

_MOST = 512


class Tunnel:
    """Listening local port; while the host is away, it resets connections at once.

    Parameters
    ----------
    number : int
        Number in the link.
    held : ReconnectingHost
        Host that it leads through.
    host : str
        Host that it leads to, as ``held`` sees it.
    port : int
        Port of that host.
    wish : int
        Local port to use if it is free; 0 for any.
    """

    def __init__(self, number: int, held: ReconnectingHost, host: str, port: int, wish: int = 0) -> None:
        self.number, self.held, self.host, self.there = number, held, host, port
        self._forward = LocalForward(self._connect, wish, most=_MOST)
        self.port = self._forward.port

    def close(self) -> None:
        """Close the port and all connections through it."""
        self._forward.close()

    def _connect(self) -> Any:
        # Raises LinkLost while the host is away.
        return self.held.machine.open_stream(self.host, self.there)
