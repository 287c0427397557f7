"""What a person sees at a terminal: a real pseudo-terminal, and an emulator that draws what it is sent."""

from __future__ import annotations

import io
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("pyte", reason="needs the package pyte")

from sky_jupyter.display import views as display
from sky_jupyter.display.base import prompts
from sky_jupyter.display.terminal import bottom_rows, line_view, live_view
from sky_jupyter.display.terminal.line_view import TerminalRunView, TerminalStartView
from sky_jupyter.display.terminal.live_view import ConsoleRunView, ConsoleStartView
from sky_jupyter.pool.base.events import NoticeEvent, OutputEvent, PhaseEvent, ProgressEvent, TroubleEvent
from sky_jupyter.pool.base.phases import PhaseLog
from tests.display.screens import Terminal


@pytest.fixture
def terminals(monkeypatch) -> Iterator[Callable[[], Terminal]]:
    """Makes a terminal that is this process's standard output and error; views draw at once."""
    made: list[Terminal] = []
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "COLORTERM", "FORCE_COLOR", "SKY_VIEW"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(line_view, "_PATIENCE", 0.0)
    for name in ("_PATIENCE", "_INTERVAL", "_CLOCK"):
        monkeypatch.setattr(live_view, name, 0.0)

    def make() -> Terminal:
        made.append(Terminal())
        # Within the test: pytest sets its own streams when that begins.
        monkeypatch.setattr(sys, "stdout", made[-1].stream)
        monkeypatch.setattr(sys, "stderr", made[-1].stream)
        return made[-1]

    yield make
    # What a test that failed has left.
    bottom_rows.Region.standing = None
    for one in made:
        one.close()


def say(view, rank, text, name="stdout"):
    view.on_event(OutputEvent("run", rank, {"kind": "stream", "name": name, "text": text}))


def end(view, rank, status="ok", **more):
    view.on_event(OutputEvent("run", rank, {"kind": "end", "status": status, **more}))


def still(rows):
    """Rows without what the clock says."""
    return [re.sub(r"\d+\.\d s", "0.0 s", row) for row in rows]


def test_lines_scroll_above_what_each_rank_is_at(terminals):
    seen = terminals()
    view = ConsoleRunView("sky · demo", [0, 1, 2], results=True)
    for rank in (0, 1, 2):
        say(view, rank, f"same\nown {rank}\n")
    say(view, 1, "train:  25%|██▌       | 1/4 [00:10<00:13, 4.20it/s]", "stderr")
    view.refresh()
    lines = ["[0-2] same", "[0] own 0", "[1] own 1", "[2] own 2"]
    assert still(seen.look()) == [
        *lines,
        "",
        "● sky · demo · 3 ranks · 0.0 s · running",
        "  rank 0  ●  own 0",
        "  rank 1  ●  train ━━━━━─────────────── 1/4 00:10<00:13, 4.20it/s",
        "  rank 2  ●  own 2",
    ]
    assert seen.colours("sky · demo") == {"blue"}
    end(view, 0)
    end(view, 1, "error", traceback=["-----", "Traceback", "\x1b[31mValueError\x1b[0m: no"])
    end(view, 2, "died", text="killed by SIGKILL")
    view.refresh()
    lines.append("[1] train:  25%|██▌       | 1/4 [00:10<00:13, 4.20it/s]")
    assert still(seen.look())[5:] == [
        "",
        "● sky · demo · 3 ranks · 0.0 s · running, 1 of 3 done · rank 2 died · rank 1 f…",
        "  rank 0  ● done",
        "  rank 1  ● failed  ValueError: no",
        "  rank 2  ● died    killed by SIGKILL",
    ]
    view.finish(3.24)
    assert seen.look() == [
        *lines,
        "● sky · demo · 3 ranks · 3.2 s · rank 2 died · rank 1 failed",
        "  rank 1  ● failed  ValueError: no",
        "  rank 2  ● died    killed by SIGKILL",
    ]
    assert seen.colours("sky · demo") == {"red"}
    assert (seen.screen.cursor.x, sys.stdout) == (0, seen.stream)


def test_nothing_is_lost_from_what_scrolls_away_and_nothing_is_left_of_the_rows(terminals):
    seen = terminals()
    view = ConsoleRunView("sky", [0, 1], results=True)
    expected = []
    for step in range(200):
        # Some take several rows of the terminal.
        text = f"line {step} " + "x" * (step % 7 * 40)
        say(view, 0, f"{text}\n{step}%|███| {step}/200 [00:00<00:00]")
        view.refresh()
        say(view, 0, "\r\x1b[K")
        expected.append(f"[0] {text}")
        seen.look()
    for rank in (0, 1):
        end(view, rank)
    view.finish(1.0)
    seen.look()
    assert "".join(seen.all).replace(" ", "") == "".join([*expected, "●sky·2ranks·1.0s·done"]).replace(" ", "")


@pytest.mark.parametrize(("columns", "lines"), [(40, 24), (60, 12), (120, 40), (25, 8)])
def test_a_terminal_that_changes_its_size_keeps_every_line_and_one_set_of_rows(terminals, columns, lines):
    seen = terminals()
    view = ConsoleRunView("sky", range(6), results=True)
    for rank in range(6):
        say(view, rank, f"line of {rank}\nopen {rank} {'y' * 100}")
    view.refresh()
    seen.look()
    seen.resize(columns, lines)
    for _ in range(3):
        view.refresh()
        seen.look()
    say(view, 0, "\nafter\n")
    view.refresh()
    rows = seen.look()
    assert sum(row.startswith("● sky") for row in rows) == 1
    assert max(map(len, rows)) <= columns
    kept = [row for row in seen.all if row.startswith("[")]
    assert kept[:6] == [f"[{rank}] line of {rank}" for rank in range(6)]
    assert "[0] after" in kept
    view.finish(1.0)
    seen.look()
    assert sum(row.startswith("● sky") for row in seen.all) == 1


def test_more_ranks_than_rows_show_first_what_went_wrong(terminals):
    seen = terminals()
    view = ConsoleRunView("sky", range(64), results=True)
    for rank in range(64):
        say(view, rank, f"{rank}/64 left")
    end(view, 50, "error", traceback=["ValueError: bad"])
    view.refresh()
    rows = seen.look()
    assert len(rows) < 24
    assert any(row.startswith("  rank 50") and row.endswith("ValueError: bad") for row in rows)
    assert rows[-1].endswith("and more")
    say(view, 1, "\n")
    for rank in set(range(64)) - {50}:
        end(view, rank)
    view.refresh()
    assert [row for row in seen.look() if "● done" in row] == ["  ranks 0-49, 51-63  ● done"]


def test_a_single_rank_has_a_row_only_for_what_is_not_finished(terminals):
    seen = terminals()
    view = ConsoleRunView("sky", [0], results=True)
    say(view, 0, "begin\n")
    view.refresh()
    assert still(seen.look()) == ["begin", "", "● sky · 1 rank · 0.0 s · running"]
    for step in range(1, 4):
        say(view, 0, f"\r{step}/3", "stderr")
        view.refresh()
        assert seen.look()[0] == "begin"
        assert seen.look()[-1].split() == ["●", f"{step}/3"]
    say(view, 0, "done\n")
    end(view, 0)
    view.finish(2.0)
    assert seen.look() == ["begin", "3/3", "done", "● sky · 1 rank · 2.0 s · done"]


def test_what_others_print_meanwhile_stands_above_the_rows(terminals):
    seen = terminals()
    view = ConsoleRunView("sky", [0], results=True)
    view.refresh()
    print("from a thread\nand an unfin", end="")
    sys.stderr.write("a warning\n")
    assert not sys.stdout.isatty()
    view.on_event(NoticeEvent("rank 0 is being replaced"))
    view.refresh()
    view.refresh()
    assert still(seen.look()) == [
        "from a thread",
        "a warning",
        "rank 0 is being replaced",
        "",
        "● sky · 1 rank · 0.0 s · running",
    ]
    print("ished line")
    end(view, 0)
    view.finish(1.0)
    print("later")
    assert seen.look()[3:] == ["and an unfinished line", "● sky · 1 rank · 1.0 s · done", "later"]


def test_what_is_over_at_once_shows_its_lines_only(terminals, monkeypatch):
    seen = terminals()
    monkeypatch.setattr(live_view, "_PATIENCE", 60.0)
    view = ConsoleRunView("sky", [0, 1], results=True)
    say(view, 0, "x\n")
    view.refresh()
    view.finish(0.1)
    assert seen.look() == ["[0] x"]
    assert b"\x1b" not in seen.bytes


def test_a_flood_is_printed_in_parts_and_whole(terminals, monkeypatch):
    seen = terminals()
    monkeypatch.setattr(line_view, "_AT_ONCE", 10)
    view = ConsoleRunView("sky", [0, 1], results=True)
    for rank in (0, 1):
        say(view, rank, "".join(f"{rank} {step}\n" for step in range(50)))
    view.refresh()
    seen.look()
    assert sum(row.startswith("[") for row in seen.all) == 10
    view.finish(1.0)
    seen.look()
    rows = [row for row in seen.all if row.startswith("[")]
    assert sorted(rows) == sorted(f"[{rank}] {rank} {step}" for rank in (0, 1) for step in range(50))


def test_silence_is_told(terminals):
    seen = terminals()
    view = ConsoleRunView("sky", [0], results=True)
    view._heard -= 8
    view.refresh()
    assert seen.look()[-1].endswith("running · silent for 8 s")


def test_colours_are_left_out_where_nobody_wants_them(terminals, monkeypatch):
    seen = terminals()
    monkeypatch.setenv("NO_COLOR", "1")
    view = ConsoleRunView("sky", [0, 1], results=True)
    say(view, 0, "\x1b[31mred\x1b[0m\n 50%|█████     | 1/2 [00:00<00:00]")
    view.refresh()
    rows = seen.look()
    assert rows[0] == "[0] red"
    assert "━━━━━━━━━━──────────" in rows[-2]
    view.finish(1.0)
    seen.look()
    assert not re.search(rb"\x1b\[[\d;]*[349]\d", seen.bytes)


@pytest.mark.parametrize(
    ("name", "value"),
    [("TERM", "dumb"), ("TERM", ""), ("SKY_VIEW", "lines"), ("stdout", "a pipe"), ("stdout", "latin")],
)
def test_where_nothing_can_be_drawn_there_are_lines(terminals, monkeypatch, name, value):
    seen = terminals()
    assert isinstance(display.run_view("sky", [0]), ConsoleRunView)
    assert isinstance(display.start_view("pool a"), ConsoleStartView)
    if name == "stdout":
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        if value == "latin":
            monkeypatch.setattr(sys, "stdout", os.fdopen(os.dup(seen.stream.fileno()), "w", encoding="latin-1"))
    else:
        monkeypatch.setenv(name, value)
        assert isinstance(display.start_view("pool a"), TerminalStartView)
    assert isinstance(display.run_view("sky", [0]), TerminalRunView)


def test_a_second_run_beside_the_first_prints_lines_above_its_rows(terminals):
    seen = terminals()
    first = display.run_view("first", [0])
    first.refresh()
    second = display.run_view("second", [0])
    assert isinstance(second, TerminalRunView)
    assert not isinstance(second, ConsoleRunView)
    say(second, 0, "of the second\n")
    second.finish(1.0)
    first.refresh()
    assert still(seen.look()) == ["of the second", "", "● first · 1 rank · 0.0 s · running"]
    first.finish(1.0)


# -- starts ----------------------------------------------------------------------------------------


def test_a_start_shows_its_phases_with_how_long_they_usually_take(terminals):
    seen = terminals()
    log = PhaseLog()
    log.clear({"environment": 40.0})
    view = ConsoleStartView("pool demo", log.facts)
    connect = log.begin("connect", "ssh a,b")
    connect.end("done")
    phase = log.begin("environment", "checking what is installed")
    log.say(phase, "Resolved 3 packages")
    view.on_event(PhaseEvent("environment", "Resolved 3 packages", 0.1, usual=40.0))
    view.refresh()
    assert still(seen.look()) == [
        "",
        "● pool demo · starting · 0.0 s",
        "  connect      ● 0.0 s",
        "  environment  ● 0.0 s of about 0.0 s  Resolved 3 packages",
    ]
    assert "of about 40.0 s" in seen.look()[-1]
    view.on_event(NoticeEvent("b cannot be reached"))
    view.refresh()
    assert seen.look()[0] == "pool demo · b cannot be reached"
    view.finish("2 ssh nodes ready")
    assert still(seen.look()) == ["pool demo · b cannot be reached", "● pool demo · 2 ssh nodes ready · 0.0 s"]


def test_a_start_that_fails_keeps_the_phases_in_sight(terminals):
    seen = terminals()
    log = PhaseLog()
    view = ConsoleStartView("pool demo", log.facts)
    phase = log.begin("environment", "checking")
    log.say(phase, "no such package")
    phase.end("failed")
    view.finish("failed", ok=False)
    rows = ["● pool demo · failed · 0.0 s", "  environment  ● 0.0 s  no such package"]
    assert still(seen.look()) == rows


def test_nodes_are_told_by_themselves_where_they_are_known(terminals):
    seen = terminals()

    def facts():
        nodes = [
            {"node": 0, "state": "done", "elapsed": 1.5, "line": "installed"},
            {"node": 1, "state": "on", "elapsed": 2.0, "line": "Downloading jax"},
        ]
        whole = {"phase": "environment", "state": "on", "elapsed": 2.0, "usual": 8.0, "lines": ["a", "b"]}
        return [{**whole, "nodes": nodes}]

    view = ConsoleStartView("pool demo", facts)
    view.on_event(PhaseEvent("environment", "b", 2.0))
    view.refresh()
    assert seen.look()[2:] == [
        "  environment  ● 2.0 s of about 8.0 s",
        "    node 0     ● 1.5 s                 installed",
        "    node 1     ● 2.0 s                 Downloading jax",
    ]
    view.finish("ready")


def test_a_transfer_has_a_bar(terminals):
    seen = terminals()
    view = ConsoleStartView("put data")
    view.on_event(ProgressEvent("data", "data to node 0: 5 of 20 MB", 5, 20))
    view.refresh()
    rows = ["", "● put data · 0.0 s", "  ━━━━━─────────────── data to node 0: 5 of 20 MB"]
    assert still(seen.look()) == rows
    view.finish("there")
    assert still(seen.look()) == ["● put data · there · 0.0 s"]


def test_what_is_the_matter_stays_above_the_rows_whatever_phases_come(terminals):
    seen = terminals()
    view = ConsoleStartView("pool demo")
    view.on_event(PhaseEvent("agent", "starting", 0.1))
    view.on_event(TroubleEvent("the forkserver stands still", about="keeper 7"))
    view.on_event(PhaseEvent("plugins", "starting kernels", 0.1))
    view.refresh()
    assert seen.look()[0] == "pool demo · the forkserver stands still"
    view.on_event(TroubleEvent("", about="keeper 7", over=True))
    view.finish("ready")
    assert still(seen.look()) == ["pool demo · the forkserver stands still", "● pool demo · ready · 0.0 s"]


def test_a_question_is_not_drawn_over(terminals, monkeypatch):
    seen = terminals()
    monkeypatch.setattr(prompts, "can_ask", lambda: True)
    view = ConsoleStartView("pool demo")
    view.on_event(PhaseEvent("connect", "ssh a", 0.1))
    asked = []

    def question() -> str:
        assert seen.look() == []
        print("Passphrase: ", end="", flush=True)
        asked.append(seen.look())
        print()
        return "secret"

    with prompts.person.answering(view.refresh) as tick:
        tick()
        assert still(seen.look()) == ["", "● pool demo · ssh a · 0.0 s"]
        answers: list[str] = []
        thread = threading.Thread(target=lambda: answers.append(prompts.person._ask(question, "")))
        thread.start()
        while not answers:
            tick()
        thread.join()
        tick()
    assert asked == [["Passphrase:"]]
    assert still(seen.look()) == ["Passphrase:", "", "● pool demo · ssh a · 0.0 s"]
    view.finish("ready")
