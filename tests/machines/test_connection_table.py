"""What the link holds, where connections are made by a stand-in: thousands of hosts, and clients that come at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.errors import LinkLost
from sky_jupyter.machines.link import framing, socket_folder, target_kinds
from sky_jupyter.machines.link.client import Link
from sky_jupyter.machines.link.idle_timeout import IdleTimeout
from sky_jupyter.machines.link.server import Server
from sky_jupyter.machines.ssh.target import Target

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
