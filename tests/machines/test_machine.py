"""What a machine behind SSH does: commands that live or die as asked, files that are whole, nothing shown."""

from __future__ import annotations

import gc
import os
import signal
import stat
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sky_jupyter.errors import LinkLost, MachineError, SpecError
from sky_jupyter.machines.local_machine import LocalMachine
from sky_jupyter.machines.ssh.target import Target
from sky_jupyter.util import process_identity

from .conftest import eventually, need_ssh
from .link import link
from .sshd import Server, serve

TargetOf = Callable[..., Target]


@pytest.fixture
def machine(server: Server, target_of: TargetOf) -> Iterator[Any]:
    from sky_jupyter.machines.ssh.machine import SSHMachine

    with SSHMachine.connect(target_of(server)) as made:
        yield made


def start(machine: Any, folder: Path, *argv: str, **more: Any) -> Any:
    return machine.exec(argv, env=more.pop("env", {}), cwd=str(folder), log=folder / "log", **more)


@pytest.mark.parametrize("survive", [True, False])
def test_a_command_is_told_apart_and_says_all_that_it_says(machine: Any, tmp_path: Path, survive: bool) -> None:
    word = uuid.uuid4().hex
    secret = f'it\'s a "{word}"\nof $two `lines` \\n'
    text = 'printf "%s\\n" "$A"; echo wrong >&2; pwd; read -r x || echo no input; '
    text += "while [ ! -e go ]; do sleep 0.05; done; printf end; exit 7"
    command = start(machine, tmp_path, "sh", "-c", text, env={"A": secret}, survive=survive)
    pid, started = command.identity
    process = psutil.Process(pid)
    assert process_identity.lives(pid, started)
    assert process_identity.started(pid) == started
    assert os.getsid(pid) != os.getsid(0)
    # It is known before the shell that set its variables has given way to it.
    end = time.monotonic() + 60
    while "A" not in process.environ():
        assert time.monotonic() < end
        time.sleep(0.01)
    assert process.environ()["A"] == secret
    seen = " ".join(word for one in psutil.process_iter(["cmdline"]) for word in one.info["cmdline"] or [])
    assert word not in seen
    (tmp_path / "go").touch()
    assert list(command.lines()) == [*secret.split("\n"), str(tmp_path), "no input", "end"]
    assert command.wait(60) == 7
    assert (tmp_path / "log").read_text() == "wrong\n"
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600


@pytest.mark.parametrize("survive", [True, False])
@pytest.mark.parametrize("way", ["terminate", "kill"])
def test_a_command_is_ended_with_its_group(machine: Any, tmp_path: Path, survive: bool, way: str) -> None:
    command = start(machine, tmp_path, "sh", "-c", "sleep 300 & echo $!; wait", survive=survive)
    child = int(next(command.lines()))
    with pytest.raises(TimeoutError):
        command.wait(0.1)
    getattr(command, way)()
    number = signal.SIGTERM if way == "terminate" else signal.SIGKILL
    assert command.wait(60) == -number
    eventually(lambda: not psutil.pid_exists(child))
    command.kill()  # again is no error


@pytest.mark.parametrize("script", ["sleep 300 & echo $!; wait", "sleep 300 & echo $!"], ids=["waits", "has ended"])
def test_a_command_of_this_machine_is_killed_with_its_children(tmp_path: Path, script: str) -> None:
    command = start(LocalMachine(), tmp_path, "sh", "-c", script)
    lines = command.lines()
    child = int(next(lines))
    command.kill()
    # They have its output, and do not hold that open.
    assert list(lines) == []
    assert command.wait(60) in (0, -signal.SIGKILL)
    eventually(lambda: not psutil.pid_exists(child))
    command.kill()  # again is no error


def test_a_command_may_end_in_its_own_way_when_asked(machine: Any, tmp_path: Path) -> None:
    for survive in (True, False):
        text = 'trap "echo bye; exit 3" TERM; echo on; while :; do sleep 0.1; done'
        command = start(machine, tmp_path, "sh", "-c", text, survive=survive)
        lines = command.lines()
        assert next(lines) == "on"
        command.terminate()
        assert list(lines) == ["bye"]
        assert command.wait(60) == 3


@pytest.mark.parametrize("how", ["close", "crash", "cut"])
@pytest.mark.parametrize("survive", [True, False])
def test_a_command_lives_or_dies_with_the_connection_as_asked(
    server: Server, target_of: TargetOf, tmp_path: Path, how: str, survive: bool
) -> None:
    from sky_jupyter.machines.ssh.machine import SSHMachine

    with link(server.port) as between, SSHMachine.connect(target_of(server, port=between.port)) as machine:
        text = f"while :; do echo x || echo failed >{tmp_path}/failed; sleep 0.1; done"
        command = start(machine, tmp_path, "sh", "-c", text, survive=survive)
        pid, started = command.identity
        {"close": machine.close, "crash": server.kill_sessions, "cut": between.cut}[how]()
        if survive:
            with pytest.raises(LinkLost):
                command.wait(60)
            # It goes on printing, and nothing of that fails.
            time.sleep(1.0)
            assert process_identity.lives(pid, started)
            assert not (tmp_path / "failed").exists()
            with SSHMachine.connect(target_of(server)) as again:
                process = again.process((pid, started))
                assert process.alive
                assert again.process((pid, started + 1)).alive is False
                again.process((pid, started + 1)).kill()
                assert process.alive
                process.terminate()
                assert process.wait(60) == 0
        else:
            eventually(lambda: not process_identity.lives(pid, started))


@pytest.mark.parametrize(
    ("argv", "cwd", "log", "told"),
    [
        (["no-such-program"], "", "log", "no-such-program: not found"),
        (["true"], "nowhere", "log", "can't cd|No such file"),
        (["true"], "", "nowhere/log", "nowhere"),
    ],
)
def test_a_command_that_cannot_start_says_why(
    machine: Any, tmp_path: Path, argv: list[str], cwd: str, log: str, told: str
) -> None:
    with pytest.raises(MachineError, match=told):
        machine.exec(argv, env={}, cwd=str(tmp_path / cwd), log=tmp_path / log)


def test_what_no_command_can_have_is_refused_before_it_is_sent(machine: Any, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="zero byte"):
        start(machine, tmp_path, "echo", "a\0b")
    with pytest.raises(SpecError, match="not a valid name"):
        start(machine, tmp_path, "true", env={"A;reboot": "x"})


@pytest.mark.parametrize("path", ["a", "deep/er/b c", "it's", "$HOME", "-rf", "new\nline", "ünï", "*", "a\\b"])
def test_a_file_is_written_for_its_user_only(machine: Any, tmp_path: Path, path: str) -> None:
    data = os.urandom(200_000)
    machine.put({tmp_path / path: data})
    assert (tmp_path / path).read_bytes() == data
    assert stat.S_IMODE((tmp_path / path).stat().st_mode) == 0o600
    for folder in (tmp_path / path).parents:
        if folder == tmp_path:
            break
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [name for name in os.listdir((tmp_path / path).parent) if "sky-" in name] == []


def test_several_files_are_written_at_once(machine: Any, tmp_path: Path) -> None:
    files = {tmp_path / f"{number}" / "file": os.urandom(number * 1000) for number in range(20)}
    machine.put(files)
    assert {path: path.read_bytes() for path in files} == files
    machine.put({})


def test_a_file_that_cannot_be_written_leaves_the_old_one_and_runs_nothing(machine: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    evil = f"touch {tmp_path}/evil\n".encode() * 20_000
    with pytest.raises(MachineError, match="could not be written"):
        machine.put({tmp_path / "file" / "below": evil})
    with pytest.raises(MachineError) as caught:
        machine.put({Path("/proc/nowhere/file"): evil})
    assert caught.value.reason in ("command", "denied", "read-only")
    machine.put({tmp_path / "file": b"new"})
    assert (tmp_path / "file").read_text() == "new"
    assert not (tmp_path / "evil").exists()


@pytest.mark.root
def test_a_full_disk_is_said_to_be_full(machine: Any, tmp_path: Path) -> None:
    if os.getuid():
        pytest.skip("needs root, to mount a small file system")
    import subprocess

    small = tmp_path / "small"
    small.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(small)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs to mount a file system: {done.stderr.strip()}")
    try:
        with pytest.raises(MachineError) as caught:
            machine.put({small / "file": os.urandom(3_000_000)})
        assert caught.value.reason == "full"
        assert "make room" in str(caught.value)
        assert os.listdir(small) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_shell_runs_one_script_after_another(machine: Any, tmp_path: Path) -> None:
    assert (machine.run("echo a; echo b >&2").out, machine.run("exit 5").status) == (b"a\nb\n", 5)
    assert machine.run("cd /; x=1; pwd").out == b"/\n"
    assert machine.run('echo "${x:-gone}"').out == b"gone\n"
    assert machine.run("cat").out == b""
    with pytest.raises(TimeoutError):
        machine.run("sleep 60", timeout=1)
    assert machine.run("printf 'no end'").out == b"no end"
    assert machine.run("head -c 3", stdin=[b"abc"]).out == b"abc"


def test_a_login_that_says_much_is_not_taken_for_an_answer(target_of: TargetOf, tmp_path: Path) -> None:
    need_ssh()
    from sky_jupyter.machines.ssh import file_transfer
    from sky_jupyter.machines.ssh.machine import SSHMachine

    noise = tmp_path / "noise"
    noise.write_text('echo "welcome to sky-0 $$"; printf half; exec ${SHELL:-/bin/sh} -c "$SSH_ORIGINAL_COMMAND"\n')
    with (
        serve(tmp_path / "sshd", f"ForceCommand /bin/sh {noise}") as server,
        SSHMachine.connect(target_of(server)) as machine,
    ):
        command = start(machine, tmp_path, "echo", "real")
        assert list(command.lines()) == ["real"]
        assert command.wait(60) == 0
        machine.put({tmp_path / "put": b"x" * 1000})
        assert machine.run("echo clean").out == b"clean\n"
        file_transfer.download(machine, tmp_path / "put", tmp_path / "back")
        assert (tmp_path / "back").read_bytes() == b"x" * 1000


def test_a_machine_says_which_it_is(machine: Any, server: Server) -> None:
    assert machine.key == f"ssh {server.user}@127.0.0.1:{server.port}"
    assert machine.address == "127.0.0.1"


def test_a_command_of_this_machine_that_nobody_holds_is_reaped_and_nothing_is_warned_of(tmp_path: Path) -> None:
    machine = LocalMachine()
    gc.collect()  # what earlier tests of this process left is theirs
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pid, _ = start(machine, tmp_path, "sh", "-c", "while [ ! -e go ]; do sleep 0.05; done").identity
        gc.collect()
        (tmp_path / "go").touch()
        eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
        assert start(machine, tmp_path, "true").wait() == 0
        assert not psutil.pid_exists(pid)
        gc.collect()
    told = [str(one.message) for one in caught if one.category is ResourceWarning]
    assert [one for one in told if "subprocess" in one] == []
