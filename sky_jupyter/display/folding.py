"""Saying once what several ranks have in common."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

Item = TypeVar("Item", bound=Hashable)


def rank_label(ranks: Iterable[int]) -> str:
    """``"rank 2"`` or ``"ranks 0-3, 5"``."""
    numbers = sorted(set(ranks))
    return f"rank{'s' * (len(numbers) != 1)} {rank_numbers(numbers)}"


def rank_numbers(ranks: Iterable[int]) -> str:
    """``"0-3, 5"``."""
    stretches: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if stretches and rank == stretches[-1][-1] + 1:
            stretches[-1].append(rank)
        else:
            stretches.append([rank])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in stretches)


def fold(items: Mapping[int, Item]) -> list[tuple[list[int], Item]]:
    """The ranks of each equal item, ordered by the lowest rank that has it."""
    groups: dict[Item, list[int]] = {}
    for rank in sorted(items):
        groups.setdefault(items[rank], []).append(rank)
    return [(ranks, item) for item, ranks in groups.items()]


def common_start(sequences: Sequence[Sequence[Any]]) -> int:
    """How many items all of `sequences` begin with alike."""
    shortest = min(map(len, sequences), default=0)
    first = sequences[0] if sequences else ()
    for index in range(shortest):
        if any(other[index] != first[index] for other in sequences):
            return index
    return shortest


def common_end(sequences: Sequence[Sequence[Any]]) -> int:
    """How many items all of `sequences` end with alike."""
    return common_start([sequence[::-1] for sequence in sequences])
