"""Functions that note on their rank that they were called; hosts have all that this module imports."""

from __future__ import annotations

import builtins
import time

import sky_jupyter as sky


@sky.function
def notes(number: int) -> int:
    """Note on the rank that a call was begun."""
    vars(builtins).setdefault("_begun", []).append(number)
    time.sleep(0.01)
    return 2 * number


@sky.function
def begun() -> list[int]:
    """Return what a rank has noted."""
    return list(vars(builtins).get("_begun", []))
