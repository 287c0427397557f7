"""View of a detached run, which no cell waits for."""

from __future__ import annotations

import threading
from concurrent import futures
from typing import Any

from ..pool.runs.run import Run

_LOOK = 0.1


class BackgroundView:
    """View that follows a run to its end, in a thread of its own.

    The thread ends with the run.

    Parameters
    ----------
    view : RunView
        A view that can be drawn from any thread.
    run : Run
        The run.
    """

    def __init__(self, view: Any, run: Run) -> None:
        self._view, self._run = view, run
        # A daemon: a run that goes on must not keep the notebook's kernel from ending.
        threading.Thread(target=self._follow, name=f"sky-detached-{run.id}", daemon=True).start()

    def _follow(self) -> None:
        while not futures.wait([self._run.task], timeout=_LOOK).done:
            self._view.refresh()
        self._view.finish(self._run.elapsed)
