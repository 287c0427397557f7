"""Pings of many agents by one request: each caller is answered by the agents themselves, whoever else asks."""

from __future__ import annotations

import asyncio
from typing import Any

from sky_jupyter.errors import PoolError
from sky_jupyter.node.dask.pings import PingsMany


class Server(PingsMany):
    """Pings agents that answer once they are let, and refuse all managers but the second."""

    def __init__(self) -> None:
        self.handlers: dict[Any, Any] = {}
        self.pinged: list[str] = []
        self.go = asyncio.Event()
        self.serve_pings()

    async def ping_one(self, address: str, **caller: Any) -> str:
        self.pinged.append(address)
        await self.go.wait()
        if caller["manager"] != 2:
            raise PoolError("another notebook has taken the pool over")
        return f"incarnation of {address}"


def test_two_calls_of_one_caller_share_the_pings_and_both_are_answered() -> None:
    async def body() -> None:
        server = Server()
        both = [asyncio.ensure_future(server.ping_many(["a", "b"], 60.0, manager=2)) for _ in range(2)]
        await asyncio.sleep(0)
        server.go.set()
        wanted = {one: f"incarnation of {one}" for one in "ab"}
        assert await asyncio.gather(*both) == [wanted, wanted]
        assert server.pinged == ["a", "b"]
        assert server._pings == {}

    asyncio.run(body())


def test_a_refusal_reaches_the_caller_that_is_refused_alone() -> None:
    async def body() -> None:
        server = Server()
        both = [asyncio.ensure_future(server.ping_many(["a"], 60.0, manager=number)) for number in (1, 2)]
        await asyncio.sleep(0)
        server.go.set()
        refused, answered = await asyncio.gather(*both, return_exceptions=True)
        assert isinstance(refused, PoolError)
        assert answered == {"a": "incarnation of a"}

    asyncio.run(body())
