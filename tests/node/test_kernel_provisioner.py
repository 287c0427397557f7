"""The wait for the forkserver's answer."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.node.agent import kernel_provisioner
from sky_jupyter.node.agent.kernel_provisioner import Forkserver
from sky_jupyter.node.kernel.forkserver import listen, ready_file

LOOKS = round(kernel_provisioner._FORK_PATIENCE / kernel_provisioner._LOOK)


def looks_until_given_up(monkeypatch: pytest.MonkeyPatch, folder: Path, on_look: Callable[[int], bool]) -> int:
    """How often the client looks; ``on_look`` is told the number of each, and whether the answer is there."""
    looked = 0

    async def wait(given: list[asyncio.Future[Any]], timeout: float) -> None:
        nonlocal looked
        looked += 1
        if on_look(looked):
            given[0].set_result(None)

    async def ask() -> None:
        client = Forkserver()
        client._path = folder / "fork"
        monkeypatch.setattr(asyncio, "wait", wait)
        try:
            await client._answered(asyncio.get_running_loop().create_future())
        finally:
            monkeypatch.undo()

    asyncio.run(ask())
    return looked


def test_all_agents_of_a_machine_can_connect_before_the_forkserver_accepts_one(tmp_path: Path) -> None:
    async def connect_all() -> None:
        await asyncio.gather(*(Forkserver().connect(tmp_path / "fork") for _ in range(300)))

    with listen(tmp_path / "fork") as listener:
        asyncio.run(connect_all())
        listener.setblocking(False)
        for _ in range(300):
            listener.accept()[0].close()


def test_a_forkserver_that_forks_for_others_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = ready_file(tmp_path / "fork")
    ready.touch()

    def fork_for_others(number: int) -> bool:
        if number % (LOOKS - 1) == 0:
            os.utime(ready, ns=(number, number))
        return number > 5 * LOOKS

    assert looks_until_given_up(monkeypatch, tmp_path, fork_for_others) == 5 * LOOKS + 1


def test_a_forkserver_that_imports_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert looks_until_given_up(monkeypatch, tmp_path, lambda number: number > 3 * LOOKS) == 3 * LOOKS + 1


def test_a_forkserver_that_does_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready_file(tmp_path / "fork").touch()
    with pytest.raises(ConnectionError, match="does not answer, for 15 s"):
        looks_until_given_up(monkeypatch, tmp_path, lambda number: number > 3 * LOOKS)
