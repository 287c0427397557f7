"""The library in marimo, as a person meets it: a cell that runs, is stopped, and runs again."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.display.notebook import anywidget_view
from tests.browser import lab
from tests.conftest import MARK, marked_processes
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
LACKS = [f"`pip install {name}`" for name in ("marimo", "anywidget") if importlib.util.find_spec(name) is None]
if not anywidget_view._module().is_file():
    LACKS.append("the front end: `python3 dev.py front`")

pytestmark = [
    # marimo is 120 MB: CI does without.
    pytest.mark.long,
    pytest.mark.browser,
    pytest.mark.skipif(bool(LACKS or lab.missing()), reason=f"needs {', '.join([*LACKS, lab.missing()])}"),
]

HEAD = """
import marimo

app = marimo.App()


@app.cell
def _():
    import marimo as mo

    import sky_jupyter as sky

    return mo, sky


@app.cell
def _(sky):
    @sky.function
    def work(steps):
        import time

        for step in range(steps):
            print("rank", sky.instance_info().rank, "at step", step, flush=True)
            time.sleep(0.4)
        return sky.instance_info().rank

    return (work,)

"""
BLOCK = """
@app.cell
def _(sky, work):
    with sky.Compute(nodes=2, name="block") as pool:
        values = work(100) @ pool
    return


"""
APART = """
@app.cell
def _(sky):
    pool = sky.Compute(nodes=2, name="apart").start()
    return (pool,)


@app.cell
def _(mo):
    slider = mo.ui.slider(2, 9)
    slider
    return (slider,)


@app.cell
def _(pool, slider, work):
    values = work(slider.value) @ pool
    return (values,)


@app.cell
def _(mo, values):
    mo.md(f"got {sum(values)}")
    return


@app.cell
def _(pool, sky):
    _ = sky.function(lambda: print("at once"))() @ pool
    return


"""
# All text that is shown, in shadow roots too.
TEXT = """() => {
  const told = (node) => [...node.childNodes].map((child) =>
    child.nodeType === Node.TEXT_NODE ? child.textContent
      : child.nodeType !== Node.ELEMENT_NODE || ["STYLE", "SCRIPT"].includes(child.tagName) ? ""
      : `${told(child)}${child.shadowRoot ? told(child.shadowRoot) : ""} `).join("");
  return told(document.body).replace(/\\s+/g, " ");
}"""


class Marimo:
    """A notebook in a browser."""

    def __init__(self, page: Any, url: str) -> None:
        self.page, self.url = page, url
        self.open()

    def open(self) -> None:
        """Open it, as soon as the server answers."""
        end = time.monotonic() + 90
        while True:
            try:
                self.page.goto(self.url)
                return
            except Exception:
                assert time.monotonic() < end
                time.sleep(0.3)

    @property
    def text(self) -> str:
        """What is on the page."""
        return str(self.page.evaluate(TEXT))

    def until(self, pattern: str, *, gone: bool = False) -> str:
        """Wait until this is on the page, or is not any more; the page's text."""
        end = time.monotonic() + 90
        while bool(re.search(pattern, text := self.text)) == gone:
            assert time.monotonic() < end, text
            time.sleep(0.1)
        return text


@contextlib.contextmanager
def opened(folder: Path, mode: str, cells: str) -> Iterator[Marimo]:
    """A notebook of these cells, shown by a server of its own."""
    folder.mkdir()
    (folder / "book.py").write_text(f'{HEAD}{cells}if __name__ == "__main__":\n    app.run()\n')
    port = free_port()
    places = {name: str(folder / name) for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")}
    command = [sys.executable, "-m", "marimo", mode, "book.py", "--headless", "--no-token"]
    server = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port)],
        cwd=folder,
        env={**os.environ, **places, "PYTHONPATH": str(ROOT), "MARIMO_SKIP_UPDATE_CHECK": "1"},
        stdout=(folder / "log").open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        with lab.browser() as browser:
            yield Marimo(browser.new_page(viewport={"width": 1000, "height": 1400}), f"http://127.0.0.1:{port}/")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def nothing_is_left() -> None:
    end = time.monotonic() + 90
    while marked_processes(os.environ[MARK]):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_cell_shows_its_run_is_stopped_and_runs_again_and_leaves_no_pool(tmp_path: Path) -> None:
    with opened(tmp_path / "edit", "edit", BLOCK) as book:
        page = book.page
        page.wait_for_function("() => document.querySelectorAll('.cm-editor').length === 3", timeout=60_000)
        page.get_by_test_id("run-button").last.click()
        book.until(r"pool block .*starting 2 nodes")
        text = book.until(r"rank 0 at step \d.*rank 1 at step \d|rank 1 at step \d.*rank 0 at step \d")
        assert re.search(r"work @ block 2 ranks · [\d.]+ s · running", text)
        assert "at step 99" not in text
        # marimo's own button is the one that is heard while a cell runs.
        assert not page.get_by_role("button", name="Interrupt", exact=True).is_visible()
        page.get_by_test_id("interrupt-button").last.click()
        book.until("This cell was interrupted")
        book.until("ranks 0-1 interrupted")
        nothing_is_left()
        page.locator(".cm-editor").last.click()
        page.keyboard.press("Control+Enter")
        book.until(r"rank 1 at step \d")
        page.reload()
        text = book.until(r"work @ block 2 ranks · [\d.]+ s · running .*rank 1 at step \d")
        last = max(int(step) for step in re.findall(r"rank 1 at step (\d+)", text))
        later = rf"rank 1 at step (?!(?:{'|'.join(map(str, range(last + 1)))})\b)\d"
        book.until(later)
        # From the first line on: the pane shows as many of the last as it has room for.
        page.get_by_placeholder("Filter").fill("at step 1")
        book.until(r"rank 0 at step 1\b")
        page.get_by_test_id("interrupt-button").last.click()
        book.until("This cell was interrupted")
        nothing_is_left()


def test_a_pool_stays_while_cells_that_use_it_run_again_in_an_app(tmp_path: Path) -> None:
    with opened(tmp_path / "run", "run", APART) as book:
        book.until("at once")
        text = book.until("got 1")
        assert re.search(r"pool apart · 2 local nodes ready .*work @ apart 2 ranks · [\d.]+ s · done", text)
        assert "rank 1 at step 1" in text
        processes = {process.pid for process in marked_processes(os.environ[MARK])}
        assert processes
        book.page.get_by_role("slider").focus()
        for _ in range(2):
            book.page.keyboard.press("ArrowRight")
        book.until(r"2 ranks · [\d.]+ s · done.*rank 1 at step 3\b")
        assert {process.pid for process in marked_processes(os.environ[MARK])} == processes
        # Another one who opens the app has the same pool.
        book.page.reload()
        assert "ready" not in book.until(r"work @ apart 2 ranks · [\d.]+ s · done.*got 1")
    nothing_is_left()
