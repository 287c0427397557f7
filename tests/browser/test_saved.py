"""A saved notebook in what people read it with: nbconvert, GitHub's rules, Markdown, papermill.

JupyterLab and Notebook 7 without a kernel are looked at in `test_lab.py` (without our extension),
`test_run_view.py` and `test_pages.py` (with it).
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bleach
import nbformat
import pytest
from markdown_it import MarkdownIt
from nbconvert import HTMLExporter, MarkdownExporter
from nbformat import NotebookNode

from sky_jupyter.display.model.saved_output import MIME
from tests.browser import lab
from tests.magics.notebook import notebook

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(lab.missing()), reason=f"needs {lab.missing()}"),
]

SECRET = "hf_0123456789-nobody-may-read-this"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
SOURCES = [
    "%load_ext sky_jupyter\nscale = 10",
    # Parameters of papermill stand before this.
    "%sky up --nodes 2 --config sky.toml#pool",
    f"""%%sky
import os
from IPython.display import HTML, Image, display
import sky_jupyter as sky
rank = sky.instance_info().rank
assert os.environ["SKY_TEST_TOKEN"].startswith("hf_")
print("\\x1b[32mboth\\x1b[0m say <b>this</b> & that")
print(f"# rank {{rank}} begins\\n\\n\\n    indented by four\\n\\n* a star, a `tick` and _lines_\\n\\n\\n1. at the end")
display(HTML(f"<table>\\n\\n    <tr><th>rank</th></tr>\\n  \\n    <tr><td>cell of {{rank}}</td></tr></table>"))
if rank:
    display(Image(data=__import__("base64").b64decode("{PIXEL}"), format="png"))
rank * scale""",
    "%%sky\nprint('before it fails')\nif rank:\n    raise ValueError('rank 1 has no data')",
    "%sky",
    "%sky down",
]
RUN, FAILING = 2, 3
LINES = [
    *["ranks 0-1", "both say <b>this</b> & that"],
    *["rank 0", "# rank 0 begins", "", "", "    indented by four", "", "* a star, a `tick` and _lines_", "", ""],
    *["1. at the end", "rank", "cell of 0"],
    *["rank 1", "# rank 1 begins", "", "", "    indented by four", "", "* a star, a `tick` and _lines_", "", ""],
    *["1. at the end", "rank", "cell of 1"],
    *["Out, rank 0", "0", "Out, rank 1", "10"],
]
# Of what GitHub leaves of HTML, what runs may need: scripts, inline styles, classes and ids are not among it, and an
# image comes by http or not at all (README of github/markup; ALLOWLIST in html-pipeline 2, sanitization_filter.rb).
GITHUB_TAGS = [
    "div",
    "span",
    "pre",
    "details",
    "summary",
    "img",
    "table",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "b",
    "br",
]
GITHUB_ATTRIBUTES = {"*": ["alt", "height", "open", "width"], "img": ["src"]}
GITHUB_PROTOCOLS = ["http", "https"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the notebook works: its pool is told a secret."""
    folder = tmp_path_factory.mktemp("saved")
    (folder / "sky.toml").write_text(f'[pool]\nenv = "SKY_TEST_TOKEN={SECRET}"\n')
    return folder


def written() -> NotebookNode:
    """The notebook before it has run."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in SOURCES])
    book.cells[FAILING].metadata["tags"] = ["raises-exception"]
    book.cells[0].metadata["tags"] = ["parameters"]
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return book


@pytest.fixture(scope="module")
def saved(folder: Path) -> NotebookNode:
    """The notebook after it has run."""
    book = written()
    with notebook(folder, HF_TOKEN=SECRET) as kernel:
        for number, cell in enumerate(book.cells):
            ran = kernel.run(cell.source, timeout=120)
            assert ran.status == ("error" if number == FAILING else "ok"), ran.outputs
            cell.outputs, cell.execution_count = ran.outputs, ran.number
    nbformat.validate(book)
    return book


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    """A page without a network."""
    with lab.browser() as chromium:
        page = chromium.new_page(java_script_enabled=False)
        page.route(re.compile("^https?:"), lambda route: route.abort())
        yield page


def read(page: Any, html: str, part: str = "body") -> list[str]:
    """The lines that a person reads, without the empty ones: how far parts stand from each other is a style's."""
    page.set_content(html)
    return dense(page.locator(part).inner_text().split("\n"))


def dense(lines: list[str]) -> list[str]:
    """Lines that are not empty."""
    return [line.rstrip() for line in lines if line.strip()]


def test_a_page_by_nbconvert_reads_as_the_notebook(saved: NotebookNode, page: Any) -> None:
    html, _ = HTMLExporter().from_notebook_node(saved)
    shown = read(page, html, f".jp-Cell:nth-of-type({RUN + 1}) .jp-Cell-outputArea")
    assert re.fullmatch(r"● sky · 2 ranks · \d+\.\d s · done", shown[0])
    assert shown[1:] == dense(LINES)
    assert page.locator("pre", has_text="# rank 0 begins").last.inner_text() == "\n".join(LINES[3:12])
    image = page.locator(f".jp-Cell:nth-of-type({RUN + 1}) img")
    assert image.evaluate("node => [node.complete, node.naturalWidth]") == [True, 1]
    failed = read(page, html, f".jp-Cell:nth-of-type({FAILING + 1}) .jp-Cell-outputArea")
    assert "ValueError: rank 1 has no data" in "\n".join(failed)
    # Ranks can be folded without a script.
    label = page.locator("summary", has_text="rank 0").first
    label.click()
    assert not page.get_by_text("# rank 0 begins").is_visible()


def test_markdown_by_nbconvert_keeps_lines_as_they_were_printed(saved: NotebookNode, page: Any) -> None:
    """HTML ends at an empty line there: what a rank printed after one would be taken for Markdown."""
    text, _ = MarkdownExporter().from_notebook_node(saved)
    html = MarkdownIt("commonmark").enable("table").render(text)
    shown = read(page, html)
    start = next(number for number, line in enumerate(shown) if line.endswith("· done"))
    assert shown[start + 1 :][: len(dense(LINES))] == dense(LINES)


def test_what_github_leaves_of_it_has_all_text(saved: NotebookNode, page: Any) -> None:
    (output,) = [output for output in saved.cells[RUN].outputs if MIME in output.get("data", {})]
    html = bleach.clean(
        output.data["text/html"],
        tags=GITHUB_TAGS,
        attributes=GITHUB_ATTRIBUTES,
        protocols=GITHUB_PROTOCOLS,
        strip=True,
        strip_comments=True,
    )
    assert "style" not in html
    shown = read(page, html)
    assert shown[0].endswith("· done")
    assert shown[1:] == dense(LINES)
    assert page.locator("details[open] > summary").count() == 3


def test_nothing_secret_and_no_widget_is_kept(saved: NotebookNode, folder: Path) -> None:
    text = json.dumps(saved)
    assert SECRET not in text
    assert "widget" not in text
    assert str(folder) not in text


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("papermill") is None, reason="needs the Python package papermill")
def test_papermill_keeps_the_same_and_gives_parameters_to_the_nodes(folder: Path, page: Any) -> None:
    nbformat.write(written(), folder / "in.ipynb")
    command = [sys.executable, "-m", "papermill", "in.ipynb", "out.ipynb", "-p", "scale", "7", "--log-output"]
    # Its kernel is that of this Python, whatever the user has installed.
    own = {"IPYTHONDIR": str(folder / "ipython"), "JUPYTER_DATA_DIR": str(folder / "data")}
    environment = {**os.environ, **own, "HF_TOKEN": SECRET}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    # A failed rank is a failed cell, whatever its tags; papermill has gone on to the end.
    assert "CellError: the cell failed on rank 1 of 2" in done.stderr[-3000:]
    book = nbformat.read(folder / "out.ipynb", as_version=4)
    # Before that stands which ranks took long to end, on a busy machine.
    assert book.cells[-1].outputs[0].text.endswith("pool default: ended\n")
    (cell,) = [cell for cell in book.cells if cell.source == SOURCES[RUN]]
    bundles = [output.data for output in cell.outputs if MIME in output.get("data", {})]
    assert [set(data) for data in bundles] == [{MIME, "text/html", "text/plain"}]
    lines = [line if line != "10" else "7" for line in LINES]
    assert read(page, bundles[0]["text/html"])[1:] == dense(lines)
    assert bundles[0]["text/plain"].endswith("[0] Out: 0\n[1] Out: 7")
    assert "widgets" not in book.metadata
    assert SECRET not in json.dumps(book) + done.stdout + done.stderr
    # What it logs, it logs once: the run's last state, and no state before it.
    assert done.stderr.count("[0] # rank 0 begins") <= 1
