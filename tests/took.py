"""How long each fault took, for the table in docs/faults.md: tests tell it, `faults/table.py` writes it down.

With ``SKY_RECORD=path`` in the environment, what `took` is told is appended to that file, one JSON
object a line; without it, nothing is written.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path


class Took:
    """Given to a test by the fixture `took`."""

    def __init__(self, test: str) -> None:
        self.test = test

    def row(self, what: str, *, see: str, kept: str, on: str = "", **seconds: float) -> None:
        """Tell of one fault that happened in this test.

        Parameters
        ----------
        what : str
            What happens: the row's first column. Rows of several tests with the same text are one.
        see, kept : str
            What the user sees, and what is kept.
        on : str
            Where: ``"jax, 2 ranks"``.
        seconds : float
            Named durations, such as ``told=0.1, freed=0.4, back=0.9``.
        """
        path = os.environ.get("SKY_RECORD")
        if not path:
            return
        record = {"what": what, "see": see, "kept": kept, "on": on, "test": self.test, "seconds": seconds}
        record |= {"at": time.time(), "load": os.getloadavg()[0], "cores": os.cpu_count()}
        with Path(path).open("a") as file:
            file.write(json.dumps(record) + "\n")
