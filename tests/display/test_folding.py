"""Saying once what several ranks have in common."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sky_jupyter.display.model.folding import common_end, common_start, fold
from sky_jupyter.util.text import format_ranks, rank_label


@pytest.mark.parametrize(
    ("ranks", "label"),
    [
        ([2], "rank 2"),
        ([0, 1], "ranks 0-1"),
        ([0, 1, 2, 3, 5], "ranks 0-3, 5"),
        ([7, 3, 1, 2], "ranks 1-3, 7"),
        (range(64), "ranks 0-63"),
    ],
)
def test_ranks_are_named_by_their_stretches(ranks, label):
    assert rank_label(ranks) == label


@given(st.sets(st.integers(0, 60), min_size=1))
def test_a_label_names_exactly_its_ranks(ranks):
    named = set()
    for part in format_ranks(ranks, ", ").split(", "):
        first, _, last = part.partition("-")
        named |= set(range(int(first), int(last or first) + 1))
    assert named == ranks


def test_equal_items_fold_in_the_order_of_their_lowest_rank():
    assert fold({3: "b", 0: "a", 2: "a", 1: "b"}) == [([0, 2], "a"), ([1, 3], "b")]
    assert fold({}) == []


@given(st.dictionaries(st.integers(0, 20), st.sampled_from("abc")))
def test_folding_loses_no_rank_and_mixes_no_items(items):
    groups = fold(items)
    assert {rank: item for ranks, item in groups for rank in ranks} == items
    assert len({item for _, item in groups}) == len(groups)


def test_common_ends_are_counted():
    assert common_start(["abcd", "abd", "abc"]) == 2
    assert common_end(["xbcd", "ycd"]) == 2
    assert (common_start([]), common_start(["", "a"]), common_start(["ab"])) == (0, 0, 2)
