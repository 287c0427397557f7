"""JupyterLab's debugger on a rank: breakpoints in a ``%%sky`` cell, steps and variables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser import lab

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(bool(lab.missing(front=True)), reason=f"needs {lab.missing(front=True)}"),
]
POOL, CODE, SAYS, OTHER = 1, 2, 3, 4
LINE = 3
SELECTOR = ".jp-NotebookPanel-toolbar .sky-debugger select"
CELL = """%%sky
def above(number):
    more = number + 1
    return more

print("x is", above(sky.instance_info().rank))"""
CELLS = [
    "%load_ext sky_jupyter\nimport sky_jupyter as sky",
    "%sky up --nodes 2",
    CELL,
    "%sky debugger",
    "%sky debugger 0",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab.Server]:
    """A JupyterLab with our extension, and the notebook."""
    with lab.server_with_book(tmp_path_factory.mktemp("debugger"), CELLS) as server:
        yield server


def test_a_breakpoint_in_a_cell_stops_the_chosen_rank_while_the_other_one_ends(chromium, server):
    page = lab.Page(chromium, server.address("book.ipynb"), width=1280)
    page.wait_until_ready()

    def run(cell: int) -> None:
        page.page.locator(".jp-Notebook .jp-Cell").nth(cell).locator(".jp-InputArea-editor").click()
        page.command("notebook:run-cell")

    run(0)
    selector = page.page.locator(SELECTOR)
    assert not selector.is_visible()
    run(POOL)
    selector.wait_for()
    assert selector.inner_text().split("\n") == ["Debug: notebook", "Debug: rank 0", "Debug: rank 1"]
    selector.select_option("Debug: rank 1")
    page.wait_until(selector.is_enabled)
    run(SAYS)
    page.wait_for(SAYS, "debugs rank 1")
    page.page.locator(".jp-NotebookPanel-toolbar .jp-DebuggerBugButton").click()
    panel = page.page.locator(".jp-DebuggerSidebar")
    panel.wait_for()
    editor = page.page.locator(".jp-Notebook .jp-Cell").nth(CODE).locator(".jp-InputArea-editor")
    line = editor.locator(".cm-gutter.cm-breakpoint-gutter .cm-gutterElement").nth(LINE)
    # The first element is hidden, and as wide as all.
    line.click()
    page.picture("debugger-breakpoint")
    page.wait_until(lambda: "3" in panel.locator(".jp-DebuggerBreakpoints").inner_text())
    run(CODE)
    frame = panel.locator(".jp-DebuggerCallstackFrame")
    frame.first.wait_for()
    assert frame.first.inner_text().startswith("above")
    assert "x is 2" not in page.wait_for(CODE, "x is 1")
    page.wait_for(CODE, "rank 1 stopped")
    variables = panel.locator(".jp-DebuggerVariables")
    page.wait_until(lambda: "number" in variables.inner_text() and "1" in variables.inner_text())
    page.picture("debugger-stopped")
    page.command("debugger:next")
    page.wait_until(lambda: "more" in variables.inner_text())
    page.picture("debugger-stepped")
    page.command("debugger:continue")
    assert "x is 2" in page.wait_for(CODE, "x is 2")
    page.page.close()


@pytest.mark.parametrize("app", ["lab", pytest.param("notebook", marks=pytest.mark.long)])
def test_the_selector_follows_the_magic_and_a_page_that_is_loaded_anew(chromium, server, app):
    page = lab.Page(chromium, server.address("book.ipynb", app=app), width=1280)
    page.wait_until_ready()
    selector = page.page.locator(SELECTOR)

    def run(cell: int) -> None:
        page.page.locator(".jp-Notebook .jp-Cell").nth(cell).locator(".jp-InputArea-editor").click()
        page.command("notebook:run-cell")

    def shows(entry: str) -> bool:
        return selector.is_visible() and selector.is_enabled() and selector.locator(":checked").inner_text() == entry

    for cell in (0, POOL, OTHER):
        run(cell)
    page.wait_for(OTHER, "debugs rank 0")
    page.wait_until(lambda: shows("Debug: rank 0"))
    page.page.reload()
    page.wait_until_ready()
    page.wait_until(lambda: shows("Debug: rank 0"))
    page.picture(f"debugger-selector-{app}")
    selector.select_option("Debug: notebook")
    page.wait_until(lambda: shows("Debug: notebook"))
    run(SAYS)
    page.wait_for(SAYS, "the notebook's own kernel")
    page.page.close()
