"""The tools of the MCP server over a real pool, called by the SDK's own client: in this process, and over stdio."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.magics.notebook import Notebook, notebook

pytest.importorskip("mcp", reason="needs the extra mcp")

from mcp.client import Client
from mcp.client.stdio import StdioServerParameters

from sky_jupyter.access.pool_access import PoolAccess
from sky_jupyter.cli.main import main
from sky_jupyter.mcp_server.tools import build

NAME = "agents"
SECRET = "a-secret-of-the-kernel"
READING = {"list_pools", "list_runs", "read_output", "where", "names", "pull", "interrupt"}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with notebook(tmp_path_factory.mktemp("notebook")) as page:
        cell = page.run(f"%load_ext sky_jupyter\nhere = 'of the notebook'\n%sky up --nodes 2 --name {NAME}")
        assert cell.status == "ok", cell.outputs
        yield page
        page.run("%sky down")


class Agent:
    """Calls tools one by one, each from a connection of its own."""

    def __init__(self, server: Any) -> None:
        self.server = server

    def call(self, tool: str, **arguments: Any) -> Any:
        """The structured answer of a call that goes well."""
        result = self.result(tool, **arguments)
        assert not result.is_error, result.content
        return result.structured_content

    def refused(self, tool: str, **arguments: Any) -> str:
        """The text of a tool's error."""
        result = self.result(tool, **arguments)
        assert result.is_error, result.content
        return str(result.content[0].text)

    def result(self, tool: str, **arguments: Any) -> Any:
        async def call() -> Any:
            async with Client(self.server) as client:
                return await client.call_tool(tool, arguments)

        return asyncio.run(call())

    def tools(self) -> dict[str, Any]:
        async def ask() -> Any:
            async with Client(self.server) as client:
                return await client.list_tools()

        return {tool.name: tool for tool in asyncio.run(ask()).tools}


@pytest.fixture
def agent(page: Notebook) -> Iterator[Agent]:
    access = PoolAccess()
    yield Agent(build(access, allow_run=True))
    access.close()


def pool_in(agent: Agent) -> dict[str, Any]:
    (pool,) = [one for one in agent.call("list_pools")["pools"] if one["name"] == NAME]
    return dict(pool)


def test_an_agent_sees_pools_runs_output_and_stacks(page: Notebook, agent: Agent) -> None:
    page.run("%%sky --quiet\nprint('line', 1)\n'the value'")
    # The row of a run's end is written a moment after the cell's reply.
    while (pool := pool_in(agent))["running"]:
        time.sleep(0.01)
    assert (pool["nodes"], pool["state"], pool["running"]) == (2, "ready", [])
    (run, *_) = agent.call("list_runs", pool=NAME)["runs"]
    found = agent.call("read_output", pool=pool["id"], run=run["id"][:5])
    assert found["run"]["id"] == run["id"]
    for node in found["nodes"]:
        rank = node["node"]
        assert (node["over"], node["ended"]) == (True, {str(rank): "ok"})
        assert "".join(line["text"] for line in node["output"]) == "line 1\n'the value'\n"
        assert agent.call("read_output", node=rank, start=node["next"])["nodes"][0]["output"] == []
    assert "idle" in agent.call("where", pool=NAME)["stacks"]
    assert agent.call("interrupt", pool=NAME) == {"message": f"pool {NAME}: nothing runs", "runs": []}


def test_an_agent_runs_a_cell_that_sees_the_notebooks_names_and_the_person_is_told(
    page: Notebook, agent: Agent
) -> None:
    done = agent.call("run_cell", code="made = here.upper()\nmade", pool=NAME, ranks=[1], wait=50)
    assert done["over"]
    ((node),) = done["nodes"]
    assert (node["node"], node["output"]) == (1, [{"rank": 1, "text": "'OF THE NOTEBOOK'\n"}])
    assert agent.call("pull", name="made", rank=1)["value"] == "OF THE NOTEBOOK"
    next_cell = page.run("%%sky --quiet --on 1\nmade")
    assert f"an agent has run a cell: `%sky logs {done['run']}`" in next_cell.stream()
    assert page.value("_sky.values") == ["OF THE NOTEBOOK"]


def test_a_failure_is_in_the_output_and_a_run_can_be_interrupted(page: Notebook, agent: Agent, tmp_path: Path) -> None:
    failed = agent.call("run_cell", code="1 / 0", wait=50)
    assert [node["ended"] for node in failed["nodes"]] == [{"0": "error"}, {"1": "error"}]
    assert "ZeroDivisionError" in failed["nodes"][0]["output"][-1]["text"]
    on = agent.call("run_cell", code="import time\nwhile True: time.sleep(0.05)", wait=0)
    assert not on["over"]
    assert on["run"] in agent.refused("pull", name="here")
    assert on["run"] in agent.refused("run_cell", code="1")
    assert agent.call("interrupt", run=on["run"])["runs"] == [on["run"]]
    page.run("%sky wait")
    assert {"interrupted"} == {
        state for node in agent.call("read_output", run=on["run"])["nodes"] for state in node["ended"].values()
    }


def test_a_text_longer_than_a_page_is_marked_as_cut(page: Notebook, agent: Agent) -> None:
    page.run("%%sky --quiet --on 0\nprint('short')")
    ((short),) = agent.call("read_output", node=0)["nodes"]
    page.run("%%sky --quiet --on 0\nprint('a' * 50_000 + 'z')")
    ((end),) = agent.call("read_output", node=0)["nodes"]
    ((start),) = agent.call("read_output", node=0, start=0)["nodes"]
    assert (short["cut"], end["cut"], start["cut"]) == (False, True, True)
    assert end["output"][-1]["text"].endswith("z\n")
    assert len(start["output"][0]["text"]) == 40_000


def test_a_cell_that_begins_no_run_is_refused_in_words_and_a_run_is_interrupted_by_its_prefix(
    page: Notebook, agent: Agent
) -> None:
    page.run("%%sky --quiet\nasked = 1")
    assert "no run was begun" in agent.refused("run_cell", code="asked?")
    on = agent.call("run_cell", code="import time\nwhile True: time.sleep(0.05)", wait=0)["run"]
    assert agent.call("interrupt", run=on[:6])["runs"] == [on]
    page.run("%sky wait")


def test_what_the_notebooks_other_threads_print_is_not_sent_to_the_agent(page: Notebook, agent: Agent) -> None:
    page.run(
        "import threading\nstop = threading.Event()\ndef chat():\n"
        "    while not stop.wait(0.002):\n        print('of a thread')\n"
        "chatting = threading.Thread(target=chat)\nchatting.start()"
    )
    try:
        done = agent.call("run_cell", code="1", wait=50)
    finally:
        page.run("stop.set()\nchatting.join()")
    assert not [note for note in done["notes"] if "of a thread" in note]


def test_values_are_small_and_json_where_they_can_be(page: Notebook, agent: Agent) -> None:
    page.run(
        "%%sky\nimport numpy as np\ntable = np.arange(6).reshape(2, 3)\n"
        "whole = {'a': [1, None]}\nlong = 'x' * 50_000\nodd = {1}"
    )
    assert agent.call("pull", name="table", rank=1, pool=NAME) == {
        "name": "table", "rank": 1, "type": "numpy.ndarray", "shape": [2, 3], "dtype": "int64",
        "value": [[0, 1, 2], [3, 4, 5]],
    }  # fmt: skip
    assert agent.call("pull", name="whole")["value"] == {"a": [1, None]}
    assert agent.call("pull", name="odd")["repr"] == "{1}"
    long = agent.call("pull", name="long")
    assert (long["cut"], len(long["repr"])) == (True, 20_000)
    # Of a list no rank has told the size before.
    page.run("%%sky --quiet\nmany = list(range(4_000_000))")
    assert "and 8,000,000 are the limit here" in agent.refused("pull", name="many")


def test_the_names_of_the_ranks_are_listed_with_what_they_are(page: Notebook, agent: Agent) -> None:
    page.run("%%sky --quiet\nimport numpy as np\nweights = np.zeros((4, 5), 'f4')")
    (row,) = [one for one in agent.call("names", pool=NAME)["names"] if one["name"] == "weights"]
    assert (row["type"], row["shape"], row["dtype"], row["bytes"]) == ("ndarray", "4x5", "float32", 80)


@pytest.mark.parametrize(
    ("tool", "arguments", "told"),
    [
        ("where", {"pool": "agentz"}, "no pool 'agentz' is running; did you mean 'agents'?"),
        ("read_output", {"run": "../etc"}, "String should match pattern"),
        ("read_output", {"run": "nothing"}, "has no run 'nothing'"),
        ("read_output", {"start": 3}, "give its `node`, too"),
        ("pull", {"name": "1x"}, "'1x' is not the name of a variable"),
        ("pull", {"name": "no_such"}, "no_such"),
        ("pull", {"name": "here", "rank": 9}, "has ranks 0 to 1, not 9"),
        ("run_cell", {"code": ""}, "at least 1 character"),
        ("run_cell", {"code": "x", "ranks": [7]}, "has ranks 0 to 1, not 7"),
        ("run_cell", {"code": "if"}, "SyntaxError"),
        ("list_runs", {"count": 0}, "greater than or equal to 1"),
    ],
)
def test_what_is_wrong_comes_as_a_tools_error(agent: Agent, tool: str, arguments: dict[str, Any], told: str) -> None:
    text = agent.refused(tool, **arguments)
    assert told in text
    assert "Traceback" not in text


def test_over_stdio_an_agent_looks_and_runs_nothing_unless_the_person_allows_it(
    page: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", SECRET)
    program = StdioServerParameters(command=sys.executable, args=["-m", "sky_jupyter", "mcp"], env=dict(os.environ))
    agent = Agent(program)
    tools = agent.tools()
    assert set(tools) == READING
    looks = {name for name, tool in tools.items() if tool.annotations.read_only_hint}
    assert looks == READING - {"pull", "interrupt"}
    assert all(tool.description for tool in tools.values())
    found = agent.call("list_pools")
    assert NAME in [pool["name"] for pool in found["pools"]]
    assert SECRET not in str(found)


def test_without_the_sdk_a_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    monkeypatch.delitem(sys.modules, "sky_jupyter.mcp_server.tools")
    assert main(["mcp"]) == 1
    assert "pip install 'sky-jupyter[mcp]'" in capsys.readouterr().err
