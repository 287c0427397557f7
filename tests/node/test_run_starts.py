"""Agents that share a process begin a run together: one request, and one answer with what has ended by then."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.node.agent import run_starts
from sky_jupyter.node.journal.run_record import RunRecord

END = {"kind": "end", "status": "ok"}


class Turns:
    """The turns that a node's agent has been told of."""

    def __init__(self) -> None:
        self.begun: list[Any] = []

    def begin(self, turn: Any) -> None:
        self.begun.append(turn)


class Agent:
    """As much of an agent as a start needs; its rank is its node, and ends after so many steps of the loop."""

    def __init__(self, node: int, folder: Path, steps: int | None = 0, *, fails: bool = False) -> None:
        self.node, self.folder, self._steps, self._fails = node, folder, steps, fails
        self.incarnation = f"agent {node}"
        self.send: Any = print
        self.runs: dict[str, RunRecord] = {}
        self.turns = Turns()

    def open_short(self, run: str) -> bool:
        return False

    def begin(self, run: str, *_: Any) -> RunRecord:
        if self._fails:
            raise OSError("there is no room")
        record = self.runs[run] = RunRecord(run, [self.node], self.folder / f"{self.node}.jsonl", begin={})
        self._end_after(record, self._steps)
        return record

    def _end_after(self, record: RunRecord, steps: int | None) -> None:
        if steps == 0:
            record.add(self.node, dict(END))
        elif steps is not None:
            asyncio.get_running_loop().call_soon(self._end_after, record, steps - 1)


def started(agents: list[Agent]) -> dict[int, dict[str, Any]]:
    return asyncio.run(run_starts.start(agents, "r", [0, 1, 2], {}, {"turn": 7}))  # type: ignore[arg-type]


def test_one_answer_has_the_ends_of_all(tmp_path: Path) -> None:
    agents = [Agent(node, tmp_path, steps=5 * node) for node in range(3)]
    answers = started(agents)
    assert {node: (answer["state"], answer["count"]) for node, answer in answers.items()} == {
        0: ("over", 2),
        1: ("over", 2),
        2: ("over", 2),
    }
    assert [agent.turns.begun for agent in agents] == [[7]] * 3


def test_what_goes_on_is_answered_as_running_and_forwarded_from_then_on(tmp_path: Path) -> None:
    agents = [Agent(0, tmp_path), Agent(1, tmp_path, steps=None)]
    answers = started(agents)
    assert (answers[0]["state"], answers[1]["state"]) == ("over", "running")
    assert all(agent.runs["r"].replied for agent in agents)


def test_a_run_that_an_agent_knows_begins_there_no_second_time(tmp_path: Path) -> None:
    agents = [Agent(0, tmp_path), Agent(1, tmp_path)]
    started(agents[:1])
    record = agents[0].runs["r"]
    answers = started(agents)
    assert (answers[0]["state"], answers[1]["state"]) == ("known", "over")
    assert agents[0].runs["r"] is record


def test_where_an_agent_cannot_begin_what_the_others_have_begun_is_forwarded(tmp_path: Path) -> None:
    agents = [Agent(0, tmp_path), Agent(1, tmp_path, fails=True)]
    with pytest.raises(OSError, match="no room"):
        started(agents)
    assert agents[0].runs["r"].replied


def test_neither_an_agent_that_has_been_replaced_nor_one_without_connection_takes_part(tmp_path: Path) -> None:
    agents = [Agent(node, tmp_path) for node in range(3)]
    agents[1].send = None
    wanted = {0: "agent 0", 1: "agent 1", 2: "its predecessor"}
    assert run_starts.present(agents, wanted) == agents[:1]  # type: ignore[type-var]
