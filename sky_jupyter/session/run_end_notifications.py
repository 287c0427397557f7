"""Notifications to pages that a long run has ended; see docs/actions.md."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from ..pool.base.run_titles import title_of
from ..pool.runs.run import Run
from ..util.text import rank_label

if TYPE_CHECKING:
    from ..pool.pool import Pool

RUN_ENDED = "sky_run_ended"
# Seconds after which a run counts as long: its user may look elsewhere.
LONG = 60.0


def notify_at_end(pool: Pool, run: Run) -> None:
    """Notify pages when a long run ends, unless somebody stops it."""
    began = time.monotonic()

    def tell(_: Any) -> None:
        taken = time.monotonic() - began
        if taken >= LONG and not run.presses and run.how_ended != "interrupted":
            _publish(_facts(pool, run, taken))

    run.task.add_done_callback(tell)


def _facts(pool: Pool, run: Run, taken: float) -> dict[str, Any]:
    return {
        "run": run.id,
        "pool": pool.spec.name,
        "title": title_of(run.code),
        "count": run.count,
        "state": run.how_ended,
        "failed": rank_label(run.failed) if run.failed else "",
        "elapsed": round(taken, 1),
    }


def _publish(facts: dict[str, Any]) -> None:
    """Send a message to all pages of this process's kernel, if it is one; any thread."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        kernel.session.send(kernel.iopub_socket, RUN_ENDED, facts, parent={}, ident=RUN_ENDED.encode())
