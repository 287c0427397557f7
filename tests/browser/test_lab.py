"""``%%sky`` as it is seen: JupyterLab and Notebook 7 in a real browser."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.browser import lab
from tests.tiers import daily

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(lab.missing()), reason=f"needs {lab.missing()}"),
]

CELLS = [
    "%load_ext sky_jupyter",
    """%%sky --nodes 2
import time
from pathlib import Path
import sky_jupyter as sky
rank = sky.instance_info().rank
print("hello from everyone")
for step in range(3):
    print(f"rank {rank} step {step}", flush=True)
while not Path("go").exists():
    time.sleep(0.05)
print("\\x1b[31mgone\\x1b[0m on")
rank""",
    "%%sky\nif rank:\n    raise ValueError('rank 1 has no data')",
    "%sky down",
]
LIVE, FAILING, DOWN = 1, 2, 3


@dataclass
class Seen:
    """What a front end showed while all cells of a notebook ran."""

    running: str
    asked: dict[str, tuple[dict[str, Any], float]]
    finished: str
    failed: str
    log: list[tuple[str, str]]
    saved: Path
    server: lab.Server
    app: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab.Server]:
    """A server of both front ends, without our extension."""
    with lab.server(tmp_path_factory.mktemp("lab")) as server:
        yield server


@pytest.fixture(scope="module", params=daily(["lab"], ["lab", "notebook"]))
def seen(request: pytest.FixtureRequest, server: lab.Server, chromium: Any) -> Seen:
    """Open a notebook, run all its cells as a person would, and save it."""
    app = request.param
    if app == "notebook" and importlib.util.find_spec("notebook") is None:
        pytest.skip("needs the Python package notebook")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    book.cells[FAILING].metadata["tags"] = ["raises-exception"]
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    folder = server.root / app
    folder.mkdir()
    nbformat.write(book, folder / "book.ipynb")
    page = lab.Page(chromium, server.address(f"{app}/book.ipynb", app=app))
    page.wait_until_ready()
    # What a front end complains of while it starts is its own.
    page.log.clear()
    page.command("notebook:run-all-cells")
    page.wait_for(LIVE, "rank 0 step 2")
    running = page.wait_for(LIVE, "rank 1 step 2")
    asked = {what: page.ask({"action": what}) for what in ("status", "log", "where", "runs")}
    (folder / "go").touch()
    finished = page.wait_for(LIVE, "s · done")
    page.wait_for(DOWN, "ended")
    failed = page.outputs(FAILING)
    page.command("docmanager:save")
    saved = folder / "book.ipynb"
    page.wait_until(lambda: "has no data" in saved.read_text().partition("Traceback")[2])
    page.page.close()
    return Seen(running, asked, finished, failed, page.log, saved, server, app)


def test_lines_of_every_rank_are_seen_while_the_cell_runs(seen):
    assert "2 local nodes ready" in seen.running
    assert "sky · 2 ranks" in seen.running
    assert "running" in seen.running
    assert "gone on" not in seen.running
    lines = seen.running.split("\n")
    assert lines.count("hello from everyone") == 1
    for rank in (0, 1):
        assert f"rank {rank} step 0" in lines


def test_the_page_is_answered_while_the_cell_runs(seen):
    answers = {what: answer for what, (answer, _) in seen.asked.items()}
    assert {answer["status"] for answer in answers.values()} == {"ok"}
    (pool,) = answers["status"]["pools"]
    assert [run["left"] for run in pool["runs"]] == [[0, 1]]
    said = [event["text"] for event in answers["log"]["nodes"][1]["events"]]
    assert "rank 1 step 2" in "".join(said)
    assert "time.sleep(0.05)" in answers["where"]["text"]
    assert answers["runs"]["runs"][0]["state"] == "running"
    # The cell waits for this test's word: nothing was answered because it had ended.
    assert seen.asked["status"][1] < 10_000


def test_the_last_state_stays(seen):
    lines = [line for line in seen.finished.split("\n") if line]
    assert lines[1].startswith("● sky · 2 ranks · ")
    assert lines[1].endswith(" · done")
    assert lines[2:] == [
        *["ranks 0-1", "hello from everyone"],
        *["rank 0", "rank 0 step 0", "rank 0 step 1", "rank 0 step 2"],
        *["rank 1", "rank 1 step 0", "rank 1 step 1", "rank 1 step 2"],
        *["ranks 0-1", "gone on"],
        *["Out, rank 0", "0", "Out, rank 1", "1"],
    ]


def test_an_error_is_an_error_output_with_the_cells_own_lines(seen):
    assert "rank 1 failed" in seen.failed
    assert "CellError: the cell failed on rank 1 of 2" in seen.failed
    assert "Cell In[3], line 3" in seen.failed
    assert seen.failed.count("ValueError: rank 1 has no data") == 1


def test_the_page_has_nothing_to_complain_of(seen):
    assert [entry for entry in seen.log if entry[0] == "error"] == []


def test_a_saved_notebook_from_someone_else_reads_the_same(seen, chromium):
    """It is untrusted and has no kernel: its HTML goes through the front end's sanitizer."""
    book = json.loads(seen.saved.read_text())
    book["cells"][LIVE]["source"] += ["\n# changed by someone else"]
    del book["metadata"]["kernelspec"]
    seen.saved.with_name("other.ipynb").write_text(json.dumps(book))
    page = lab.Page(chromium, seen.server.address(f"{seen.app}/other.ipynb", app=seen.app))
    # Until then what the front end shows while it starts may cover the notebook.
    page.wait_until_ready()
    shown = page.wait_for(LIVE, "s · done")
    assert shown.split("\n") == seen.finished.split("\n")
    output = page.page.locator(".jp-Notebook .jp-Cell").nth(LIVE).locator(".jp-OutputArea-output").nth(1)
    assert output.get_attribute("data-mime-type") == "text/html"
    look = "element => { const style = getComputedStyle(element); return [style.fontFamily, style.display]; }"
    family, _ = output.locator("pre").first.evaluate(look)
    assert "monospace" in family
    # Each label closes and opens its lines, and the ranks' own colours are kept.
    label, lines = output.locator("summary").get_by_text("rank 1", exact=True), output.get_by_text("rank 1 step 0")
    label.click()
    lines.wait_for(state="hidden")
    label.click()
    lines.wait_for()
    assert (
        output.get_by_text("gone", exact=True).evaluate("element => getComputedStyle(element).color") != "rgb(0, 0, 0)"
    )
    assert page.page.evaluate("() => window.jupyterapp.shell.currentWidget.model.cells.get(1).trusted") is False
    page.page.close()
