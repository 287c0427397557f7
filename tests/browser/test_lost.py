"""A run's view where its kernel is not heard: behind a proxy that drops what it does not know, and after its death."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from sky_jupyter.pool import end_without_manager
from sky_jupyter.pool.registry.registry import Registry
from tests.browser import lab
from tests.browser.view import View
from tests.hosts.world import hosts, skip_unless_hosts_run

PROXY = Path(sys.prefix, "share", "jupyter", "labextensions", "jupyter-distributed")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(bool(lab.missing(front=True)), reason=f"needs {lab.missing(front=True)}"),
]

LIVE, PANEL = 1, 2
# Tells whether the server runs the proxy in place of the page's kernel.
PROXIED = """async () => {
    const kernel = window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel;
    if (!kernel) {
        return false;
    }
    const { baseUrl, token } = kernel.serverSettings;
    const address = `${baseUrl}jupyter-distributed/kernels/${kernel.id}`;
    const answer = await fetch(address, { headers: { Authorization: `token ${token}` } });
    return answer.ok && (await answer.json()).proxied;
}"""
# Tells which process is the kernel, for `kill_kernel`.
LOAD = "%load_ext sky_jupyter\nimport os\nprint('kernel', os.getpid())"
CELLS = [
    "%load_ext sky_jupyter",
    """%%sky --nodes 2
import time
from pathlib import Path
line = 0
while not Path("go").exists():
    print("line", line, flush=True)
    line += 1
    time.sleep(0.3)
print("the end")""",
    "%sky",
    "%sky down",
]


def end_pools(folder: Path) -> None:
    """End the pools that a server's kernels have left."""
    registry = Registry(folder / "registry.sqlite")
    for row in registry.pools():
        end_without_manager.end(registry, row.id)
    registry.close()


def write(server: lab.Server, cells: list[str] = CELLS) -> None:
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(book, server.root / "book.ipynb")


def underway(server: lab.Server, chromium: Any, timeout: float = 60) -> tuple[lab.Page, View]:
    """Run the book in a page, until its run has printed a few lines."""
    page = lab.Page(chromium, server.address("book.ipynb"))
    page.wait_until_ready()
    page.command("notebook:run-all-cells")
    view = View(page, LIVE)
    view.wait("line 2", timeout=timeout)
    return page, view


def kill_kernel(page: lab.Page) -> None:
    os.kill(int(re.search(r"kernel (\d+)", page.wait_for(0, "kernel"))[1]), signal.SIGKILL)


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.skipif(not PROXY.is_dir(), reason="needs it"))])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[lab.Server]:
    """A server; where asked, jupyter-distributed puts a proxy kernel before each notebook's own."""
    folder = tmp_path / "labextensions"
    folder.mkdir()
    (folder / "sky-jupyter").symlink_to(lab.EXTENSION)
    if request.param:
        (folder / "jupyter-distributed").symlink_to(PROXY)
    with lab.server(tmp_path, extensions=folder) as server:
        write(server)
        yield server


@pytest.mark.parametrize("server", [True], indirect=True)
@pytest.mark.skipif(not PROXY.is_dir(), reason="needs the Python package jupyter-distributed")
def test_behind_a_proxy_the_run_is_drawn_as_the_notebook_has_it(server: lab.Server, chromium: Any) -> None:
    page = lab.Page(chromium, server.address("book.ipynb"))
    # The peer's page puts the proxy in place of a kernel that is ready already, by a restart.
    page.wait_until(lambda: page.page.evaluate(PROXIED))
    page.wait_until_ready()
    page.command("notebook:run-all-cells")
    view = View(page, LIVE)
    view.wait("No live buttons", timeout=90)
    number = max(map(int, re.findall(r"line (\d+)", view.wait("line"))))
    view.wait(f"line {number + 3}")
    assert "silent" not in view.text(".sky-facts")
    assert not view.node.get_by_role("button", name="Interrupt").is_visible()
    (server.root / "go").touch()
    view.wait("the end")
    view.wait("done", ".sky-facts")
    assert "does not know" not in view.text()
    page.wait_for(len(CELLS) - 1, "ended")
    page.page.close()


@pytest.mark.parametrize("server", [False], indirect=True)
def test_a_run_whose_kernel_has_died_is_over(server: lab.Server, chromium: Any) -> None:
    write(server, [LOAD, *CELLS[1:2]])
    page, view = underway(server, chromium)
    kill_kernel(page)
    view.wait("The notebook's kernel died; the pool ended with it.")
    assert "interrupted" in view.text(".sky-facts")
    assert "line 2" in view.text()
    page.page.get_by_role("dialog").get_by_role("button").last.click()
    page.save()
    (run,) = [
        output["data"]["application/vnd.sky.run.v1+json"]
        for output in json.loads((server.root / "book.ipynb").read_text())["cells"][LIVE]["outputs"]
        if "application/vnd.sky.run.v1+json" in output.get("data", {})
    ]
    assert run["finished"]
    assert "kernel died" in run["notices"][-1]
    page.page.close()


@pytest.mark.parametrize("server", [False], indirect=True)
def test_a_run_of_a_kept_pool_continues_when_the_kernel_dies(server: lab.Server, chromium: Any, tmp_path: Path) -> None:
    cell = CELLS[1].replace("--nodes 2", "--nodes 1 --name left --keep --detach")
    write(server, [LOAD, cell])
    try:
        page, view = underway(server, chromium)
        kill_kernel(page)
        told = view.wait("The notebook's kernel died; the run continues on the nodes of pool left")
        assert "`%sky attach left`" in told
        assert "`sky-jupyter logs -f left`" in told
        assert "goes on" in view.text(".sky-facts")
        assert "interrupted" not in view.text(".sky-facts")
        page.page.close()
    finally:
        end_pools(tmp_path)


@pytest.mark.parametrize("server", [False], indirect=True)
def test_a_run_of_a_kept_pool_is_left_to_itself_when_the_kernel_is_restarted(
    server: lab.Server, chromium: Any, tmp_path: Path
) -> None:
    cell = CELLS[1].replace("--nodes 2", "--nodes 1 --name left --keep --detach")
    write(server, ["%load_ext sky_jupyter", cell])
    try:
        page, view = underway(server, chromium)
        page.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
        told = view.wait("The notebook's kernel has been restarted; pool left continues")
        assert "`%sky attach left` shows the run" in told
        assert "end not known" in view.text(".sky-facts")
        page.page.close()
    finally:
        end_pools(tmp_path)


@pytest.mark.root
@pytest.mark.skipif(importlib.util.find_spec("paramiko") is None, reason="needs paramiko (the `ssh` extra)")
def test_a_pool_on_other_machines_is_said_to_end_with_its_lease_when_the_kernel_dies(
    chromium: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_unless_hosts_run(f"{sys.version_info[0]}.{sys.version_info[1]}")
    where = "--provider ssh --hosts host0 --offline --idle-timeout 120 --name far --detach"
    cells = [LOAD, CELLS[1].replace("--nodes 2", where)]
    folder = tmp_path / "lab"
    folder.mkdir()
    with hosts(1, python=True, warm=True) as world:
        monkeypatch.setenv("SKY_SSH_CONFIG", str(world.ssh_config(tmp_path / "config")))
        monkeypatch.setenv("SSH_AUTH_SOCK", "")
        # Who ends the pool finds its keys beside the registry.
        monkeypatch.setenv("SKY_REGISTRY", str(folder / "registry.sqlite"))
        with lab.server_with_book(folder, cells) as server:
            try:
                page, view = underway(server, chromium, timeout=180)
                kill_kernel(page)
                told = view.wait("The notebook's kernel died; the run continues on the nodes of pool far")
                assert "the pool ends with its lease, at most 2 min after its last run" in told
                assert "goes on" in view.text(".sky-facts")
                page.page.close()
            finally:
                end_pools(folder)


@pytest.mark.parametrize("server", [False], indirect=True)
def test_a_saved_panel_and_run_say_so_at_once_and_ask_nothing_that_a_kernel_does_not_know(
    server: lab.Server, chromium: Any, tmp_path: Path
) -> None:
    (server.root / "go").touch()
    page = lab.Page(chromium, server.address("book.ipynb"))
    page.wait_until_ready()
    page.command("notebook:run-all-cells")
    page.wait_for(len(CELLS) - 1, "ended")
    page.save()
    # One that was saved while its run went on, by a kernel of long ago.
    book = json.loads((server.root / "book.ipynb").read_text())
    (run,) = [one["data"] for one in book["cells"][LIVE]["outputs"] if "text/html" in one.get("data", {})][-1:]
    saved = run["application/vnd.sky.run.v1+json"]
    saved |= {"finished": False, "state": "running", "view": "0" * 32}
    saved["outliving"] = {"how": "kept", "lease": 43200.0}
    for rank in saved["ranks"]:
        rank["state"] = "running"
    (server.root / "old.ipynb").write_text(json.dumps(book))
    page.page.close()
    page = lab.Page(chromium, server.address("old.ipynb"))
    panel = page.page.locator(".jp-Notebook .jp-Cell").nth(PANEL).locator(".sky-live").first
    # What was saved just now is as good as new, until its kernel has answered or not.
    panel.get_by_text("Saved at").wait_for()
    panel.locator(".sky-live-dot[data-state=ended]").first.wait_for()
    view = View(page, LIVE)
    view.wait("was saved while the run went on, and its kernel does not know the run any more")
    assert "`%sky attach default` shows the run if the pool is still running" in view.text()
    # What was saved does not tell how it ended.
    assert "end not known" in view.text(".sky-facts")
    assert "interrupted" not in view.text(".sky-facts")
    panel.get_by_text("has not loaded sky_jupyter").wait_for()
    assert "UNKNOWN CONTROL" not in (tmp_path / "server.log").read_text()
    page.page.close()
