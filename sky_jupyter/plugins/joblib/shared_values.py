"""Large values that calls of a loop share: sent to a rank once, then named.

The functions here run on the ranks. `pool.execution.parallel_loops` sends the values; `backend` makes the calls that
name them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import SkyError

_held: dict[str, Any] = {}
# Factories of outlets for the output of a loop's calls; a front end registers its own.
outlets: list[Callable[[Any], Any]] = []


class NotHeld(SkyError):
    """Raised when a rank lacks values that a call names, as a new kernel does."""


@dataclass(frozen=True)
class Shared:
    """Placeholder of a value in the arguments of a call."""

    key: str


def hold(values: Mapping[str, Any]) -> None:
    """Keep values here for the calls that name them."""
    _held.update(values)


def call_with(call: Callable[[Callable[[Any], Any]], Any], keys: Collection[str], keep: Collection[str]) -> Any:
    """Make a call with shared values; release those that are not in ``keep``.

    Raise NotHeld, before the call, if values of ``keys`` are missing here.
    """
    for key in set(_held).difference(keep):
        del _held[key]
    if missing := [key for key in keys if key not in _held]:
        raise NotHeld(f"this rank lacks {len(missing)} values of the loop")
    return call(lambda value: _held[value.key] if isinstance(value, Shared) else value)
