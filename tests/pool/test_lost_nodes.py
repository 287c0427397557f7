"""Nodes that are lost while something else goes on: runs, other ranks, and repairs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
import pytest

from sky_jupyter.errors import NodeLost
from sky_jupyter.node.protocol import rpc
from sky_jupyter.plugins import Plugin
from sky_jupyter.pool.base.event_loop import loop
from sky_jupyter.pool.runs.result import CellError
from tests.pool.pools import begin, local_pool, run, wait_until
from tests.pool.test_faults import scheduler_of

pytestmark = pytest.mark.usefixtures("separate_agents")


@contextlib.contextmanager
def slow_to_enter(info: Any) -> Iterator[None]:
    time.sleep(3)
    yield


@pytest.mark.slow
def test_a_node_that_is_back_while_another_is_mended_is_mended_after_it() -> None:
    with local_pool(plugins=(Plugin("slow", around_process=slow_to_enter),)) as pool:
        with pytest.raises(CellError):
            run(pool, "import os\nos._exit(3)", ranks=[0])
        assert pool.supervisor.repairs.mending
        agent = pool.status()[1]["pid"]
        psutil.Process(agent).kill()
        pool.settle()
        with contextlib.suppress(CellError):
            # It may begin before the loss of the node has been seen.
            run(pool, "1")
        assert run(pool, "1").values == [1, 1]
        assert pool.state == "ready"
        assert pool.status()[1]["pid"] != agent


def test_a_restart_leaves_no_node_lost_that_was_back_and_waited_for_its_repair() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    with local_pool() as pool:

        async def is_back() -> bool:
            return pool.supervisor.has_lost_nodes and not pool.control.lost

        loop().loop.call_soon_threadsafe(pool.supervisor.repairs.begin, never())
        psutil.Process(pool.status()[1]["pid"]).kill()
        wait_until(lambda: loop().call(is_back()))
        pool.restart()
        assert not pool.supervisor.has_lost_nodes
        assert not pool.supervisor.repairs.mending
        assert run(pool, "40 + 2").values == [42, 42]


def test_nobody_waits_for_a_node_to_be_back_once_the_pool_is_broken() -> None:
    with local_pool() as pool:

        async def lose_and_break() -> bool:
            pool.supervisor.on_lost(0, "it is gone", revived=False)
            mending = pool.supervisor.repairs.mending
            pool.lifecycle.failure.mark_broken("no kernels can be made")
            # The host tells of its nodes one by one.
            pool.supervisor.on_lost(1, "it is gone", revived=False)
            return mending

        assert loop().call(lose_and_break())
        assert not pool.supervisor.repairs.mending
        # The pool's own patience with such a node is longer than this.
        loop().call(pool.supervisor.repairs.settle(), timeout=20)
        assert pool.state == "broken"


def test_what_is_asked_of_an_agent_that_has_ended_is_over_once_the_scheduler_knows_its_end() -> None:
    with local_pool() as pool:
        assert pool.control is not None
        control, ended = pool.control, pool.control.addresses[0]
        asked: list[Future[Any]] = []

        async def ask() -> None:
            # It is tried for longer than this test may take.
            control.client.rpc.timeout = "1h"  # type: ignore[union-attr]
            for comm in control.client.rpc.available.get(ended, ()):  # type: ignore[union-attr]
                comm.abort()
            asked.append(loop().submit(control.ask(rpc.FIND_CALLS, [0], calls=["a call"])))

        agent, scheduler = psutil.Process(pool.status()[0]["pid"]), scheduler_of(pool)
        scheduler.suspend()
        try:
            agent.kill()
            loop().call(ask())
            wait_until(lambda: ended in control.client.rpc._connecting)  # type: ignore[union-attr]
        finally:
            scheduler.resume()
        wait_until(asked[0].done)
        # It is lost, or its next agent has answered.
        assert isinstance(asked[0].exception(), NodeLost) or asked[0].result() == {0: {}}
        pool.settle()
        assert run(pool, "40 + 2").values == [42, 42]


@pytest.mark.slow
def test_where_a_node_is_lost_the_other_ranks_have_their_grace_though_all_kernels_are_made_anew() -> None:
    with local_pool(plugins=(Plugin("together", collective=True),)) as pool:
        agents = {node: facts["pid"] for node, facts in pool.status().items()}
        current = begin(pool, "import os, time\ntime.sleep(6)\nos.getpid()", grace=60)
        time.sleep(0.5)
        psutil.Process(agents[1]).kill()
        with pytest.raises(CellError) as caught:
            pool.attend(current)
        assert list(caught.value.errors) == [1]
        before = caught.value.result[0]
        assert run(pool, "import os; os.getpid()").values[0] != before
        assert pool.take_restarted() == {0, 1}


@pytest.mark.slow
def test_a_run_that_a_lost_node_never_began_is_over_and_is_not_begun_there_later(tmp_path: Path) -> None:
    with local_pool() as pool:
        host = psutil.Process(pool.hosts[0].command.identity[0])
        agent = psutil.Process(pool.status()[1]["pid"])
        # Nobody makes a new agent for now.
        host.suspend()
        try:
            agent.kill()
            current = begin(
                pool, f"import sky_jupyter as sky\nopen(f'{tmp_path}/{{sky.instance_info().rank}}', 'x')\n1"
            )
            with pytest.raises(CellError) as caught:
                pool.attend(current)
        finally:
            host.resume()
        assert list(caught.value.errors) == [1]
        wait_until(lambda: 1 in pool.status())
        with contextlib.suppress(CellError):
            run(pool, "1")
        assert run(pool, "1").values == [1, 1]
        assert pool.runs()[current.id]["over"]
        assert list(pool.log(current.id).errors) == [1]
        with pytest.raises(CellError) as caught:
            pool.attend(pool.adopt(current.id))
        assert "its node had been lost before it began" in str(caught.value.errors[1])
        assert [path.name for path in tmp_path.iterdir()] == ["0"]


def test_taking_up_a_run_in_which_a_rank_died_replaces_no_kernel_that_lives() -> None:
    with local_pool() as pool:
        with pytest.raises(CellError) as caught:
            run(pool, "import os\nos._exit(3)", ranks=[1])
        run(pool, "name = 'kept'")
        pool.take_restarted()
        with pytest.raises(CellError):
            pool.attend(pool.adopt(caught.value.result.run))
        assert run(pool, "name").values == ["kept", "kept"]
        assert pool.take_restarted() == set()


def test_a_run_is_not_begun_on_kernels_that_are_about_to_be_replaced() -> None:
    with local_pool() as pool:
        agent = psutil.Process(pool.status()[1]["pid"])

        async def lose() -> None:
            assert pool.control is not None
            pool.control.detector.lose(1, "its machine is busy")

        agent.suspend()
        try:
            loop().submit(lose()).result()
            with pytest.raises(CellError) as caught:
                run(pool, "1")
            assert list(caught.value.errors) == [1]
            assert "node 1 is lost: its machine is busy" in str(caught.value.errors[1])
        finally:
            agent.resume()
        wait_until(lambda: pool.take_restarted() == {1})
        assert run(pool, "1").values == [1, 1]
