"""Widgets of ranks as a person uses them in JupyterLab: both ways, while the notebook works, after a reload, ended."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.browser import lab


def extension(package: str, name: str) -> Path | None:
    """The folder of a labextension that comes with a Python package; None where that is not installed."""
    try:
        files = importlib.metadata.distribution(package).files or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = [file for file in files if str(file).endswith(f"labextensions/{name}/package.json")]
    return Path(found[0].locate()).resolve().parent if found else None


EXTENSIONS = {
    "@jupyter-widgets/jupyterlab-manager": extension("jupyterlab_widgets", "@jupyter-widgets/jupyterlab-manager"),
    "anywidget": extension("anywidget", "anywidget"),
}

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(bool(lab.missing(front=True)), reason=f"needs {lab.missing(front=True)}"),
    pytest.mark.skipif(None in EXTENSIONS.values(), reason="needs the Python packages ipywidgets and anywidget"),
]

SHOWN, SET, BUSY, DOWN = 1, 2, 3, 4
CELLS = [
    "%load_ext sky_jupyter",
    """%%sky --nodes 2
from pathlib import Path
import anywidget, ipywidgets, traitlets
import sky_jupyter as sky
rank = sky.instance_info().rank
class Counter(anywidget.AnyWidget):
    _esm = '''export default { render({ model, el }) {
        const button = document.createElement("button");
        const say = () => { button.textContent = `counted ${model.get("count")}`; };
        button.onclick = () => { model.set("count", model.get("count") + 1); model.save_changes(); };
        model.on("change:count", say);
        say();
        el.append(button);
    } }'''
    count = traitlets.Int(100 * rank).tag(sync=True)
slider = ipywidgets.IntSlider(value=10 + rank)
counter, out = Counter(), ipywidgets.Output()
def say(change):
    with out:
        print("rank", rank, "heard", change["new"])
slider.observe(say, "value")
for widget, name in ((slider, "value"), (counter, "count")):
    widget.observe(lambda change: Path(f"{change['name']}{rank}").write_text(str(change["new"])), name)
display(ipywidgets.VBox([slider, counter, out]))""",
    "%%sky --on 1\nslider.value = 77",
    "import time\nfrom pathlib import Path\nwhile not Path('go').exists():\n    time.sleep(0.05)",
    "%sky down",
]


class View:
    """What a rank's tab shows in a page."""

    def __init__(self, page: lab.Page, rank: int) -> None:
        self.page = page
        self.node = page.page.locator(".jp-Notebook .jp-Cell").nth(SHOWN).locator(".sky-run").first
        self.node.get_by_role("tab", name=f"rank {rank}").click()

    @property
    def readout(self) -> str:
        found = self.node.locator(".widget-readout")
        return str(found.first.inner_text(timeout=1000)) if found.count() else ""

    def wait(self, readout: str) -> None:
        self.page.wait_until(lambda: self.readout == readout, timeout=60)

    def move(self) -> None:
        """One to the right, by the keyboard."""
        self.node.locator(".noUi-handle").first.focus()
        self.page.page.keyboard.press("ArrowRight")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab.Server]:
    folder = tmp_path_factory.mktemp("widgets")
    for name, place in {**EXTENSIONS, "sky-jupyter": lab.EXTENSION}.items():
        assert place is not None
        link = folder / "labextensions" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(place)
    with lab.server(folder, extensions=folder / "labextensions") as server:
        yield server


def run(page: lab.Page, cell: int) -> None:
    page.page.evaluate(
        "cell => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = cell; }",
        cell,
    )
    page.command("notebook:run-cell")


def test_a_person_uses_widgets_of_ranks(server: lab.Server, chromium: Any) -> None:
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(book, server.root / "book.ipynb")
    page = lab.Page(chromium, server.address("book.ipynb"))
    page.wait_until_ready()
    run(page, 0)
    run(page, SHOWN)
    page.wait_for(SHOWN, "rank 1", timeout=90)
    view = View(page, 0)
    view.wait("10")
    view.move()
    told(page, server, "value0", "11")
    assert not (server.root / "value1").exists()
    view.node.get_by_role("button", name="counted 0").click()
    told(page, server, "count0", "1")
    page.wait_until(lambda: "rank 0 heard 11" in view.node.inner_text())
    view = View(page, 1)
    view.wait("11")
    run(page, SET)
    view.wait("77")
    while_the_notebook_works(page, server, chromium)
    ended(page, server, chromium)


def told(page: lab.Page, server: lab.Server, name: str, text: str) -> None:
    """Wait until an observer on a rank has heard of a value."""
    path = server.root / name
    page.wait_until(lambda: path.exists() and path.read_text() == text)


def while_the_notebook_works(page: lab.Page, server: lab.Server, chromium: Any) -> None:
    """A page that was there, and one that is opened meanwhile."""
    page.command("docmanager:save")
    saved = server.root / "book.ipynb"
    page.wait_until(lambda: "vnd.sky.run" in saved.read_text())
    run(page, BUSY)
    page.wait_until(lambda: works(page, BUSY))
    view = View(page, 1)
    view.move()
    told(page, server, "value1", "78")
    other = lab.Page(chromium, server.address("book.ipynb"))
    other.wait_until(lambda: other.page.locator(".sky-run").count() > 0, timeout=60)
    second = View(other, 1)
    second.wait("78")
    second.move()
    told(page, server, "value1", "79")
    view.wait("79")
    assert works(page, BUSY)
    (server.root / "go").touch()
    page.wait_until(lambda: not works(page, BUSY))
    second.move()
    view.wait("80")
    other.page.close()
    again = lab.Page(chromium, server.address("book.ipynb"))
    again.wait_until_ready()
    third = View(again, 1)
    third.wait("80")
    third.move()
    told(page, server, "value1", "81")
    view.wait("81")
    assert [entry for entry in again.log if entry[0] == "error" and "404" not in entry[1]] == []
    again.page.close()


def works(page: lab.Page, cell: int) -> bool:
    """Whether a cell runs; the kernel's status tells of what it does beside it, too."""
    return "*" in page.page.locator(".jp-Notebook .jp-Cell").nth(cell).locator(".jp-InputPrompt").inner_text()


def ended(page: lab.Page, server: lab.Server, chromium: Any) -> None:
    """The pool has ended, and what shows its widgets says so; so does a saved notebook."""
    run(page, DOWN)
    view = View(page, 0)
    page.wait_until(lambda: "no longer alive" in view.node.inner_text())
    assert "VBox(children=(IntSlider(value=10)" in view.node.inner_text()
    assert [entry for entry in page.log if entry[0] == "error" and "404" not in entry[1]] == []
    saved = nbformat.read(server.root / "book.ipynb", 4)
    assert "widgets" not in saved.metadata
    del saved.metadata["kernelspec"]
    nbformat.write(saved, server.root / "other.ipynb")
    other = lab.Page(chromium, server.address("other.ipynb"))
    other.wait_until(lambda: other.page.locator(".sky-run").count() > 0, timeout=60)
    second = View(other, 0)
    other.wait_until(lambda: "no longer alive" in second.node.inner_text())
    for one in (page, other):
        one.page.close()
