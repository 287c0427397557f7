"""The function that a soak calls on ranks."""

from __future__ import annotations

from typing import Any


def call(folder: str, seed: int, number: int, kind: str, pace: float, fates: dict[int, str]) -> Any:
    """Say what is to be said, leave marks, and end as it was decided for this rank."""
    import os

    import sky_jupyter as sky
    from tests.soak import words

    rank = sky.instance_info().rank
    words.mark(folder, number, rank, "x")
    words.say(seed, number, rank, kind, pace)
    words.end(fates.get(rank, ""), number, rank)
    words.mark(folder, number, rank, "y")
    return number, rank, os.getpid()
