"""The link on real hosts: the laptop's network is cut and mended, a host dies, an owner is killed."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from sky_jupyter.errors import LinkLost
from sky_jupyter.machines.link.client import Link
from sky_jupyter.machines.link.encoding import Event
from sky_jupyter.machines.ssh.resolve_target import resolve
from sky_jupyter.machines.ssh.target import Target
from tests.hosts.world import Host, World, hosts, skip_without_hosts

pytestmark = [pytest.mark.root]

PATIENCE = 90.0
# Says back what it is told, for one caller after another.
_ECHO = (
    "import socket\n"
    "s = socket.create_server(('127.0.0.1', 7000))\n"
    "while True:\n"
    "    c, _ = s.accept()\n"
    "    while d := c.recv(65536): c.sendall(d)\n"
    "    c.close()\n"
)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    skip_without_hosts()
    pytest.importorskip("paramiko", reason="needs paramiko (the `ssh` extra)")
    with hosts(2, python=True) as made:
        yield made


@pytest.fixture
def link(world: World, tmp_path: Path) -> Iterator[Link]:
    made = Link.start(tmp_path / "link")
    try:
        yield made
    finally:
        world.mend()
        made.end()
        assert not (tmp_path / "link").exists()


def target(world: World, host: Host, tmp_path: Path) -> Target:
    return resolve(host.name, files=[world.ssh_config(tmp_path / "ssh_config")])


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def said(port: int, text: bytes = b"hello") -> bytes:
    """What the other end of a tunnel says back; empty where it refuses."""
    with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port), PATIENCE) as made:
        made.settimeout(PATIENCE)
        made.sendall(text)
        return made.recv(100)
    return b""


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


def test_a_cut_link_is_told_mended_and_its_tunnel_goes_on(world: World, link: Link, tmp_path: Path) -> None:
    events: list[Event] = []
    link.on_event(events.append)
    machine = link.connect(target(world, world[0], tmp_path))
    echo = machine.exec(["python3", "-u", "-c", _ECHO], env={}, cwd="/tmp", log=Path("/tmp/log"))
    tunnel = link.tunnel(machine, "127.0.0.1", 7000)
    wait_until(lambda: said(tunnel.port) == b"hello")
    world.cut()
    wait_until(lambda: events)
    assert kinds(events) == ["waiting"]
    # Who calls now is told so at once, not left hanging.
    assert said(tunnel.port) == b""
    with pytest.raises(LinkLost, match="trying again"):
        machine.run("true")
    world.mend()
    machine.retry()
    wait_until(lambda: "back" in kinds(events))
    assert said(tunnel.port) == b"hello"
    # What ran there went on.
    process = machine.process(echo.identity)
    assert process.alive
    process.kill()
    assert process.wait(PATIENCE) == 0
    machine.run("rm /tmp/log")


@pytest.mark.long  # waits for nothing to happen
def test_a_short_cut_is_not_noticed(world: World, link: Link, tmp_path: Path) -> None:
    events: list[Event] = []
    link.on_event(events.append)
    machine = link.connect(target(world, world[0], tmp_path))
    world.cut()
    threading.Timer(4.0, world.mend).start()
    assert machine.run("echo on").out == b"on\n"
    assert events == []


def test_a_host_that_dies_is_named_and_the_other_is_not(world: World, link: Link, tmp_path: Path) -> None:
    events: list[Event] = []
    link.on_event(events.append)
    first, second = (link.connect(target(world, host, tmp_path)) for host in world)
    world[1].kill()
    try:
        wait_until(lambda: events)
        assert {event.host for event in events} == {"host1"}
        assert not second.up
        with pytest.raises(LinkLost, match="host1"):
            second.run("true")
        assert first.run("echo on").out == b"on\n"
    finally:
        world[1].boot()
    second.retry()
    wait_until(lambda: "back" in kinds(events))
    assert second.run("hostname").out == b"host1\n"


@pytest.mark.parametrize("how", ["end", "kill the owner"])
def test_nothing_is_left_on_the_host_and_here(world: World, tmp_path: Path, how: str) -> None:
    host, folder = world[0], tmp_path / "link"
    processes = host.processes(host.user)
    # A host's first login writes its message of the day.
    first = Link.start(tmp_path / "first")
    first.connect(target(world, host, tmp_path))
    first.end()
    wait_until(lambda: host.processes(host.user) == processes)
    files, ports = host.files(), host.ports()
    code = (
        "import sys, pathlib\n"
        "from sky_jupyter.machines.link.client import Link\n"
        "from sky_jupyter.machines.ssh.resolve_target import resolve\n"
        "link = Link.start(pathlib.Path(sys.argv[1]))\n"
        "machine = link.connect(resolve(sys.argv[2], files=[pathlib.Path(sys.argv[3])]))\n"
        "machine.put({pathlib.PurePath('/tmp/x'): b'x'})\n"
        "machine.run('rm /tmp/x')\n"
        "link.tunnel(machine, '127.0.0.1', 7000)\n"
        "log = pathlib.PurePath('/dev/null')\n"
        "command = machine.exec(['sleep', '300'], env={}, cwd='/tmp', log=log, survive=False)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "link.end()\n"
    )
    config = world.ssh_config(tmp_path / "ssh_config")
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(folder), host.name, str(config)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    assert host.processes(host.user) != processes
    if how == "end":
        owner.communicate("\n")
        assert owner.returncode == 0
    else:
        owner.kill()
        owner.communicate()
    wait_until(lambda: not folder.exists())
    wait_until(lambda: host.processes(host.user) == processes)
    assert host.files() == files
    assert host.ports() == ports
    left = [p for p in psutil.process_iter(["cmdline"]) if os.fspath(folder) in (p.info["cmdline"] or [])]
    wait_until(lambda: not any(process.is_running() and process.status() != "zombie" for process in left))
