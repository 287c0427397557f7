"""What the link holds, where connections are made by a stand-in: thousands of hosts, and clients that come at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.errors import LinkLost, Unreachable
from sky_jupyter.machines.link import framing, socket_folder, target_kinds
from sky_jupyter.machines.link.client import Link
from sky_jupyter.machines.link.idle_timeout import IdleTimeout
from sky_jupyter.machines.link.server import Server
from sky_jupyter.machines.ssh.target import Target
from sky_jupyter.machines.ssh.types import Prompts

from .conftest import need_ssh

HOST = Target("gpu1", "gpu1", "ada")


class Session:
    """A connection to nowhere, which is lost when a test says so."""

    def __init__(self, target: Target) -> None:
        self.target, self.alive = target, True

    def on_lost(self, tell: Callable[[LinkLost], None]) -> None:
        """It is not lost by itself."""

    def close(self) -> None:
        self.alive = False


class Machine:
    """A host that was reached."""

    def __init__(self, target: Target) -> None:
        self.session, self.key, self.address = Session(target), f"ssh {target.host}", target.host

    def close(self) -> None:
        self.session.close()


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Link]:
    """A client of a link in this process, whose hosts are all reached at once."""
    need_ssh()
    monkeypatch.setattr(target_kinds, "connect", lambda target, *_: Machine(target))
    stop, folder = threading.Event(), tmp_path / "link"
    server = Server(*_ends(folder), IdleTimeout(None, 60.0), stop, [])
    server.start()
    made = Link.join(folder)
    yield made
    made.close()
    stop.set()
    server.close()
    server.remove_folders(over=False)


def _ends(folder: Path) -> tuple[Any, bytes]:
    key = socket_folder.make(folder, {})
    return socket_folder.listen(folder), key


def test_more_hosts_than_a_message_holds_are_told(link: Link) -> None:
    # As many as thousands with short names.
    keys = ("/home/ada/" + "x" * 4000,)
    made = [link.connect(replace(HOST, host=f"gpu{number}", keys=keys)) for number in range(300)]
    assert 300 * len(keys[0]) > framing.MAX_HEAD
    assert link.alive
    assert [one.number for one in link.machines()] == [one.number for one in made]
    assert [one.target for one in link.machines()] == [one.target for one in made]
    assert all(one.up for one in (made[0], made[150], made[-1]))
    link.ask("let_go", machine=made[150].number)
    assert [one.up for one in made[149:152]] == [True, False, True]
    assert link.tunnels() == []


def test_a_client_has_its_host_though_another_s_attempt_at_once_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    need_ssh()
    from sky_jupyter.machines.link.connection_table import ConnectionTable

    begun, asked, attempts = threading.Event(), threading.Event(), list[Target]()

    class Second(Target):
        def __eq__(self, other: object) -> bool:
            asked.set()
            return isinstance(other, Target) and other.host == self.host

        __hash__ = Target.__hash__

    def connect(target: Target, *_: object) -> Machine:
        attempts.append(target)
        if len(attempts) == 1:
            begun.set()
            assert asked.wait(60)
            raise Unreachable(target.name, "timeout", "it did not answer")
        return Machine(target)

    monkeypatch.setattr(target_kinds, "connect", connect)
    table, failed = ConnectionTable(), list[Exception]()

    def first() -> None:
        try:
            table.connect(HOST, None, False, Prompts())
        except Unreachable as error:
            failed.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    assert begun.wait(60)
    held = table.connect(Second(HOST.name, HOST.host, HOST.user), None, False, Prompts())
    thread.join()
    assert len(failed) == 1
    assert table.host(held.number) is held
    assert table.hosts() == [held]
    table.close()
    assert not held.up
