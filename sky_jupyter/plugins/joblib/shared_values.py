"""Large values that many calls of a loop have in common: brought to a rank once, and named by the calls.

What is here runs on the ranks; `pool.submitting` brings the values there, and `joblib_backend` finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import SkyError

_held: dict[str, Any] = {}
# What makes an outlet for what the calls of a loop on a pool print: who can show it puts itself here.
outlets: list[Callable[[Any], Any]] = []


class NotHeld(SkyError):
    """A rank lacks values that a call names, as a new kernel does."""


@dataclass(frozen=True)
class Shared:
    """Stands for a value in the arguments of a call."""

    key: str


def hold(values: Mapping[str, Any]) -> None:
    """Have values here for the calls that name them."""
    _held.update(values)


def call_with(call: Callable[[Callable[[Any], Any]], Any], keys: Collection[str], keep: Collection[str]) -> Any:
    """Make a call that names values; ``call`` is given what finds them. Those not in ``keep`` are let go of.

    Raises
    ------
    NotHeld
        When some of ``keys`` are not here; nothing has been called.
    """
    for key in set(_held).difference(keep):
        del _held[key]
    if missing := [key for key in keys if key not in _held]:
        raise NotHeld(f"this rank lacks {len(missing)} values of the loop")
    return call(lambda value: _held[value.key] if isinstance(value, Shared) else value)
