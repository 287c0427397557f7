"""The agent's relay of questions: who gets the answer, and what happens where nobody is left to give one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from sky_jupyter.node.agent.input_relay import InputRelay

QUESTION = {"id": "q", "what": {"prompt": "who? ", "password": True}}


class Node:
    """A relay with a rank that works on a run; what the rank was answered, and the run's events."""

    def __init__(self, idle_timeout: float | None = None) -> None:
        self.answers: list[dict[str, Any]] = []
        self.answered = asyncio.Event()
        self.events: list[str] = []
        self.rank = SimpleNamespace(number=3, busy_with="r")
        self.agent = SimpleNamespace(
            config=SimpleNamespace(idle_timeout=idle_timeout),
            manager=1,
            heard=time.monotonic(),
            guests_heard={"a": time.monotonic()},
            runs={"r": SimpleNamespace(left={3}, answered_by=1, guest="")},
            on_event=lambda rank, run, event: self.events.append(event["kind"]),
        )
        self.relay = InputRelay(self.agent)  # type: ignore[arg-type]

    def ask(self, content: dict[str, Any] = QUESTION) -> None:
        self.relay.on_ask(self.rank, self.tell, content)  # type: ignore[arg-type]

    def tell(self, answer: dict[str, Any], data: Sequence[bytes]) -> None:
        self.answers.append(answer)
        self.answered.set()


def test_an_answer_goes_to_the_rank_once_and_into_no_event() -> None:
    node = Node()

    async def answer() -> None:
        node.ask()
        await node.relay.sky_answer_input("r", "q", "open sesame")
        await node.relay.sky_answer_input("r", "q", "open sesame")

    asyncio.run(answer())
    assert node.answers == [{"id": "q", "value": "open sesame"}]
    assert node.events == ["ask", "asked"]


def test_a_question_is_refused_once_its_notebook_is_gone() -> None:
    async def replaced(node: Node) -> None:
        node.ask()
        node.agent.manager = 2
        await node.answered.wait()

    async def unheard(node: Node) -> None:
        node.agent.heard -= 3600
        node.ask()
        await node.answered.wait()

    for gone in (replaced, unheard):
        node = Node(idle_timeout=600)
        asyncio.run(gone(node))
        assert (node.answers, node.events) == ([{"id": "q"}], ["ask", "asked"])


def test_a_guests_question_needs_its_guest_and_no_manager() -> None:
    async def ask(node: Node) -> None:
        node.agent.runs["r"].guest = "a"
        node.agent.manager, node.agent.heard = 2, node.agent.heard - 3600
        node.ask()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(node.answered.wait(), 1.0)
        assert node.answers == []
        node.agent.guests_heard["a"] -= 3600
        await node.answered.wait()

    node = Node()
    asyncio.run(ask(node))
    assert (node.answers, node.events) == ([{"id": "q"}], ["ask", "asked"])


def test_a_rank_that_was_interrupted_or_has_ended_waits_no_longer() -> None:
    async def leave(node: Node) -> None:
        node.ask()
        node.ask({"id": "q", "drop": True})
        node.ask()
        node.relay.on_end(3)
        await node.relay.sky_answer_input("r", "q", "late")

    node = Node()
    asyncio.run(leave(node))
    assert (node.answers, node.events) == ([], ["ask", "asked"] * 2)


def test_a_question_outside_of_a_run_is_refused_at_once() -> None:
    node = Node()
    node.rank.busy_with = "another"
    node.ask()
    assert (node.answers, node.events) == ([{"id": "q"}], [])


def test_a_question_of_a_run_that_this_notebook_does_not_answer_is_refused_at_once() -> None:
    for answered_by in (None, 0):
        node = Node()
        node.agent.runs["r"].answered_by = answered_by
        node.ask()
        assert (node.answers, node.events) == ([{"id": "q"}], [])


def test_a_thread_that_asks_when_its_run_ends_is_refused_and_nothing_is_watched_any_more() -> None:
    async def end(node: Node) -> None:
        node.ask()
        (watch,) = asyncio.all_tasks() - {asyncio.current_task()}
        node.relay.on_over(2, "r")
        node.relay.on_over(3, "another")
        assert not node.answers
        node.relay.on_over(3, "r")
        assert (node.answers, node.events) == ([{"id": "q"}], ["ask", "asked"])
        await watch

    asyncio.run(end(Node()))


def test_questions_are_watched_again_after_a_rank_could_not_be_told() -> None:
    async def replaced(node: Node) -> None:
        def tell(answer: dict[str, Any], data: Sequence[bytes]) -> None:
            raise OSError

        node.relay.on_ask(node.rank, tell, QUESTION)  # type: ignore[arg-type]
        node.agent.manager = 2
        (watch,) = asyncio.all_tasks() - {asyncio.current_task()}
        with contextlib.suppress(OSError):
            await watch
        node.agent.runs["r"].answered_by = 2
        node.ask()
        node.agent.manager = 3
        await node.answered.wait()

    node = Node()
    asyncio.run(replaced(node))
    assert node.answers == [{"id": "q"}]
