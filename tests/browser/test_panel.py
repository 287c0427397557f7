"""The side panel and the pool panel as they are seen: pools are in sight, and are ended from there."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import pytest

from sky_jupyter.pool.registry.registry import Registry
from tests.browser import lab

ROOT = Path(__file__).resolve().parents[2]
# Installed by what looks at the front end, before the tests.
AXE = ROOT / "labextension" / "node_modules" / "axe-core" / "axe.min.js"
PATIENCE = 60_000

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(bool(lab.missing(front=True)), reason=f"needs {lab.missing(front=True)}"),
]

# A program that leaves a kept pool, as a notebook's kernel does that is killed.
LEAVE = """
import os
from sky_jupyter.pool.pool import Pool
from sky_jupyter.providers import Local
from sky_jupyter.spec.pool_spec import PoolSpec

Pool(PoolSpec(provider=Local(), nodes=1, name="stray", keep=True)).start()
os._exit(0)
"""


@contextmanager
def leave_a_pool(folder: Path) -> Iterator[Path]:
    """A pool that nobody manages, in the registry of a server's folder; gives that registry."""
    path = folder / "registry.sqlite"
    env = {**os.environ, "SKY_REGISTRY": str(path), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", LEAVE], env=env, check=True, timeout=120)
    try:
        yield path
    finally:
        registry = Registry(path)
        for row in registry.pools():
            subprocess.run([sys.executable, "-m", "sky_jupyter.pool.end_without_manager", row.id], env=env, timeout=120)
        registry.close()


# A notebook that shows its pool, and a cell that keeps its kernel for longer than the test lasts.
SHOWN, BLOCKED = 2, 3
CELLS = [
    "%load_ext sky_jupyter",
    "%sky up --nodes 2",
    "%sky",
    """%%sky
import time
print("waiting", flush=True)
time.sleep(600)""",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab.Server]:
    """A server of both front ends, with our extension alone, and a pool in its registry that nobody manages."""
    folder = tmp_path_factory.mktemp("panel")
    extensions, config = folder / "labextensions", folder / "config"
    extensions.mkdir()
    config.mkdir()
    (extensions / "sky-jupyter").symlink_to(lab.EXTENSION)
    notebook = {"expose_app_in_browser": True, "labextensions_path": [str(extensions)]}
    (config / "jupyter_server_config.json").write_text(json.dumps({"JupyterNotebookApp": notebook}))
    with leave_a_pool(folder), lab.server(folder, dark=True, extensions=extensions) as server:
        for name, cells in {"book": ["1 + 1"], "pool": CELLS}.items():
            book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
            book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
            nbformat.write(book, server.root / f"{name}.ipynb")
        yield server


def test_a_terminal_on_a_node_opens_from_the_side_panel(chromium, server):
    """Its shell is the node's, and the tab goes with it; nobody manages the pool before and afterwards."""
    page = opened(chromium, server, "lab")
    row = page.page.locator(".sky-pools .sky-pool")
    row.get_by_text("Detached: no notebook").wait_for(timeout=PATIENCE)
    row.get_by_role("button", name="Terminal: pool stray").click()
    dialog = page.page.get_by_role("dialog")
    dialog.get_by_text("A terminal on a node of pool stray").wait_for(timeout=PATIENCE)
    dialog.get_by_role("button", name="Open").click()
    terminal = page.page.locator(".jp-Terminal")
    terminal.locator(".xterm-screen").wait_for(timeout=PATIENCE)
    terminal.click()
    said = server.root / "said"
    page.page.keyboard.type(f"echo rank $SKY_RANK of $SKY_POOL > {said}; exit\n")
    page.wait_until(lambda: said.exists() and said.read_text().startswith("rank 0 of "))
    terminal.wait_for(state="detached", timeout=PATIENCE)
    row.get_by_text("Detached: no notebook").wait_for(timeout=PATIENCE)
    assert page.page.evaluate("() => window.jupyterapp.commands.hasCommand('sky-jupyter:shell')")
    assert [entry for entry in page.log if entry[0] == "error"] == []
    page.page.close()


def test_a_pool_that_no_notebook_shows_is_ended_from_the_side_panel(chromium, server):
    """It is looked at in JupyterLab, ended in Notebook 7, and gone in both."""
    page = opened(chromium, server, "lab")
    row = page.page.locator(".sky-pools .sky-pool")
    row.get_by_text("Detached: no notebook").wait_for(timeout=PATIENCE)
    assert row.locator("h3").inner_text() == "stray"
    assert "1 local node" in row.inner_text()
    assert violations(page.page) == []

    row.get_by_role("button", name="Attach here: pool stray").click()
    cells = page.page.locator(".jp-Notebook .jp-Cell .jp-InputArea")
    cells.nth(1).get_by_text("%sky attach stray").wait_for(timeout=PATIENCE)

    # The question comes first, and the keyboard is enough for a no.
    row.get_by_role("button", name="Shut down: pool stray").focus()
    page.page.keyboard.press("Enter")
    dialog = page.page.get_by_role("dialog")
    dialog.get_by_text("in memory is lost").wait_for(timeout=PATIENCE)
    page.picture("shut-down-question")
    page.page.keyboard.press("Escape")
    dialog.wait_for(state="detached", timeout=PATIENCE)
    assert row.count() == 1

    if importlib.util.find_spec("notebook") is None:
        end(page)
    else:
        other = opened(chromium, server, "notebook")
        end(other)
        assert [entry for entry in other.log if entry[0] == "error"] == []
        other.page.close()
    # The server tells every page.
    is_empty(page)
    assert json.loads(fetch(page.page, "sky-jupyter/pools"))["pools"] == []
    assert [entry for entry in page.log if entry[0] == "error"] == []
    # The layout is saved a moment after it has changed, and the panel is in it.
    page.page.wait_for_timeout(1500)
    page.page.reload()
    is_empty(page)
    page.wait_until_ready()
    page.page.close()


def opened(chromium: Any, server: lab.Server, app: str) -> lab.Page:
    """A notebook with the panel beside it."""
    page = lab.Page(chromium, server.address("book.ipynb", app=app), width=1200)
    page.wait_until_ready()
    page.log.clear()
    page.command("sky-jupyter:show-pools")
    return page


def end(page: lab.Page) -> None:
    """Shut the pool down, as a person would; it is looked at in a light theme too."""
    row = page.page.locator(".sky-pools .sky-pool")
    row.get_by_text("Detached: no notebook").wait_for(timeout=PATIENCE)
    page.page.evaluate(
        "() => window.jupyterapp.commands.execute('apputils:change-theme', { theme: 'JupyterLab Light' })"
    )
    page.page.wait_for_function("() => document.body.dataset.jpThemeLight === 'true'", timeout=PATIENCE)
    assert violations(page.page) == []
    row.get_by_role("button", name="Shut down: pool stray").click()
    page.page.get_by_role("dialog").get_by_role("button", name="Shut Down").click()
    is_empty(page)


def is_empty(page: lab.Page) -> None:
    """Wait until no pool is shown."""
    page.page.locator(".sky-pools").get_by_text("No pools yet").wait_for(timeout=PATIENCE)


def fetch(page: Any, path: str) -> str:
    """What the server answers the page, which is logged in."""
    code = """async path => {
        const base = window.jupyterapp.serviceManager.serverSettings.baseUrl;
        return await (await fetch(base + path)).text();
    }"""
    return str(page.evaluate(code, path))


def violations(page: Any, part: str = ".sky-pools") -> list[Any]:
    """What axe-core finds wrong with the panel, contrasts included."""
    if not AXE.exists():
        return []
    page.evaluate(AXE.read_text())
    found = page.evaluate("part => axe.run(part, { resultTypes: ['violations'] })", part)
    return [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found["violations"]]


# -- the pool panel --------------------------------------------------------------------------------


def test_a_pool_is_watched_interrupted_and_ended_from_its_panel_while_a_cell_blocks(chromium, server):
    """The kernel is busy all the time until the interrupt; a second page, of Notebook 7, shows the same."""
    page = lab.Page(chromium, server.address("pool.ipynb"), width=1200, height=1000)
    page.wait_until_ready()
    page.log.clear()
    page.command("notebook:run-all-cells")
    page.wait_for(BLOCKED, "waiting")
    panel = panel_of(page)
    # The cell came after the output was made: a page that asks knows of it.
    shows(panel, 'In[4]: print("waiting"', "2 local nodes · ready", "busy", " cores", "all ranks work")
    panel.get_by_role("img", name="memory use, last 1 min").first.wait_for(timeout=PATIENCE)
    is_clean(page, panel)
    asks_only_in_sight(page)
    the_badge_opens_it(page)
    if importlib.util.find_spec("notebook") is not None:
        page.command("docmanager:save")
        page.wait_until(lambda: "application/vnd.sky.pool.v1+json" in (server.root / "pool.ipynb").read_text())
        other = lab.Page(chromium, server.address("pool.ipynb", app="notebook"), width=900)
        shows(panel_of(other), 'In[4]: print("waiting"', "all ranks work")
        other.page.close()

    panel.get_by_role("button", name="Interrupt").click()
    panel.get_by_text("ranks 0-1 interrupted").wait_for(timeout=PATIENCE)
    page.wait_for(BLOCKED, "KeyboardInterrupt")
    panel.get_by_role("button", name="Interrupt").wait_for(state="hidden", timeout=PATIENCE)

    # A node more, as is offered, and without the last one again.
    panel.get_by_role("button", name="Add nodes").click()
    panel.get_by_label("Number of nodes").press("Enter")
    shows(panel, "3 local nodes · ready")
    panel.get_by_role("button", name="Remove node 2").click()
    panel.get_by_text("Remove node 2? All ranks get new kernels").wait_for(timeout=PATIENCE)
    panel.get_by_role("button", name="Remove", exact=True).click()
    shows(panel, "2 local nodes · ready")

    # The question comes first; Escape is a no, and the focus is where it was.
    panel.get_by_role("button", name="Shut down").press("Enter")
    panel.get_by_text("Shut down pool default? What the ranks have in memory is lost.").wait_for(timeout=PATIENCE)
    page.page.keyboard.press("Escape")
    assert page.page.evaluate("() => document.activeElement.textContent") == "Shut down"
    page.page.keyboard.press("Enter")
    page.page.keyboard.press("Shift+Tab")
    page.page.keyboard.press("Enter")
    shows(panel, "This pool has ended. As it was at")
    assert panel.get_by_role("button").count() == 0
    assert [entry for entry in page.log if entry[0] == "error"] == []
    page.save()
    page.page.close()
    in_a_saved_notebook(chromium, server)


def panel_of(page: lab.Page, cell: int = SHOWN) -> Any:
    return page.page.locator(".jp-Notebook .jp-Cell").nth(cell).locator(".sky-live").first


def shows(panel: Any, *texts: str) -> None:
    """Wait until a panel says all of this."""
    for text in texts:
        panel.get_by_text(text).first.wait_for(timeout=PATIENCE)


def is_clean(page: lab.Page, panel: Any) -> None:
    """For those who do not see it, or little: light, dark and narrow, with everything unfolded."""
    panel.locator(".sky-live-start > summary").click()
    panel.get_by_role("button", name="Restart").click()
    for width in (1200, 560):
        page.page.set_viewport_size({"width": width, "height": 1000})
        for theme in ("Light", "Dark"):
            change = "theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })"
            page.page.evaluate(change, f"JupyterLab {theme}")
            light = str(theme == "Light").lower()
            page.page.wait_for_function("light => document.body.dataset.jpThemeLight === light", arg=light)
            assert (width, theme, violations(page.page, ".sky-live")) == (width, theme, [])
    # Nothing is cut off, nor to be scrolled to sideways.
    assert panel.evaluate("node => node.scrollWidth <= node.clientWidth")
    page.page.set_viewport_size({"width": 1200, "height": 1000})
    panel.get_by_role("button", name="Cancel").click()
    panel.locator(".sky-live-start > summary").click()


def asks_only_in_sight(page: lab.Page) -> None:
    """Who does not see it does not make the kernel tell of it."""
    page.page.evaluate(
        """() => {
            const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
            const send = kernel.sendControlMessage.bind(kernel);
            window.skyAsked = 0;
            kernel.sendControlMessage = (message, ...more) => {
                window.skyAsked += message.content.action === "status" ? 1 : 0;
                return send(message, ...more);
            };
        }"""
    )
    asked = lambda: page.page.evaluate("() => window.skyAsked")  # noqa: E731 - it is said once
    page.wait_until(lambda: asked() > 1)
    choose = f"() => {{ window.jupyterapp.shell.currentWidget.content.activeCellIndex = {SHOWN}; }}"
    page.page.evaluate(choose)
    page.command("notebook:hide-cell-outputs")
    panel_of(page).wait_for(state="hidden", timeout=PATIENCE)
    page.page.wait_for_timeout(500)
    before = asked()
    page.page.wait_for_timeout(2500)
    assert asked() == before
    page.command("notebook:show-cell-outputs")
    page.wait_until(lambda: asked() > before)


def the_badge_opens_it(page: lab.Page) -> None:
    badge = page.page.get_by_role("button", name="Pool default")
    badge.click()
    panel = panel_of(page, BLOCKED)
    shows(panel, 'In[4]: print("waiting"')
    assert violations(page.page, ".sky-run") == []
    badge.click()
    panel.wait_for(state="detached", timeout=PATIENCE)


def in_a_saved_notebook(chromium: Any, server: lab.Server) -> None:
    """From someone else, so untrusted, and without a kernel: the pool as it was when the cell ran."""
    path = server.root / "pool.ipynb"
    book = json.loads(path.read_text())
    del book["metadata"]["kernelspec"]
    # The pool that nobody manages, if it has not been ended yet, stands in another one.
    [output] = [one for one in book["cells"][SHOWN]["outputs"] if "data" in one]
    assert set(output["data"]) == {"application/vnd.sky.pool.v1+json", "text/html", "text/plain"}
    book["cells"][SHOWN]["source"] = ["%sky status"]
    (server.root / "other.ipynb").write_text(json.dumps(book))
    page = lab.Page(chromium, server.address("other.ipynb"))
    panel = panel_of(page)
    shows(panel, "Saved at", "pool default", "2 local nodes · ready", "ready in")
    assert panel.get_by_role("button").count() == 0
    page.page.close()
