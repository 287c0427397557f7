"""Whether processes go on, stand still or are gone, and when their end is seen."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sky_jupyter.node.agent.kernel_provisioner import gone
from sky_jupyter.node.system.stopped_processes import GONE, ON, STILL, state_of
from tests.pool.pools import wait_until


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


def test_a_process_goes_on_stands_still_and_is_gone_even_before_its_parent_looks(
    child: subprocess.Popen[bytes],
) -> None:
    wait_until(lambda: state_of(child.pid) == ON)
    child.send_signal(signal.SIGSTOP)
    wait_until(lambda: state_of(child.pid) == STILL)
    child.send_signal(signal.SIGCONT)
    wait_until(lambda: state_of(child.pid) == ON)
    child.kill()
    wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    assert state_of(child.pid) == GONE
    child.wait()
    assert state_of(child.pid) == GONE


@pytest.mark.skipif(sys.platform != "linux", reason="reads the proc file system")
def test_a_name_with_brackets_does_not_hide_that_a_process_stands_still(tmp_path: Path) -> None:
    program = tmp_path / "T) Z (R) S"
    program.symlink_to(sys.executable)
    with subprocess.Popen([program, "-c", "input()"], stdin=subprocess.PIPE) as process:
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: state_of(process.pid) == STILL)
        process.kill()


@pytest.mark.parametrize("has_handles", [True, False])
@pytest.mark.parametrize("first", ["process", "word"])
def test_the_end_of_a_process_is_awaited_or_the_word_of_it(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, has_handles: bool, first: str
) -> None:
    if not has_handles:
        monkeypatch.delattr(os, "pidfd_open", raising=False)

    async def wait() -> None:
        word: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(gone(child.pid, word))
        # It has begun to wait then.
        await asyncio.sleep(0)
        assert not waiting.done()
        child.kill() if first == "process" else word.set_result(None)
        await asyncio.wait_for(waiting, 60)

    asyncio.run(wait())


def test_the_end_of_a_process_that_has_been_gone_for_long_is_told_at_once(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()

    async def wait() -> None:
        await asyncio.wait_for(gone(child.pid, asyncio.get_running_loop().create_future()), 60)

    asyncio.run(wait())
