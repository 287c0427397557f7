"""Relays: a host's port that leads through the link to another host, and what becomes of it after breaks."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sky_jupyter.errors import MachineError, PoolError
from sky_jupyter.machines.link.client import Link
from sky_jupyter.machines.link.encoding import Event
from sky_jupyter.machines.ssh.machine import SSHMachine
from sky_jupyter.machines.ssh.target import Target
from tests.ports import free_port

from .conftest import eventually, need_ssh
from .sshd import Server, serve
from .test_link import PATIENCE, Echo, call

pytestmark = pytest.mark.long

TargetOf = Callable[..., Target]


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    need_ssh()
    made = Link.start(tmp_path / "link")
    try:
        yield made
    finally:
        made.end()
        assert not (tmp_path / "link").exists()


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.close()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    with serve(tmp_path / "one") as one, serve(tmp_path / "two") as two:
        yield one, two


def known(target_of: TargetOf, server: Server) -> Target:
    """The target for one of several servers, whose keys are all known for good."""
    file = server.folder / "known_hosts"
    file.write_text(server.known_line())
    return target_of(server, known_hosts=(str(file),))


def answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        return call(port, timeout=60) == b"hello"
    return False


def test_a_relay_leads_from_one_host_through_here_to_what_another_one_reaches(
    link: Link, two: tuple[Server, Server], target_of: TargetOf, echo: Echo
) -> None:
    near, far = (link.connect(known(target_of, server)) for server in two)
    port = link.relay(near, far, "127.0.0.1", echo.port)
    assert port not in (0, echo.port)
    assert link.relay(near, far, "127.0.0.1", echo.port) == port
    data = os.urandom(20_000_000)
    several = [threading.Thread(target=call, args=(port,)) for _ in range(20)]
    for one in several:
        one.start()
    assert call(port, data) == data
    for one in several:
        one.join()
    # Nobody is at the other end: who calls is told so at once.
    nowhere = link.relay(near, far, "127.0.0.1", free_port())
    assert not answers(nowhere)
    other = link.relay(far, near, "127.0.0.1", echo.port)
    assert answers(other)
    far.close()
    assert not answers(port)
    with pytest.raises(PoolError, match="does not hold this machine"):
        link.relay(near, far, "127.0.0.1", echo.port)


@pytest.mark.parametrize("which", [0, 1], ids=["the host that has it", "the host that it leads through"])
def test_a_relay_is_at_its_port_again_after_a_break(
    link: Link, two: tuple[Server, Server], target_of: TargetOf, echo: Echo, which: int
) -> None:
    events: list[Event] = []
    link.on_event(events.append)
    near, far = (link.connect(known(target_of, server)) for server in two)
    port = link.relay(near, far, "127.0.0.1", echo.port)
    for count in (1, 2):
        two[which].kill_sessions()
        eventually(lambda count=count: sum(event.kind == "back" for event in events) >= count, PATIENCE)
        eventually(lambda: answers(port), PATIENCE)


def test_a_relay_takes_its_port_from_a_session_that_is_gone_and_does_not_know_it(
    link: Link, two: tuple[Server, Server], target_of: TargetOf, echo: Echo
) -> None:
    near, far = (link.connect(known(target_of, server)) for server in two)
    port = link.relay(near, far, "127.0.0.1", echo.port)
    events: list[Event] = []
    link.on_event(events.append)
    # It stands still, and so notices nothing; its port is still listened at.
    (served,) = [process for process in two[0].sessions() if process.name() == "sshd"]
    served.suspend()
    eventually(lambda: answers(port), PATIENCE)
    assert any(event.kind == "back" for event in events)


def test_a_wished_port_is_had_as_soon_as_it_is_let_go_of(
    link: Link, two: tuple[Server, Server], target_of: TargetOf, echo: Echo
) -> None:
    near, far = (link.connect(known(target_of, server)) for server in two)
    with SSHMachine.connect(known(target_of, two[0])) as earlier:
        port = earlier.session.listen(0, lambda channel: None)
        assert link.relay(near, far, "127.0.0.1", echo.port, wish=port) == port
    eventually(lambda: answers(port), PATIENCE)


def test_a_host_that_lets_nobody_have_a_port_is_named(link: Link, target_of: TargetOf, tmp_path: Path) -> None:
    with serve(tmp_path / "one", "AllowTcpForwarding local") as one, serve(tmp_path / "two") as two:
        near, far = link.connect(known(target_of, one)), link.connect(known(target_of, two))
        with pytest.raises(MachineError, match="AllowTcpForwarding yes"):
            link.relay(near, far, "127.0.0.1", 7000)
        # Requests are told apart: one that is refused does not answer another.
        assert link.relay(far, near, "127.0.0.1", 7000)
        assert near.run("echo on").out == b"on\n"
