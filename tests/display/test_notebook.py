"""The view of a pool's start in a notebook: a line, and a panel where it lasts."""

from __future__ import annotations

from typing import Any

import pytest

from sky_jupyter.display.notebook import pool_panel, start_view
from sky_jupyter.pool.base.events import PhaseEvent, TroubleEvent


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the view shows, one after another."""
    bundles: list[dict[str, Any]] = []
    monkeypatch.setattr(start_view.Slot, "show", lambda _, bundle: bundles.append(bundle))
    return bundles


def test_a_start_that_lasts_has_a_panel_as_long_as_it_goes_on(shown: list[dict[str, Any]]) -> None:
    view = start_view.NotebookStartView("pool train", "train")
    view.on_event(PhaseEvent("environment", "building", 1.0))
    view._next = 0.0
    view.refresh()
    assert set(shown[-1]) == {"text/html", "text/plain"}
    view.began -= 60
    view._next = 0.0
    view.refresh()
    start = shown[-1][pool_panel.MIME]["start"]
    assert start["pool"] == "train"
    assert start["text"].startswith("pool train · building · 1 min")
    view.finish("2 local nodes ready")
    assert set(shown[-1]) == {"text/html", "text/plain"}


def test_a_transfer_has_no_panel_however_long_it_lasts(shown: list[dict[str, Any]]) -> None:
    view = start_view.NotebookStartView("put data")
    view.began -= 60
    view.on_event(PhaseEvent("put", "sending", 1.0))
    view._next = 0.0
    view.refresh()
    assert set(shown[-1]) == {"text/html", "text/plain"}


def test_what_is_the_matter_stands_below_the_line_until_it_is_over(shown: list[dict[str, Any]]) -> None:
    view = start_view.NotebookStartView("pool train", "train")

    def last() -> dict[str, Any]:
        view._next = 0.0
        view.refresh()
        return shown[-1]

    view.on_event(TroubleEvent("the forkserver <stands> still", about="keeper 7"))
    assert last()["text/plain"].splitlines()[1:] == ["the forkserver <stands> still"]
    view.on_event(PhaseEvent("plugins", "starting kernels", 0.1))
    view.began -= 60
    page = last()
    assert page["text/plain"].startswith("pool train · starting kernels · 1 min")
    assert page["text/plain"].splitlines()[1:] == ["the forkserver <stands> still"]
    assert "the forkserver &lt;stands&gt; still" in page["text/html"]
    assert page[pool_panel.MIME]["start"]["text"] == page["text/plain"]
    view.finish("interrupted", ok=False)
    assert "the forkserver <stands> still" in shown[-1]["text/plain"]
    view.on_event(TroubleEvent("it goes on again", about="keeper 7", over=True))
    assert last()["text/plain"].startswith("pool train · it goes on again · ")
    assert "still" not in shown[-1]["text/plain"]
