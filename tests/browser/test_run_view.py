"""The run view as a person uses it in JupyterLab: while cells run, after a reload, and in a saved notebook."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.browser import lab
from tests.browser.view import View

AXE = Path(__file__).parents[2] / "labextension" / "node_modules" / "axe-core" / "axe.min.js"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(bool(lab.missing(front=True)), reason=f"needs {lab.missing(front=True)}"),
]

LIVE, FLOOD, BLOCKED = 1, 2, 3
LINES = 12_000
CELLS = [
    "%load_ext sky_jupyter",
    f"""%%sky --nodes 2
import sys, time
from pathlib import Path
from IPython.display import HTML, Math, clear_output, display
import sky_jupyter as sky
rank = sky.instance_info().rank
print("to be cleared")
clear_output(wait=True)
print("\\x1b[31mred\\x1b[0m for everyone")
print("10%\\r100% at last")
display(HTML(f"<table><tr><td>table of</td><td>{{rank}}</td></tr></table>"))
display(Math(r"\\frac{{a}}{{b}}"))
figure = {{"application/vnd.plotly.v1+json": {{"data": []}}, "text/html": "<b>a figure</b>", "text/plain": "Figure"}}
display(figure, raw=True)
display(HTML("<i>not yet</i>"), display_id="later").update(HTML("<i>updated</i>"))
for line in range({LINES} if rank == 0 else 3):
    print(f"line {{line}} of {{rank}}")
print(f"\\rtrain:  {{25 * (rank + 1)}}%|##        | {{25 * (rank + 1)}}/100 [00:01<00:03]", end="", flush=True)
while not Path("go").exists():
    time.sleep(0.05)
print()
if rank:
    raise ValueError("rank 1 has no data")
"the value of rank 0\"""",
    """%%sky
import time
from pathlib import Path
line = 0
while not Path("stop").exists():
    print("flood", line)
    line += 1
    if not line % 50:
        time.sleep(0.02)""",
    """%%sky
import time
print("waiting", flush=True)
time.sleep(600)""",
    "%sky down",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab.Server]:
    folder = tmp_path_factory.mktemp("view")
    (folder / "labextensions").mkdir()
    (folder / "labextensions" / "sky-jupyter").symlink_to(lab.EXTENSION)
    with lab.server(folder, extensions=folder / "labextensions") as server:
        yield server


def test_a_person_follows_a_run_to_its_end(server: lab.Server, chromium: Any) -> None:
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    book.cells[LIVE].metadata["tags"] = book.cells[BLOCKED].metadata["tags"] = ["raises-exception"]
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(book, server.root / "book.ipynb")
    page = lab.Page(chromium, server.address("book.ipynb"), width=1200, height=1400)
    page.wait_until_ready()
    page.log.clear()
    page.command("notebook:run-all-cells")
    view = View(page, LIVE)
    view.wait("25%", ".sky-bars")
    page.picture("run-view-bars")
    while_it_runs(view)
    # Nobody has saved the notebook: what a second browser shows comes from the kernel, which is busy.
    other = lab.Page(chromium, server.address("book.ipynb"), width=500)
    second = View(other, LIVE)
    second.wait("25%", ".sky-bars")
    assert f"line {LINES - 1} of 0" in second.wait(f"line {LINES - 1} of 0")
    (server.root / "go").touch()
    for one in (view, second):
        one.wait("rank 1 failed", ".sky-facts")
        the_failed_rank_is_in_sight(one)
    other.picture("narrow")
    in_a_flood(View(page, FLOOD))
    (server.root / "stop").touch()
    blocked(View(page, BLOCKED))
    page.wait_for(len(CELLS) - 1, "ended")
    axe(page)
    saved = server.root / "book.ipynb"
    page.command("docmanager:save")
    page.wait_until(lambda: "application/vnd.sky.run.v1+json" in saved.read_text())
    # The side panel asks a server extension that this server does not have.
    assert [entry for entry in page.log if entry[0] == "error" and "404" not in entry[1]] == []
    for one in (page, other):
        one.page.close()
    in_a_saved_notebook(server, chromium, saved)


def while_it_runs(view: View) -> None:
    """Tabs, colours, carriage returns, bars, the filter, and lines that the page does not hold any more."""
    assert view.chosen == "All"
    assert "running" in view.text(".sky-facts")
    bars = view.node.get_by_role("progressbar")
    assert [bars.nth(index).get_attribute("value") for index in range(bars.count())] == ["0.25", "0.5"]
    axe(view.page)
    view.press("Show: per rank")
    view.page.wait_until(lambda: bars.count() == 1)
    assert "slowest, rank 0" in view.text(".sky-bars")
    view.tab("All").focus()
    view.page.page.keyboard.press("End")
    view.page.wait_until(lambda: view.chosen == "rank 1")
    shown = view.wait("line 2 of 1")
    assert "red for everyone\n100% at last\n" in shown
    assert "table of\t1" in shown
    assert "to be cleared" not in shown
    assert "not yet" not in shown
    # As JupyterLab draws formulas, and figures whose own extension it does not have.
    view.node.locator("mjx-container").first.wait_for()
    assert "a figure" in shown
    red = view.node.get_by_text("red", exact=True).evaluate("node => getComputedStyle(node).color")
    assert red not in ("rgb(0, 0, 0)", view.node.evaluate("node => getComputedStyle(node).color"))
    view.page.page.keyboard.press("ArrowLeft")
    view.wait(f"line {LINES - 1} of 0")
    view.node.get_by_role("searchbox").fill("line 11111 ")
    view.wait("line 11111 of 0")
    assert f"line {LINES - 1} of 0" not in view.text()
    view.node.get_by_role("searchbox").fill("")
    # Scrolling back beyond the window reads the journal, while the cell runs.
    log = view.node.locator(".sky-log")
    for _ in range(40):
        log.evaluate("node => { node.scrollTop = 0; }")
        view.page.page.wait_for_timeout(200)
        if "line 0 of 0" in view.text():
            break
    assert "100% at last" in view.text()
    assert "line 0 of 0\nline 1 of 0" in view.text()
    with view.page.page.expect_download() as download:
        view.press("Download")
    whole = Path(download.value.path()).read_text()
    assert re.findall(r"line (\d+) of 0", whole) == [str(line) for line in range(LINES)]
    view.tab("All").click()


def the_failed_rank_is_in_sight(view: View) -> None:
    """Its tab has opened by itself, unless the person has chosen one, and has the traceback."""
    if view.chosen == "All":
        view.tab("rank 1").click()
    view.page.wait_until(lambda: view.chosen.startswith("rank 1"))
    assert "ValueError: rank 1 has no data" in view.wait("ValueError")
    view.tab("rank 0").click()
    view.wait("the value of rank 0")


def in_a_flood(view: View) -> None:
    """Lines are held still, filtered, followed again and saved while more of them come."""
    view.wait("flood")
    view.press("Pause")
    follow = view.node.get_by_role("button", name=re.compile(r"Follow \(.* new\)"))
    follow.wait_for()
    # What came as it was pressed may be drawn once more.
    for _ in range(2):
        held, came = view.text(), follow.inner_text()
        view.page.wait_until(lambda came=came: follow.inner_text() != came)
    assert view.text() == held
    view.node.get_by_role("searchbox").fill("7")
    view.page.wait_until(lambda: sevens(view))
    held = view.text()
    follow.click()
    view.page.wait_until(lambda: sevens(view) and view.text() != held)
    view.node.get_by_role("searchbox").fill("")
    view.page.wait_until(lambda: not sevens(view))
    view.tab("rank 1").click()
    with view.page.page.expect_download() as download:
        view.press("Download")
    saved = re.findall(r"flood (\d+)", Path(download.value.path()).read_text())
    assert saved == [str(line) for line in range(len(saved))]
    assert len(saved) > int(max(re.findall(r"flood (\d+)", held), key=int))


def sevens(view: View) -> bool:
    """Whether lines with a seven are in sight, and no others."""
    lines = re.findall(r"flood (\d+)", view.text())
    return bool(lines) and all("7" in line for line in lines)


def blocked(view: View) -> None:
    """A cell that blocks the kernel: where it is, and its interrupt."""
    view.wait("waiting")
    view.press("Where")
    view.wait("time.sleep(600)", ".sky-where")
    view.press("Interrupt")
    view.wait("interrupted", ".sky-facts")


def axe(page: lab.Page) -> None:
    """No violation of what axe-core looks at, light and dark, where `dev.py front` has installed it."""
    if not AXE.exists():
        return
    page.page.evaluate(AXE.read_text())
    for theme in ("Dark", "Light"):
        change = "theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })"
        page.page.evaluate(change, f"JupyterLab {theme}")
        page.page.wait_for_function(
            "light => document.body.dataset.jpThemeLight === light", arg=str(theme == "Light").lower()
        )
        found = page.page.evaluate("() => axe.run('.sky-run', { resultTypes: ['violations'] })")
        told = [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found["violations"]]
        assert (theme, told) == (theme, [])


def in_a_saved_notebook(server: lab.Server, chromium: Any, saved: Path) -> None:
    """From someone else, so untrusted, and without a kernel: the same tabs, and HTML for everyone else."""
    book = json.loads(saved.read_text())
    del book["metadata"]["kernelspec"]
    book["cells"][LIVE]["source"] += ["\n# changed by someone else"]
    assert "widget" not in json.dumps([cell.get("outputs") for cell in book["cells"]])
    [data] = [
        output["data"]
        for output in book["cells"][LIVE]["outputs"]
        if "application/vnd.sky.run.v1+json" in output.get("data", {})
    ]
    assert set(data) == {"application/vnd.sky.run.v1+json", "text/html", "text/plain"}
    assert len(json.dumps(data)) < 1_100_000
    (server.root / "other.ipynb").write_text(json.dumps(book))
    page = lab.Page(chromium, server.address("other.ipynb"))
    view = View(page, LIVE)
    view.wait("ValueError: rank 1 has no data")
    assert view.chosen == "rank 1"
    assert "table of\t1" in view.text()
    view.tab("rank 0").click()
    assert "the value of rank 0" in view.wait("earlier lines left out")
    assert not view.node.get_by_role("button", name="Interrupt").is_visible()
    assert page.page.evaluate("() => window.jupyterapp.shell.currentWidget.model.cells.get(1).trusted") is False
    page.page.close()
