"""Where an agent begins a function call that Dask has given it: not behind a short call that takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Reschedule

from sky_jupyter.node.agent.task_calls import TaskRunner, attempt_name
from sky_jupyter.node.journal.run_record import RunRecord

NAME = attempt_name("c", 0, "first")


class Rank:
    """A rank that is at a short call, and ends each request at once."""

    number, waiting, entered, busy_with = 0, 1, True, None

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    async def request(self, run: str, content: dict[str, Any], on_turn: Any) -> None:
        self.agent.on_event(self.number, run, {"kind": "end", "status": "ok"})


class Agent:
    """As much of an agent as a call needs; `ahead` are the short calls of its rank."""

    node, incarnation, config = 0, "first", SimpleNamespace(shape=1)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: dict[str, RunRecord] = {}
        self.ranks = {0: Rank(self)}
        self.ahead = [SimpleNamespace(run="short", left={0}, record=None)]

    def open_short(self, run: str) -> bool:
        return False

    def short_calls_of(self, rank: int) -> list[Any]:
        return list(self.ahead)

    def is_partial(self, ranks: object) -> bool:
        return False

    def open(self, run: str, mine: list[int], begin: dict[str, Any]) -> RunRecord:
        record = self.runs[run] = RunRecord(run, mine, self.folder / "c.jsonl", begin=begin)
        return record

    def flush_soon(self) -> None:
        pass

    def on_event(self, rank: int, run: str, event: dict[str, Any]) -> None:
        self.runs[run].add(rank, event)


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


@pytest.fixture
def tasks(agent: Agent) -> TaskRunner:
    return TaskRunner(agent)  # type: ignore[arg-type]


def call(tasks: TaskRunner, meanwhile: Coroutine[Any, Any, None] | None = None) -> dict[str, Any]:
    """Have a call run, and something happen once it waits."""

    async def run() -> dict[str, Any]:
        called = asyncio.ensure_future(tasks.call("c", {}))
        await asyncio.sleep(0)
        assert not tasks.agent.runs or meanwhile is None
        if meanwhile is not None:
            await meanwhile
        return await called

    return asyncio.run(run())


def test_a_call_begins_once_the_short_one_before_it_is_over(agent: Agent, tasks: TaskRunner) -> None:
    async def end() -> None:
        agent.ahead[0].left.clear()

    assert call(tasks, end()) == {"attempt": NAME, "node": 0}


def test_a_call_behind_an_opened_one_is_given_back(agent: Agent, tasks: TaskRunner) -> None:
    async def open_it() -> None:
        agent.ahead[0].record = object()

    with pytest.raises(Reschedule):
        call(tasks, open_it())
    assert not agent.runs


def test_a_call_that_is_looked_for_begins_where_it_is(agent: Agent, tasks: TaskRunner) -> None:
    async def find() -> None:
        assert await tasks.sky_find_calls(["c"]) == {"c": NAME}

    assert call(tasks, find()) == {"attempt": NAME, "node": 0}


@pytest.mark.parametrize("why", ["its rank has nothing to do", "Dask has the other one here", "it is for this rank"])
def test_a_call_begins_at_once(agent: Agent, tasks: TaskRunner, why: str) -> None:
    if why == "its rank has nothing to do":
        agent.ranks[0].waiting = 0
    elif why == "Dask has the other one here":
        agent.ahead[0].record = object()
        tasks.held.add("short")
    else:
        assert asyncio.run(tasks.call("c", {}, rank=0))["attempt"] == NAME
        return
    assert call(tasks)["attempt"] == NAME
