"""Interface of an agent to its comm hub, a package that is loaded by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

_PACKAGE = "sky_jupyter.widgets.node.comm_hub"
Tell = Callable[[dict[str, Any], list[bytes]], None]
"""Sends a message to a rank's kernel."""


class CommHooks(Protocol):
    """Part of an agent that keeps comms; it also answers calls of the part ``comms``."""

    def on_message(self, rank: int, message: Mapping[str, Any], run: str) -> None:
        """Handle a comm message of a rank's kernel; ``run`` is empty outside of runs."""

    def on_output(self, rank: int, parent: str, event: dict[str, Any]) -> bool:
        """Handle output of a rank; return whether a widget shows it."""

    def on_shown(self, rank: int, run: str, data: Any) -> None:
        """Note that a run shows a MIME bundle."""

    def on_end(self, rank: int) -> None:
        """Note that a rank's kernel has ended."""

    def forget(self, run: str) -> None:
        """Note that a run is forgotten."""

    def flush(self) -> None:
        """Forward the buffered messages."""


def load(
    tells: Mapping[int, Tell],
    incarnation: str,
    ready: Callable[[], bool],
    forward: Callable[[dict[str, Any], int], None],
) -> CommHooks:
    """Make an agent's part for comms.

    Parameters
    ----------
    tells : mapping
        Functions that send a message to a rank of the node, by rank.
    incarnation : str
        The agent's incarnation; another one has other comms.
    ready : callable
        Return whether a batch can be forwarded now.
    forward : callable
        Forward a batch, with its size.

    Returns
    -------
    CommHooks
        The part, for this agent only.
    """
    made: CommHooks = importlib.import_module(_PACKAGE).CommHub(tells, incarnation, ready, forward)
    return made
