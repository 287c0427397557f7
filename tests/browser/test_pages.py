"""What happens to pages while a run goes on: reloaded, closed and opened elsewhere, in JupyterLab and Notebook 7.

The server starts dark, and has our extension alone.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.browser import lab
from tests.browser.test_panel import leave_a_pool
from tests.browser.view import View
from tests.plugins.world import needs

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(bool(lab.missing(front=True)), reason=f"needs {lab.missing(front=True)}"),
    pytest.mark.skipif(importlib.util.find_spec("notebook") is None, reason="needs the Python package notebook"),
]

RANKS = 3
RUN = 1
CELLS = [
    "%load_ext sky_jupyter",
    f"""%%sky --nodes {RANKS} --grace 60
import sys, time
from pathlib import Path
import sky_jupyter as sky
rank = sky.instance_info().rank
for line in range(1500):
    print(f"\\x1b[32mrank {{rank}}\\x1b[0m line {{line}}", file=sys.stderr if line % 7 == 0 else sys.stdout)
for step in range(3):
    while not Path(f"go{{step}}").exists():
        time.sleep(0.05)
    for line in range(100):
        print(f"rank {{rank}} step {{step}} line {{line}}")
"the value of rank %d" % rank""",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab.Server]:
    folder = tmp_path_factory.mktemp("pages")
    (folder / "labextensions").mkdir()
    (folder / "labextensions" / "sky-jupyter").symlink_to(lab.EXTENSION)
    with lab.server(folder, dark=True, extensions=folder / "labextensions") as server:
        yield server


def write(server: lab.Server, name: str, sources: list[str]) -> None:
    """A notebook of these cells, in the server's folder."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    for cell in book.cells:
        cell.metadata["tags"] = ["raises-exception"]
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(book, server.root / name)


# It takes three minutes on two cores that do little else.
@pytest.mark.timeout(900)
def test_a_run_is_shown_whole_whatever_becomes_of_its_pages(server: lab.Server, chromium: Any) -> None:
    write(server, "book.ipynb", CELLS)
    page = lab.Page(chromium, server.address("book.ipynb"))
    page.wait_until_ready()
    page.log.clear()
    page.command("notebook:run-all-cells")
    whole(page, "line 1499")
    # The layout is saved a moment after it has changed.
    page.page.wait_for_timeout(1500)
    page.page.reload()
    whole(page, "line 1499")
    is_dark(View(page, RUN))
    page.picture("run-view-dark")
    other = lab.Page(chromium, server.address("book.ipynb", app="notebook"))
    whole(other, "line 1499")
    (server.root / "go0").touch()
    whole(page, "step 0 line 99")
    whole(other, "step 0 line 99")
    # Nobody looks for a while.
    for one in (page, other):
        one.page.close()
    (server.root / "go1").touch()
    page = lab.Page(chromium, server.address("book.ipynb", app="notebook"))
    a_rank_is_killed(page)
    page.picture("killed-rank-notebook-7")
    journal = whole(page, "step 1 line 99")
    page.page.close()
    (server.root / "go2").touch()
    wait_until_idle(server)
    # Nobody saw the end, and nobody has saved the notebook.
    for app in ("lab", "notebook"):
        page = lab.Page(chromium, server.address("book.ipynb", app=app))
        page.wait_until_ready()
        View(page, RUN).wait("rank 2 died", ".sky-facts")
        assert whole(page, "rank 2 step 1 line 99", "step 2 line 99")[2] == journal[2]
        View(page, RUN).tab("rank 1").click()
        View(page, RUN).wait("the value of rank 1")
        if app == "lab":
            page.page.close()
    page.command("docmanager:save")
    saved = server.root / "book.ipynb"
    page.wait_until(lambda: "step 2 line 99" in saved.read_text())
    page.page.close()
    from_someone_else(server, chromium, saved)


TRAINING = [
    "%load_ext sky_jupyter",
    """%%sky --nodes 4
import time
from pathlib import Path
from tqdm import tqdm
import sky_jupyter as sky
rank = sky.instance_info().rank
def batches():
    with tqdm(total=469, desc="epoch 1/3") as bar:
        for number in range(469):
            time.sleep(0.002)
            yield number, [] if (rank, number) == (2, 131) else [0]
            bar.update()
            if bar.n == (291, 285, 469, 164)[rank]:
                bar.refresh()
                while not Path("trained").exists():
                    time.sleep(0.05)
def step(batch):
    return 0.1""",
    """%%sky --grace 600
print(f"15,000 images on rank {rank} of 4")
print("model: 9,610 parameters")
for number, batch in batches():
    if not batch:
        raise ValueError(f"batch {number} of shard-{rank}.tar is empty")
    loss = step(batch)""",
    "%sky",
]
TRAINED, PANEL = 2, 3


def test_which_rank_failed_and_which_lags_is_seen_at_a_glance(server: lab.Server, chromium: Any) -> None:
    """These are the README's pictures, too: `python3 dev.py screenshots` takes them."""
    write(server, "train.ipynb", TRAINING)
    with leave_a_pool(server.root.parent):
        page = lab.Page(chromium, server.address("train.ipynb"), width=1240, height=800, scale=1.5)
        page.wait_until_ready()
        page.choose_theme("Light")
        page.command("notebook:run-all-cells")
        view = View(page, TRAINED)
        bars = view.node.locator('[role="tab"] .sky-chip-bar:not([hidden]) i')
        view.wait("batch 131 of shard-2.tar is empty")
        width = "bar => Math.round(parseFloat(bar.style.width))"
        page.wait_until(lambda: [bar.evaluate(width) for bar in bars.all()] == [62, 61, 35], timeout=60)
        assert view.chosen == "rank 2"
        assert "running · rank 2 failed" in view.text(".sky-facts")
        states = [view.tab(f"rank {rank}").get_attribute("data-state") for rank in range(4)]
        assert states == ["running", "running", "failed", "running"]
        page.picture("run-view", view.node)
        page.command("sky-jupyter:show-pools")
        for text in ("Detached: no notebook", "Managed by train.ipynb"):
            page.page.locator(".sky-pool-manager", has_text=text).wait_for(timeout=60_000)
        view.tab("All").click()
        view.wait("model: 9,610 parameters")
        page.picture("side-panel")
        page.choose_theme("Dark")
        page.picture("side-panel-dark")
        (server.root / "trained").touch()
        view.wait("s · rank 2 failed", ".sky-facts")
        page.wait_for(PANEL, "4 local nodes")
        panel = page.page.locator(".jp-Notebook .jp-Cell").nth(PANEL).locator(".jp-Cell-outputArea")
        panel.scroll_into_view_if_needed()
        page.picture("pool-panel-dark", panel)
        page.choose_theme("Light")
        page.picture("pool-panel", panel)
        page.page.close()


def test_the_quickstart_runs_in_a_page(server: lab.Server, chromium: Any) -> None:
    for package in ("jax", "keras", "sklearn", "matplotlib"):
        needs(package)
    book = nbformat.read(ROOT / "notebooks" / "quickstart.ipynb", as_version=4)
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    nbformat.write(book, server.root / "quickstart.ipynb")
    place = {cell["id"]: number for number, cell in enumerate(book.cells)}
    # As high as the notebook: cells that are out of sight are not drawn.
    page = lab.Page(chromium, server.address("quickstart.ipynb"), height=7000)
    page.wait_until_ready()
    page.choose_theme("Light")
    page.log.clear()
    page.command("notebook:run-all-cells")
    assert "ended" in page.wait_for(place["end"], "ended", timeout=240)
    mesh, fit, reads = (View(page, place[id]) for id in ("mesh", "fit", "nodes-read"))
    assert "[0-1] all devices: " in mesh.copied("All")
    assert "Array([11.], dtype=float32)" in mesh.text()
    assert fit.text(".sky-facts").endswith(" · done")
    lines = fit.copied("All").splitlines()
    # The head's bar alone is shown, and each epoch's in one line.
    assert [line for line in lines if "Epoch " in line] == [f"[0] Epoch {epoch}/12" for epoch in range(1, 13)]
    assert len([line for line in lines if "accuracy: " in line]) == 12
    assert "trained with" in fit.copied("rank 1")
    assert [reads.node.get_by_text(text).count() for text in ("Out, rank 0", "Out, rank 1")] == [1, 1]
    figure = page.page.locator(".jp-Notebook .jp-Cell").nth(place["figure"]).locator("img")
    assert figure.evaluate("node => node.naturalWidth") > 500
    assert page.page.locator('.jp-OutputArea-output[data-mime-type*="stderr"]').count() == 0
    assert [entry for entry in page.log if entry[0] == "error"] == []
    page.picture("quickstart", fit.node)
    page.page.close()


def whole(page: lab.Page, *last: str) -> dict[int, list[str]]:
    """Wait until a page shows a run up to one of these lines; each rank's tab has what the journal has. Gives that."""
    view = View(page, RUN)
    found: dict[int, list[str]] = {}
    for rank in range(RANKS):
        tab = f"rank {rank}"
        view.tab(tab).click()
        page.wait_until(lambda rank=rank: any(one in line for line in journal(page, rank) for one in last), timeout=60)
        found[rank] = journal(page, rank)
        page.wait_until(lambda tab=tab, rank=rank: all_of(view, tab) == found[rank], timeout=60)
    assert page.page.locator(".sky-run").count() == 1
    return found


def journal(page: lab.Page, rank: int) -> list[str]:
    """The lines that a rank has printed, which its node has kept: asking costs less than reading the page."""
    answer, _ = page.ask({"action": "log", "rank": rank, "from": 0, "count": 100_000})
    events = [event for node in answer["nodes"] for event in node["events"] if event["kind"] == "stream"]
    return re.sub(r"\x1b\[\d*m", "", "".join(event["text"] for event in events)).splitlines()


def all_of(view: View, tab: str) -> list[str]:
    """The lines of a tab, with those that the notebook does not keep and the page reads from the nodes."""
    view.read_earlier()
    return view.copied(tab).splitlines()


def a_rank_is_killed(page: lab.Page) -> None:
    """Its chip says so, and its tab opens by itself with the reason, while the others go on."""
    view = View(page, RUN)
    view.wait("step 1 line 99")
    assert view.chosen == "All"
    (pool,) = page.ask({"action": "status"})[0]["pools"]
    (victim,) = [rank["pid"] for node in pool["nodes"] for rank in node["ranks"] if rank["rank"] == 2]
    os.kill(victim, signal.SIGKILL)
    view.page.wait_until(lambda: view.chosen == "rank 2")
    assert "rank 2 died" in view.wait("running", ".sky-facts")
    assert [view.tab(f"rank {rank}").get_attribute("data-state") for rank in range(RANKS)] == [
        *["running"] * (RANKS - 1),
        "died",
    ]
    assert "SIGKILL" in view.wait("SIGKILL")


def is_dark(view: View) -> None:
    """The view is dark as its page is, and what it says can be read."""
    assert view.node.get_attribute("data-dark") == "true"
    for part in (".sky-title", ".sky-facts", ".sky-row", '[role="tab"]', "button"):
        assert view.node.locator(part).first.evaluate(CONTRAST) > 4.5, part
    green = view.node.get_by_text("rank 0", exact=True).last.evaluate("node => getComputedStyle(node).color")
    assert green != view.node.evaluate("node => getComputedStyle(node).color")


# Of a text's colour and what is behind it, as WCAG 2 has it.
CONTRAST = """node => {
    const parts = colour => (colour.match(/[\\d.]+/g) ?? []).map(Number);
    const light = colour => {
        const [r, g, b] = parts(colour).map(one => one / 255).map(
            one => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const text = light(getComputedStyle(node).color);
    let behind = node;
    while (parts(getComputedStyle(behind).backgroundColor)[3] === 0) {
        behind = behind.parentElement;
    }
    const back = light(getComputedStyle(behind).backgroundColor);
    return (Math.max(text, back) + 0.05) / (Math.min(text, back) + 0.05);
}"""


def wait_until_idle(server: lab.Server) -> None:
    """Wait until no kernel of a server works."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        request = urllib.request.Request(f"{server.url}api/kernels", headers={"Authorization": f"token {server.token}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            if all(kernel["execution_state"] == "idle" for kernel in json.load(answer)):
                return
        time.sleep(0.1)
    raise AssertionError("a kernel works still")


def from_someone_else(server: lab.Server, chromium: Any, saved: Path) -> None:
    """A saved notebook in Notebook 7, untrusted and without a kernel: the same tabs."""
    book = json.loads(saved.read_text())
    del book["metadata"]["kernelspec"]
    book["cells"][RUN]["source"] += ["\n# changed by someone else"]
    (server.root / "other.ipynb").write_text(json.dumps(book))
    page = lab.Page(chromium, server.address("other.ipynb", app="notebook"))
    view = View(page, RUN)
    view.wait("SIGKILL")
    assert view.chosen == "rank 2"
    assert "rank 0 step 2 line 99" in view.copied("rank 0")
    assert not view.node.get_by_role("button", name="Interrupt").is_visible()
    page.page.close()
