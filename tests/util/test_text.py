"""Sizes and ranks are written one way everywhere."""

from __future__ import annotations

import pytest

from sky_jupyter.util.text import format_ranks, format_size, rank_label


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (9_949, "9.9 kB"),
        (9_950, "10 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (120_000_000, "120 MB"),
        (3_400_000_000, "3.4 GB"),
        (5 * 10**15, "5000 TB"),
    ],
)
def test_a_size_is_in_decimal_units(size: int, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("ranks", "text", "label"),
    [
        ([], "", "ranks "),
        ([2], "2", "rank 2"),
        ([3, 1, 0, 2, 5, 5], "0-3,5", "ranks 0-3, 5"),
        ([1, 2], "1-2", "ranks 1-2"),
        ([0, 2], "0,2", "ranks 0, 2"),
    ],
)
def test_ranks_are_ranges(ranks: list[int], text: str, label: str) -> None:
    assert format_ranks(ranks) == text
    assert rank_label(ranks) == label
