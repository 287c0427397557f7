"""An agent's requests to the scheduler, where its connection is gone."""

from __future__ import annotations

import asyncio

import pytest
from distributed.core import ConnectionPool

from sky_jupyter.node.agent.shared_state_client import unless_broken


def test_a_request_through_a_member_that_has_closed_is_one_whose_connection_broke() -> None:
    async def ask() -> None:
        pool = await ConnectionPool()
        scheduler = pool("tcp://127.0.0.1:9")
        await pool.close()
        with pytest.raises(RuntimeError):
            await scheduler.sky_shared_request()
        with unless_broken(scheduler):
            await scheduler.sky_shared_request()

    asyncio.run(ask())


def test_an_error_of_the_schedulers_own_is_raised() -> None:
    async def ask() -> None:
        pool = await ConnectionPool()
        with pytest.raises(RuntimeError, match="its own"), unless_broken(pool("tcp://127.0.0.1:9")):
            raise RuntimeError("its own")
        await pool.close()

    asyncio.run(ask())
