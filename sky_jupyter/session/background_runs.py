"""Views of detached runs, which follow without a cell that waits; and news of the end of long runs."""

from __future__ import annotations

import threading
import time
from concurrent import futures
from typing import TYPE_CHECKING, Any

from ..display.notebook import run_ends
from ..pool.base.run_titles import title_of
from ..pool.runs.run import Run
from ..util.text import rank_label

if TYPE_CHECKING:
    from ..pool.pool import Pool

# Seconds from which on a run is a long one: its person may look elsewhere.
LONG = 60.0
_LOOK = 0.1


class BackgroundView:
    """View of a run that follows it to its end in a thread of its own; made by `run_cell`.

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
        # A daemon: a run that goes on does not keep the notebook's kernel from ending.
        threading.Thread(target=self._follow, name=f"sky-detached-{run.id}", daemon=True).start()

    def _follow(self) -> None:
        while not futures.wait([self._run.task], timeout=_LOOK).done:
            self._view.refresh()
        self._view.finish(self._run.elapsed)


def notify_at_end(pool: Pool, run: Run) -> None:
    """Have pages notify their person when a run ends, if it takes long and nobody stops it."""
    began = time.monotonic()

    def tell(_: Any) -> None:
        taken = time.monotonic() - began
        if taken >= LONG and not run.presses and run.how_ended != "interrupted":
            run_ends.publish(_facts(pool, run, taken))

    run.task.add_done_callback(tell)


def _facts(pool: Pool, run: Run, taken: float) -> dict[str, Any]:
    state = run.how_ended
    ranks = rank_label(run.failed) if run.failed else ""
    return {
        "run": run.id,
        "pool": pool.spec.name,
        "title": title_of(run.code),
        "count": run.count,
        "state": state,
        "failed": ranks,
        "elapsed": round(taken, 1),
    }
