"""Which ways calls go, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sky_jupyter.pool.execution.direct_calls import DirectCalls
from sky_jupyter.pool.execution.run_submission import RunSubmission
from sky_jupyter.pool.execution.short_call import ShortCall
from sky_jupyter.pool.execution.short_calls import ShortCalls
from sky_jupyter.pool.execution.tasks import PoolTasks


def note_ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that receives the way of each call: ``short``, ``opened`` after that, or ``long``."""
    went: list[str] = []

    def noting(kind: type[Any], name: str, way: str) -> None:
        before: Callable[..., Any] = getattr(kind, name)

        def noted(*given: Any, **more: Any) -> Any:
            went.append(way)
            return before(*given, **more)

        monkeypatch.setattr(kind, name, noted)

    for kind, name, way in (
        (ShortCalls, "send", "short"),
        (PoolTasks, "take_up", "opened"),
        (RunSubmission, "take_up", "opened"),
        (PoolTasks, "begin", "long"),
        (RunSubmission, "begin_call", "long"),
    ):
        noting(kind, name, way)
    directly = DirectCalls.make

    def made(calls: DirectCalls, call: ShortCall, presses: list[object]) -> bool:
        is_made = directly(calls, call, presses)
        went.extend(["short"] * is_made)
        return is_made

    monkeypatch.setattr(DirectCalls, "make", made)
    return went


def quiet(ways: list[str]) -> bool:
    """Whether nothing but short calls was made, of which none took long on a busy machine; none are left."""
    found = set(ways)
    ways.clear()
    return found <= {"short", "opened"}
