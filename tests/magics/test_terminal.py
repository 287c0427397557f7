"""``%%sky`` in a terminal: IPython on a pseudo-terminal, typed at and interrupted."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator

import pytest

pexpect = pytest.importorskip("pexpect", reason="needs the package pexpect")

PROMPT = r"In \[\d+\]: "


class Terminal:
    """An IPython at its prompt."""

    def __init__(self, folder) -> None:
        command = ["-m", "IPython", "--simple-prompt", "--no-banner", "--HistoryManager.enabled=False"]
        environment = {**os.environ, "IPYTHONDIR": str(folder), "TERM": "xterm-256color", "PYTHON_COLORS": "0"}
        self.process = pexpect.spawn(
            sys.executable, command, env=environment, encoding="utf-8", dimensions=(40, 100), timeout=60
        )
        self.process.expect(PROMPT)

    def type(self, source: str) -> None:
        """Type a cell and press Enter until IPython takes it as finished."""
        for line in source.split("\n"):
            self.process.sendline(line)
        if source.startswith("%%"):
            self.process.sendline("")
            self.process.sendline("")

    def shown(self) -> str:
        """What came until the next prompt, without colours and without what was typed."""
        self.process.expect(PROMPT)
        text = re.sub(r"\x1b\[[\d;]*m", "", self.process.before.replace("\r\n", "\n"))
        return text.rpartition("   ...: \n")[2]

    def run(self, source: str) -> str:
        """Type a cell; what it showed."""
        self.type(source)
        return self.shown()


@pytest.fixture(scope="module")
def terminal(tmp_path_factory) -> Iterator[Terminal]:
    opened = Terminal(tmp_path_factory.mktemp("ipython"))
    opened.run("%load_ext sky_jupyter")
    yield opened
    opened.type("exit")
    opened.process.expect(pexpect.EOF)
    opened.process.close()


def test_a_cell_runs_and_its_lines_are_marked_with_their_ranks(terminal):
    shown = terminal.run(
        "%%sky --nodes 2 --name lines\nprint('same')\nimport sky_jupyter as sky\nsky.instance_info().rank"
    )
    assert "pool lines · starting 2 nodes" in shown
    assert "2 local nodes ready" in shown
    assert re.search(r"\[0-1\] same\n(\[0\] Out: 0\n\[1\] Out: 1|\[1\] Out: 1\n\[0\] Out: 0)\n", shown)
    assert "\x1b" not in shown


def test_a_bar_moves_in_place(terminal):
    shown = terminal.run(
        "%%sky --name bars\nimport sys, time\nfor step in range(4):\n"
        "    sys.stderr.write(f'\\rstep {step}')\n    sys.stderr.flush()\n    time.sleep(0.3)"
    )
    assert re.search(r"step 1\n\x1b\[1A\x1b\[Jstep 2\n", shown)
    assert shown.rstrip().endswith("step 3")


def test_errors_are_short(terminal):
    shown = terminal.run("%%sky --name errors\n1/0")
    assert "CellError: the cell failed on its only rank" in shown
    assert shown.count("ZeroDivisionError: division by zero") == 1
    assert "sky_jupyter" not in shown
    assert "did you mean '--nodes'?" in terminal.run("%%sky --nodez 2\n1")


def test_an_interrupt_reaches_the_ranks(terminal):
    terminal.type("%%sky --name stopped\nimport time\nprint('begun', flush=True)\ntime.sleep(60)")
    terminal.process.expect("\nbegun")
    terminal.process.sendintr()
    assert "KeyboardInterrupt: rank 0 interrupted" in terminal.shown()
    assert "Out: 2" in terminal.run("%%sky --name stopped\n1 + 1")
