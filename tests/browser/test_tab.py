"""Tab and Shift-Tab in ``%%sky`` cells, in JupyterLab and Notebook 7 in a real browser."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.browser import lab

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(bool(lab.missing()), reason=f"needs {lab.missing()}"),
]

CELLS = [
    "%load_ext sky_jupyter",
    """%%sky --nodes 2
class Net:
    "A net."
    def fit(self, data, epochs=1):
        "Fit it."
vars()["model" + "_there"] = Net()
vars()["model" + "_too"] = Net()
print("made")""",
    "",
    "%sky down",
]
MADE, TYPED, DOWN = 1, 2, 3
_SOURCE = "cell => window.jupyterapp.shell.currentWidget.content.widgets[cell].model.sharedModel.source"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab.Server]:
    """A server of both front ends, without our extension."""
    with lab.server(tmp_path_factory.mktemp("lab")) as server:
        yield server


@pytest.mark.parametrize("app", ["lab", "notebook"])
def test_tab_and_shift_tab_know_what_the_nodes_have(app: str, server: lab.Server, chromium: Any) -> None:
    if app == "notebook" and importlib.util.find_spec("notebook") is None:
        pytest.skip("needs the Python package notebook")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(book, server.root / f"{app}.ipynb")
    page = lab.Page(chromium, server.address(f"{app}.ipynb", app=app))
    page.wait_until_ready()
    cells = page.page.locator(".jp-Notebook .jp-Cell")
    for cell in range(TYPED):
        cells.nth(cell).locator(".cm-content").click()
        page.page.keyboard.press("Control+Enter")
    page.wait_for(MADE, "made")
    cells.nth(TYPED).locator(".cm-content").click()
    page.page.keyboard.type("%%sky\nmodel_t")
    offered = page.page.locator(".jp-Completer-item")
    pressed_until(page, "Tab", lambda: [text.strip() for text in offered.all_inner_texts()] != [])
    labels = page.page.locator(".jp-Completer-match").all_inner_texts()
    page.picture(f"completion-{app}")
    assert [text for text in labels if text.startswith("model_")] == ["model_there", "model_too"]
    page.page.keyboard.press("Enter")
    page.page.keyboard.type(".fi")
    pressed_until(page, "Tab", lambda: page.page.evaluate(_SOURCE, TYPED) == "%%sky\nmodel_there.fit")
    tooltip = page.page.locator(".jp-Tooltip")
    pressed_until(page, "Shift+Tab", lambda: "Fit it." in "".join(tooltip.all_inner_texts()))
    page.picture(f"inspection-{app}")
    assert "model_there.fit(data, epochs=1)" in tooltip.inner_text()
    page.page.keyboard.press("Escape")
    cells.nth(DOWN).locator(".cm-content").click()
    page.page.keyboard.press("Control+Enter")
    page.wait_for(DOWN, "ended")
    page.page.close()


WAITS = """%%sky
import os, time
print("begun")
while not os.path.exists("go"):
    time.sleep(0.05)"""
BUSY = ["%load_ext sky_jupyter", "%%sky --nodes 2\ndef waited_for(a, b=2):\n    'Doc of it.'", WAITS, "", "%sky down"]


@pytest.mark.skipif(bool(lab.missing(front=True)), reason=f"needs {lab.missing(front=True)}")
@pytest.mark.parametrize("app", ["lab", pytest.param("notebook", marks=pytest.mark.long)])
def test_tab_and_shift_tab_answer_while_a_cell_runs(app: str, tmp_path: Path, chromium: Any) -> None:
    with lab.server_with_book(tmp_path, BUSY) as server:
        page = lab.Page(chromium, server.address("book.ipynb", app=app))
        page.wait_until_ready()
        cells = page.page.locator(".jp-Notebook .jp-Cell")
        for cell in range(3):
            cells.nth(cell).locator(".cm-content").click()
            page.page.keyboard.press("Control+Enter")
        page.wait_for(2, "begun")
        cells.nth(3).locator(".cm-content").click()
        page.page.keyboard.type("%%sky\nwaited_f")
        offered = page.page.locator(".jp-Completer-item")
        pressed_until(page, "Tab", lambda: [text.strip() for text in offered.all_inner_texts()] != [])
        page.picture(f"completion-busy-{app}")
        page.page.keyboard.press("Enter")
        page.page.keyboard.type("(")
        tooltip = page.page.locator(".jp-Tooltip")
        pressed_until(page, "Shift+Tab", lambda: "Doc of it." in "".join(tooltip.all_inner_texts()))
        assert "done" not in page.outputs(2)
        (server.root / "go").touch()
        page.wait_for(2, "done")
        page.page.keyboard.press("Escape")
        cells.nth(4).locator(".cm-content").click()
        page.page.keyboard.press("Control+Enter")
        page.wait_for(4, "ended")
        page.page.close()


def pressed_until(page: lab.Page, key: str, holds: Callable[[], bool]) -> None:
    """Press a key, and wait; again after a while, as on a busy machine a rank may be late."""
    for attempt in range(10):
        page.page.keyboard.press(key)
        for _ in range(30):
            if holds():
                return
            page.page.wait_for_timeout(100)
        assert attempt < 9, f"nothing came of {key}"
