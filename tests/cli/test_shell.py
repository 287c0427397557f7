"""`sky-jupyter shell` in a terminal: the node of a rank, beside the notebook that manages the pool."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import psutil
import pytest

from sky_jupyter.cli.main import main
from tests.magics.notebook import Notebook, notebook
from tests.pool.pools import wait_until

NAME = "with-shells"
SLEEP = f"sleep {10**6 + os.getpid()}"
PROMPT = r"\(rank 1\) "


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with notebook(tmp_path_factory.mktemp("notebook")) as book:
        cell = book.run(f"%load_ext sky_jupyter\n%sky up --nodes 2 --name {NAME}")
        assert cell.status == "ok", cell.outputs
        book.run("%%sky\nimport os\nos.environ['MINE'] = 'of the rank'")
        yield book
        book.run("%sky down")


def opened(*words: str) -> pexpect.spawn[str]:
    environment = {**os.environ, "TERM": "xterm", "SHELL": "/bin/bash"}
    command = ["-m", "sky_jupyter", "shell", NAME, "1", *words]
    return pexpect.spawn(sys.executable, command, env=environment, timeout=60, encoding="utf-8", dimensions=(30, 100))


def _sleeps() -> bool:
    return any(one.info["cmdline"] == SLEEP.split() for one in psutil.process_iter(["cmdline"]))


def test_a_shell_is_as_on_the_node_and_its_end_is_the_programs(book: Notebook) -> None:
    shell = opened()
    try:
        shell.expect(PROMPT)
        shell.sendline("echo $MINE, $SKY_RANK; stty size")
        shell.expect("of the rank, 1\r\n30 100\r\n")
        shell.expect(PROMPT)
        shell.setwinsize(40, 132)
        # The size is on its way: the shell's own variable follows at the next prompt.
        while shell.sendline("stty size") and shell.expect(["40 132", "30 100"]):
            shell.expect(PROMPT)
        shell.expect(PROMPT)
        shell.sendline(f"echo begun; {SLEEP}")
        shell.expect("begun\r\n")
        shell.sendintr()
        shell.expect(PROMPT)
        shell.sendline("echo ended by $?")
        shell.expect("ended by 130")
        shell.sendline("exit 5")
        shell.expect(pexpect.EOF)
    finally:
        shell.close(force=True)
    assert shell.exitstatus == 5
    assert not _sleeps()


def test_it_works_while_a_cell_runs_and_is_gone_with_the_persons_terminal(book: Notebook, tmp_path: Path) -> None:
    go = tmp_path / "go"
    book.run(f"%%sky --detach\nimport os, time\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.05)")
    shell = opened()
    try:
        # What is typed before the shell is there is not lost.
        shell.sendline(f"echo $MINE; {SLEEP} & {SLEEP}")
        shell.expect("of the rank\r\n")
        wait_until(_sleeps)
        shell.kill(signal.SIGHUP)
        shell.expect("ended by SIGHUP")
        shell.expect(pexpect.EOF)
    finally:
        shell.close(force=True)
        go.touch()
        book.run("%sky wait")
    assert shell.exitstatus == 255
    wait_until(lambda: not _sleeps())


def test_a_command_needs_no_terminal_and_its_status_is_passed_on(book: Notebook) -> None:
    words = [sys.executable, "-m", "sky_jupyter", "shell", NAME, "0", "--", "echo $SKY_RANK; exit 7"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (7, "0\n", "")


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        ([NAME, "0"], 1, "a shell needs a terminal"),
        ([NAME, "7", "--", "true"], 1, f"pool '{NAME}' has ranks 0 to 1, not 7"),
        (["nothing", "0", "--", "true"], 1, "no pool 'nothing' is running"),
        ([NAME, "one"], 2, "'one' is not a rank"),
        ([], 2, "the following arguments are required: POOL"),
    ],
)
def test_what_cannot_be_opened_is_told_in_a_line(
    book: Notebook, capsys: pytest.CaptureFixture[str], words: list[str], status: int, told: str
) -> None:
    try:
        found = main(["shell", *words])
    except SystemExit as end:
        found = int(str(end.code))
    assert (found, told in capsys.readouterr().err) == (status, True)
