"""What a script's log and a plain terminal see of a run: lines as they come."""

from __future__ import annotations

import io
import sys

import pytest

from sky_jupyter.display import views as display
from sky_jupyter.display.terminal import line_view
from sky_jupyter.display.terminal.line_view import TerminalRunView, TerminalStartView
from sky_jupyter.display.views import DelayedView
from sky_jupyter.pool.base.events import NoticeEvent, OutputEvent, PhaseEvent, ProgressEvent, TroubleEvent


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(line_view, "_PATIENCE", 0.0)


def say(view, rank, text, name="stdout"):
    view.on_event(OutputEvent("run", rank, {"kind": "stream", "name": name, "text": text}))


def end(view, rank):
    view.on_event(OutputEvent("run", rank, {"kind": "end", "status": "ok"}))


def test_lines_come_as_they_are_finished_and_equal_ones_once(capsys):
    view = TerminalRunView([0, 1], results=True)
    for rank in (0, 1):
        say(view, rank, f"same\nown {rank}\nopen")
    view.refresh()
    assert capsys.readouterr().out.splitlines() == ["[0-1] same", "[0] own 0", "[1] own 1"]
    view.on_event(OutputEvent("run", 0, {"kind": "result", "data": {"text/plain": "1\n2"}, "metadata": {}}))
    view.finish(1.0)
    assert capsys.readouterr().out.splitlines() == ["[0-1] open", "[0] Out: 1", "[0]      2"]


def test_one_rank_has_no_mark_and_results_are_left_out_for_functions(capsys):
    view = TerminalRunView([3], results=False)
    say(view, 3, "x\n")
    view.on_event(OutputEvent("run", 3, {"kind": "result", "data": {"text/plain": "1"}, "metadata": {}}))
    view.on_event(OutputEvent("run", 4, {"kind": "stream", "name": "stdout", "text": "not shown\n"}))
    view.finish(1.0)
    assert capsys.readouterr().out == "x\n"


def test_a_log_gets_the_bars_last_state_only(capsys):
    view = TerminalRunView([0], results=True)
    for step in range(1, 5000):
        say(view, 0, f"\r{step}/4999", "stderr")
        if step % 1000 == 0:
            view.refresh()
    assert len(view._ranks[0]._open) < 100
    view.finish(1.0)
    assert capsys.readouterr().out == "4999/4999\n"


def test_what_the_encoding_lacks_does_not_end_the_cell(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr(sys, "stdout", stream)
    view = TerminalRunView([0], results=True)
    say(view, 0, "50% ██ é\n")
    view.finish(1.0)
    assert stream.buffer.getvalue() == "50% ?? é\n".encode("latin-1")


def test_colours_are_left_out_where_nobody_wants_them(monkeypatch, capsys):
    monkeypatch.setenv("NO_COLOR", "1")
    view = TerminalRunView([0], results=True)
    say(view, 0, "\x1b[31mred\x1b[0m\n")
    view.finish(1.0)
    assert capsys.readouterr().out == "red\n"


def test_notices_go_to_standard_error(capsys):
    view = TerminalRunView([0], results=True)
    view.on_event(NoticeEvent("rank 0 ended"))
    view.refresh()
    assert capsys.readouterr().err == "rank 0 ended\n"


def test_a_start_is_told_step_by_step(capsys):
    view = TerminalStartView("pool default")
    for phase, text, done in [
        ("environment", "checking what is installed", False),
        ("environment", "Resolved 3 packages", False),
        ("environment", "checking what is installed", True),
        ("agent", "starting 2 nodes", False),
        ("agent", "starting 2 nodes", True),
    ]:
        view.on_event(PhaseEvent(phase, text, 0.1, done))
    view.finish("2 local nodes ready")
    assert capsys.readouterr().err.splitlines()[:3] == [
        "pool default · checking what is installed",
        "pool default · environment: Resolved 3 packages",
        "pool default · starting 2 nodes",
    ]


def test_a_transfer_is_told_by_tenths_and_each_part_of_it_by_itself(capsys, monkeypatch):
    monkeypatch.setattr(line_view, "_STEP", 0.0)
    view = TerminalStartView("put data")
    for what in ("data to node 0", "data from node to node"):
        for there in range(101):
            view.on_event(ProgressEvent(what, f"{what}: {there} of 100 bytes", there, 100))
    view.on_event(NoticeEvent("node 2 cannot be reached"))
    view.finish("data: nodes 0, 1")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 24
    assert lines[:2] == ["put data · data to node 0: 0 of 100 bytes", "put data · data to node 0: 10 of 100 bytes"]
    assert lines[21:23] == [
        "put data · data from node to node: 100 of 100 bytes",
        "put data · node 2 cannot be reached",
    ]


def test_a_quick_transfer_is_told_by_few_lines(capsys):
    view = TerminalStartView("put data")
    for there in range(101):
        view.on_event(ProgressEvent("data", f"{there}", there, 100))
    view.finish("there")
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("late", [0.0, 3600.0])
def test_values_that_are_soon_there_are_not_spoken_of(capsys, monkeypatch, late):
    monkeypatch.setattr(display, "_LATE", late)
    monkeypatch.setattr(line_view, "_STEP", 0.0)
    with DelayedView("values") as view:
        view.refresh()
        view.on_event(ProgressEvent("values", "values to node 0: 1 of 2 MB", 1, 2))
        view.refresh()
        view.on_event(ProgressEvent("values", "values to node 0: 2 of 2 MB", 2, 2))
    lines = [line.partition(" · ")[2] for line in capsys.readouterr().err.splitlines()]
    if late:
        assert lines == []
    else:
        assert lines[:2] == ["values to node 0: 1 of 2 MB", "values to node 0: 2 of 2 MB"]
        assert lines[2].startswith("there")


def test_a_bar_is_shown_from_50_mb_on(capsys, monkeypatch):
    monkeypatch.setattr(display, "_LATE", 3600.0)
    monkeypatch.setattr(display, "_LATE_LARGE", 0.0)
    monkeypatch.setattr(line_view, "_STEP", 0.0)
    with DelayedView("values") as view:
        view.on_event(ProgressEvent("values", "values to node 0: 1 of 49 MB", 10**6, 49 * 10**6))
        view.refresh()
        assert capsys.readouterr().err == ""
        view.on_event(ProgressEvent("values", "values to node 0: 1 of 50 MB", 10**6, 50 * 10**6))
        view.refresh()
        assert "1 of 50 MB" in capsys.readouterr().err


def test_values_that_come_end_with_words_of_their_own(capsys, monkeypatch):
    monkeypatch.setattr(display, "_LATE", 0.0)
    view = DelayedView("the value of rank 1", "here", "not fetched")
    view.on_event(ProgressEvent("the value of rank 1", "the value of rank 1: 1 of 2 MB", 1, 2))
    view.refresh()
    view.__exit__(KeyboardInterrupt)
    assert "the value of rank 1 · not fetched" in capsys.readouterr().err


def test_a_view_that_comes_late_tells_what_is_still_the_matter(capsys, monkeypatch):
    monkeypatch.setattr(display, "_LATE", 0.0)
    with DelayedView("new kernels") as view:
        view.on_event(TroubleEvent("node 1 does not answer", about="silent 1"))
        view.on_event(TroubleEvent("rank 0 stands still", about="rank 7"))
        view.on_event(TroubleEvent("rank 0 goes on again", about="rank 7", over=True))
        view.on_event(PhaseEvent("plugins", "starting kernels", 0.1))
        view.refresh()
    lines = [line.partition(" · ")[2] for line in capsys.readouterr().err.splitlines()]
    assert lines[:2] == ["node 1 does not answer", "starting kernels"]
