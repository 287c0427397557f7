"""What the scheduler holds for those who share by name: requests that come twice, are given up, or whose askers go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import pytest
from distributed import Scheduler

from sky_jupyter.node.dask import shared_state
from sky_jupyter.node.dask.scheduler import WithoutHttp
from sky_jupyter.node.dask.shared_state import SharedStateExtension


class Bare(WithoutHttp, Scheduler):
    """Dask's, which listens nowhere."""


Body = Callable[[SharedStateExtension], Awaitable[None]]


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path) -> Iterator[None]:
    """Dask's own folder is where others would not find it: it stays there."""
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        yield


def on_a_scheduler(body: Body) -> None:
    async def work() -> None:
        async with Bare(protocol="inproc", dashboard=False) as scheduler:
            await asyncio.wait_for(body(SharedStateExtension(scheduler)), 60)

    asyncio.run(work())


async def share(
    held: SharedStateExtension, ask: str, kind: str, op: str, *data: bytes, who: str = "a.0.1.", **what: Any
) -> Any:
    answer = await held.sky_shared_request(who, ask, {"kind": kind, "op": op, "name": "x", **what}, data)
    assert answer["status"] == "ok", answer
    return answer["data"][0] if answer["data"] else answer["value"]


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_request_that_comes_twice_is_done_once() -> None:
    async def body(held: SharedStateExtension) -> None:
        assert [await share(held, "one", "counter", "add", by=1) for _ in range(3)] == [1, 1, 1]
        waiting = [asyncio.ensure_future(share(held, "two", "queue", "get")) for _ in range(2)]
        await turns()
        await share(held, "put", "queue", "put", b"item")
        assert await asyncio.gather(*waiting) == [b"item", b"item"]
        assert await share(held, "size", "queue", "size") == 0

    on_a_scheduler(body)


def test_an_item_that_nobody_takes_after_all_is_the_first_again() -> None:
    async def body(held: SharedStateExtension) -> None:
        for item in (b"1", b"2", b"3"):
            await share(held, f"put {item!r}", "queue", "put", item)
        assert await share(held, "get", "queue", "get") == b"1"
        await held.sky_shared_cancel("get")
        await held.sky_shared_cancel("get")
        assert [await share(held, f"get {n}", "queue", "get") for n in range(3)] == [b"1", b"2", b"3"]
        assert held.size == 0
        # Where it was the only one, somebody may wait for it by now.
        await share(held, "put 4", "queue", "put", b"4")
        assert await share(held, "get 4", "queue", "get") == b"4"
        other = asyncio.ensure_future(share(held, "other", "queue", "get"))
        await turns()
        await held.sky_shared_cancel("get 4")
        assert await other == b"4"

    on_a_scheduler(body)


def test_who_is_given_up_before_the_request_has_come_gets_nothing() -> None:
    async def body(held: SharedStateExtension) -> None:
        await held.sky_shared_cancel("early")
        answer = await held.sky_shared_request("a.0.1.", "early", {"kind": "lock", "op": "acquire", "name": "x"})
        assert (answer["status"], answer["kind"]) == ("error", "cancelled")
        assert await share(held, "now", "lock", "acquire", timeout=0)

    on_a_scheduler(body)


def test_a_lock_that_is_given_in_the_moment_in_which_it_is_given_up_is_free() -> None:
    async def body(held: SharedStateExtension) -> None:
        assert await share(held, "first", "lock", "acquire")
        second = asyncio.ensure_future(share(held, "second", "lock", "acquire", who="b.0.1."))
        await turns()
        await share(held, "release", "lock", "release")
        # Who waited has it now, or has not heard of it.
        await held.sky_shared_cancel("second")
        assert not await share(held, "locked", "lock", "locked")
        with pytest.raises(AssertionError, match="cancelled"):
            await second

    on_a_scheduler(body)


def test_those_who_are_gone_hold_no_lock_and_wait_for_nothing() -> None:
    async def body(held: SharedStateExtension) -> None:
        assert await share(held, "mine", "lock", "acquire", who="a.1.1.")
        waiting = asyncio.ensure_future(held.sky_shared_request("a.1.1.", "at", _barrier(2)))
        await turns()
        await held.sky_shared_left("a.1.10.")
        assert await share(held, "still", "lock", "locked")
        await held.sky_shared_left("a.1.1.")
        assert (await waiting)["kind"] == "cancelled"
        assert await share(held, "theirs", "lock", "acquire", who="b.0.1.", timeout=0)
        # It is not counted any more: two others are needed.
        pair = [asyncio.ensure_future(held.sky_shared_request("b.0.1.", f"b{n}", _barrier(2))) for n in range(2)]
        assert sorted([(await one)["value"] for one in pair]) == [0, 1]

    on_a_scheduler(body)


def _barrier(parties: int) -> dict[str, Any]:
    return {"kind": "barrier", "op": "wait", "name": "x", "parties": parties}


def test_an_agent_that_comes_back_in_time_keeps_its_locks_and_one_that_does_not_loses_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_state, "ABSENCE", 0.1)

    async def body(held: SharedStateExtension) -> None:
        await held.sky_shared_register("a", "node-0", "tls://1")
        assert await share(held, "lock", "lock", "acquire")
        held.remove_worker(None, "tls://1")
        await held.sky_shared_register("a", "node-0", "tls://2")
        await asyncio.sleep(0.3)
        assert await share(held, "locked", "lock", "locked")
        held.remove_worker(None, "tls://2")
        # Behind a relay it has the same address again.
        await held.sky_shared_register("a", "node-0", "tls://2")
        await asyncio.sleep(0.3)
        assert await share(held, "still", "lock", "locked")
        held.remove_worker(None, "tls://2")
        assert await share(held, "other", "lock", "acquire", who="b.0.1.", timeout=60)
        # An agent that is new at a node takes the place of the one before at once.
        await held.sky_shared_register("b", "node-1", "tls://3")
        await held.sky_shared_register("c", "node-1", "tls://4")
        assert not await share(held, "free", "lock", "locked")

    on_a_scheduler(body)


def test_what_is_shared_has_a_limit_and_room_again_when_it_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_state, "MOST_ALL", 3000)

    async def body(held: SharedStateExtension) -> None:
        await share(held, "put", "dict", "put", b"key", bytes(1000), keys=["k"])
        await share(held, "again", "dict", "put", b"key", bytes(2000), keys=["k"])
        await share(held, "queue", "queue", "put", bytes(500))
        answer = await held.sky_shared_request(
            "a.0.1.", "more", {"kind": "queue", "op": "put", "name": "x"}, [bytes(1000)]
        )
        assert (answer["status"], answer["kind"]) == ("error", "MemoryError")
        assert "clear()" in answer["text"]
        await share(held, "clear", "dict", "clear")
        await share(held, "after", "queue", "put", bytes(1000))
        await share(held, "cleared", "queue", "clear")
        assert held.size == 0

    on_a_scheduler(body)


def test_what_cannot_be_asked_for_is_refused_and_another_scheduler_s_askers_are_told() -> None:
    async def body(held: SharedStateExtension) -> None:
        for what in ({}, {"kind": "dict", "op": "eval", "name": "x"}, {"kind": "dict", "op": "get", "name": 3}):
            assert (await held.sky_shared_request("a.0.1.", str(what), what))["kind"] == "TypeError"
        size = {"kind": "dict", "op": "size", "name": "x"}
        assert (await held.sky_shared_request("a.0.1.", "s1", size, epoch="another"))["status"] == "anew"
        assert (await held.sky_shared_request("a.0.1.", "s2", size, epoch=held.epoch))["status"] == "ok"

    on_a_scheduler(body)
