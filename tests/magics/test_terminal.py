"""``%%sky`` in a terminal: IPython on a pseudo-terminal, typed at and interrupted."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator

import pytest

pexpect = pytest.importorskip("pexpect", reason="needs the package pexpect")
pytest.importorskip("pyte", reason="needs the package pyte")

from tests.display.screens import Emulator  # noqa: E402 - it needs pyte

PROMPT = r"In \[\d+\]: "
COLUMNS, LINES = 100, 40


class Terminal:
    """An IPython at its prompt."""

    def __init__(self, folder, *, simple: bool = True) -> None:
        command = [
            "-m",
            "IPython",
            *(["--simple-prompt"] if simple else []),
            "--no-banner",
            "--HistoryManager.enabled=False",
        ]
        environment = {**os.environ, "IPYTHONDIR": str(folder), "TERM": "xterm-256color", "PYTHON_COLORS": "0"}
        for name in ("NO_COLOR", "SKY_VIEW", "COLUMNS", "LINES"):
            environment.pop(name, None)
        self.process = pexpect.spawn(
            sys.executable,
            command,
            env=environment,
            encoding="utf-8",
            dimensions=(LINES, COLUMNS),
            timeout=60,
            cwd=folder,
        )
        self.emulator, self.folder = Emulator(COLUMNS, LINES), folder
        self.process.logfile_read = self
        if simple:
            self.process.expect(PROMPT)

    def write(self, text: str) -> None:
        """What came goes to the emulator, too."""
        self.emulator.feed(text.encode())

    def flush(self) -> None:
        """As files do."""

    def type(self, source: str) -> None:
        """Type a cell and press Enter until IPython takes it as finished."""
        for line in source.split("\n"):
            self.process.sendline(line)
        if source.startswith("%%"):
            self.process.sendline("")
            self.process.sendline("")

    def shown(self) -> str:
        """What a person sees at the next prompt: the lines since what was typed, those that scrolled away too."""
        self.process.expect(PROMPT)
        text = "\n".join(self.emulator.all)
        typed = [match.end() for match in re.finditer(r"^(In \[\d+\]:|   \.\.\.:).*\n", text, re.MULTILINE)]
        # The last is the prompt that has just come.
        return text[typed[-1] :].rpartition("\nIn [")[0].rstrip()

    def pressed_until(self, key: str, pattern: str) -> None:
        """Press a key until the screen has this on it: on a busy machine a rank may be late."""
        for _ in range(60):
            self.process.send(key)
            with contextlib.suppress(AssertionError):
                self.seen(pattern, seconds=1)
                return
        raise AssertionError("\n".join(self.emulator.shown))

    def seen(self, pattern: str, seconds: float = 60) -> list[str]:
        """Wait until the screen, as it is just then, has this on it; its rows."""
        end = time.monotonic() + seconds
        while not re.search(pattern, "\n".join(self.emulator.shown), re.MULTILINE):
            assert time.monotonic() < end, self.emulator.shown
            with contextlib.suppress(pexpect.TIMEOUT):
                self.process.read_nonblocking(4096, timeout=0.2)
        return self.emulator.shown

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
    try:
        opened.process.expect(pexpect.EOF)
    finally:
        opened.process.close(force=True)


def test_a_cell_runs_and_its_lines_are_marked_with_their_ranks(terminal):
    shown = terminal.run(
        "%%sky --nodes 2 --name lines\nprint('same')\nimport sky_jupyter as sky\nsky.instance_info().rank"
    )
    first, *rest = shown.splitlines()
    assert re.fullmatch(r"● pool lines · 2 local nodes ready · \d+\.\d s", first)
    # Ranks that are not heard of at the same time have equal lines of their own.
    for rank in (0, 1):
        own = [line.partition("] ")[2] for line in rest if line.startswith((f"[{rank}]", "[0-1]"))]
        assert own == ["same", f"Out: {rank}"]


@pytest.mark.slow
def test_what_each_rank_is_at_stands_below_its_lines(terminal):
    terminal.type(
        "%%sky --nodes 2 --name live\nimport pathlib, sys, time\nimport sky_jupyter as sky\n"
        "rank = sky.instance_info().rank\nprint('line of', rank)\n"
        "sys.stderr.write(f'{50 * rank}%|xx| {rank}/2 [00:01<00:01]')\nsys.stderr.flush()\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.05)\nsys.stderr.write('\\n')\nprint('end of', rank)"
    )
    rows = terminal.seen(r"(?s)(?=.*\[0\] line of 0\n)(?=.*\[1\] line of 1\n).*rank 0  ● .* 0/2 .*rank 1  ● .* 1/2 ")
    header = next(
        index for index, row in enumerate(rows) if re.search(r"● sky · live · 2 ranks · [\d.]+ s · running", row)
    )
    assert rows.index("[1] line of 1") < header
    assert rows[header + 2].split() == ["rank", "1", "●", "━" * 10 + "─" * 10, "1/2", "00:01<00:01"]
    (terminal.folder / "go").touch()
    shown = terminal.shown().splitlines()
    lines = ["[0] 0%|xx| 0/2 [00:01<00:01]", "[0] end of 0", "[0] line of 0"]
    assert sorted(line for line in shown if line.startswith("[0]")) == lines
    assert re.fullmatch(r"● sky · live · 2 ranks · [\d.]+ s · done", shown[-1])
    assert sum("sky · live" in row for row in terminal.emulator.all) == 1


def test_errors_are_short(terminal):
    shown = terminal.run("%%sky --nodes 1 --name errors\n1/0")
    assert "CellError: the cell failed on its only rank" in shown
    # Where it took longer, the row of its rank says so too.
    assert len(re.findall(r"(?m)^ZeroDivisionError: division by zero", shown)) == 1
    assert "sky_jupyter" not in shown
    assert "did you mean '--nodes'?" in terminal.run("%%sky --nodez 2\n1")


def test_an_interrupt_reaches_the_ranks(terminal):
    terminal.type("%%sky --nodes 1 --name stopped\nimport time\nprint('begun', flush=True)\ntime.sleep(60)")
    terminal.seen(r"(?m)^begun\n\n● sky · stopped · 1 rank · .* running")
    terminal.process.sendintr()
    shown = terminal.shown()
    assert "KeyboardInterrupt: rank 0 interrupted" in shown
    assert re.search(r"(?m)^begun\n● sky · stopped · 1 rank · [\d.]+ s · interrupted$", shown)
    assert "Out: 2" in terminal.run("%%sky --name stopped\n1 + 1")


@pytest.mark.slow
def test_tab_knows_the_names_of_the_nodes_and_a_question_shows_them(tmp_path):
    # Enter alone may go to the next line; after Escape it runs the cell.
    run = "\x1b\r"
    opened = Terminal(tmp_path, simple=False)
    try:
        opened.seen(r"In \[1\]")
        opened.process.send(f"%load_ext sky_jupyter{run}")
        opened.seen(r"In \[2\]")
        opened.process.send(f"%%sky --nodes 1 --name tab\rvars()['model' + '_there'] = [1]{run}")
        opened.seen(r"In \[3\]")
        opened.process.send("%%sky\rmodel_th")
        opened.pressed_until("\t", r"model_there$")
        opened.process.send(".appe")
        opened.pressed_until("\t", r"model_there\.append$")
        opened.process.send(run)
        opened.seen(r"Out: <function list\.append")
        opened.seen(r"In \[4\]")
        opened.process.send(f"%%sky\rmodel_there?{run}")
        opened.seen(r"String form: \[1\]")
        opened.seen(r"In \[5\]")
        opened.process.send(f"exit{run}")
        opened.process.expect(pexpect.EOF)
    finally:
        opened.process.close(force=True)
