"""Odd logins do not keep a node from running, or they are named with what mends them."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest

from sky_jupyter.bootstrap import host_probe
from sky_jupyter.errors import BootstrapError, LoginRefused, MachineError, SpecError, Unreachable
from sky_jupyter.machines.ssh import persistent_shell, ssh_config
from sky_jupyter.machines.ssh.machine import SSHMachine
from sky_jupyter.machines.ssh.session import Access, connect
from sky_jupyter.machines.ssh.target import Target
from sky_jupyter.machines.ssh.types import Prompts
from tests.attacks.logins import login
from tests.machines.conftest import need_ssh, target_of
from tests.machines.sshd import keygen

TargetOf = Callable[..., Target]
MINOR = f"{sys.version_info[0]}.{sys.version_info[1]}"
__all__ = ["target_of"]


@pytest.fixture(autouse=True)
def _ssh() -> None:
    need_ssh()


HARMLESS = {
    "another interpreter's home": ("export PYTHONHOME=/opt/python", ()),
    "another interpreter's home, of sshd's": ("", ("SetEnv PYTHONHOME=/opt/python SHLVL=1",)),
    "no tools on the path": ("export PATH=/nonexistent", ()),
    "no path": ("unset PATH", ()),
    "a umask that keeps the user out": ("umask 777", ()),
    "a banner": ("head -c 300000 /dev/zero | tr '\\0' x; echo", ()),
}


@pytest.mark.parametrize("kind", HARMLESS)
def test_a_node_runs_in_spite_of(kind: str, tmp_path: Path, target_of: TargetOf) -> None:
    before, options = HARMLESS[kind]
    with login(tmp_path / "sshd", before, *options) as server, SSHMachine.connect(target_of(server)) as machine:
        assert host_probe.look(machine, MINOR, "0.0.0", {}).home
        path = PurePosixPath(tmp_path / "made" / "note")
        machine.put({path: b"written"})
        argv = [sys.executable, "-c", f"print(open({str(path)!r}).read())"]
        command = machine.exec(argv, env={}, cwd="/", log=PurePosixPath(tmp_path / "log"))
        assert list(command.lines()) == ["written"]
        assert command.wait(60) == 0


REFUSED = {
    "no shell": (
        "echo 'This account is currently not available.'; exit 1",
        (),
        r"runs no /bin/sh for this user: give it a login shell, .*it said: This account is currently not available\.\)",
    ),
    "one command only": (
        "",
        ("ForceCommand echo 'This service allows sftp connections only.'",),
        r"it said: This service allows sftp connections only\.",
    ),
    "a reason on standard error": ("echo 'no quota left' >&2; exit 1", (), r"it said: no quota left"),
    "nothing": ("exit 1", (), r"it said nothing"),
    "no sessions": ("", ("MaxSessions 0",), r"refused another command: .* set MaxSessions 10 there"),
    "few files": ("ulimit -n 32", (), r"may open 32 files there, and nodes need 64: raise it \(`ulimit -n`"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused_says_what_the_host_said_and_what_to_do(kind: str, tmp_path: Path, target_of: TargetOf) -> None:
    before, options, text = REFUSED[kind]
    with login(tmp_path / "sshd", before, *options) as server, SSHMachine.connect(target_of(server)) as machine:
        with pytest.raises((MachineError, BootstrapError), match=text):
            host_probe.look(machine, MINOR, "0.0.0", {})


def test_a_login_that_reads_what_comes_after_it_is_named(
    tmp_path: Path, target_of: TargetOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persistent_shell, "_BEGIN_PATIENCE", 2.0)
    with login(tmp_path / "sshd", "read answer") as server, SSHMachine.connect(target_of(server)) as machine:
        with pytest.raises(MachineError, match=r"in 2 s: a file that its logins run \(~/\.bashrc, .* may wait"):
            machine.run("true")


def test_each_session_beyond_what_a_host_allows_says_how_many_are_needed(tmp_path: Path, target_of: TargetOf) -> None:
    with login(tmp_path / "sshd", "", "MaxSessions 1") as server, SSHMachine.connect(target_of(server)) as machine:
        assert machine.run("echo first").out == b"first\n"
        with pytest.raises(MachineError, match="set MaxSessions 10 there"):
            machine.session.run("echo second")


# The user's own configuration, which names programs to run.


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SKY_SSH_CONFIG", raising=False)
    folder = tmp_path / ".ssh"
    folder.mkdir(mode=0o700)
    return folder


@pytest.mark.parametrize("name", ["config", "included"])
@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
def test_a_configuration_that_others_can_write_runs_nothing(home: Path, mode: int, name: str) -> None:
    ran = home / "ran"
    (home / "config").write_text("Include included\n")
    (home / "included").write_text("")
    with open(home / name, "a") as file:
        file.write(f'Match exec "touch {ran}"\n  User me\n')
    assert ssh_config.lookup("host").get("user") == "me"
    ran.unlink()
    (home / name).chmod(mode)
    with pytest.raises(SpecError, match=rf"others can write .*/{name}, so it is not used: chmod go-w it"):
        ssh_config.lookup("host")
    assert not ran.exists()


@pytest.mark.root
def test_a_configuration_of_another_user_runs_nothing(home: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root, to give a file to another user")
    (home / "config").write_text("Match exec true\n  User me\n")
    os.chown(home / "config", 12345, 0)
    with pytest.raises(SpecError, match="belongs to another user, so it is not used: chown it to you"):
        ssh_config.lookup("host")


def test_a_file_that_is_named_in_particular_is_the_persons_choice(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = home / "named"
    named.write_text("Host host\n  User me\n")
    named.chmod(0o666)
    monkeypatch.setenv("SKY_SSH_CONFIG", str(named))
    assert ssh_config.lookup("host").get("user") == "me"


def test_two_hosts_with_one_key_are_told_the_same_of_its_passphrase(tmp_path: Path, target_of: TargetOf) -> None:
    key = keygen(tmp_path / "closed", passphrase="right")
    access = Access.of(prompts=Prompts(passphrase=lambda path, attempt: "wrong"))
    with login(tmp_path / "sshd") as server:
        for _ in range(2):
            with pytest.raises(LoginRefused, match="needs its passphrase, and was given no right one"):
                connect(target_of(server, keys=(str(key),)), access)


def test_a_proxy_command_that_fails_says_how_it_ended(tmp_path: Path, target_of: TargetOf) -> None:
    with login(tmp_path / "sshd") as server:
        with pytest.raises(Unreachable, match=r"its ProxyCommand made no connection \(it ended with status 3\)"):
            connect(target_of(server, proxy_command="sh -c 'exit 3'"))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("sky-ssh-")]
