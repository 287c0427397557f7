"""How a run's view lies on the page, with the scrollbars that people see: nothing is out of sight that need not be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import nbformat
import pytest

from tests.browser import lab
from tests.browser.view import View

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(bool(lab.missing(front=True)), reason=f"needs {lab.missing(front=True)}"),
]

SHORT, FOLLOWED, READ, TABLES = 1, 2, 3, 4
LINES = 60
WAITS = f"""%%sky
import time
from pathlib import Path
for line in range({LINES}):
    print("line", line, flush=True)
while not Path("FILE").exists():
    time.sleep(0.05)
"last of all\""""
CELLS = [
    "%load_ext sky_jupyter",
    "%%sky --nodes 2\nprint('one line')",
    WAITS.replace("FILE", "followed"),
    WAITS.replace("FILE", "read"),
    """%%sky
import time
import sky_jupyter as sky
from IPython.display import HTML, display
rank = sky.instance_info().rank
# The higher rank shows its table first.
time.sleep(0.5 * (1 - rank))
display(HTML(f"<table><tr><td>table of {rank}</td></tr></table>"))""",
    "%sky down",
]
# What is wider or higher in it than its box, of all that can be scrolled.
SCROLLS = """view => [view, view.closest(".jp-OutputArea-output"), ...view.querySelectorAll("*")]
    .filter(node => /auto|scroll/.test(getComputedStyle(node).overflow))
    .filter(node => node.scrollHeight > node.clientHeight || node.scrollWidth > node.clientWidth)
    .map(node => `${node.className}: ${node.scrollWidth}x${node.scrollHeight}`
        + ` in ${node.clientWidth}x${node.clientHeight}`)"""
BOX = "node => (({ left, right, top, bottom }) => [left, right, top, bottom])(node.getBoundingClientRect())"
# Every frame's height and place in the log, until it is over.
WATCH = """view => {
    const log = view.querySelector(".sky-log");
    window.seen = [];
    const look = () => {
        window.seen.push([log.getBoundingClientRect().height, log.scrollTop]);
        if (!view.querySelector(".sky-facts").textContent.includes("done") || window.seen.length % 60) {
            requestAnimationFrame(look);
        }
    };
    look();
}"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> Iterator[lab.Page]:
    folder = tmp_path_factory.mktemp("shape")
    (folder / "labextensions").mkdir()
    (folder / "labextensions" / "sky-jupyter").symlink_to(lab.EXTENSION)
    with lab.server(folder, extensions=folder / "labextensions") as server:
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
        book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(book, server.root / "book.ipynb")
        page = lab.Page(chromium, server.address("book.ipynb"), width=1280, height=1600)
        page.wait_until_ready()
        page.command("notebook:run-all-cells")
        page.root = server.root
        yield page
        page.page.close()


def test_a_short_run_has_nothing_to_scroll(page: lab.Page) -> None:
    view = View(page, SHORT)
    view.wait("done", ".sky-facts")
    assert view.node.evaluate(SCROLLS) == []


def test_a_run_that_was_followed_ends_with_its_last_line_and_result_in_sight(page: lab.Page) -> None:
    view = View(page, FOLLOWED)
    log = view.node.locator(".sky-log")
    view.wait(f"line {LINES - 1}")
    # It has the width of the cell, whatever the window is.
    assert log.evaluate("node => node.clientWidth") > 0.9 * view.node.evaluate("node => node.clientWidth")
    view.node.evaluate(WATCH)
    (page.root / "followed").touch()
    view.wait("last of all")
    view.wait("done", ".sky-facts")
    page.page.wait_for_timeout(3000)
    heights = {height for height, _ in page.page.evaluate("() => window.seen")}
    assert len(heights) == 1, "the log's box has jumped"
    assert log.evaluate("node => node.scrollHeight - node.clientHeight - node.scrollTop") <= 1
    row = view.node.get_by_text(f"line {LINES - 1}").first.evaluate(BOX)
    box = log.evaluate(BOX)
    assert box[2] <= row[2] < row[3] <= box[3] + 1
    assert view.node.get_by_text("last of all").first.evaluate(BOX)[2] >= box[3]


def test_a_run_ends_where_its_reader_was(page: lab.Page) -> None:
    # The cells run one after another, whichever of these tests are run.
    (page.root / "followed").touch()
    view = View(page, READ)
    log = view.node.locator(".sky-log")
    view.wait(f"line {LINES - 1}")
    log.hover()
    page.page.mouse.wheel(0, -200)
    view.node.get_by_role("button", name="Follow").wait_for()
    place = log.evaluate("node => node.scrollTop")
    assert place > 0
    (page.root / "read").touch()
    view.wait("last of all")
    view.wait("done", ".sky-facts")
    page.page.wait_for_timeout(3000)
    assert log.evaluate("node => node.scrollTop") == place


def test_tables_of_all_ranks_stand_in_the_order_of_the_ranks(page: lab.Page) -> None:
    for name in ("followed", "read"):
        (page.root / name).touch()
    view = View(page, TABLES)
    view.wait("done", ".sky-facts")
    shown = view.wait("table of 0")
    assert shown.index("table of 0") < shown.index("table of 1")
    tables = view.node.locator(".sky-item table")
    lefts = {tables.nth(index).evaluate(BOX)[0] for index in range(tables.count())}
    label = view.node.locator(".sky-who").first.evaluate(BOX)[0]
    assert lefts == {label}


@pytest.mark.parametrize("width", [600, 1280])
def test_a_log_is_as_wide_as_its_cell_in_any_window(page: lab.Page, width: int) -> None:
    page.page.set_viewport_size({"width": width, "height": 1600})
    view = View(page, FOLLOWED)
    page.page.wait_for_timeout(300)
    assert [one for one in view.node.evaluate(SCROLLS) if not one.startswith("sky-log")] == []
    assert view.node.locator(".sky-log").evaluate("node => node.scrollWidth - node.clientWidth") == 0
