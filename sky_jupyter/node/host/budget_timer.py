"""Timer of a pool's budget on a node; the manager sets it for the current price."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from ..protocol.host_config import BUDGET


class BudgetTimer:
    """Timer of the host process; it continues without a manager.

    Parameters
    ----------
    folder : Path
        The pool's folder, into which the manager writes the seconds that are left.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / BUDGET
        self._word = 0
        self._end: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the budget is used up; clock changes do not matter."""
        with contextlib.suppress(OSError, ValueError):
            word = self._path.stat().st_mtime_ns
            if word != self._word:
                left = float(self._path.read_text())
                self._word, self._end = word, time.monotonic() + left
        return self._end is not None and time.monotonic() > self._end


__all__ = ["BudgetTimer"]
