"""Questions of ranks as a person meets them in JupyterLab: answered in the page, hidden, and interrupted."""

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

SECRET = "open sesame"
ASKED, LEFT, AFTER = 1, 2, 3
CELLS = [
    "%load_ext sky_jupyter",
    """%%sky --nodes 2
import getpass
import sky_jupyter as sky
rank = sky.instance_info().rank
if rank:
    name = input("who? ")
    print("hello", name)
    print(len(getpass.getpass("key: ")), "letters")""",
    "%%sky\nif rank: input('and now? ')",
    "%%sky\nprint('rank', rank, 'is well')",
    "%sky down",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab.Server]:
    folder = tmp_path_factory.mktemp("questions")
    (folder / "labextensions").mkdir()
    (folder / "labextensions" / "sky-jupyter").symlink_to(lab.EXTENSION)
    with lab.server(folder, extensions=folder / "labextensions") as server:
        yield server


def test_a_person_answers_a_rank_in_the_page(server: lab.Server, chromium: Any) -> None:
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    book.cells[LEFT].metadata["tags"] = ["raises-exception"]
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(book, server.root / "book.ipynb")
    page = lab.Page(chromium, server.address("book.ipynb"), width=1000, height=1000)
    page.wait_until_ready()
    page.command("notebook:run-all-cells")
    answer(page, "rank 1 asks: who?", "Ada", picture="question")
    answer(page, "rank 1 asks: key:", SECRET)
    View(page, ASKED).wait(f"{len(SECRET)} letters")
    page.page.locator(".jp-Stdin", has_text="and now?").wait_for()
    assert "rank 1 asks: and now?" in page.wait_for(LEFT, "asks")
    page.picture("question-before-an-interrupt")
    page.command("notebook:interrupt-kernel")
    page.wait_for(LEFT, "KeyboardInterrupt")
    page.wait_for(AFTER, "rank 1 is well")
    page.wait_for(len(CELLS) - 1, "ended")
    # The box of what was interrupted stays, as after an `input()` of the notebook's own, and holds nothing up.
    page.page.locator(".jp-Notebook .jp-Cell .cm-content").last.click()
    page.command("notebook:run-cell-and-insert-below")
    page.page.locator(".jp-Notebook .jp-Cell").nth(len(CELLS)).wait_for()
    page.page.keyboard.type("6 * 7")
    page.command("notebook:run-cell-and-insert-below")
    page.picture("question-left")
    page.page.locator(".jp-OutputArea-output", has_text="42").wait_for()
    page.save()
    saved = (server.root / "book.ipynb").read_text()
    assert "hello Ada" in saved
    assert SECRET not in saved


def answer(page: lab.Page, question: str, text: str, *, picture: str = "") -> None:
    """Answer the question that the page shows, as a person would."""
    line = page.page.locator(".jp-Stdin", has_text=question)
    line.wait_for(timeout=90_000)
    if picture:
        page.picture(picture)
    line.locator("input").fill(text)
    line.locator("input").press("Enter")
