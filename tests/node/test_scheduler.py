"""Dask's scheduler as a pool has it: which calls are begun again whose worker is lost, and which are not."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import dask
import pytest
from distributed import Client, Future, Worker
from distributed.scheduler import KilledWorker

from sky_jupyter.machines.local_machine import LocalMachine
from sky_jupyter.node.dask.scheduler import CALL, DASK_SETTINGS, RETRIES, PoolScheduler
from sky_jupyter.pool.control import certificates

KEY = f"{CALL}-1"
LOCAL = LocalMachine()
SERVE = """
import sys
from pathlib import Path
from sky_jupyter.node.dask.scheduler import serve
serve(Path(sys.argv[1]), "127.0.0.2", 0, int(sys.argv[2]))
"""
Body = Callable[[PoolScheduler, Callable[[int], Future]], Awaitable[None]]
# Of calls, which scheduler and workers in this process share with the test.
begun: list[str] = []


async def call(go: asyncio.Event) -> int:
    begun.append(KEY)
    await go.wait()
    return len(begun)


def on_workers(go: asyncio.Event, body: Body) -> None:
    async def work() -> None:
        begun.clear()
        async with (
            PoolScheduler(protocol="inproc", dashboard=False) as scheduler,
            Worker(scheduler.address, nthreads=1, dashboard=False),
            Worker(scheduler.address, nthreads=1, dashboard=False),
            Worker(scheduler.address, nthreads=1, dashboard=False),
            Client(scheduler.address, asynchronous=True) as client,
        ):

            def send(retries: int) -> Future:
                with dask.annotate(**{RETRIES: retries}):
                    return client.submit(call, go, key=KEY, pure=False)

            await asyncio.wait_for(body(scheduler, send), 60)

    with dask.config.set({**DASK_SETTINGS, "distributed.comm.require-encryption": False}):
        asyncio.run(work())


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come about")


async def lose(scheduler: PoolScheduler, worker: str) -> None:
    await scheduler.remove_worker(address=worker, stimulus_id="lost", expected=False)


@pytest.mark.parametrize("retries", [0, 1])
def test_a_call_is_begun_again_as_often_as_it_may_lose_its_worker(retries: int) -> None:
    async def body(scheduler: PoolScheduler, send: Callable[[int], Future]) -> None:
        future = send(retries)
        for times in range(retries + 1):
            await until(lambda times=times: len(begun) > times)  # type: ignore[misc]
            at = scheduler.tasks[KEY].processing_on
            assert at is not None
            await lose(scheduler, at.address)
        with pytest.raises(KilledWorker):
            await future
        assert len(begun) == retries + 1

    on_workers(asyncio.Event(), body)


@pytest.mark.parametrize("retries", [0, 1])
def test_a_call_that_is_over_is_made_again_for_its_answer_only_where_it_may_be(retries: int) -> None:
    go = asyncio.Event()
    go.set()

    async def body(scheduler: PoolScheduler, send: Callable[[int], Future]) -> None:
        future = send(retries)
        await future
        (at,) = scheduler.tasks[KEY].who_has or ()
        await lose(scheduler, at.address)
        await until(lambda: len(begun) == 2 if retries else future.status == "cancelled")
        assert len(begun) == retries + 1

    on_workers(go, body)


def test_the_scheduler_listens_on_the_loopback_too_where_forwards_reach_nothing_else(tmp_path: Path) -> None:
    LOCAL.put({tmp_path / name: data for name, data in certificates.make("pool").items()})
    reader, writer = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", SERVE, str(tmp_path), str(writer)], pass_fds=[writer])
    try:
        os.close(writer)
        with open(reader) as file:
            address = file.readline().strip()
        assert address.startswith("tls://127.0.0.2:")
        for host in ("127.0.0.1", "127.0.0.2"):
            socket.create_connection((host, int(address.rpartition(":")[2])), 10).close()
    finally:
        process.kill()
        process.wait()
