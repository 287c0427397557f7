"""Buttons while a cell blocks the kernel, on each ipykernel that is supported.

Each is fetched for the test, and put before the one that is installed: for the notebook's kernel and the ranks'.
`SKY_IPYKERNELS` names others, such as ``6.31.0,7.5.0``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.browser import lab
from tests.browser.view import View

# The oldest that Python 3.10 may have, and the oldest that later ones may, as pyproject.toml says.
SUPPORTED = ["7.3.0", *(["7.4.0"] if sys.version_info >= (3, 11) else [])]
VERSIONS = os.environ["SKY_IPYKERNELS"].split(",") if "SKY_IPYKERNELS" in os.environ else SUPPORTED

pytestmark = [
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.skipif(bool(lab.missing(front=True)), reason=f"needs {lab.missing(front=True)}"),
]

BLOCKS = """%%sky
import ipykernel, time
print("blocked on", ipykernel.__version__, flush=True)
time.sleep(60)
print("not interrupted")"""
CELLS = ["%load_ext sky_jupyter", "%sky up --nodes 2", BLOCKS, BLOCKS, "import ipykernel; ipykernel.__version__"]
BY_VIEW, BY_PANEL, NOTEBOOKS = 2, 3, 4


@pytest.fixture(params=VERSIONS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[lab.Server]:
    """A server whose kernels have this ipykernel."""
    folder, extensions = tmp_path / "ipykernel", tmp_path / "labextensions"
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    done = subprocess.run([*command, f"ipykernel=={request.param}"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"ipykernel {request.param} cannot be fetched: {done.stderr[-300:]}")
    extensions.mkdir()
    (extensions / "sky-jupyter").symlink_to(lab.EXTENSION)
    spec = tmp_path / "data" / "kernels" / "other"
    spec.mkdir(parents=True)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", str(Path.cwd()))]))
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel = {"argv": argv, "display_name": "other", "language": "python", "env": {"PYTHONPATH": path}}
    (spec / "kernel.json").write_text(json.dumps(kernel))
    with lab.server(tmp_path, extensions=extensions) as server:
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
        book.metadata["kernelspec"] = {"name": "other", "display_name": "other", "language": "python"}
        for cell in book.cells:
            cell.metadata["tags"] = ["raises-exception"]
        nbformat.write(book, server.root / "book.ipynb")
        yield server


def test_buttons_work_while_a_cell_blocks_for_a_minute(server: lab.Server, request: pytest.FixtureRequest) -> None:
    version = request.node.callspec.params["server"]
    with lab.browser() as chromium:
        page = lab.Page(chromium, server.address("book.ipynb"), width=1300, height=1600)
        page.wait_until_ready()
        page.command("notebook:run-all-cells")
        view = View(page, BY_VIEW)
        view.wait(f"blocked on {version}")
        status, _ = page.ask({"action": "status"})
        assert (status["status"], status["pools"][0]["runs"][0]["left"]) == ("ok", [0, 1])
        view.press("Where")
        view.wait("time.sleep(60)", ".sky-where", timeout=90)
        view.press("Interrupt")
        is_interrupted(view)
        # By the server's part, which asks the kernel.
        view = View(page, BY_PANEL)
        view.wait("blocked on")
        page.command("sky-jupyter:show-pools")
        page.page.get_by_role("button", name="Interrupt: pool default").click()
        is_interrupted(view)
        assert version in page.wait_for(NOTEBOOKS, version)
        end(page)


def is_interrupted(view: View) -> None:
    """It has ended early; a cell that nobody interrupts says so at its end."""
    view.wait("interrupted", ".sky-facts", timeout=90)
    assert "not interrupted" not in view.text()


def end(page: Any) -> None:
    """End the pool, from the page."""
    page.ask({"action": "down"})
    page.wait_until(lambda: page.ask({"action": "status"})[0]["pools"] == [], timeout=60)
