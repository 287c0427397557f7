"""What a rank answers about names is used as far as it is sound: ranks run the user's code."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sky_jupyter.session import remote_completion


def pool_that_answers(answer: dict[str, Any]) -> Any:
    async def ask(*question: Any, **arguments: Any) -> dict[int, Any]:
        return {0: answer}

    control = SimpleNamespace(ask=ask, silent=set(), doubted=set())
    parts = {"supervisor": SimpleNamespace(runs={}), "spec": SimpleNamespace(ranks_per_node=1), "sources": []}
    return SimpleNamespace(has_control=True, control=control, **parts)


def test_completions_that_are_sound_are_offered() -> None:
    answer = {"start": 2, "matches": [["mean", "function"], ["bad\nline", "x"], ["one"], [3, "x"]]}
    found = remote_completion.complete(pool_that_answers(answer), 0, "x.me", 4)
    assert found == remote_completion.Completions(2, [("mean", "function")])


@pytest.mark.parametrize("start", [-3, 5, True, "0", None])
def test_completions_that_would_replace_what_is_not_before_the_cursor_are_not(start: object) -> None:
    answer = {"start": start, "matches": [["%%local", "magic"]]}
    assert remote_completion.complete(pool_that_answers(answer), 0, "x.me", 4) is None


def test_what_a_page_would_run_is_not_shown() -> None:
    data = {"text/plain": "a", "text/html": "<b>a</b>", "application/javascript": "alert(1)", "image/png": 3}
    found = remote_completion.inspect(pool_that_answers({"data": data}), 0, "x", 1, 0)
    assert found == {"text/plain": "a", "text/html": "<b>a</b>"}
    for odd in (None, [], {"text/html": "<b>a</b>"}, {"text/plain": 3}):
        assert remote_completion.inspect(pool_that_answers({"data": odd}), 0, "x", 1, 0) is None
