"""Run-length grouping: say once what several ranks have in common."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

Item = TypeVar("Item", bound=Hashable)


def fold(items: Mapping[int, Item]) -> list[tuple[list[int], Item]]:
    """Return the ranks of each equal item, ordered by the lowest rank."""
    groups: dict[Item, list[int]] = {}
    for rank in sorted(items):
        groups.setdefault(items[rank], []).append(rank)
    return [(ranks, item) for item, ranks in groups.items()]


def common_start(sequences: Sequence[Sequence[Any]]) -> int:
    """Return the number of equal items at the start of all `sequences`."""
    shortest = min(map(len, sequences), default=0)
    first = sequences[0] if sequences else ()
    for index in range(shortest):
        if any(other[index] != first[index] for other in sequences):
            return index
    return shortest


def common_end(sequences: Sequence[Sequence[Any]]) -> int:
    """Return the number of equal items at the end of all `sequences`."""
    return common_start([sequence[::-1] for sequence in sequences])
