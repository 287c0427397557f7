"""Validation of users' and peers' input: a bool is no number, nan in no range."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from ..errors import SpecError

Check = Callable[[Any], bool]
"""Function that returns whether a value is valid."""
Fields = Mapping[str, tuple[Check, str]]
"""By name, the check of its value, and its description in messages."""


def is_whole(value: Any, low: float = 0, high: float = math.inf) -> TypeGuard[int]:
    """Return whether a value is an int from `low` to `high`."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_number(value: Any, low: float = -math.inf, high: float = math.inf) -> TypeGuard[float]:
    """Return whether a value is an int or float from `low` to `high`."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


def is_text(value: Any) -> TypeGuard[str]:
    """Return whether a value is a str."""
    return isinstance(value, str)


def is_flag(value: Any) -> TypeGuard[bool]:
    """Return whether a value is True or False."""
    return isinstance(value, bool)


def whole(low: float = 0, high: float = math.inf) -> Check:
    """Return a check for ints from `low` to `high`."""
    return lambda value: is_whole(value, low, high)


def number(low: float = -math.inf, high: float = math.inf) -> Check:
    """Return a check for ints and floats from `low` to `high`."""
    return lambda value: is_number(value, low, high)


def list_of(good: Check, low: int = 0, high: float = math.inf) -> Check:
    """Return a check for lists of `low` to `high` good items."""
    return lambda value: isinstance(value, list) and low <= len(value) <= high and all(map(good, value))


def optional(good: Check) -> Check:
    """Return a check for None and good values."""
    return lambda value: value is None or good(value)


def field(fields: Fields, facts: Mapping[str, Any], name: str) -> Any:
    """Return a value of `facts`; raise SpecError unless it is what `fields` says."""
    good, what = fields[name]
    if not good(value := facts.get(name)):
        raise SpecError(f"{name} must be {what}")
    return value


def check_whole(name: str, value: Any, low: int, high: int, what: str = "") -> None:
    """Raise SpecError unless a value is an int from `low` to `high`."""
    if not is_whole(value, low, high):
        raise SpecError(f"{name} must be a whole number {what}from {low} to {high}, not {brief(value)}")


def check_flag(name: str, value: Any) -> None:
    """Raise SpecError unless a value is True or False."""
    if not is_flag(value):
        raise SpecError(f"{name} must be True or False, not {brief(value)}")


def brief(value: Any) -> str:
    """Return the repr of a value, at most 80 characters of it."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
