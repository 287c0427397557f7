"""What a person sees: views that listen to a pool's events, for notebooks and for terminals.

A view has ``on_event`` (any thread), ``refresh`` (main thread, several times a second) and
``finish``. Widgets will take this interface over.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Protocol

from ..pool.events import Event


class RunView(Protocol):
    """The view of one run."""

    def on_event(self, event: Event) -> None:
        """Take in what the pool tells; any thread."""

    def refresh(self) -> None:
        """Draw what is new; main thread."""

    def finish(self, elapsed: float) -> None:
        """Draw the last state."""


class StartView(Protocol):
    """The view of a pool's start."""

    def on_event(self, event: Event) -> None:
        """Take in what the pool tells; any thread."""

    def refresh(self) -> None:
        """Draw what is new; main thread."""

    def finish(self, ready: str, *, ok: bool = True) -> None:
        """Say how it ended, and whether well."""


class Silent:
    """The view of what is not to be seen."""

    def on_event(self, event: Event) -> None:
        """Nothing."""

    def refresh(self) -> None:
        """Nothing."""

    def finish(self, ready: object, *, ok: bool = True) -> None:
        """Nothing."""


def in_notebook() -> bool:
    """Whether this process is a Jupyter kernel, whose front end draws HTML."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def run_view(title: str, ranks: Sequence[int], *, results: bool = True) -> RunView:
    """The view of a run on ``ranks``, for where this process is shown."""
    if in_notebook():
        from .model import RunModel
        from .notebook import NotebookRunView

        return NotebookRunView(RunModel(title, ranks))
    from .terminal import TerminalRunView

    return TerminalRunView(ranks, results=results)


def start_view(title: str) -> StartView:
    """The view of a pool's start, for where this process is shown."""
    if in_notebook():
        from .notebook import NotebookStartView

        return NotebookStartView(title)
    from .terminal import TerminalStartView

    return TerminalStartView(title)
