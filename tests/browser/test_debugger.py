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
CHOICE, CODE, LINE = 1, 2, 3
CELL = """%%sky
def above(number):
    more = number + 1
    return more

print("x is", above(sky.instance_info().rank))"""
CELLS = ["%load_ext sky_jupyter\nimport sky_jupyter as sky", "%sky up --nodes 2\n%sky debugger 1", CELL]


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
    run(CHOICE)
    page.wait_for(CHOICE, "debugs rank 1")
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
    variables = panel.locator(".jp-DebuggerVariables")
    page.wait_until(lambda: "number" in variables.inner_text() and "1" in variables.inner_text())
    page.picture("debugger-stopped")
    page.command("debugger:next")
    page.wait_until(lambda: "more" in variables.inner_text())
    page.picture("debugger-stepped")
    page.command("debugger:continue")
    assert "x is 2" in page.wait_for(CODE, "x is 2")
    page.page.close()
