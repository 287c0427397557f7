"""The switch of ``%sky auto`` in a notebook's toolbar."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.browser import lab

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(bool(lab.missing(front=True)), reason=f"needs {lab.missing(front=True)}"),
]
PLAIN, LOCAL, OFF = 2, 3, 4
CELLS = ["%load_ext sky_jupyter", "%sky auto --nodes 2", "6 * 7", "%%local\n6 * 7", "%sky auto off"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab.Server]:
    """A JupyterLab with our extension, and the notebook."""
    with lab.server_with_book(tmp_path_factory.mktemp("auto"), CELLS) as server:
        yield server


@pytest.mark.parametrize("app", ["lab", "notebook"])
def test_the_switch_in_the_toolbar_follows_the_magic_and_changes_it(chromium, server, app):
    page = lab.Page(chromium, server.address("book.ipynb", app=app), width=1280)
    page.wait_until_ready()
    switch = page.page.locator(".jp-NotebookPanel-toolbar .sky-auto button[role=switch]")

    def shows(checked: bool) -> bool:
        return switch.get_attribute("aria-checked") == str(checked).lower()

    def run(cell: int) -> None:
        node = page.page.locator(".jp-Notebook .jp-Cell").nth(cell)
        node.locator(".jp-InputArea-editor").click()
        page.command("notebook:run-cell")

    # Before the extension is loaded there is nothing to switch.
    assert not switch.is_visible()
    page.command("notebook:run-all-cells")
    page.wait_for(OFF, "auto off")
    page.wait_until(lambda: switch.is_visible() and shows(False))
    assert "Cells on default" in switch.inner_text()
    assert "2 ranks" in page.wait_for(PLAIN, "done")
    assert "rank" not in page.wait_for(LOCAL, "42")
    # In the notebook, until it is switched on.
    run(PLAIN)
    page.wait_until(lambda: "rank" not in page.outputs(PLAIN) and "42" in page.outputs(PLAIN))
    page.picture("auto-off")
    switch.click()
    page.wait_until(lambda: shows(True))
    run(PLAIN)
    assert "2 ranks" in page.wait_for(PLAIN, "done")
    page.picture("auto-on")
    # A page that is loaded anew asks the kernel; the file says nothing of it.
    page.save()
    assert "auto" not in json.loads((server.root / "book.ipynb").read_text())["metadata"]
    page.page.reload()
    page.wait_until_ready()
    page.wait_until(lambda: switch.is_visible() and shows(True))
    run(OFF)
    page.wait_until(lambda: shows(False))
    switch.click()
    page.wait_until(lambda: shows(True))
    # A new kernel begins with it off; a server that ends while a kernel restarts hangs.
    page.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    page.wait_until(lambda: not switch.is_visible())
    page.page.close()
