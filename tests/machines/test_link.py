"""The link: what a machine does over it, what becomes of breaks, who is let in, and when it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from sky_jupyter.errors import (
    HostKeyError,
    LinkLost,
    LoginRefused,
    MachineError,
    PoolError,
    SkyError,
    SpecError,
    Unreachable,
)
from sky_jupyter.machines.link import encoding, framing, socket_folder
from sky_jupyter.machines.link.client import Link
from sky_jupyter.machines.link.encoding import Event
from sky_jupyter.machines.link.machine import LinkMachine
from sky_jupyter.machines.ssh.known_hosts import Unknown
from sky_jupyter.machines.ssh.target import Target
from sky_jupyter.machines.ssh.types import Prompts
from sky_jupyter.util import process_identity
from tests.ports import free_port

from .conftest import eventually, need_ssh
from .link import link as relay
from .sshd import Server, keygen, serve

TargetOf = Callable[..., Target]
PATIENCE = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where a link may be; none is left there, and none of its processes."""
    need_ssh()
    where = tmp_path / "link"
    yield where
    for process in link_processes(where):
        process.kill()
        pytest.fail(f"the link's process is left: {process}")
    assert not where.exists()


@pytest.fixture
def link(folder: Path) -> Iterator[Link]:
    made = Link.start(folder)
    try:
        yield made
    finally:
        made.end()


@pytest.fixture
def machine(link: Link, server: Server, target_of: TargetOf) -> LinkMachine:
    return link.connect(target_of(server))


def link_processes(folder: Path) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if {str(folder), "sky_jupyter.machines.link"} <= set(process.info["cmdline"] or [])
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def one_process(folder: Path) -> psutil.Process:
    (process,) = link_processes(folder)
    return process


class Echo:
    """A server that sends back what it is sent, on a port of this machine."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True, name="echo").start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True, name="echo").start()

    def _serve(self, near: socket.socket) -> None:
        with contextlib.suppress(OSError), near:
            while data := near.recv(1 << 16):
                near.sendall(data)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.close()


def call(port: int, data: bytes = b"hello", timeout: float = PATIENCE) -> bytes:
    """What an echo says through a port; empty where it is refused."""
    try:
        near = socket.create_connection(("127.0.0.1", port), timeout)
    except ConnectionResetError:
        # Refused before this end has seen that it was taken.
        return b""
    with near as made:
        try:
            made.sendall(data)
            made.shutdown(socket.SHUT_WR)
            parts = []
            while part := made.recv(1 << 16):
                parts.append(part)
            return b"".join(parts)
        except ConnectionError:
            return b""


# What a machine does


def test_a_machine_over_the_link_does_what_one_does_without(machine: LinkMachine, tmp_path: Path) -> None:
    secret = 'it\'s a "secret"\nof $two'
    text = 'printf "%s\\n" "$A"; echo wrong >&2; pwd; while [ ! -e go ]; do sleep 0.05; done; printf end; exit 7'
    command = machine.exec(["sh", "-c", text], env={"A": secret}, cwd=str(tmp_path), log=tmp_path / "log")
    assert process_identity.lives(*command.identity)
    with pytest.raises(TimeoutError):
        command.wait(0.01)
    (tmp_path / "go").touch()
    assert list(command.lines()) == [*secret.split("\n"), str(tmp_path), "end"]
    assert command.wait(PATIENCE) == command.wait() == 7
    assert (tmp_path / "log").read_text() == "wrong\n"
    done = machine.run("head -c 3000000; echo no >&2; exit 3", stdin=[os.urandom(3_000_000)])
    assert (done.status, len(done.out), done.out[-3:]) == (3, 3_000_003, b"no\n")
    assert machine.run("cd /; x=1; pwd").out == b"/\n"
    data = os.urandom(1_000_000)
    assert machine.run("head -c 1000000", stdin=(data[at : at + 1000] for at in range(0, len(data), 1000))).out == data
    files = {tmp_path / "a" / str(number): os.urandom(number * 100_000) for number in range(10)}
    machine.put(files)
    assert {path: path.read_bytes() for path in files} == files
    assert stat.S_IMODE((tmp_path / "a" / "1").stat().st_mode) == 0o600
    machine.put({})


@pytest.mark.parametrize("way", ["terminate", "kill"])
def test_a_command_over_the_link_is_ended_with_its_group(machine: LinkMachine, tmp_path: Path, way: str) -> None:
    text = "sleep 300 & echo $!; wait"
    command = machine.exec(["sh", "-c", text], env={}, cwd=str(tmp_path), log=tmp_path / "log")
    child = int(next(command.lines()))
    getattr(command, way)()
    number = signal.SIGTERM if way == "terminate" else signal.SIGKILL
    assert command.wait(PATIENCE) == -number
    eventually(lambda: not psutil.pid_exists(child))
    command.kill()


def test_lines_come_as_they_are_said(machine: LinkMachine, tmp_path: Path) -> None:
    text = "while read -r x; do :; done; echo first; sleep 300"
    command = machine.exec(["sh", "-c", text], env={}, cwd=str(tmp_path), log=tmp_path / "log", survive=False)
    assert next(command.lines()) == "first"
    long = "x" * 3_000_000
    other = machine.exec(
        ["sh", "-c", f"head -c {len(long)} /dev/zero | tr '\\0' x"], env={}, cwd="/", log=tmp_path / "l"
    )
    assert list(other.lines()) == [long]
    command.kill()
    assert command.wait(PATIENCE) == -signal.SIGKILL


def test_files_go_up_and_down_with_progress(machine: LinkMachine, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "big").write_bytes(os.urandom(10_000_000))
    (source / "small").write_bytes(b"small")
    told: list[tuple[int, int]] = []
    moved = machine.upload(source, tmp_path / "there", progress=lambda *now: told.append(now))
    assert (moved.sent, moved.there) == (10_000_005, 0)
    assert told[-1] == (10_000_005, 10_000_005)
    machine.download(tmp_path / "there", tmp_path / "back")
    assert (tmp_path / "back" / "big").read_bytes() == (source / "big").read_bytes()
    assert machine.upload(source, tmp_path / "some", names={"small": "few"}).sent == 5
    assert [path.name for path in (tmp_path / "some").iterdir()] == ["few"]
    with pytest.raises(FileNotFoundError):
        machine.upload(tmp_path / "nowhere", tmp_path / "x")
    with pytest.raises(MachineError, match="cannot be fetched"):
        machine.download(tmp_path / "nowhere", tmp_path / "x")


def test_files_do_not_hold_up_the_rest_and_go_all_the_same_where_they_must(
    link: Link, target_of: TargetOf, tmp_path: Path
) -> None:
    with serve(tmp_path / "sshd") as server, relay(server.port) as between:
        machine = link.connect(target_of(server, port=between.port))

        def connections() -> int:
            return sum(process.name() == "sshd" for process in psutil.Process(server.process.pid).children())  # type: ignore[union-attr]

        assert connections() == 1
        (tmp_path / "file").write_bytes(os.urandom(1_000_000))
        machine.upload(tmp_path / "file", tmp_path / "one")
        assert connections() == 2
        events: list[Event] = []
        link.on_event(events.append)
        server.kill_sessions()
        eventually(lambda: [e for e in events if e.kind == "back"], PATIENCE)
        between.refuse()
        machine.upload(tmp_path / "file", tmp_path / "two")
        machine.put({tmp_path / "three": bytes(2_000_000)})
        machine.download(tmp_path / "two", tmp_path / "four")
        assert connections() == 1
        assert (tmp_path / "four").read_bytes() == (tmp_path / "one").read_bytes() == (tmp_path / "file").read_bytes()


def test_errors_arrive_as_what_they_are(
    link: Link, machine: LinkMachine, server: Server, target_of: TargetOf, tmp_path: Path
) -> None:
    with pytest.raises(MachineError, match="no-such-program: not found"):
        machine.exec(["no-such-program"], env={}, cwd="/", log=tmp_path / "log")
    with pytest.raises(TimeoutError):
        machine.run("sleep 60", timeout=0.5)
    with pytest.raises(TimeoutError):
        machine.run("sleep 60", timeout=0.5)
    with pytest.raises(MachineError, match="could not be written"):
        machine.put({Path("/proc/nowhere/file"): os.urandom(2_000_000)})
    with pytest.raises(Unreachable) as closed:
        link.connect(target_of(server, port=free_port()))
    assert closed.value.reason == "closed"
    with pytest.raises(HostKeyError) as unknown:
        link.connect(target_of(server, known_hosts=(str(tmp_path / "none"),)))
    assert (unknown.value.reason, unknown.value.fingerprint) == ("unknown", server.fingerprint())
    with pytest.raises(LoginRefused):
        link.connect(target_of(server, keys=(str(keygen(tmp_path / "other")),)))
    assert machine.run("echo on").out == b"on\n"
    assert [one.number for one in link.machines()] == [machine.number]


@pytest.mark.parametrize("letter", ["x", "\0", "\U0001f600"])
def test_an_error_with_a_text_of_any_length_fits_a_message(letter: str) -> None:
    much = letter * 2_000_000
    errors = [MachineError("host", "command", much), ValueError(much), OSError(2, "no", much)]
    for error in errors:
        told = {"error": encoding.from_error(error)}
        assert len(json.dumps(told)) < framing.MAX_HEAD
        with pytest.raises(type(error), match="…") as found:
            encoding.checked(json.loads(json.dumps(told)))
        assert str(found.value).endswith(str(error)[-10:])


def test_what_is_sent_along_with_a_call_that_fails_does_not_disturb_the_next(
    link: Link, machine: LinkMachine, tmp_path: Path
) -> None:
    much = os.urandom(5_000_000)
    gone = LinkMachine(link, 999, machine.target, key="", address="")
    for _ in range(6):
        with pytest.raises(PoolError, match="does not hold this machine"):
            gone.put({tmp_path / "file": much})
        with pytest.raises(PoolError, match="does not hold this machine"):
            gone.run("cat", stdin=[much])
        done = machine.run("head -c 10000000 /dev/zero; exit 3", stdin=[much])
        assert (done.status, len(done.out)) == (3, 10_000_000)
        assert machine.run("echo on").out == b"on\n"

    def broken() -> Iterator[bytes]:
        yield much
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        machine.run("cat >/dev/null", stdin=broken())
    assert machine.run("echo on").out == b"on\n"


def test_the_notebook_does_not_import_the_ssh_library(server: Server, target_of: TargetOf, folder: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from sky_jupyter.machines.link.client import Link\n"
        "from sky_jupyter.machines.link import encoding as forms\n"
        "import json\n"
        "link = Link.start(pathlib.Path(sys.argv[1]))\n"
        "machine = link.connect(forms.target(json.loads(sys.argv[2])))\n"
        "print(machine.run('echo hello').out, 'paramiko' in sys.modules)\n"
        "link.end()\n"
    )
    import json

    from sky_jupyter.machines.link import encoding

    facts = json.dumps(encoding.from_target(target_of(server)))
    done = subprocess.run([sys.executable, "-c", code, str(folder), facts], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("b'hello\\n' False\n", "")


@pytest.mark.parametrize("error", ["ImportError('not there')", "RuntimeError('the legacy provider failed')"])
def test_without_the_ssh_library_it_is_said_what_to_install(
    folder: Path, server: Server, target_of: TargetOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "paramiko.py").write_text(f"raise {error}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "none"), os.environ.get("PYTHONPATH", "")]))
    link = Link.start(folder)
    try:
        for _ in range(2):
            with pytest.raises(SpecError, match=r"pip install.* 'sky-jupyter"):
                link.connect(target_of(server))
    finally:
        link.end()


# Questions and secrets


def test_questions_reach_the_notebook_and_answers_are_kept_nowhere(
    folder: Path, server: Server, target_of: TargetOf, tmp_path: Path
) -> None:
    phrase = "correct-horse-battery"
    key = keygen(tmp_path / "locked", passphrase=phrase)
    with open(server.folder / "authorized_keys", "a") as file:
        file.write(key.with_suffix(".pub").read_text())
    known = tmp_path / "none"
    target = target_of(server, keys=(str(key),), known_hosts=(str(known),))
    asked: list[object] = []

    def passphrase(path: str, attempts: int) -> str:
        asked.append((path, attempts))
        return phrase if attempts else "wrong"

    def accept(unknown: Unknown) -> bool:
        asked.append(unknown.fingerprint)
        return True

    with relay(server.port) as between:
        link = Link.start(folder)
        try:
            target = replace(target, port=between.port)
            with pytest.raises(HostKeyError):
                link.connect(target)
            machine = link.connect(target, prompts=Prompts(passphrase, accept))
            assert asked == [server.fingerprint(), (str(key), 0), (str(key), 1)]
            process = one_process(folder)
            shown = " ".join([*process.cmdline(), *process.environ().values()])
            shown += (folder / socket_folder.LOG).read_text() + (folder / socket_folder.CONFIG).read_text()
            assert phrase not in shown
            assert (folder / socket_folder.KEY).read_bytes().hex() not in shown
            # Nobody is asked again, though the connection is recreated.
            events: list[Event] = []
            link.on_event(events.append)
            between.cut()
            eventually(lambda: [e for e in events if e.kind == "back"], PATIENCE)
            assert machine.run("echo on").out == b"on\n"
            assert len(asked) == 3
        finally:
            link.end()


# Breaks


def test_a_tunnel_goes_on_at_its_port_after_a_break(
    link: Link, server: Server, target_of: TargetOf, echo: Echo, tmp_path: Path
) -> None:
    with relay(server.port) as between:
        machine = link.connect(target_of(server, port=between.port))
        tunnel = link.tunnel(machine, "127.0.0.1", echo.port)
        assert link.tunnel(machine, "127.0.0.1", echo.port).port == tunnel.port
        data = os.urandom(5_000_000)
        assert call(tunnel.port, data) == data
        events: list[Event] = []
        link.on_event(events.append)
        command = machine.exec(["sleep", "300"], env={}, cwd="/", log=tmp_path / "log")
        with socket.create_connection(("127.0.0.1", tunnel.port), PATIENCE) as held:
            held.sendall(b"x")
            assert held.recv(1) == b"x"
            between.cut()
            # What went through has ended, and who waits for it is not left waiting.
            with contextlib.suppress(ConnectionError):
                assert held.recv(1) == b""
        with pytest.raises(LinkLost):
            command.wait(PATIENCE)
        eventually(lambda: [e for e in events if e.kind == "back"], PATIENCE)
        assert [e.kind for e in events][:1] == ["waiting"]
        assert "unreachable, trying again in 1 s" in str(events[0])
        assert "back after" in str(events[-1])
        assert call(tunnel.port, data) == data
        command.kill()  # by its identity, over the new connection
        eventually(lambda: not machine.process(command.identity).alive)
        tunnel.close()
        with pytest.raises(OSError):
            call(tunnel.port)


def test_while_the_host_is_away_all_fails_at_once_and_is_tried_again(
    link: Link, target_of: TargetOf, echo: Echo, tmp_path: Path
) -> None:
    with serve(tmp_path / "sshd") as server:
        machine = link.connect(target_of(server))
        tunnel = link.tunnel(machine, "127.0.0.1", echo.port)
        events: list[Event] = []
        link.on_event(events.append)
        server.stop()
        eventually(lambda: len(events) >= 3, PATIENCE)
        assert [e.pause for e in events[:3]] == [1.0, 2.0, 4.0]
        assert not machine.up
        assert call(tunnel.port) == b""
        with pytest.raises(LinkLost, match=r"unreachable for \d+ s; trying again in \d+ s \(.*closed"):
            machine.run("true")
        server.start()
        machine.retry()
        eventually(lambda: machine.up, PATIENCE)
        assert call(tunnel.port) == b"hello"
        # It counts as new only when it has stood for a while.
        server.stop()
        eventually(lambda: not machine.up)
        server.start()
        assert link.connect(target_of(server)).number == machine.number
        assert call(tunnel.port) == b"hello"


def test_hosts_and_tunnels_have_ipv6_addresses_too(link: Link, target_of: TargetOf, tmp_path: Path) -> None:
    with serve(tmp_path / "sshd", "ListenAddress ::1") as server:
        known = tmp_path / "known"
        known.write_text(server.known_line(name=f"[::1]:{server.port}"))
        machine = link.connect(target_of(server, host="::1", known_hosts=(str(known),)))
        assert machine.address == "::1"
        echo = Echo("::1")
        try:
            assert call(link.tunnel(machine, "::1", echo.port).port) == b"hello"
        finally:
            echo.close()


@pytest.mark.long  # waits for silence, as in tests/hosts/test_link.py
@pytest.mark.slow
def test_a_silent_host_is_noticed_and_what_went_through_ends(
    link: Link, server: Server, target_of: TargetOf, echo: Echo
) -> None:
    with relay(server.port) as between:
        machine = link.connect(target_of(server, port=between.port))
        tunnel = link.tunnel(machine, "127.0.0.1", echo.port)
        events: list[Event] = []
        link.on_event(events.append)
        with socket.create_connection(("127.0.0.1", tunnel.port), PATIENCE) as held:
            held.sendall(b"x")
            assert held.recv(1) == b"x"
            between.freeze()
            with contextlib.suppress(ConnectionError):
                assert held.recv(1) == b""
        eventually(lambda: events)
        assert "has not answered" in events[0].why
        between.thaw()
        eventually(lambda: [e for e in events if e.kind == "back"], PATIENCE)
        assert call(tunnel.port) == b"hello"


def test_a_host_with_another_key_is_refused_and_not_tried_again(
    link: Link, server: Server, target_of: TargetOf, tmp_path: Path
) -> None:
    with serve(tmp_path / "one") as first:
        machine = link.connect(target_of(first))
        events: list[Event] = []
        link.on_event(events.append)
        first.stop()
        for name in ("host_ed25519", "host_ed25519.pub", "host_ecdsa", "host_ecdsa.pub"):
            (first.folder / name).write_bytes((server.folder / name).read_bytes())
        first.start()
        eventually(lambda: [e for e in events if e.kind == "refused"], PATIENCE)
        assert "IDENTIFICATION HAS CHANGED" in events[-1].text
        with pytest.raises(LinkLost, match="not tried again until asked"):
            machine.run("true")
        with pytest.raises(HostKeyError):
            link.connect(target_of(first, port=first.port, known_hosts=machine.target.known_hosts))


def test_a_stream_is_a_socket_of_this_process(machine: LinkMachine, echo: Echo) -> None:
    with machine.open_stream("127.0.0.1", echo.port) as stream:
        stream.settimeout(PATIENCE)
        stream.sendall(b"hello")
        assert stream.recv(10) == b"hello"
        stream.shutdown(socket.SHUT_WR)
        assert stream.recv(10) == b""
    with pytest.raises(MachineError):
        machine.open_stream("127.0.0.1", free_port())


# Who is let in


def test_nobody_is_let_in_without_the_key(link: Link, folder: Path) -> None:
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in os.listdir(folder)} == {0o600}
    with pytest.raises(framing.Broken):
        framing.prove(socket_folder.dial(folder), bytes(32), server=False)
    with pytest.raises(PoolError, match="runs in"):
        Link.start(folder)
    folder.chmod(0o755)
    with pytest.raises(PoolError, match="this user's alone"):
        Link.join(folder)
    folder.chmod(0o700)
    Link.join(folder).close()


def test_who_says_nothing_holds_up_nobody_and_is_let_go(
    link: Link, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(socket_folder.dial(folder)):
        Link.join(folder).close()
    monkeypatch.setattr(framing, "_PATIENCE", 0.2)
    near, far = socket.socketpair()
    far.sendall(b"half of what is to be proved")
    with near, far, pytest.raises(framing.Broken, match="timed out"):
        framing.prove(near, bytes(32), server=True)


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff" * 64,
        b"\0\0\0\0\0\0\0\0",
        b"\0\0\0\2\0\0\0\0[]",
        b'\0\0\0\5\0\0\0\0{"a":',
        b"\0\0\x80\0\0\0\0\0" + b"[" * 0x8000,
        b"\0\0\0\2\x7f\xff\xff\xff{}",
    ],
)
def test_what_makes_no_sense_ends_its_own_connection_only(link: Link, folder: Path, sent: bytes) -> None:
    made = framing.prove(socket_folder.dial(folder), socket_folder.read_key(folder), server=False)
    made.socket.settimeout(PATIENCE)
    made.socket.sendall(sent)
    with contextlib.suppress(ConnectionError):
        assert made.socket.recv(1) == b""
    made.close()
    assert link.machines() == []


@pytest.mark.parametrize(
    "facts",
    [
        {"call": "nonsense"},
        {"call": ["x"]},
        {"call": "connect", "target": {"host": 3}},
        {"call": "connect", "target": None},
        {"call": "exec", "machine": "1", "argv": [], "env": None},
        {"call": "tunnel", "machine": 1, "host": "x", "port": 1 << 20},
        {"call": "wait", "command": 99},
        {"call": "put", "machine": 1, "files": [["a", -1]]},
        {"call": "put", "machine": 1, "files": [["a", True]]},
        {"call": "keep", "lease": "long"},
        {"call": "keep", "processes": [{"machine": 1, "pid": 1, "started": float("nan")}]},
        {"call": "finish", "works": [{"machine": 1}], "patience": 1},
    ],
)
def test_calls_that_make_no_sense_are_refused(link: Link, facts: dict[str, object]) -> None:
    call_name = facts.pop("call")
    with pytest.raises(SkyError):
        link.ask(call_name, **facts)  # type: ignore[arg-type]
    assert link.machines() == []


@pytest.mark.parametrize("changed", [{"port": True}, {"port": 1 << 16}, {"timeout": float("nan")}, {"keys": "a"}])
def test_a_target_whose_values_make_no_sense_is_refused(changed: dict[str, object]) -> None:
    sound = encoding.from_target(Target("a", "b", "c"))
    assert encoding.target(json.loads(json.dumps(sound))) == Target("a", "b", "c")
    with pytest.raises(SpecError, match="no target"):
        encoding.target(json.loads(json.dumps({**sound, **changed})))


# Its life


def test_another_client_finds_machines_and_tunnels_open(
    folder: Path, server: Server, target_of: TargetOf, echo: Echo
) -> None:
    first = Link.start(folder, idle_timeout=30)
    machine = first.connect(target_of(server))
    tunnel = first.tunnel(machine, "127.0.0.1", echo.port)
    first.close()
    with pytest.raises(PoolError):
        first.machines()
    assert call(tunnel.port) == b"hello"
    second = Link.join(folder)
    (found,) = second.machines()
    assert (found.target, found.key, found.up) == (machine.target, machine.key, True)
    assert found.run("echo on").out == b"on\n"
    assert [one.port for one in second.tunnels()] == [tunnel.port]
    assert second.connect(target_of(server)).number == machine.number
    # As a pool's record names it: by the address that was found then.
    assert second.connect(target_of(server), address=machine.address).number == machine.number
    assert second.connect(target_of(server), address="192.0.2.7").number != machine.number
    second.end()
    with pytest.raises(PoolError, match="no link"):
        Link.join(folder)
    second.end()


def owner_of(folder: Path, target: Target, lease: str) -> subprocess.Popen[str]:
    """A process that starts a link, connects, and sleeps."""
    import json

    from sky_jupyter.machines.link import encoding

    code = (
        "import sys, pathlib, json, time\n"
        "from sky_jupyter.machines.link import encoding as forms\n"
        "from sky_jupyter.machines.link.client import Link\n"
        f"link = Link.start(pathlib.Path(sys.argv[1]), idle_timeout={lease})\n"
        "link.connect(forms.target(json.loads(sys.argv[2])))\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    facts = json.dumps(encoding.from_target(target))
    made = subprocess.Popen([sys.executable, "-c", code, str(folder), facts], stdout=subprocess.PIPE, text=True)
    assert made.stdout is not None
    assert made.stdout.readline() == "ready\n"
    return made


def test_it_ends_with_its_owner_and_leaves_nothing(folder: Path, target_of: TargetOf, tmp_path: Path) -> None:
    need_ssh()
    with serve(tmp_path / "sshd") as server:
        owner = owner_of(folder, target_of(server), "None")
        process = one_process(folder)
        assert os.getsid(process.pid) == process.pid
        assert server.sessions()
        owner.kill()
        owner.communicate()
        eventually(lambda: not process.is_running() and not folder.exists())
        eventually(lambda: not server.sessions())


@pytest.mark.long  # waits for leases
def test_with_a_lease_it_outlives_its_owner_for_so_long(folder: Path, server: Server, target_of: TargetOf) -> None:
    owner = owner_of(folder, target_of(server), "3.0")
    owner.kill()
    owner.communicate()
    with Link.join(folder) as link:
        time.sleep(4.0)  # not while somebody is there
        (machine,) = link.machines()
        assert machine.run("echo on").out == b"on\n"
    left = time.monotonic()
    eventually(lambda: not folder.exists() and not link_processes(folder))
    assert time.monotonic() - left >= 2.5


def test_one_that_is_kept_later_lives_on_without_its_owner(folder: Path) -> None:
    link = Link.start(folder)
    link.keep(1.0)
    link.close()
    eventually(lambda: not folder.exists() and not link_processes(folder))


def test_a_link_that_ends_in_order_as_it_starts_is_said_to_have_ended(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It removes its folder with the log, as where its owner has just ended.
    program = tmp_path / "python"
    program.write_text('#!/bin/sh\nfor folder; do :; done; rm -r -- "$folder"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(PoolError, match="did not come up: it has ended already"):
        Link.start(folder)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_cleanly(folder: Path, server: Server, target_of: TargetOf, number: signal.Signals) -> None:
    link = Link.start(folder)
    machine = link.connect(target_of(server))
    one_process(folder).send_signal(number)
    eventually(lambda: not folder.exists() and not link_processes(folder))
    with pytest.raises(LinkLost, match="link process"):
        machine.run("true")
    assert not link.alive
    link.end()


def test_a_link_that_was_killed_is_said_to_be_gone_and_started_anew(
    folder: Path, server: Server, target_of: TargetOf, tmp_path: Path
) -> None:
    link = Link.start(folder)
    machine = link.connect(target_of(server))
    command = machine.exec(["sleep", "300"], env={}, cwd="/", log=tmp_path / "log")
    one_process(folder).kill()
    with pytest.raises(LinkLost):
        command.wait(PATIENCE)
    with pytest.raises(PoolError, match="no link"):
        Link.join(folder)
    link.close()
    again = Link.start(folder)
    machine = again.connect(target_of(server))
    machine.process(command.identity).kill()
    assert machine.process(command.identity).wait(PATIENCE) == 0
    again.end()
    assert not folder.exists() or not os.listdir(folder)
    with contextlib.suppress(FileNotFoundError):
        folder.rmdir()


def test_a_command_whose_caller_is_gone_is_let_go(
    folder: Path, server: Server, target_of: TargetOf, tmp_path: Path
) -> None:
    first = Link.start(folder)
    machine = first.connect(target_of(server))
    log = tmp_path / "log"
    dying = machine.exec(["sleep", "300"], env={}, cwd="/", log=log, survive=False)
    loud = machine.exec(["sh", "-c", "while :; do echo x; done"], env={}, cwd="/", log=log)
    second = Link.join(folder)
    first.close()
    eventually(lambda: not process_identity.lives(*dying.identity), PATIENCE)
    assert process_identity.lives(*loud.identity)
    second.machines()[0].process(loud.identity).kill()
    second.end()


# Dask over a tunnel


@contextlib.contextmanager
def scheduler_of(folder: Path) -> Iterator[int]:
    """A pool's scheduler, on a port of this machine, with its certificates in the folder."""
    from sky_jupyter.pool.control import certificates

    folder.mkdir()
    for name, data in certificates.make("test").items():
        (folder / name).write_bytes(data)
    ours, theirs = os.pipe()
    code = (
        "import sys, pathlib; from sky_jupyter.node.dask import scheduler; scheduler.serve(pathlib.Path(sys.argv[1]), "
    )
    code += f"'127.0.0.1', 0, {theirs})"
    process = subprocess.Popen([sys.executable, "-c", code, str(folder)], pass_fds=[theirs])
    os.close(theirs)
    try:
        with open(ours) as told:
            yield int(told.readline().rpartition(":")[2])
    finally:
        process.kill()
        process.wait()


class Seen:
    """What the control plane tells its watcher."""

    def __init__(self) -> None:
        self.silent: list[bool] = []

    def on_batch(self, batch: dict[str, object]) -> None: ...

    def on_lost(self, node: int, why: str, *, revived: bool) -> None: ...

    def on_back(self, node: int, *, kept: bool) -> None: ...

    def on_doubt(self, node: int | None) -> None: ...

    def on_silent(self, nodes: Sequence[int] | None, *, silent: bool) -> None:
        assert nodes is None
        self.silent.append(silent)

    def on_replaced(self) -> None: ...


def test_a_tls_caller_fails_at_once_while_the_host_is_away(
    link: Link, target_of: TargetOf, echo: Echo, tmp_path: Path
) -> None:
    import ssl

    with serve(tmp_path / "sshd") as server:
        machine = link.connect(target_of(server))
        tunnel = link.tunnel(machine, "127.0.0.1", echo.port)
        server.stop()
        eventually(lambda: not machine.up)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        for _ in range(5):
            with pytest.raises(OSError), socket.create_connection(("127.0.0.1", tunnel.port), PATIENCE) as made:
                context.wrap_socket(made)


def test_the_control_plane_dials_again_over_the_same_port(
    link: Link, target_of: TargetOf, server: Server, tmp_path: Path
) -> None:
    import asyncio

    from sky_jupyter.pool.control.control_client import Control

    async def watch(port: int, away: Callable[[], None], back: Callable[[], None]) -> None:
        seen = Seen()
        control = Control(seen, direct=True, generation=1)
        await control.connect(f"tls://127.0.0.1:{port}", tmp_path / "pool", 0, PATIENCE, lambda: "")
        first = control.client
        for step, silent in ((away, True), (back, False)):
            await asyncio.to_thread(step)
            end = time.monotonic() + PATIENCE
            while silent not in seen.silent:
                assert time.monotonic() < end
                await asyncio.sleep(0.05)
        assert seen.silent == [True, False]
        assert first is not None
        assert (await control.client.scheduler.identity())["type"] == "PoolScheduler"  # type: ignore[union-attr]
        await control.close()

    with scheduler_of(tmp_path / "pool") as port, serve(tmp_path / "sshd") as host:
        machine = link.connect(target_of(host))
        tunnel = link.tunnel(machine, "127.0.0.1", port)

        def back() -> None:
            host.start()
            machine.retry()

        asyncio.run(watch(tunnel.port, host.stop, back))


@pytest.mark.long  # waits for a pool's end, as in tests/pool/test_ssh_link.py
def test_a_link_that_is_left_ends_with_its_pool_and_removes_its_folders(
    folder: Path, server: Server, target_of: TargetOf, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for made in (first, second):
        made.mkdir()
    link = Link.start(folder)
    machine = link.connect(target_of(server))
    commands = [machine.exec(["sleep", "300"], env={}, cwd="/", log=Path("/dev/null")) for _ in range(2)]
    processes = [machine.process(command.identity) for command in commands]
    # The pool lives on beyond the lease, as long as one of its processes does.
    link.keep(8.0, processes, [first, second])
    link.close()
    os.kill(processes[0].identity[0], signal.SIGKILL)
    time.sleep(12)
    assert link_processes(folder)
    assert first.exists()
    os.kill(processes[1].identity[0], signal.SIGKILL)
    assert eventually(lambda: not link_processes(folder), PATIENCE)
    assert eventually(lambda: not first.exists() and not second.exists(), PATIENCE)


def test_a_client_that_comes_in_time_finds_the_link_and_the_pool_s_folders(
    folder: Path, server: Server, target_of: TargetOf, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    link = Link.start(folder)
    machine = link.connect(target_of(server))
    command = machine.exec(["sleep", "300"], env={}, cwd="/", log=Path("/dev/null"))
    link.keep(600.0, [machine.process(command.identity)], [mine])
    link.close()
    joined = Link.join(folder)
    try:
        os.kill(command.identity[0], signal.SIGKILL)
        time.sleep(5)
        # What has ended is the client's to find out.
        assert joined.alive
        assert mine.exists()
    finally:
        joined.end()
    assert mine.exists()


def test_a_tunnel_is_at_the_port_that_is_wished_for_where_that_is_free(link: Link, machine: LinkMachine) -> None:
    wish = free_port()
    first = link.tunnel(machine, "127.0.0.1", 9, wish=wish)
    second = link.tunnel(machine, "127.0.0.1", 10, wish=wish)
    assert first.port == wish
    assert second.port not in (0, wish)


def test_a_client_is_told_that_the_process_ended_without_its_doing(folder: Path) -> None:
    told = threading.Event()
    link = Link.start(folder)
    link.on_end(told.set)
    one_process(folder).kill()
    assert told.wait(PATIENCE)
    link.close()
    socket_folder.clear(folder)
    folder.rmdir()
    quiet = threading.Event()
    other = Link.start(folder)
    other.on_end(quiet.set)
    other.end()
    assert not quiet.wait(1)
