"""Which run a verb means that is given none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sky_jupyter.magics import runs_table
from sky_jupyter.pool.open_pools import pools


class Numbers:
    """A registry that has numbered these runs."""

    def __init__(self, *ids: str) -> None:
        self._ids = ids

    def flush(self) -> None: ...

    def numbers(self, ids: list[str]) -> dict[str, int]:
        return {id: number for number, id in enumerate(self._ids, 1) if id in ids}


def test_a_run_that_was_just_detached_is_the_newest_before_nodes_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pool: Any = SimpleNamespace(
        runs=lambda: {"older": {"begin": {"began": 5.0}}}, detached={"newer": None}, registry=Numbers("older", "newer")
    )
    monkeypatch.setattr(pools, "all", lambda: [pool])
    given: Any = SimpleNamespace(name=None, target=None)
    assert runs_table.find(given) == (pool, "newer")
