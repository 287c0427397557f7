"""The MCP server as the MCP Inspector's command line sees it: a client of the protocol's own makers, over both ways."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.magics.notebook import notebook

pytest.importorskip("mcp", reason="needs the extra mcp")

pytestmark = pytest.mark.slow

INSPECTOR = "@modelcontextprotocol/inspector@0.15.0"
NAME = "inspected"
READING = {"list_pools", "list_runs", "read_output", "where", "names", "pull", "interrupt"}
Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def inspector(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Ask a server, which is a command or an address, as the Inspector does; gives the protocol's result."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm and Node.js 20 or later (Debian: apt-get install npm)")
    folder = tmp_path_factory.mktemp("inspector")
    command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), INSPECTOR]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        why = (done.stderr.strip() or "npm failed").splitlines()[0]
        pytest.skip(f"needs {INSPECTOR}, which `npm install` could not fetch: {why}")
    program = folder / "node_modules" / ".bin" / "mcp-inspector"

    def ask(*server: str, method: str, **options: str) -> dict[str, Any]:
        given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        kept = ["-e", f"SKY_REGISTRY={os.environ['SKY_REGISTRY']}"]
        line = [str(program), "--cli", *kept, *server, f"--method={method}", *given]
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    return ask


def test_it_lists_the_tools_and_sees_a_pool_over_stdio(inspector: Ask, tmp_path: Path) -> None:
    program = (str(Path(sys.executable).with_name("sky-jupyter")), "mcp")
    tools = inspector(*program, method="tools/list")["tools"]
    assert {tool["name"] for tool in tools} == READING
    assert all(tool["description"] and tool["inputSchema"]["type"] == "object" for tool in tools)
    with notebook(tmp_path) as page:
        assert page.run(f"%load_ext sky_jupyter\n%sky up --name {NAME}").status == "ok"
        assert page.run("%%sky\nprint('seen')").status == "ok"
        found = inspector(*program, method="tools/call", tool_name="read_output", tool_arg=f"pool={NAME}")
        assert not found.get("isError")
        ((node),) = found["structuredContent"]["nodes"]
        assert node["output"] == [{"rank": 0, "text": "seen\n"}]
        refused = inspector(*program, method="tools/call", tool_name="where", tool_arg="pool=no-such")
        assert refused["isError"]
        assert "no pool 'no-such' is running" in refused["content"][0]["text"]
        page.run("%sky down")


def test_it_sees_a_notebooks_pool_over_streamable_http(inspector: Ask, tmp_path: Path) -> None:
    pytest.importorskip("jupyterlab", reason="needs jupyterlab")
    from tests.browser import lab
    from tests.server import test_server as plain

    with lab.server(tmp_path) as server:
        plain.until(lambda: plain.answers(server.url))
        # This version of the Inspector's command line sends no headers.
        address = f"{server.url}sky-jupyter/mcp?token={server.token}"
        tools = inspector(address, transport="http", method="tools/list")["tools"]
        assert {tool["name"] for tool in tools} == READING
        book = plain.Notebook(plain.Client(server), "book.ipynb")
        try:
            book.run(f"%load_ext sky_jupyter\n%sky up --name {NAME}")
            found = inspector(address, transport="http", method="tools/call", tool_name="list_pools")
            assert [pool["name"] for pool in found["structuredContent"]["pools"]] == [NAME]
        finally:
            book.close()
