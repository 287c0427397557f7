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


@pytest.mark.parametrize(("app", "dark"), [("lab", True), ("notebook", False)])
def test_a_pool_that_no_notebook_shows_is_ended_from_the_side_panel(chromium, tmp_path, app, dark):
    if app == "notebook" and importlib.util.find_spec("notebook") is None:
        pytest.skip("needs the Python package notebook")
    extensions = tmp_path / "labextensions"
    extensions.mkdir()
    (extensions / INSTALLED.name).symlink_to(INSTALLED)
    with leave_a_pool(tmp_path), lab.server(tmp_path, app=app, dark=dark, extensions=extensions) as server:
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 + 1")])
        book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(book, server.root / "book.ipynb")
        page = lab.Page(chromium, server.address("book.ipynb", app=app), width=1200)
        page.wait_until_ready()
        page.log.clear()
        page.command("sky-jupyter:show-pools")
        panel = page.page.locator(".sky-pools")
        row = panel.locator(".sky-pool")
        row.get_by_text("Managed by nobody").wait_for(timeout=PATIENCE)
        assert row.locator("h3").inner_text() == "stray"
        assert "1 local node" in row.inner_text()
        if shots := os.environ.get("SKY_SCREENSHOTS"):
            page.page.screenshot(path=f"{shots}/panel-{app}.png")

        # Its words can be read on their ground.
        assert contrast(page.page, ".sky-pool-manager") > 4.5
        assert contrast(page.page, ".sky-pool-deed:not([hidden])") > 4.5

        row.get_by_role("button", name="Attach here: pool stray").click()
        cells = page.page.locator(".jp-Notebook .jp-Cell .jp-InputArea")
        cells.nth(1).get_by_text("%sky attach stray").wait_for(timeout=PATIENCE)

        # The question comes first, and its safe answer has the focus.
        row.get_by_role("button", name="Shut down: pool stray").focus()
        page.page.keyboard.press("Enter")
        dialog = page.page.get_by_role("dialog")
        dialog.get_by_text("in memory is lost").wait_for(timeout=PATIENCE)
        dialog.get_by_role("button", name="Cancel").click()
        dialog.wait_for(state="detached", timeout=PATIENCE)
        assert row.count() == 1
        row.get_by_role("button", name="Shut down: pool stray").click()
        page.page.get_by_role("dialog").get_by_role("button", name="Shut Down").click()
        panel.get_by_text("No pool lives").wait_for(timeout=PATIENCE)
        assert json.loads(fetch(page.page, "sky-jupyter/pools"))["pools"] == []
        assert [entry for entry in page.log if entry[0] == "error"] == []
        if app == "lab":
            check_it_is_there_after_a_reload(page)
        page.page.close()


def check_it_is_there_after_a_reload(page: lab.Page) -> None:
    # The layout is saved a moment after it has changed.
    page.page.wait_for_timeout(1500)
    page.page.reload()
    page.page.locator(".sky-pools").get_by_text("No pool lives").wait_for(timeout=PATIENCE)


def fetch(page: Any, path: str) -> str:
    """What the server answers the page, which is logged in."""
    code = """async path => {
        const base = window.jupyterapp.serviceManager.serverSettings.baseUrl;
        return await (await fetch(base + path)).text();
    }"""
    return str(page.evaluate(code, path))


def contrast(page: Any, selector: str) -> float:
    """The ratio of an element's colour to its ground's, by WCAG's formula."""
    code = """selector => {
        const element = document.querySelector(selector);
        const numbers = colour => colour.match(/[0-9.]+/g).map(Number);
        let ground = element;
        while (ground && (numbers(getComputedStyle(ground).backgroundColor)[3] ?? 1) === 0) {
            ground = ground.parentElement;
        }
        const light = colour => {
            const [red, green, blue] = numbers(colour).slice(0, 3).map(value => {
                const part = value / 255;
                return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
            });
            return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
        };
        const found = [light(getComputedStyle(element).color), light(getComputedStyle(ground).backgroundColor)];
        return (Math.max(...found) + 0.05) / (Math.min(...found) + 0.05);
    }"""
    return float(page.evaluate(code, selector))
