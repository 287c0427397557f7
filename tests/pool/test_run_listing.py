"""The runs that nodes know: of many ranks, one node tells what all of a run's nodes know alike."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

from sky_jupyter.node.agent.agent import Agent
from sky_jupyter.node.protocol.host_config import HostConfig
from sky_jupyter.node.protocol.rpc import AgentCall
from sky_jupyter.node.system.gpus import Devices
from sky_jupyter.pool.runs import run_listing

CODE = "x = 1"


class Nodes:
    """A control of agents of this process, which keeps what they have answered."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.answers = folder, list[dict[str, Any]]()
        config = HostConfig("p", list(range(count)), count, 1, ["127.0.0.1"] * count, [], str(folder), str(folder))
        for node in range(count):
            (folder / f"n{node}").mkdir()
        self.agents = [Agent(folder, config, node, Devices()) for node in range(count)]

    def begin(self, run: str, ranks: list[int]) -> None:
        for node in ranks[: len(self.agents)]:
            about = {
                "ranks": ranks,
                "mine": [node],
                "shape": 0,
                "began": 1.5,
                "code": CODE,
                "content": {"kind": "cell"},
            }
            self.agents[node].open(run, [node], about)

    async def ask(self, call: AgentCall, nodes: list[int] | None = None, **arguments: Any) -> dict[int, Any]:
        call.check(arguments)
        asked = range(len(self.agents)) if nodes is None else nodes
        found = [await self.agents[node].handler(call)(**arguments) for node in asked]
        self.answers += copy.deepcopy(found)
        return dict(zip(asked, found, strict=True))


def test_of_a_run_of_many_ranks_one_node_tells_the_ranks_and_the_code(tmp_path: Path) -> None:
    async def list_them() -> tuple[Nodes, dict[int, Any]]:
        nodes = Nodes(tmp_path, 3)
        nodes.begin("large", list(range(100)))
        nodes.begin("small", [1, 2])
        plain = [await agent.sky_list_runs() for agent in nodes.agents]
        return nodes, {"plain": dict(enumerate(plain)), "listed": await run_listing.ask(nodes)}  # type: ignore[arg-type]

    nodes, found = asyncio.run(list_them())
    listed = {node: {id: facts["begin"] for id, facts in runs.items()} for node, runs in found["listed"].items()}
    plain = {node: {id: facts["begin"] for id, facts in runs.items()} for node, runs in found["plain"].items()}
    for node, runs in plain.items():
        for id, begin in runs.items():
            assert listed[node][id] == begin | {"kind": "begin"}
    assert listed[2]["large"]["mine"] == [2]
    told = [facts["begin"] for answer in nodes.answers for id, facts in answer.items() if id == "large"]
    assert [("ranks" in begin, "code" in begin) for begin in told] == [(False, False)] * 3 + [(True, True)]


def test_a_run_that_is_evicted_meanwhile_is_told_of_as_far_as_it_is_known(tmp_path: Path) -> None:
    async def list_them() -> dict[int, Any]:
        nodes = Nodes(tmp_path, 2)
        nodes.begin("large", list(range(100)))
        ask = nodes.ask

        async def ask_and_evict(call: AgentCall, asked: list[int] | None = None, **arguments: Any) -> dict[int, Any]:
            answers = await ask(call, asked, **arguments)
            nodes.agents[0].runs.clear()
            return answers

        nodes.ask = ask_and_evict  # type: ignore[method-assign]
        return await run_listing.ask(nodes)  # type: ignore[arg-type]

    found = asyncio.run(list_them())
    assert [found[node]["large"]["begin"] for node in (0, 1)] == [
        {"mine": [node], "shape": 0, "began": 1.5} for node in (0, 1)
    ]
