"""A host whose connection breaks again while it is made again, over a real server and a link that breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import paramiko
import pytest

from sky_jupyter.errors import LinkLost
from sky_jupyter.machines.link import reconnecting_host, target_kinds
from sky_jupyter.machines.link.encoding import Event
from sky_jupyter.machines.link.reconnecting_host import ReconnectingHost
from sky_jupyter.machines.ssh import auth
from sky_jupyter.machines.ssh.session import Access
from sky_jupyter.machines.ssh.session_machine import SessionMachine
from sky_jupyter.machines.ssh.target import Target

from .conftest import eventually
from .link import Link
from .link import link as relay
from .sshd import Server


@pytest.fixture
def between(server: Server) -> Iterator[Link]:
    with relay(server.port) as made:
        yield made


@pytest.fixture
def events() -> list[Event]:
    return []


@pytest.fixture
def host(
    between: Link,
    events: list[Event],
    server: Server,
    target_of: Callable[..., Target],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[ReconnectingHost]:
    """A host that is connected, and is tried again soon."""
    monkeypatch.setattr(reconnecting_host, "FIRST_PAUSE", 0.05)
    made = ReconnectingHost(1, target_of(server, port=between.port), None, events.append)
    made.open(Access())
    yield made
    made.close()


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


@pytest.mark.parametrize(
    ("owner", "name", "times"),
    [(auth, "log_in", 5), (paramiko.Transport, "auth_publickey", 1)],
    ids=["before each key is offered", "while a key is offered"],
)
def test_a_host_whose_connection_breaks_in_the_log_in_is_tried_again(
    host: ReconnectingHost,
    between: Link,
    events: list[Event],
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    times: int,
) -> None:
    real, broken = getattr(owner, name), []

    def breaks(transport: paramiko.Transport, *more: Any) -> Any:
        if len(broken) < times:
            broken.append(transport)
            between.cut()
            eventually(lambda: not transport.is_active())
        return real(transport, *more)

    monkeypatch.setattr(owner, name, breaks)
    between.cut()
    eventually(lambda: {"back", "refused"} & set(kinds(events)))
    assert kinds(events) == ["waiting", "waiting", "back"]
    assert "ended the connection" in events[1].why
    assert host.up


def test_an_error_of_any_type_does_not_end_the_attempts(
    host: ReconnectingHost, between: Link, events: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, errors = target_kinds.connect, [paramiko.SSHException("No existing session"), ValueError("wrong")]

    def connect(*arguments: Any) -> SessionMachine:
        if errors:
            raise errors.pop(0)
        return real(*arguments)

    monkeypatch.setattr(target_kinds, "connect", connect)
    between.cut()
    eventually(lambda: host.up and "back" in kinds(events))
    assert [event.why for event in events[1:3]] == ["No existing session", "wrong"]


def test_a_connection_that_is_lost_as_it_comes_back_is_made_again(
    host: ReconnectingHost, between: Link, events: list[Event]
) -> None:
    broken: list[SessionMachine] = []

    def on_open(machine: SessionMachine) -> None:
        """Break the first connection that is made again before anybody is told of its loss."""
        if not broken:
            broken.append(machine)
            lost: list[LinkLost] = []
            machine.session.on_lost(lost.append)
            between.cut()
            eventually(lambda: lost)

    host.on_open(on_open)
    between.cut()
    eventually(lambda: kinds(events).count("back") == 2)
    assert host.up
