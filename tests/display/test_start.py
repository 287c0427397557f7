"""What a pool's start is said to be at."""

from __future__ import annotations

from sky_jupyter.display.model.run_model import StartModel
from sky_jupyter.pool.base.events import PhaseEvent, TroubleEvent


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


def test_what_is_the_matter_lasts_until_it_is_over_whatever_phases_come() -> None:
    model = StartModel()
    text = "the forkserver stands still"
    assert model.on_event(TroubleEvent(text, about="keeper 7")) == text
    model.on_event(TroubleEvent("node 1 does not answer", about="silent 1"))
    model.on_event(PhaseEvent("agent", "starting", 1.0, done=True))
    model.on_event(PhaseEvent("plugins", "starting kernels", 0.1))
    assert model.troubles == (text, "node 1 does not answer")
    assert model.on_event(TroubleEvent("it goes on again", about="keeper 7", over=True)) == "it goes on again"
    # What nobody needs to be told of is over too.
    assert model.on_event(TroubleEvent("", about="silent 1", over=True)) == ""
    assert model.troubles == ()
