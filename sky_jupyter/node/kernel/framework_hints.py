"""Hints for errors of frameworks that a process initializes twice or too late.

A script initializes JAX or torch once. A cell is run again, in the same process.
"""

from __future__ import annotations

import sys

from .shell import said

_AGAIN = "%sky restart gives each rank a new process"
_TWICE = "distributed.initialize should only be called once"
_LATE = "distributed.initialize() must be called before any JAX"
# Part of the message of a framework's error -> hint.
_HINTS = {
    _TWICE: (
        "JAX's cluster is set up already in this process, by a cell that ran before, and stays: run initialize in a "
        f"cell of its own, or only `if not jax.distributed.is_initialized():`; {_AGAIN}"
    ),
    _LATE: (
        "an earlier cell has used JAX in this process, so that the ranks cannot be joined any more: "
        f"{_AGAIN}, where initialize comes first; with --plugins jax the pool joins them before the first cell"
    ),
    "trying to initialize the default process group twice": (
        "torch's process group is set up already in this process, by a cell that ran before, and stays: run "
        f"init_process_group in a cell of its own, or only `if not dist.is_initialized():`; {_AGAIN}"
    ),
}


def hint(error: object) -> list[str]:
    """Return a one-line hint for a framework's set-up error; empty if there is none."""
    if not isinstance(error, (RuntimeError, ValueError)):
        return []
    text = said(error)
    if _LATE in text and _is_joined():
        text = _TWICE
    return [advice for part, advice in _HINTS.items() if part in text]


def _is_joined() -> bool:
    """Return True if JAX's cluster is set up in this process."""
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    return getattr(state, "client", None) is not None
