"""Format sizes and ranks for people."""

from __future__ import annotations

from collections.abc import Iterable


def format_size(size: float) -> str:
    """Return bytes in decimal units: ``"12 bytes"``, ``"3.4 MB"``, ``"64 MB"``."""
    if size < 1000:
        return f"{size:.0f} bytes"
    units, value = ["TB", "GB", "MB", "kB"], size / 1000
    while value >= 999.5 and len(units) > 1:
        units.pop()
        value /= 1000
    number = f"{value:.1f}".removesuffix(".0") if value < 9.95 else f"{value:.0f}"
    return f"{number} {units[-1]}"


def format_ranks(ranks: Iterable[int], comma: str = ",") -> str:
    """Return ranks as ranges: ``"0-3,5"``."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return comma.join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def rank_label(ranks: Iterable[int]) -> str:
    """Return ``"rank 2"`` or ``"ranks 0-3, 5"``."""
    text = format_ranks(ranks, ", ")
    return f"rank{'' if text.isdecimal() else 's'} {text}"
