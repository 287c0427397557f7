"""The forkserver's answers, and the wait for them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sky_jupyter.node.agent import kernel_provisioner
from sky_jupyter.node.agent.kernel_provisioner import Forkserver
from sky_jupyter.node.kernel.forkserver import listen, ready_file

# A forkserver whose kernels do nothing. Where a file is there, it gets no process, as at a container's limit of them.
SERVER = """
import errno, os, signal, sys
from pathlib import Path
from sky_jupyter.node.kernel import forkserver
from sky_jupyter.node.system import processes

path, fork = Path(sys.argv[1]), os.fork

def fork_idle():
    if path.with_name("full").exists():
        raise BlockingIOError(errno.EAGAIN, "refused")
    parent = os.getpid()
    if (pid := fork()) == 0:
        processes.die_with_parent(parent)
        signal.pause()
    return pid

os.fork = fork_idle
listener = forkserver.listen(path)
forkserver.ready_file(path).touch()
print("ready", flush=True)
forkserver._Server(listener, {}, 60.0).run()
"""
REQUEST = {"connection_file": "", "env": {}, "cwd": "/", "log": os.devnull}
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


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", SERVER, str(tmp_path / "fork")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            kernels = psutil.Process(process.pid).children()
            process.kill()
            psutil.wait_procs(kernels, timeout=60)


def test_a_machine_that_starts_no_more_processes_keeps_those_it_has(
    tmp_path: Path, server: subprocess.Popen[bytes]
) -> None:
    async def fork() -> None:
        client = Forkserver()
        await client.connect(tmp_path / "fork")
        _, first, _ = await client.fork(REQUEST)
        (tmp_path / "full").touch()
        held = psutil.Process(server.pid).num_fds()
        for _ in range(3):
            with pytest.raises(ConnectionError, match=r"a limit of processes.*\(Resource temporarily unavailable\)"):
                await client.fork(REQUEST)
        # Each would have left two; one may be open for a moment.
        assert psutil.Process(server.pid).num_fds() < held + 6
        (tmp_path / "full").unlink()
        _, second, _ = await client.fork(REQUEST)
        assert not first.done()
        assert not second.done()

    asyncio.run(fork())


@pytest.mark.skipif(sys.platform != "linux", reason="another process's limits are set on Linux: run it there")
def test_a_forkserver_without_descriptors_goes_on_once_it_has_some(
    tmp_path: Path, server: subprocess.Popen[bytes]
) -> None:
    import resource

    async def fork() -> None:
        client, later = Forkserver(), Forkserver()
        await client.connect(tmp_path / "fork")
        _, first, _ = await client.fork(REQUEST)
        before = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (1, before[1]))
        await later.connect(tmp_path / "fork")
        with pytest.raises(ConnectionError, match=r"open files is reached there \(Too many open files\)"):
            await client.fork(REQUEST)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, before)
        _, second, _ = await later.fork(REQUEST)
        assert not first.done()
        assert not second.done()

    asyncio.run(fork())
