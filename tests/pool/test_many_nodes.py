"""Pools of many nodes: simulated ones, which are real agents whose ranks are no processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import psutil
import pytest

from benchmarks import simulated
from sky_jupyter.pool.pool import Pool
from tests.pool.pools import run, wait_until

NODES = 70

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with simulated.pool(NODES) as pool:
        yield pool


def test_many_nodes_print_and_nothing_is_lost(pool: Pool) -> None:
    result = run(pool, "lines = 1000")
    assert len(result.errors) == 0
    assert [len(result.stdout(rank).splitlines()) for rank in range(NODES)] == [1000] * NODES


def test_what_is_more_than_an_agent_may_send_unheard_is_acknowledged_and_nothing_is_lost(pool: Pool) -> None:
    # Many agents share a process, and the bytes that it may send ahead: each has 256 KB, and a rank prints 700.
    result = run(pool, "lines = 30000", ranks=[0, 1, NODES - 1])
    assert [len(result.stdout(rank).splitlines()) for rank in (0, 1, NODES - 1)] == [30000] * 3


def test_many_nodes_are_watched_by_their_scheduler_and_those_that_stand_still_are_told(pool: Pool) -> None:
    client = pool.control.client
    assert client is not None
    heard = pool.control.heard
    wait_until(lambda: pool.control.heard > heard)
    # The notebook has connections to the scheduler, and to no agent.
    assert set(client.rpc.available) == {client.scheduler.addr}
    (agents,) = [
        int(process.pid)
        for process in psutil.Process().children(recursive=True)
        if any(f"n{NODES // 2}/agent.log" in file.path for file in process.open_files())
    ]
    # The last node has a process of its own.
    half = set(range(NODES // 2, NODES - 1))
    os.kill(agents, signal.SIGSTOP)
    try:
        wait_until(lambda: pool.control.silent == half)
    finally:
        os.kill(agents, signal.SIGCONT)
    wait_until(lambda: not pool.control.silent)
    assert len(run(pool, "x = 1").errors) == 0
