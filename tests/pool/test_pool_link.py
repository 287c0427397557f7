"""The manager's side of a link that comes to nothing, or dies."""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from sky_jupyter.errors import PoolError
from sky_jupyter.machines.link.client import Link
from sky_jupyter.machines.ssh.resolve_target import resolve
from sky_jupyter.pool.hosts import pool_link
from sky_jupyter.pool.hosts.pool_link import PoolLink
from sky_jupyter.pool.registry.folder_removal import LINK
from tests.pool.pools import wait_until
from tests.ports import free_port


def test_a_link_that_is_given_up_while_it_starts_is_ended_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = tmp_path / "python"
    never.write_text("#!/bin/sh\nexec sleep 600\n")
    never.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(never))
    made = PoolLink.start("0a1b2c3d")
    errors: list[PoolError] = []

    def open_it() -> None:
        try:
            made.open()
        except PoolError as error:
            errors.append(error)

    before = psutil.Process().children()
    thread = threading.Thread(target=open_it)
    thread.start()

    def started() -> list[psutil.Process]:
        return [child for child in psutil.Process().children() if child not in before and child.name() == "sleep"]

    wait_until(started)
    (process,) = started()
    made.end()
    assert not process.is_running()
    thread.join()
    assert ["was ended while it started" in str(error) for error in errors] == [True]
    assert not made.folder.exists()
    assert not made.blobs.exists()
    # Other threads of the start may ask for it afterwards.
    with pytest.raises(PoolError, match="given up"):
        made.open()


def test_a_dead_link_that_cannot_be_mended_yet_costs_one_client_however_often_it_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pool_link, "_PAUSE", 0)
    monkeypatch.setattr(pool_link, "_LONGEST_PAUSE", 0)
    clients: list[int] = []
    connect = Link.connect

    def counted(self: Link, *arguments: Any, **options: Any) -> object:
        clients.append(sum(thread.name == "sky-link-events" for thread in threading.enumerate()))
        return connect(self, *arguments, **options)

    monkeypatch.setattr(Link, "connect", counted)
    made = PoolLink.start("0a1b2c3d")
    # A host that is off.
    off = SimpleNamespace(target=resolve("127.0.0.1", port=free_port(), user="ada"), address="127.0.0.1", name="off")
    try:
        first = made.open()
        monkeypatch.setattr(made, "_machines", [off])
        psutil.Process(made.pid).kill()
        wait_until(lambda: len(clients) >= 4)
    finally:
        made.release()
        # It ends with the attempt that is under way, if one is.
        with contextlib.suppress(PoolError):
            Link.join(made.folder / LINK).end()
        made.end()
    assert made.link is first
    assert set(clients) == {clients[0]}
