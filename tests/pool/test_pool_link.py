"""The manager's side of a link that comes to nothing."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import psutil
import pytest

from sky_jupyter.errors import PoolError
from sky_jupyter.pool.hosts.pool_link import PoolLink
from tests.pool.pools import wait_until


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
