"""The side panel as it is seen: a pool whose notebook is gone is in sight, and is ended from there."""

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

from sky_jupyter.pool.registry import Registry
from tests.browser import lab

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = Path(sys.prefix) / "share" / "jupyter" / "labextensions" / "sky-jupyter"
# Installed by what looks at the front end, before the tests.
AXE = ROOT / "labextension" / "node_modules" / "axe-core" / "axe.min.js"
PATIENCE = 60_000

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(lab.missing()), reason=f"needs {lab.missing()}"),
    pytest.mark.skipif(not INSTALLED.exists(), reason="needs the front end: python3 dev.py front"),
]

# A program that leaves a kept pool, as a notebook's kernel does that is killed.
LEAVE = """
import os
from sky_jupyter.pool.manager import Pool
from sky_jupyter.providers import Local
from sky_jupyter.spec import PoolSpec

Pool(PoolSpec(provider=Local(), nodes=1, name="stray", keep=True)).start()
os._exit(0)
"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with lab.browser() as browser:
        yield browser


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
            subprocess.run([sys.executable, "-m", "sky_jupyter.pool.ending", row.id], env=env, timeout=120)
        registry.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[lab.Server]:
    """A server of both front ends, with our extension alone, and a pool in its registry that nobody manages."""
    extensions, config = tmp_path / "labextensions", tmp_path / "config"
    extensions.mkdir()
    config.mkdir()
    (extensions / INSTALLED.name).symlink_to(INSTALLED)
    notebook = {"expose_app_in_browser": True, "labextensions_path": [str(extensions)]}
    (config / "jupyter_server_config.json").write_text(json.dumps({"JupyterNotebookApp": notebook}))
    with leave_a_pool(tmp_path), lab.server(tmp_path, dark=True, extensions=extensions) as server:
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 + 1")])
        book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(book, server.root / "book.ipynb")
        yield server


def test_a_pool_that_no_notebook_shows_is_ended_from_the_side_panel(chromium, server):
    """It is looked at in JupyterLab, ended in Notebook 7, and gone in both."""
    page = opened(chromium, server, "lab")
    row = page.page.locator(".sky-pools .sky-pool")
    row.get_by_text("Managed by nobody").wait_for(timeout=PATIENCE)
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
    row.get_by_text("Managed by nobody").wait_for(timeout=PATIENCE)
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
    page.page.locator(".sky-pools").get_by_text("No pool lives").wait_for(timeout=PATIENCE)


def fetch(page: Any, path: str) -> str:
    """What the server answers the page, which is logged in."""
    code = """async path => {
        const base = window.jupyterapp.serviceManager.serverSettings.baseUrl;
        return await (await fetch(base + path)).text();
    }"""
    return str(page.evaluate(code, path))


def violations(page: Any) -> list[Any]:
    """What axe-core finds wrong with the panel, contrasts included."""
    if not AXE.exists():
        return []
    page.evaluate(AXE.read_text())
    found = page.evaluate("() => axe.run('.sky-pools', { resultTypes: ['violations'] })")
    return [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found["violations"]]
