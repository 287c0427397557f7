"""What a pool's start is said to be at."""

from __future__ import annotations

from sky_jupyter.display.model import StartModel
from sky_jupyter.pool.events import PhaseEvent


def test_a_phase_is_told_with_how_long_it_usually_takes_where_that_is_worth_it() -> None:
    model = StartModel()
    assert model.pace == ""
    model.on_event(PhaseEvent("environment", "checking", 12.2, usual=40.4))
    assert model.pace == "environment 12 s of about 40 s"
    model.on_event(PhaseEvent("environment", "checking", 30.0, done=True, usual=40.4))
    assert model.pace == ""
    model.on_event(PhaseEvent("agent", "starting", 0.2, usual=0.8))
    assert model.pace == ""
    model.on_event(PhaseEvent("plugins", "entering", 3.0))
    assert model.pace == ""
