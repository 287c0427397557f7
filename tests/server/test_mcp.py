"""The MCP server behind a real Jupyter Server, called by the SDK's own client over streamable HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs the extra mcp")
pytest.importorskip("jupyterlab", reason="needs jupyterlab")

import httpx2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from sky_jupyter.server.app import SkyApp
from tests.browser import lab
from tests.server import test_server as plain

NAME = "behind"


def test_agents_run_nothing_by_default() -> None:
    assert SkyApp.mcp_allow_run.default_value is False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab.Server]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "config").mkdir()
    (folder / "config" / "jupyter_server_config.json").write_text(json.dumps({"SkyApp": {"mcp_allow_run": True}}))
    with lab.server(folder) as server:
        plain.until(lambda: plain.answers(server.url))
        yield server


def talk(server: lab.Server, *calls: tuple[str, dict[str, Any]], mode: str = "auto") -> list[Any]:
    """The answers to calls of tools, and before them the list of tools."""

    async def all_of_it() -> list[Any]:
        headers = {"Authorization": f"token {server.token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            transport = streamable_http_client(f"{server.url}sky-jupyter/mcp", http_client=http)
            async with Client(transport, mode=mode) as client:
                tools = await client.list_tools()
                return [tools.tools, *[await client.call_tool(name, given) for name, given in calls]]

    return asyncio.run(all_of_it())


@pytest.mark.slow
def test_who_is_not_logged_in_gets_nothing_of_it(server: lab.Server) -> None:
    client = plain.Client(server)
    begin = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    status, answer = client.ask("sky-jupyter/mcp", "POST", begin, token="wrong")
    assert status == 403
    assert "jsonrpc" not in str(answer)
    assert client.ask("sky-jupyter/mcp", "GET", token="wrong")[0] == 403
    assert client.ask("sky-jupyter/mcp", "GET")[0] == 405
    assert client.ask("sky-jupyter/mcp", "DELETE")[0] == 405


@pytest.mark.slow
def test_an_agent_works_on_a_notebooks_pool_through_the_server(server: lab.Server) -> None:
    client = plain.Client(server)
    book = plain.Notebook(client, "book.ipynb")
    try:
        book.run(f"%load_ext sky_jupyter\n%sky up --nodes 2 --name {NAME}")
        tools, listed, ran, refused = talk(
            server,
            ("list_pools", {}),
            ("run_cell", {"code": "print('by an agent')\nfound = 41 + 1", "wait": 50}),
            ("where", {"pool": "no-such"}),
        )
        assert {"list_pools", "read_output", "run_cell"} <= {tool.name for tool in tools}
        assert [pool["name"] for pool in listed.structured_content["pools"]] == [NAME]
        assert ran.structured_content["over"]
        assert [node["output"][0]["text"] for node in ran.structured_content["nodes"]] == ["by an agent\n"] * 2
        assert refused.is_error
        assert "no pool 'no-such' is running" in refused.content[0].text
        (_, pulled) = talk(server, ("pull", {"name": "found", "rank": 1}), mode="legacy")
        assert pulled.structured_content["value"] == 42
        assert server.token not in str([listed, ran, refused, pulled])
    finally:
        book.close()
