"""Eight ranks that print 100,000 lines each, as a page in Chromium shows them: frames, memory, and lines lost.

Beside a notebook's own `print` of as many lines. Needs the front end (`python3 dev.py front`) and Chromium.
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

import nbformat

import sky_jupyter
from tests.browser import lab

from .measure import Figures, Options, Row, by_turns, rows

RANKS = 8
LINES = 100_000
QUICK_LINES = 10_000
OURS, PRINT = "the run view", "print in the notebook"
_EXTENSION = Path(sky_jupyter.__file__).parent / "labextension"
_PATIENCE = 300
_GO = """from pathlib import Path
while not Path("go").exists():
    time.sleep(0.05)"""
_CELLS = {
    OURS: [
        "%load_ext sky_jupyter",
        f"%sky up --nodes {RANKS}",
        "%%sky\nimport time\nfor line in range({lines}):\n    print('line', line, 'of a training run')\n"
        "print('the end', flush=True)\n" + _GO,
    ],
    PRINT: [
        "import time",
        "pass",
        f"for line in range({RANKS} * {{lines}}):\n    print('line', line, 'of a training run')\n"
        "print('the end', flush=True)\n" + _GO,
    ],
}
_END = """() => {
    const shown = [...document.querySelectorAll(".jp-Notebook .jp-Cell:last-of-type .jp-OutputArea-output pre")];
    return shown.slice(-8).some(node => node.textContent.slice(-400).includes("the end"));
}"""
# Each frame's time is taken down from here on.
_WATCH = """() => {
    window.skyFrames = [];
    const frame = now => { window.skyFrames.push(now); window.skyNext = requestAnimationFrame(frame); };
    window.skyNext = requestAnimationFrame(frame);
}"""
_READ = """() => {
    cancelAnimationFrame(window.skyNext);
    const gaps = window.skyFrames.slice(1).map((now, index) => now - window.skyFrames[index]);
    const whole = window.skyFrames[window.skyFrames.length - 1] - window.skyFrames[0];
    return { fps: 1000 * gaps.length / whole, gap: Math.max(...gaps), s: whole / 1000,
             heap: performance.memory ? performance.memory.usedJSHeapSize / 1e6 : 0 };
}"""


def measure(options: Options) -> list[Row]:
    """Frames a second, the longest time without one, memory, and lines that the page does not know of."""
    missing = lab.missing() or ("" if _EXTENSION.is_dir() else "the front end (python3 dev.py front)")
    if missing or importlib.util.find_spec("nbformat") is None:
        print(f"page: left out, needs {missing}")
        return []
    lines = QUICK_LINES if options.quick else LINES
    with tempfile.TemporaryDirectory(prefix="sky-page-") as name:
        folder = Path(name)
        (folder / "labextensions").mkdir()
        (folder / "labextensions" / "sky-jupyter").symlink_to(_EXTENSION)
        with lab.server(folder, extensions=folder / "labextensions") as server, lab.browser() as browser:
            jobs = {name: lambda name=name: _flood(server, browser, name, lines) for name in _CELLS}
            samples = by_turns(jobs, options.times(3, quick=1))
    what = f"{RANKS} x {lines:,} lines"
    return [
        *rows(f"{what}: seconds a frame", samples, "frame", ours=OURS, unit="ms", most=20),
        *rows(f"{what}: longest time without a frame", samples, "gap", ours=OURS, unit="ms", most=200),
        *rows(f"{what}: memory of the page", samples, "heap", ours=OURS, unit="MB", most=100),
        *rows(f"{what}: until the page shows the end", samples, "s", ours=OURS),
        *rows(f"{what}: lost", samples, "lost", ours=OURS, unit="lines", most=0),
    ]


def _flood(server: lab.Server, browser: Any, name: str, lines: int) -> Figures:
    (server.root / "go").unlink(missing_ok=True)
    book = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell.replace("{lines}", str(lines))) for cell in _CELLS[name]]
    )
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(book, server.root / "flood.ipynb")
    page = lab.Page(browser, server.address("flood.ipynb"))
    try:
        page.wait_until_ready()
        panel = "window.jupyterapp.shell.currentWidget"
        run = f"async index => {{ {panel}.content.activeCellIndex = index; await {_RUN}; }}"
        for index in (0, 1):
            page.page.evaluate(run, index)
        page.page.evaluate(_WATCH)
        page.page.evaluate(f"index => {{ {panel}.content.activeCellIndex = index; void {_RUN}; }}", 2)
        seen = _ours_seen if name == OURS else _print_seen
        # In the page, and seldom: looking is work for it as well.
        page.page.wait_for_function(_END, polling=250, timeout=_PATIENCE * 1000)
        figures: Figures = page.page.evaluate(_READ)
        figures["frame"] = 1000 / figures.pop("fps")
        figures["lost"] = seen(page, lines)
        (server.root / "go").touch()
        return figures
    finally:
        page.page.evaluate("async () => { await window.jupyterapp.serviceManager.sessions.shutdownAll(); }")
        page.page.close()


_RUN = "window.jupyterapp.commands.execute('notebook:run-cell')"


def _ours_seen(page: lab.Page, lines: int) -> float:
    """How many lines the page does not know of: what it holds and what it counts as gone, of each rank's."""
    lost = 0
    view = page.page.locator(".sky-run").last
    for rank in range(RANKS):
        view.get_by_role("tab", name=f"rank {rank}").click()
        page.wait_until(lambda: "the end" in view.locator(".sky-log").inner_text(), timeout=30)
        told = view.locator(".sky-earlier").inner_text()
        gone = int("".join(filter(str.isdigit, told)) or 0)
        held = view.locator(".sky-text").evaluate_all(
            "nodes => nodes.reduce((sum, one) => sum + one.offsetHeight / 18, 0)"
        )
        lost += lines + 1 - gone - round(held)
    return float(abs(lost))


def _print_seen(page: lab.Page, lines: int) -> float:
    held = page.page.evaluate(
        """() => {
            const outputs = window.jupyterapp.shell.currentWidget.content.model.cells.get(2).outputs;
            let count = 0;
            for (let at = 0; at < outputs.length; at++) {
                const text = outputs.get(at).toJSON().text;
                count += (Array.isArray(text) ? text.join("") : text ?? "").split("\\n").length - 1;
            }
            return count;
        }"""
    )
    return float(RANKS * lines + 1 - held)
