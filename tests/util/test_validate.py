"""Numbers are checked the same way everywhere: a bool is none, and nan is in no range."""

from __future__ import annotations

import math
from typing import Any

import pytest

from sky_jupyter.errors import SpecError
from sky_jupyter.util.validate import check_flag, check_whole, is_number, is_whole


@pytest.mark.parametrize(
    ("value", "whole", "number"),
    [
        (0, True, True),
        (7, True, True),
        (8, False, False),
        (-1, False, False),
        (1.5, False, True),
        (True, False, False),
        (None, False, False),
        ("3", False, False),
        (math.nan, False, False),
        (math.inf, False, False),
    ],
)
def test_a_number_is_in_its_range_or_is_none(value: Any, whole: bool, number: bool) -> None:
    assert is_whole(value, 0, 7) is whole
    assert is_number(value, 0, 7) is number


def test_a_range_without_ends_has_every_number_but_nan() -> None:
    assert is_number(math.inf)
    assert is_number(-math.inf)
    assert not is_number(math.nan)
    assert is_whole(10**400)


def test_what_is_refused_is_named_with_its_range() -> None:
    check_whole("nodes", 3, 1, 4)
    check_flag("keep", False)
    with pytest.raises(SpecError, match=r"nodes must be a whole number from 1 to 4, not 5\Z"):
        check_whole("nodes", 5, 1, 4)
    with pytest.raises(SpecError, match=r"journal must be a whole number of bytes from 1 to 4, not True\Z"):
        check_whole("journal", True, 1, 4, "of bytes ")
    with pytest.raises(SpecError, match=r"keep must be True or False, not 'y{76}\.\.\.\Z"):
        check_flag("keep", "y" * 200)
