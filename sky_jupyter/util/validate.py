"""Validate numbers of users and peers: a bool is no number, nan in no range."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

from ..errors import SpecError


def is_whole(value: Any, low: float = 0, high: float = math.inf) -> TypeGuard[int]:
    """Return whether a value is an int from `low` to `high`."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_number(value: Any, low: float = -math.inf, high: float = math.inf) -> TypeGuard[float]:
    """Return whether a value is an int or float from `low` to `high`."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


def check_whole(name: str, value: Any, low: int, high: int, what: str = "") -> None:
    """Raise SpecError unless a value is an int from `low` to `high`."""
    if not is_whole(value, low, high):
        raise SpecError(f"{name} must be a whole number {what}from {low} to {high}, not {brief(value)}")


def check_flag(name: str, value: Any) -> None:
    """Raise SpecError unless a value is True or False."""
    if not isinstance(value, bool):
        raise SpecError(f"{name} must be True or False, not {brief(value)}")


def brief(value: Any) -> str:
    """Return the repr of a value, at most 80 characters of it."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
