"""The view of a pool's start in a notebook: a line, and a panel where it lasts."""

from __future__ import annotations

from typing import Any

import pytest

from sky_jupyter.display import notebook, panel
from sky_jupyter.pool.events import PhaseEvent


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the view shows, one after another."""
    bundles: list[dict[str, Any]] = []
    monkeypatch.setattr(notebook.Slot, "show", lambda _, bundle: bundles.append(bundle))
    return bundles


def test_a_start_that_lasts_has_a_panel_as_long_as_it_goes_on(shown: list[dict[str, Any]]) -> None:
    view = notebook.NotebookStartView("pool train", "train")
    view.on_event(PhaseEvent("environment", "building", 1.0))
    view._next = 0.0
    view.refresh()
    assert set(shown[-1]) == {"text/html", "text/plain"}
    view.began -= 60
    view._next = 0.0
    view.refresh()
    start = shown[-1][panel.MIME]["start"]
    assert start["pool"] == "train"
    assert start["text"].startswith("pool train · building · 1 min")
    view.finish("2 local nodes ready")
    assert set(shown[-1]) == {"text/html", "text/plain"}


def test_a_transfer_has_no_panel_however_long_it_lasts(shown: list[dict[str, Any]]) -> None:
    view = notebook.NotebookStartView("put data")
    view.began -= 60
    view.on_event(PhaseEvent("put", "sending", 1.0))
    view._next = 0.0
    view.refresh()
    assert set(shown[-1]) == {"text/html", "text/plain"}
