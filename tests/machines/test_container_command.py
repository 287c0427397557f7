"""The own command of a container that is made for a pool, in each shell that is here."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sky_jupyter.machines import container_command, power_watchdog
from sky_jupyter.node.host.power_file import PowerFile, uptime

from .conftest import eventually

SHELLS = {"dash": ["dash"], "bash": ["bash", "--posix"], "busybox": ["busybox", "sh"]}
Begin = Callable[..., "subprocess.Popen[str]"]
ENDED = "sky: its pool has ended, or does not have this node any more"


@pytest.fixture(params=[name for name in SHELLS if shutil.which(name)])
def shell(request: pytest.FixtureRequest) -> list[str]:
    return SHELLS[request.param]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The power file, whose folder is not there yet."""
    return tmp_path / "home" / "life" / "power"


@pytest.fixture
def begin(shell: list[str], file: Path) -> Iterator[Begin]:
    """Start the script, and wait until it has made its file; nothing is in its PATH but what it says it needs."""
    started: list[subprocess.Popen[str]] = []
    tools = file.parents[1].with_name("bin")
    tools.mkdir()
    for name in ("sleep", "mkdir"):
        (tools / name).symlink_to(str(shutil.which(name)))

    def start(until: float | None = None, grace: float = 3600.0) -> subprocess.Popen[str]:
        words = container_command.command(until, file=str(file), grace=grace, pause=0.05)
        assert words[:2] == ["/bin/sh", "-c"]
        argv = [str(shutil.which(shell[0])), *shell[1:], *words[1:]]
        out, err = subprocess.PIPE, subprocess.STDOUT
        # No shell can trap what was ignored before it began, as background jobs have it.
        argv = [str(shutil.which("env")), "--default-signal=QUIT", *argv]
        made = subprocess.Popen(argv, stdout=out, stderr=err, text=True, env={"PATH": str(tools)})
        started.append(made)
        return made

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def last_word(process: subprocess.Popen[str]) -> tuple[str, int]:
    """Wait for the end; the last line that was said, and the status."""
    said, _ = process.communicate()
    return said.splitlines()[-1], process.returncode


def test_a_container_that_nobody_uses_ends_as_done_and_says_why(begin: Begin) -> None:
    said, status = last_word(begin(grace=1))
    assert (status, "nobody has used it for the time of its lease" in said) == (0, True), said


def test_a_container_whose_pool_has_ended_ends_as_done(begin: Begin, file: Path) -> None:
    process = begin()
    eventually(file.exists)
    PowerFile(str(file)).give_up()
    assert last_word(process) == (ENDED, 0)


def test_a_container_that_was_given_up_does_not_wait_again_when_it_is_restarted(begin: Begin, file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("0\n")
    assert last_word(begin()) == (ENDED, 0)


def test_a_container_that_is_given_up_before_it_has_made_its_file_ends_as_done(begin: Begin, file: Path) -> None:
    mkdir = file.parents[1].with_name("bin") / "mkdir"
    real = os.readlink(mkdir)
    mkdir.unlink()
    mkdir.write_text(f'#!/bin/sh\n{real} "$@" && echo 0 > {file}\n')
    mkdir.chmod(0o755)
    assert last_word(begin()) == (ENDED, 0)


def test_a_container_that_is_restarted_has_its_grace_again(begin: Begin, file: Path) -> None:
    file.parent.mkdir(parents=True)
    # That was after another boot of the machine, or before it.
    file.write_text(f"{int(uptime()) + 10**8}\n")
    begin(grace=100)
    eventually(lambda: 50 < int(file.read_text() or "0") - uptime() <= 101)


def test_a_container_ends_at_its_deadline_whatever_its_file_says(begin: Begin, file: Path) -> None:
    process = begin(until=time.time() + 0.5)
    eventually(file.exists)
    PowerFile(str(file)).keep(1e6)
    said, status = last_word(process)
    assert (status, "deadline" in said) == (0, True), said


@pytest.mark.parametrize("shell", [["sh"]])
def test_a_container_stays_as_long_as_its_file_says(begin: Begin, file: Path) -> None:
    process = begin(grace=2)
    began = uptime()
    eventually(file.exists)
    # Both who write the file: the host process, and who prepares the machine.
    PowerFile(str(file)).keep(1000.0)
    subprocess.run(["sh", "-c", power_watchdog.keep_line(str(file), 500)], check=True)
    eventually(lambda: uptime() > began + 2.1)
    file.unlink()
    eventually(lambda: uptime() > began + 2.3)
    assert process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_a_container_that_is_evicted_ends_at_once_and_does_not_seem_to_be_done(
    begin: Begin, file: Path, number: signal.Signals
) -> None:
    process = begin()
    eventually(file.exists)
    process.send_signal(number)
    assert last_word(process) == ("sky: this container was told to end (TERM)", 143)


def test_a_container_that_has_no_place_to_write_says_so(shell: list[str]) -> None:
    words = container_command.command(None, file="/proc/none/life/power")
    done = subprocess.run([*shell, *words[1:]], capture_output=True, text=True, check=False)
    assert (done.returncode, "cannot write /proc/none/life/power" in done.stdout) == (1, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="a process namespace needs root")
def test_the_first_process_of_a_container_reaps_what_others_leave_and_can_be_ended(
    shell: list[str], file: Path
) -> None:
    words = container_command.command(None, file=str(file), pause=0.05)
    space = ["unshare", "--pid", "--mount-proc", "--fork", "--kill-child"]
    with subprocess.Popen([*space, *shell, *words[1:]], stdout=subprocess.PIPE, text=True) as process:
        try:
            eventually(file.exists)
            first = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
            # Orphans of commands that were started in the container, whose streams have been cut.
            orphan = f"{sys.executable} -c 'import os; os.fork() or os._exit(0)' & exit"
            enter = ["nsenter", f"--target={first}", "--pid", "--mount", "--", "sh", "-c", orphan]
            for _ in range(3):
                subprocess.run(enter, check=True)
            children = Path(f"/proc/{first}/task/{first}/children")
            eventually(lambda: len(children.read_text().split()) <= 1)
            os.kill(first, signal.SIGTERM)
            assert process.wait() == 143
        finally:
            process.kill()


def test_an_order_that_is_sent_again_has_the_same_command_which_no_cluster_rewrites() -> None:
    words = container_command.command(1e9, file="/sky/power", grace=60)
    assert words == container_command.command(1e9, file="/sky/power", grace=60)
    assert words[-3:] == ["60", "1000000000", "1"]
    # Kubernetes has $$ and $(NAME) replaced in commands.
    script = words[2].replace("$((", "")
    assert "$$" not in script
    assert "$(" not in script
