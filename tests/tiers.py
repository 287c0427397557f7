"""Parameters of which a part belongs to the daily run, and the others to the slow one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def daily(chosen: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """Return all values as parameters; those that are not chosen are marked `slow`."""
    every = list(values)
    assert not [one for one in chosen if one not in every], "a chosen value is none of the parameters"
    return [pytest.param(one, marks=() if one in chosen else pytest.mark.slow) for one in every]
