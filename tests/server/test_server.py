"""The Jupyter Server extension as it is installed: a real server, real kernels and pools, asked over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import http.cookiejar
import importlib.util
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from ipykernel.kernelspec import get_kernel_dict

from sky_jupyter.pool.registry.registry import Registry
from tests.browser import lab

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jupyterlab") is None, reason="needs jupyterlab")

PATIENCE = 60.0
DEEDS = ("down", "terminal")
UP = "%load_ext sky_jupyter\n%sky up --nodes 1 --keep --name left"
CELL = """%%sky --detach
# Wait for a sign
import time
from pathlib import Path
print("a line", flush=True)
while not Path({go!r}).exists():
    time.sleep(0.05)"""
QUIET = """%%sky
import time
from pathlib import Path
go = Path({go!r})
go.with_suffix(".began").touch()
while not go.exists():
    time.sleep(0.05)"""
# What another part of the package does, so that the server's own part is seen alone.
ANSWERS = """
async def answer(stream, ident, parent):
    asked = parent["content"]
    good = {"status": "ok", "message": f"{asked['action']} of {asked['pool']}", "key": "secret"}
    bad = {"status": "error", "message": "no such thing"}
    kernel = get_ipython().kernel
    kernel.session.send(stream, "sky_reply", bad if asked["action"] == "where" else good, parent=parent, ident=ident)

get_ipython().kernel.control_handlers["sky_request"] = answer"""


class Client:
    """Talks to a server, as a page would with its token."""

    def __init__(self, server: lab.Server) -> None:
        self.server = server

    def ask(self, path: str, method: str = "GET", body: Any = None, token: str | None = None) -> tuple[int, Any]:
        headers = {"Authorization": f"token {self.server.token if token is None else token}"}
        data = None if method == "GET" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self.server.url + path, data=data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")

    def pools(self) -> list[dict[str, Any]]:
        status, found = self.ask("sky-jupyter/pools")
        assert status == 200
        pools: list[dict[str, Any]] = found["pools"]
        return pools


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "config").mkdir()
    # Kernels of the kind "culled" alone end soon.
    culling = {"cull_idle_timeout": 86400, "cull_interval": 1}
    settings = {"SkyApp": {"look_every": 0.2, "reap_every": 1}, "MappingKernelManager": culling}
    spec = {**get_kernel_dict(), "display_name": "culled", "metadata": {"cull_idle_timeout": 8}}
    (folder / "data" / "kernels" / "culled").mkdir(parents=True)
    (folder / "data" / "kernels" / "culled" / "kernel.json").write_text(json.dumps(spec))
    (folder / "config" / "jupyter_server_config.json").write_text(json.dumps(settings))
    with lab.server(folder) as server:
        # It says where it listens a moment before it does.
        until(lambda: answers(server.url))
        client = Client(server)
        yield client
        for pool in client.pools():  # of a test that failed
            client.ask(f"sky-jupyter/pools/{pool['id']}/down", "POST")


@pytest.fixture
def registry(client: Client) -> Iterator[Registry]:
    registry = Registry(client.server.root.parent / "registry.sqlite")
    yield registry
    registry.close()


def until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, "nothing came of it"
        time.sleep(0.05)
    return found


def answers(url: str) -> bool:
    place = urllib.parse.urlsplit(url)
    with contextlib.suppress(OSError), socket.create_connection((place.hostname or "", place.port or 0), 1):
        return True
    return False


class Notebook:
    """A notebook that the server has a kernel for."""

    def __init__(self, client: Client, path: str, kernel: str = "python3") -> None:
        from jupyter_client.blocking import BlockingKernelClient

        body = {"path": path, "name": path, "type": "notebook", "kernel": {"name": kernel}}
        status, session = client.ask("api/sessions", "POST", body)
        assert status == 201, session
        self.client, self.session, self.kernel = client, session["id"], session["kernel"]["id"]
        file = client.server.root.parent / "runtime" / f"kernel-{self.kernel}.json"
        until(file.exists)
        self.channels = BlockingKernelClient(connection_file=str(file))
        self.channels.load_connection_file()
        self.channels.start_channels(hb=False)
        self.channels.wait_for_ready(timeout=PATIENCE)

    def run(self, code: str) -> None:
        reply = self.channels.execute_interactive(code, timeout=PATIENCE, output_hook=lambda message: None)
        assert reply["content"]["status"] == "ok", reply["content"]

    def ask(self, kind: str, content: dict[str, Any]) -> None:
        """Ask on the control channel, as a page does; the server has heard that the kernel is at it."""
        began = datetime.now(timezone.utc)
        self.channels.control_channel.send(self.channels.session.msg(kind, content))
        path = f"api/kernels/{self.kernel}"
        until(lambda: datetime.fromisoformat(self.client.ask(path)[1]["last_activity"].replace("Z", "+00:00")) > began)

    def close(self) -> None:
        self.channels.stop_channels()
        assert self.client.ask(f"api/sessions/{self.session}", "DELETE")[0] in (204, 404)


@contextmanager
def events(server: lab.Server) -> Iterator[list[str]]:
    """The names of the events that the server tells pages, from now on."""
    from tornado.websocket import WebSocketClientConnection, websocket_connect

    heard: list[str] = []
    connected: queue.Queue[tuple[asyncio.AbstractEventLoop, WebSocketClientConnection]] = queue.Queue()

    async def listen() -> None:
        address = server.url.replace("http", "ws", 1) + f"api/events/subscribe?token={server.token}"
        connection = await websocket_connect(address)
        connected.put((asyncio.get_running_loop(), connection))
        while (message := await connection.read_message()) is not None:
            heard.append(json.loads(message)["schema_id"])

    thread = threading.Thread(target=lambda: asyncio.run(listen()), daemon=True)
    thread.start()
    loop, connection = connected.get(timeout=PATIENCE)
    try:
        yield heard
    finally:
        loop.call_soon_threadsafe(connection.close)
        thread.join(PATIENCE)


def test_a_user_without_pools_has_none_and_gets_no_registry(client):
    if (client.server.root.parent / "registry.sqlite").exists():
        pytest.skip("a test before this one has made it")
    assert client.pools() == []
    assert not (client.server.root.parent / "registry.sqlite").exists()


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("pools", "GET"),
        ("pools/x/runs", "GET"),
        ("pools/x/log", "GET"),
        ("pools/x/down", "POST"),
        ("pools/x/terminal", "POST"),
    ],
)
def test_who_has_no_token_is_refused(client, path, method):
    assert client.ask(f"sky-jupyter/{path}", method, token="wrong")[0] == 403


def test_a_page_of_somebody_else_cannot_have_the_users_browser_end_a_pool(client):
    """It is logged in by its cookie, and does not know what the server put into another one."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
    opener.open(f"{client.server.url}lab?token={client.server.token}").close()
    with opener.open(f"{client.server.url}sky-jupyter/pools") as answer:
        assert answer.status == 200
    request = urllib.request.Request(f"{client.server.url}sky-jupyter/pools/x/down", data=b"{}", method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        opener.open(request)
    assert refused.value.code == 403
    assert "xsrf" in json.loads(refused.value.read())["message"].lower()


def test_what_is_not_there_is_said(client):
    assert client.ask("sky-jupyter/pools/nothere/runs") == (
        404,
        {"message": "there is no live pool nothere; it has ended", "reason": None},
    )
    status, answer = client.ask("sky-jupyter/pools/nothere/explode", "POST")
    assert (status, answer["message"].partition(",")[0]) == (404, "there is no action explode")
    assert client.ask("sky-jupyter/pools/nothere/terminal", "POST", {"rank": 1})[0] == 404
    for rank in (-1, "1; ls", True, 1.5, 1 << 40):
        assert client.ask("sky-jupyter/pools/nothere/terminal", "POST", {"rank": rank})[0] == 400
    assert client.ask("api/terminals") == (200, [])


def test_a_pool_is_seen_with_its_notebook_and_its_cell_and_ends_when_it_is_nobodys(client, tmp_path):
    book, go = Notebook(client, "books/train.ipynb"), tmp_path / "go"
    with events(client.server) as heard:
        try:
            book.run(UP)
            (pool,) = until(lambda: [pool for pool in client.pools() if pool["state"] == "ready"])
            manager = pool["manager"]
            assert (pool["name"], pool["provider"], pool["nodes"], pool["here"]) == ("left", "local", 1, True)
            assert (manager["kernel"], manager["path"]) == (book.kernel, "books/train.ipynb")
            assert pool["cost"] is None
            book.run(CELL.format(go=str(go)))
            run = until(lambda: client.pools()[0]["running"])[0]
            assert (run["title"], run["state"]) == ("Wait for a sign", "running")
            log = f"sky-jupyter/pools/{pool['id']}/log?run={run['id']}"
            until(lambda: client.ask(log)[1]["ranks"] == [{"rank": 0, "text": "a line\n"}])
            check_what_its_kernel_is_asked(client, pool, book)
        finally:
            book.close()
        (pool,) = until(lambda: [pool for pool in client.pools() if pool["manager"] is None])
        assert [item["id"] for item in pool["running"]] == [run["id"]]
        assert client.ask(f"sky-jupyter/pools/{pool['id']}/interrupt", "POST")[0] == 409
        go.touch()
        # Nobody is there to record the run's end, and yet it is not shown as one that goes on.
        until(lambda: not client.pools()[0]["running"])
        status, answer = client.ask(f"sky-jupyter/pools/{pool['id']}/down", "POST")
        assert (status, answer) == (200, {"message": "pool left: ended"})
        assert client.pools() == []
        until(lambda: len(heard) >= 4)
        assert set(heard) >= {"urn:sky-jupyter:pools:v1"}


@pytest.mark.slow
def test_a_kernel_is_busy_while_a_cell_works_whatever_its_page_asks(client, tmp_path):
    """By what the server says of it, which is what its culler goes by: a run may print nothing for an hour."""
    book, go = Notebook(client, "books/busy.ipynb"), tmp_path / "go"

    def asked_all(state: str) -> None:
        for kind in ("sky_request", "sky_view_request", "unknown_request") * 3:
            book.ask(kind, {"action": "status"})
            until(lambda: client.ask(f"api/kernels/{book.kernel}")[1]["execution_state"] == state)

    try:
        book.run(UP)
        cell = book.channels.execute(QUIET.format(go=str(go)))
        until(go.with_suffix(".began").exists)
        asked_all("busy")
        go.touch()
        reply = book.channels.get_shell_msg(timeout=PATIENCE)
        assert (reply["parent_header"]["msg_id"], reply["content"]["status"]) == (cell, "ok")
        asked_all("idle")
    finally:
        go.touch()
        book.run("%sky down")
        book.close()


@pytest.mark.slow
def test_a_kernel_whose_run_was_let_go_is_idle_and_is_not_culled(client, tmp_path):
    book, go = Notebook(client, "books/away.ipynb", "culled"), tmp_path / "go"
    try:
        book.run("%load_ext sky_jupyter")
        book.run(CELL.format(go=str(go)))
        # One that has nothing to do, and whose last cell was later.
        other = Notebook(client, "books/nothing.ipynb", "culled")
        other.run("1")
        until(lambda: client.ask(f"api/kernels/{other.kernel}")[0] == 404)
        other.channels.stop_channels()
        status, facts = client.ask(f"api/kernels/{book.kernel}")
        assert (status, facts["execution_state"]) == (200, "idle")
        go.touch()
        book.run("%sky wait")
        book.run("assert _sky.errors == {}")
    finally:
        go.touch()
        book.run("%sky down")
        book.close()


def check_what_its_kernel_is_asked(client: Client, pool: dict[str, Any], book: Notebook) -> None:
    book.run(ANSWERS)
    path = f"sky-jupyter/pools/{pool['id']}"
    status, answer = client.ask(f"{path}/interrupt", "POST")
    # What else it answers does not leave the server.
    assert (status, answer) == (200, {"message": "interrupt of left"})
    status, answer = client.ask(f"{path}/where", "POST")
    assert (status, answer["message"]) == (409, "no such thing")
    listing = json.dumps(client.pools())
    assert all(word not in listing for word in ("/dev/shm", "key", "token", "folder"))


def test_a_pool_of_a_program_is_not_this_servers_to_end(client, registry):
    registry.intend("f00df00d", "mine", "local", 1, False)
    try:
        (pool,) = client.pools()
        assert pool["manager"]["kernel"] is None
        status, answer = client.ask("sky-jupyter/pools/f00df00d/down", "POST")
        assert status == 409
        assert "which is not a kernel of this server" in answer["message"]
    finally:
        registry.update("f00df00d", "ended")


def test_a_refusal_names_commands_as_they_are_typed(client, registry):
    # Of bought machines, as the server's reaper would end one over SSH that has no folder.
    registry.intend("0ff00001", "orphan", "aws", 1, False)
    registry.run_began("aaaa0001", "0ff00001", "train()")
    registry.release("0ff00001")
    try:
        assert client.ask("sky-jupyter/pools/0ff00001/restart", "POST") == (
            409,
            {"message": "no notebook manages pool orphan: `%sky attach orphan` attaches to it", "reason": None},
        )
        status, answer = client.ask("sky-jupyter/pools/0ff00001/log")
        assert (status, answer["message"]) == (
            409,
            "only `%sky attach orphan` can bring what was printed on aws nodes",
        )
    finally:
        registry.own("0ff00001")
        registry.update("0ff00001", "ended")


@pytest.mark.slow
def test_who_ends_a_pool_at_the_same_time_as_others_is_told_that_it_has_ended(client):
    book = Notebook(client, "books/many.ipynb")
    try:
        book.run(UP)
    finally:
        book.close()
    (pool,) = until(lambda: [pool for pool in client.pools() if pool["manager"] is None])
    path = f"sky-jupyter/pools/{pool['id']}/down"
    with ThreadPoolExecutor(5) as threads:
        answers = list(threads.map(lambda _: client.ask(path, "POST"), range(5)))
    assert {status for status, _ in answers} <= {200, 404}, answers
    assert all("ended" in answer["message"] for _, answer in answers), answers
    assert client.pools() == []


def test_the_reaper_ends_what_a_lost_process_left(client, tmp_path):
    code = "import sys; from sky_jupyter.pool.registry.registry import Registry\n"
    code += "Registry().intend('dead0001', 'dead', 'local', 1, False)"
    env = {**os.environ, "SKY_REGISTRY": str(client.server.root.parent / "registry.sqlite")}
    env["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    until(lambda: client.pools() == [])


def test_a_registry_that_cannot_be_read_is_said(client):
    path = client.server.root.parent / "registry.sqlite"
    # With what SQLite keeps beside it: pages that are in its log yet would be read from there.
    kept = [(file, file.with_name(f"kept-{file.name}")) for file in path.parent.glob(f"{path.name}*")]
    for file, name in kept:
        file.rename(name)
    path.write_bytes(b"this is no database, and long enough to be looked at " * 100)
    try:
        status, answer = client.ask("sky-jupyter/pools")
        assert status == 503
        assert "cannot be used" in answer["message"]
    finally:
        for file in path.parent.glob(f"{path.name}*"):
            file.unlink()
        for file, name in kept:
            name.rename(file)
