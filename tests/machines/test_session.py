"""A connection: how it comes about, by which ways, how its end is noticed, and what it leaves."""

from __future__ import annotations

import errno
import os
import shlex
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from sky_jupyter.errors import LinkLost, MachineError, Unreachable
from sky_jupyter.machines.ssh import tcp
from sky_jupyter.machines.ssh.target import Target
from tests.ports import free_port

from .conftest import eventually, need_ssh
from .link import link
from .sshd import Server, serve

TargetOf = Callable[..., Target]


@pytest.fixture(autouse=True)
def _ssh() -> None:
    need_ssh()


def fails(target: Target) -> MachineError:
    from sky_jupyter.machines.ssh.session import connect

    with pytest.raises(MachineError) as caught:
        connect(target).close()
    return caught.value


def test_a_host_that_nobody_knows_is_named(target_of: TargetOf, server: Server) -> None:
    error = fails(replace(target_of(server), name="gpu9", host="gpu9.invalid"))
    assert isinstance(error, Unreachable)
    assert (error.host, error.reason) == ("gpu9", "name")
    assert "no host of the name 'gpu9.invalid' is known here" in str(error)


def test_a_closed_port_is_said_to_be_closed(target_of: TargetOf, server: Server) -> None:
    error = fails(target_of(server, port=free_port()))
    assert error.reason == "closed"
    assert "is sshd running" in str(error)


@pytest.mark.parametrize("first", [socket.AF_INET6, socket.AF_INET])
def test_a_kernel_without_ipv6_takes_the_host_s_other_address(
    server: Server, monkeypatch: pytest.MonkeyPatch, first: socket.AddressFamily
) -> None:
    class WithoutIPv6(socket.socket):
        def __init__(self, family: int = -1, *more: Any, **named: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *more, **named)

    port = server.port
    places = {socket.AF_INET6: ("::1", port, 0, 0), socket.AF_INET: ("127.0.0.1", port)}
    found = [(family, socket.SOCK_STREAM, 6, "", place) for family, place in places.items()]
    monkeypatch.setattr(socket, "socket", WithoutIPv6)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found if found[0][0] == first else found[::-1])
    tcp.dial(Target("both", "both", "me", port=port)).close()
    # What came of the address that was tried is told.
    places[socket.AF_INET] = ("127.0.0.1", free_port())
    found[:] = [(family, socket.SOCK_STREAM, 6, "", place) for family, place in places.items()]
    with pytest.raises(Unreachable, match="is closed"):
        tcp.dial(Target("both", "both", "me", port=port))
    found[:] = found[:1]
    with pytest.raises(Unreachable, match=r"no connection to both port .*: Address family not supported"):
        tcp.dial(Target("both", "both", "me", port=port))


def test_a_host_that_does_not_answer_is_given_up_in_time(target_of: TargetOf, server: Server) -> None:
    # A listener whose queue is full takes no more connections, and says nothing.
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        error = fails(target_of(server, port=port, timeout=1.0))
        for one in waiting:
            one.close()
    assert error.reason == "timeout"
    assert "did not answer within 1 s" in str(error)


def test_what_is_no_ssh_server_is_said_to_be_none(target_of: TargetOf, server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def serve_once() -> None:
            connection, _ = other.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve_once)
        thread.start()
        error = fails(target_of(server, port=other.getsockname()[1]))
        thread.join(60)
    assert error.reason == "protocol"
    assert "is it an SSH server" in str(error)


def test_the_connection_uses_what_is_fast(server: Server, target_of: TargetOf) -> None:
    from sky_jupyter.machines.ssh.session import connect

    with connect(target_of(server)) as session:
        link = session._wire.inner
        assert link.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert session._transport.local_cipher == session._transport.remote_cipher == "aes128-gcm@openssh.com"
        assert session.address == "127.0.0.1"


def test_a_command_runs_with_its_input_and_says_how_it_ended(server: Server, target_of: TargetOf) -> None:
    from sky_jupyter.machines.ssh.session import connect

    data = os.urandom(3_000_000)
    with connect(target_of(server)) as session:
        done = session.run("cat; echo told >&2; exit 7", data)
        assert (done.status, done.out.endswith(data), done.err.endswith(b"told\n")) == (7, True, True)
        assert session.run("kill -9 $$").status == -9
        assert session.run("true", [b"not read"] * 3).status == 0
        with pytest.raises(TimeoutError, match="has not ended after 1 s"):
            session.run("sleep 60", timeout=1)
        assert session.run("true").status == 0


def test_many_threads_may_use_one_connection(server: Server, target_of: TargetOf) -> None:
    from sky_jupyter.machines.ssh.session import connect

    found: dict[int, bytes] = {}
    with connect(target_of(server)) as session:
        threads = [
            threading.Thread(target=lambda n=n: found.update({n: session.run(f"cat; echo {n}", b"x" * 100_000).out}))
            for n in range(12)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert all(out.endswith(b"x" * 1000 + f"{n}\n".encode()) for n, out in found.items())
    assert len(found) == 12


def test_a_stream_leads_on_from_the_host(server: Server, target_of: TargetOf) -> None:
    from sky_jupyter.machines.ssh.session import connect

    with socket.create_server(("127.0.0.1", 0)) as listener, connect(target_of(server)) as session:
        stream = session.open_stream("127.0.0.1", listener.getsockname()[1])
        there, _ = listener.accept()
        with there:
            stream.sendall(b"ping")
            assert there.recv(10) == b"ping"
            there.sendall(b"pong")
            assert stream.recv(10) == b"pong"
        assert stream.recv(10) == b""
        stream.close()
        with pytest.raises(MachineError, match="refused a connection to"):
            session.open_stream("127.0.0.1", free_port())
        assert session.run("true").status == 0


def test_a_host_that_forbids_streams_is_said_to(target_of: TargetOf, tmp_path: Path) -> None:
    from sky_jupyter.machines.ssh.session import connect

    with serve(tmp_path / "sshd", "AllowTcpForwarding no") as server, connect(target_of(server)) as session:
        with pytest.raises(MachineError, match="AllowTcpForwarding yes"):
            session.open_stream("127.0.0.1", server.port)


def test_hosts_behind_others_are_reached_through_them(server: Server, target_of: TargetOf, tmp_path: Path) -> None:
    from sky_jupyter.machines.ssh.session import connect

    with serve(tmp_path / "second") as second, serve(tmp_path / "third") as third:
        known = tmp_path / "all"
        known.write_text(server.known_line() + second.known_line() + third.known_line())
        first, last = (target_of(one, known_hosts=(str(known),)) for one in (server, third))
        middle = replace(target_of(second, known_hosts=(str(known),)), jump=first)
        with connect(replace(last, jump=middle)) as session:
            data = os.urandom(1_000_000)
            assert session.run("cat", data).out.endswith(data)
            told = session.run("echo $SSH_CONNECTION").out.decode().split()
            assert int(told[-1]) == third.port
        # Each host on the way is checked like any other.
        known.write_text(server.known_line() + third.known_line())
        error = fails(replace(last, jump=middle))
        assert error.reason == "unknown"
        error = fails(replace(last, jump=replace(first, port=free_port())))
        assert error.reason == "jump"
        assert "the jump host failed" in str(error)
        error = fails(replace(last, port=free_port(), jump=first))
        assert error.reason == "behind"
        assert "through its jump host" in str(error)


def test_a_proxy_command_makes_the_connection_and_ends_with_it(server: Server, target_of: TargetOf) -> None:
    from sky_jupyter.machines.ssh.session import connect

    code = (
        "import os, socket, sys, threading\n"
        "s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "def up():\n"
        "    while data := os.read(0, 65536): s.sendall(data)\n"
        "    s.shutdown(1)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while data := s.recv(65536): os.write(1, data)\n"
    )
    command = shlex.join([sys.executable, "-c", code, str(server.port)])
    before = {child.pid for child in psutil.Process().children()}
    with connect(target_of(server, proxy_command=command)) as session:
        assert session.run("echo here").out.endswith(b"here\n")
    assert {child.pid for child in psutil.Process().children()} <= before
    error = fails(target_of(server, proxy_command="exit 3"))
    assert error.reason == "proxy"


def test_a_silent_link_is_found_within_15_seconds(server: Server, target_of: TargetOf) -> None:
    from sky_jupyter.machines.ssh.session import connect

    with link(server.port) as between, connect(target_of(server, port=between.port)) as session:
        told: list[LinkLost] = []
        session.on_lost(told.append)
        between.freeze()
        with pytest.raises(LinkLost) as caught:
            session.run("sleep 600")
        assert caught.value.reason == "silent"
        # It is told by another thread.
        eventually(lambda: told)
        assert [error.reason for error in told] == ["silent"]
        assert not session.alive
        with pytest.raises(LinkLost):
            session.run("true")


@pytest.mark.slow
def test_a_silent_link_is_found_while_much_is_sent(server: Server, target_of: TargetOf) -> None:
    from sky_jupyter.machines.ssh.session import connect

    with link(server.port) as between, connect(target_of(server, port=between.port)) as session:
        timer = threading.Timer(0.5, between.freeze)
        timer.start()
        with pytest.raises(LinkLost):
            session.run("cat >/dev/null", (bytes(1 << 20) for _ in range(1 << 20)))
        timer.join()


@pytest.mark.slow
def test_a_quiet_link_that_answers_is_kept(server: Server, target_of: TargetOf) -> None:
    from sky_jupyter.machines.ssh.session import connect

    with link(server.port) as between, connect(target_of(server, port=between.port)) as session:
        before = between.passed
        # Longer than a silent link would be kept.
        assert session.run("sleep 14").status == 0
        assert session.alive
        assert between.passed > before


def test_a_broken_link_is_told_at_once(server: Server, target_of: TargetOf) -> None:
    from sky_jupyter.machines.ssh.session import connect

    with link(server.port) as between, connect(target_of(server, port=between.port)) as session:
        told: list[LinkLost] = []
        session.on_lost(told.append)
        between.cut()
        eventually(lambda: told)
        assert told[0].reason == "broken"
        late: list[LinkLost] = []
        session.on_lost(late.append)
        assert late == told


def test_a_server_whose_part_dies_is_a_lost_link_not_a_status(server: Server, target_of: TargetOf) -> None:
    from sky_jupyter.machines.ssh.session import connect

    with connect(target_of(server)) as session:
        timer = threading.Timer(1.0, server.kill_sessions)
        timer.start()
        with pytest.raises(LinkLost):
            session.run("exec sleep 600")
        timer.join()
