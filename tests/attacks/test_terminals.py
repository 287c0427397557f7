"""A rank's text obeys nobody's terminal: what it prints, what it raises, what its end and its node's notices say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sky_jupyter.display.terminal.line_view import TerminalRunView, TerminalStartView
from sky_jupyter.node.protocol.journal_events import checked
from sky_jupyter.pool.base.events import NoticeEvent, OutputEvent, PhaseEvent
from sky_jupyter.util.text import cleaned
from tests.attacks.escapes import ESCAPES, HARMLESS, obeyed

BOTH = pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in ESCAPES.items()])


@BOTH
def test_a_text_keeps_its_words_and_nothing_that_a_terminal_obeys(text):
    shown = cleaned(text)
    assert obeyed(shown) == []
    assert "seen" in shown
    assert shown.endswith("end")


@pytest.mark.parametrize("text", HARMLESS)
def test_colours_lines_and_letters_stay(text):
    assert cleaned(text) == text


def test_what_turns_text_around_is_written_out():
    assert cleaned("a\u202eb\u2066") == "a\\u202eb\\u2066"


@BOTH
def test_the_end_of_a_rank_is_clean_in_each_of_its_words(text):
    words = dict.fromkeys(("ename", "evalue", "text", "why", "type", "repr", "unpicklable"), text)
    end = checked({"kind": "end", "rank": 0, "status": "error", **words, "traceback": [text, text], "tail": [text]})
    assert end is not None
    assert obeyed("".join(map(str, end.values()))) == []
    assert all("seen" in end[name] for name in words)
    assert all("seen" in line for line in (*end["traceback"], *end["tail"]))


@BOTH
def test_what_ranks_and_hosts_say_is_clean_in_views_of_lines(text, capsys):
    view = TerminalRunView([0], results=True)
    view.on_event(OutputEvent("run", 0, {"kind": "stream", "name": "stdout", "text": f"{text}\n"}))
    view.on_event(NoticeEvent(text))
    view.finish(1.0)
    start = TerminalStartView("pool p")
    start.on_event(PhaseEvent("environment", text, 0.1, False))
    start.on_event(PhaseEvent("environment", f"{text} again", 0.1, False))
    start.finish("ready")
    said = capsys.readouterr()
    assert obeyed(said.out + said.err) == []
    # What a rank prints moves within its own line: of that, what is left is shown.
    assert said.out.strip()
    assert said.err.count("seen") >= 2


CELL = """
%load_ext sky_jupyter
%sky up --nodes 1
_ = get_ipython().run_cell_magic("sky", "", CODE)
get_ipython().run_cell_magic("sky", "", RAISE)
%sky down
"""


@pytest.mark.slow
def test_what_a_rank_prints_and_raises_is_clean_where_ipython_writes_it(tmp_path: Path):
    printed = f"import json\nfor text in json.loads({json.dumps(json.dumps(list(ESCAPES.values())))}): print(text)"
    everything = json.dumps(json.dumps("\n".join(ESCAPES.values())))
    raised = f"import json\nclass Evil(Exception): pass\nraise Evil(json.loads({everything}))"
    script = tmp_path / "attack.ipy"
    script.write_text(CELL.replace("CODE", repr(printed)).replace("RAISE", repr(raised)))
    command = [sys.executable, "-m", "IPython", "--no-banner", "--colors=Linux", str(script)]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, timeout=300)
    text = done.stdout.decode() + done.stderr.decode()
    assert "CellError" in text
    assert "Evil" in text
    assert obeyed(text) == []
    assert text.count("seen") >= 2 * len(ESCAPES) - 2
