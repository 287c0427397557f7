"""Which frameworks and how many ranks a test is run with: a part of them each day, all of them with ``--long``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest

World = tuple[str, int]
"""The plugin that enters, and the number of ranks."""
COLLECTIVES: tuple[World, ...] = tuple((kind, ranks) for kind in ("jax", "torch") for ranks in (2, 4))
WORLDS: tuple[World, ...] = (*COLLECTIVES, ("keras", 2), ("keras", 4))


def some(daily: Collection[World], worlds: Sequence[World] = WORLDS) -> list[Any]:
    """The worlds as parameters, of which all but ``daily`` are left out unless long tests are asked for.

    Each file has others daily, so that every world meets some faults each day.
    """
    assert set(daily) <= set(worlds)
    return [
        pytest.param(one, id=f"{one[0]}-{one[1]}", marks=() if one in daily else pytest.mark.long) for one in worlds
    ]
