"""Eight ranks that print 100,000 lines each, as a page in Chromium shows them: frames, memory, and lines lost.

Beside one Output widget a rank, a notebook's own `print` of as many lines, and a page that shows nothing of the same
flood: what the machine itself leaves of sixty frames a second. Ranks are on other machines, so here they give way to
what is the user's own: kernel, server and browser. Then 1,000 simulated ranks that print 100 lines each, in a grid.
Needs the front end (`python3 dev.py front`) and Chromium.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat

from tests.browser import lab

from .fresh import ROOT
from .measure import Figures, Options, Row, by_turns, rows

RANKS = 8
LINES = 100_000
QUICK_LINES = 10_000
OURS, WIDGETS, PRINT = "the run view", "an Output widget a rank", "print in the notebook"
EMPTY = "a page that shows nothing"
GRID, GRID_EMPTY = "the grid of ranks", "a page that shows nothing of them"
NODES, QUICK_NODES = 1000, 100
# A peer that has not shown the end by then has not kept up; what it has shown is counted.
_PATIENCE = 60.0
_OUR_PATIENCE = 300.0
_LOOK = 0.25
_SAY = "for line in range({lines}):\n    print('line', line, 'of a training run')\nprint('the end', flush=True)\n"
_GO = """from pathlib import Path
while not Path("go").exists():
    time.sleep(0.05)"""
_POOL = ["%load_ext sky_jupyter", f"%sky up --nodes {RANKS}"]
_CELLS = {
    OURS: [*_POOL, f"%%sky\nimport time\n{_SAY}{_GO}"],
    EMPTY: [*_POOL, f"%%sky --quiet\n{_SAY}"],
    WIDGETS: [
        "import os, selectors, subprocess, sys, time\nimport ipywidgets\nfrom IPython.display import display",
        # They wait at once until somebody reads.
        f"""ranks = [subprocess.Popen([sys.executable, "-c", {_SAY!r}], stdout=subprocess.PIPE, start_new_session=True)
         for rank in range({RANKS})]""",
        f"""outputs = [ipywidgets.Output() for rank in ranks]
display(*outputs)
ready = selectors.DefaultSelector()
for rank, output in zip(ranks, outputs):
    ready.register(rank.stdout, selectors.EVENT_READ, output)
while ready.get_map():
    for key, _ in ready.select():
        text = os.read(key.fd, 65536).decode()
        if text:
            with key.data:
                print(text, end="")
        else:
            ready.unregister(key.fileobj)
{_GO}""",
    ],
    PRINT: ["import time", "pass", _SAY.replace("{lines}", f"{RANKS} * {{lines}}") + _GO],
}
_SIMULATED = f"""import sys
sys.path.insert(0, {str(ROOT)!r})
from benchmarks import simulated
simulated_hosts = simulated.hosts()
simulated_hosts.__enter__()
%load_ext sky_jupyter"""
_MANY = {
    GRID: [_SIMULATED, "%sky up --nodes {nodes} --yes", "%%sky\nlines = 100"],
    GRID_EMPTY: [_SIMULATED, "%sky up --nodes {nodes} --yes", "%%sky --quiet\nlines = 100"],
}
_SHOWN = ".jp-Notebook .jp-Cell:last-of-type .jp-OutputArea-output pre"
_END = f"""() => window.skyDone || [...document.querySelectorAll("{_SHOWN}")]
    .slice(-{RANKS}).some(node => node.textContent.slice(-400).includes("the end"))"""
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
    return { frame: whole / gaps.length, gap: Math.max(...gaps), s: whole / 1000 };
}"""


def measure(options: Options) -> list[Row]:
    """Frames a second, the longest time without one, memory, and lines that the page does not know of."""
    missing = lab.missing(front=True)
    if missing or importlib.util.find_spec("nbformat") is None:
        print(f"page: left out, needs {missing or 'the Python package nbformat'}")
        return []
    lines = QUICK_LINES if options.quick else LINES
    names = [name for name in _CELLS if name != WIDGETS or _widgets()]
    if WIDGETS not in names:
        print(f"page: '{WIDGETS}' left out, needs the Python packages ipywidgets and jupyterlab_widgets")
    with tempfile.TemporaryDirectory(prefix="sky-page-") as folder, _server(Path(folder)) as server:
        with lab.browser() as browser:
            jobs = {name: lambda name=name: _flood(server, browser, name, lines) for name in names}
            samples = by_turns(jobs, options.times(3, quick=1))
            nodes = QUICK_NODES if options.quick else NODES
            jobs = {name: lambda name=name: _flood(server, browser, name, nodes) for name in _MANY}
            many = by_turns(jobs, options.times(2, quick=1))
    grid = f"{nodes:,} ranks"
    what = f"{RANKS} x {lines:,} lines"
    return [
        *rows(f"{what}: seconds a frame", samples, "frame", ours=OURS, unit="ms", most=20),
        *rows(f"{what}: longest time without a frame", samples, "gap", ours=OURS, unit="ms", most=200),
        *rows(f"{what}: most memory of the page", samples, "heap", ours=OURS, unit="MB", most=100),
        *rows(f"{what}: processor time of the page", samples, "cpu", ours=OURS),
        *rows(f"{what}: until the page shows the end", samples, "s", ours=OURS),
        *rows(f"{what}: lost", samples, "lost", ours=OURS, unit="lines", most=0),
        *rows(f"{grid}: seconds a frame", many, "frame", ours=GRID, unit="ms", most=20),
        *rows(f"{grid}: longest time without a frame", many, "gap", ours=GRID, unit="ms", most=200),
        *rows(f"{grid}: most memory of the page", many, "heap", ours=GRID, unit="MB", most=100),
        *rows(f"{grid}: processor time of the page", many, "cpu", ours=GRID),
        *rows(f"{grid}: until the cell has ended", many, "s", ours=GRID),
    ]


def _widgets() -> Path | None:
    """The front end's half of ipywidgets, where both halves are installed."""
    from jupyter_core.paths import jupyter_path

    if importlib.util.find_spec("ipywidgets") is None:
        return None
    return next(filter(Path.is_dir, map(Path, jupyter_path("labextensions", "@jupyter-widgets"))), None)


@contextlib.contextmanager
def _server(folder: Path) -> Iterator[lab.Server]:
    """JupyterLab with our extension, and with that of ipywidgets where it is."""
    extensions = folder / "labextensions"
    extensions.mkdir()
    (extensions / "sky-jupyter").symlink_to(lab.EXTENSION)
    if widgets := _widgets():
        (extensions / widgets.name).symlink_to(widgets)
    with lab.server(folder, extensions=extensions) as server:
        yield server


def _flood(server: lab.Server, browser: Any, name: str, lines: int) -> Figures:
    (server.root / "go").unlink(missing_ok=True)
    cells = [cell.replace("{lines}", str(lines)).replace("{nodes}", str(lines)) for cell in {**_CELLS, **_MANY}[name]]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(book, server.root / "flood.ipynb")
    page = lab.Page(browser, server.address("flood.ipynb"))
    try:
        page.wait_until_ready()
        for index in (0, 1):
            page.page.evaluate(f"async index => {{ {_CHOOSE} await {_RUN}; }}", index)
        if sys.platform == "linux":
            _give_way(server.root.parent / "registry.sqlite")
        figures = _watched(page, browser, _PATIENCE if name in (WIDGETS, PRINT) else _OUR_PATIENCE)
        if name in _SEEN:
            figures["lost"] = _SEEN[name](page, lines)
        return figures
    finally:
        (server.root / "go").touch()
        page.page.evaluate("async () => { await window.jupyterapp.serviceManager.sessions.shutdownAll(); }")
        page.page.close()


def _watched(page: lab.Page, browser: Any, patience: float) -> Figures:
    """Run the cell that floods, until the page shows its end, or is late."""
    inside = page.page.context.new_cdp_session(page.page)
    inside.send("Performance.enable")
    used, heap = _cpu(browser), 0.0
    page.page.evaluate(_WATCH)
    page.page.evaluate(
        f"index => {{ {_CHOOSE} window.skyDone = false; void {_RUN}.then(() => {{ window.skyDone = true; }}); }}", 2
    )
    late = time.monotonic() + patience
    # Seldom: looking is work for the page as well.
    while not page.page.evaluate(_END) and time.monotonic() < late:
        metrics = {one["name"]: one["value"] for one in inside.send("Performance.getMetrics")["metrics"]}
        heap = max(heap, metrics["JSHeapUsedSize"] / 1e6)
        page.page.wait_for_timeout(_LOOK * 1000)
    figures: Figures = page.page.evaluate(_READ)
    return {**figures, "heap": heap, "cpu": _cpu(browser) - used}


def _cpu(browser: Any) -> float:
    """Seconds of processor time that Chromium has used for pages."""
    session = browser.new_browser_cdp_session()
    try:
        found = session.send("SystemInfo.getProcessInfo")["processInfo"]
        return float(sum(one["cpuTime"] for one in found if one["type"] == "renderer"))
    finally:
        session.detach()


def _give_way(registry: Path) -> None:
    """Let the processes of ranks and nodes that know this registry have only what others leave of the machine."""
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            command = " ".join(process.cmdline())
            is_node = any(word in command for word in _NODES)
            if is_node and process.environ().get("SKY_REGISTRY") == str(registry):
                for thread in process.threads():
                    os.sched_setscheduler(thread.id, os.SCHED_IDLE, os.sched_param(0))
                # Where each session is a group for the scheduler, that alone would count within its group only.
                group = Path(f"/proc/{process.pid}/autogroup")
                if group.exists() and "nice 19" not in group.read_text():
                    group.write_text("19")
                    time.sleep(0.15)  # the kernel takes no more than ten a second


# In the command lines of nodes, and of what prints instead of them.
_NODES = ("sky_jupyter.node", "benchmarks.simulated", "of a training run")
_CHOOSE = "window.jupyterapp.shell.currentWidget.content.activeCellIndex = index;"
_RUN = "window.jupyterapp.commands.execute('notebook:run-cell')"


def _ours_seen(page: lab.Page, lines: int) -> float:
    """How many lines the page does not know of: what it holds and what it counts as gone, of each rank's."""
    lost = 0
    view = page.page.locator(".sky-run").last
    for rank in range(RANKS):
        view.get_by_role("tab", name=f"rank {rank}").click()
        page.wait_until(lambda: "the end" in view.locator(".sky-panel").inner_text(), timeout=_OUR_PATIENCE)
        # Both at one moment: the view takes lines in and out as it likes.
        told, held = view.evaluate(
            """node => [node.querySelector(".sky-earlier").innerText, [...node.querySelectorAll(".sky-text")].reduce(
                (sum, one) => sum + one.offsetHeight / 18, 0)]"""
        )
        gone = int("".join(filter(str.isdigit, told)) or 0)
        lost += lines + 1 - gone - round(held)
    return float(abs(lost))


def _widgets_seen(page: lab.Page, lines: int) -> float:
    count = "nodes => nodes.reduce((sum, one) => sum + one.textContent.split('\\n').length - 1, 0)"
    return float(RANKS * (lines + 1) - page.page.locator(_SHOWN).evaluate_all(count))


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


_SEEN = {OURS: _ours_seen, WIDGETS: _widgets_seen, PRINT: _print_seen}
