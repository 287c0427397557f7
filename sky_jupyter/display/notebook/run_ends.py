"""Message to a notebook's pages that a long run has ended, of which they notify their person."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

RUN_ENDED = "sky_run_ended"


def publish(facts: Mapping[str, Any]) -> None:
    """Tell all pages of this process's kernel, if it is one, of a run's end; any thread.

    Parameters
    ----------
    facts : mapping of str to Any
        What docs/actions.md says of the message, as JSON.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    kernel = getattr(shell, "kernel", None)
    if kernel is not None:
        kernel.session.send(kernel.iopub_socket, RUN_ENDED, dict(facts), parent={}, ident=RUN_ENDED.encode())
