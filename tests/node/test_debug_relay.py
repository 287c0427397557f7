"""The agent's relay of a page's debugger: what a run hears of a stop, and what happens where the notebook is gone."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

from sky_jupyter.node.agent.debug_relay import DebugRelay

STOPPED = {"event": {"type": "event", "event": "stopped", "body": {"threadId": 1}}}
CONTINUED = {"event": {"type": "event", "event": "continued", "body": {"threadId": 1}}}


class Node:
    """A relay with a rank that works on a run; what the rank was told, the manager heard, and the run's events."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.heard: list[str] = []
        self.events: list[str] = []
        self.rank = SimpleNamespace(number=3, pid=1, entered=True, busy_with="r", answer=self.told.put_nowait)
        self.agent = SimpleNamespace(
            config=SimpleNamespace(idle_timeout=None),
            manager=1,
            node=1,
            heard=time.monotonic(),
            ranks={3: self.rank},
            send=lambda batch: self.heard.append(batch["debug"]["event"]),
            on_event=lambda rank, run, event: self.events.append(event["kind"]),
        )
        self.relay = DebugRelay(self.agent)  # type: ignore[arg-type]

    async def ask(self, command: str) -> dict[str, Any]:
        """Have the rank answer a request."""
        asking = asyncio.ensure_future(self.relay.sky_debug_rank(3, {"seq": 7, "command": command}))
        content = await self.told.get()
        assert content["request"]["command"] == command
        self.say({"id": content["id"], "reply": {"success": True}})
        return await asking

    def say(self, content: dict[str, Any]) -> None:
        self.relay.on_ask(self.rank, content)  # type: ignore[arg-type]


def test_a_stop_is_noted_in_the_run_until_the_rank_goes_on() -> None:
    async def debug(node: Node) -> None:
        assert await node.ask("attach") == {"success": True}
        for content in (STOPPED, STOPPED, CONTINUED, STOPPED):
            node.say(content)
        await node.ask("disconnect")
        node.say(STOPPED)

    node = Node()
    asyncio.run(debug(node))
    assert node.events == ["stopped", "asked", "stopped", "asked"]
    assert node.heard == ["stopped", "stopped", "continued", "stopped"]


def test_a_rank_goes_on_once_its_notebook_is_gone() -> None:
    async def replaced(node: Node) -> dict[str, Any]:
        await node.ask("attach")
        node.say(STOPPED)
        node.agent.manager = 2
        return await node.told.get()

    node = Node()
    assert asyncio.run(replaced(node))["request"]["command"] == "disconnect"
    assert node.events == ["stopped", "asked"]


def test_a_request_ends_with_the_kernel_that_was_asked() -> None:
    async def die(node: Node) -> dict[str, Any]:
        asking = asyncio.ensure_future(node.relay.sky_debug_rank(3, {"seq": 7, "command": "stackTrace"}))
        await node.told.get()
        node.relay.on_end(3)
        return await asking

    node = Node()
    answer = asyncio.run(die(node))
    assert (answer["success"], answer["message"]) == (False, "the kernel of rank 3 has ended")
    assert node.heard == ["exited"]


def test_a_rank_without_a_ready_kernel_is_refused() -> None:
    node = Node()
    node.rank.entered = False
    answer = asyncio.run(node.relay.sky_debug_rank(3, {"seq": 7, "command": "attach"}))
    assert "rank 3 has no kernel that is ready" in answer["message"]
