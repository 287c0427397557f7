"""Notice that a job's time limit is near, from files written on its nodes.

A node's agent calls `read` every few seconds. The notice's text changes when the end is near, so that the user is told
again.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

from ...node.runtime.interruption import Interruption

FOLDER = "SKY_JOB_FOLDER"
# Names of files with Unix times: of the job's end, as the manager knows it, and of the scheduler's own signal.
ENDS, WARNED = "ends", "warned"
FIRST, LAST = 600.0, 120.0
NEAR, NOW = "time limit of the job", "end of the job's time limit"


def read() -> Interruption | None:
    """Return the notice for this node, or None."""
    where = os.environ.get(FOLDER)
    if not where:
        return None
    ends, warned = _number(Path(where, ENDS)), _number(Path(where, WARNED))
    if warned is not None:
        # The limit may have been lowered since the manager wrote it.
        return Interruption(NOW, min(warned + LAST, ends or math.inf))
    left = None if ends is None else ends - time.time()
    if left is None or left > FIRST:
        return None
    return Interruption(NEAR if left > LAST else NOW, ends)


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        return None


__all__ = ["ENDS", "FIRST", "FOLDER", "LAST", "NEAR", "NOW", "WARNED", "read"]
