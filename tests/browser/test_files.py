"""The files of a rank in the side panel, while the notebook's kernel and the rank are busy."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser import lab

PATIENCE = 60_000
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
BLOCKED = 2
CELLS = [
    "%load_ext sky_jupyter",
    "%sky up --nodes 2",
    """%%sky
import time
print("waiting", flush=True)
time.sleep(600)""",
]

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(bool(lab.missing(front=True)), reason=f"needs {lab.missing(front=True)}"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab.Server]:
    with lab.server_with_book(tmp_path_factory.mktemp("files"), CELLS) as server:
        out = server.root / "out"
        out.mkdir()
        (out / "log.txt").write_text("step 1 <b>loss</b> 0.5\n")
        (out / "plot.png").write_bytes(base64.b64decode(PIXEL))
        (out / "data.bin").write_bytes(bytes(100))
        yield server


def test_the_files_of_a_rank_are_looked_at_and_fetched_while_its_cell_blocks(chromium: Any, server: lab.Server) -> None:
    page = lab.Page(chromium, server.address("book.ipynb"), width=1400)
    page.wait_until_ready()
    page.log.clear()
    page.command("notebook:run-all-cells")
    page.wait_for(BLOCKED, "waiting")
    page.command("sky-jupyter:files")
    files = page.page.locator(".sky-files")
    # The pool is in sight beside its files.
    page.page.locator(".sky-pools .sky-pool").wait_for(timeout=PATIENCE)
    files.get_by_label("Rank").fill("1")
    files.get_by_label("Rank").press("Enter")
    files.get_by_role("button", name="out", exact=True).click()
    row = files.get_by_role("row", name="log.txt")
    row.get_by_text("23 B").wait_for(timeout=PATIENCE)
    assert files.get_by_label("Folder", exact=True).input_value() == str(server.root / "out")
    page.picture("files")

    row.get_by_role("button", name="log.txt", exact=True).click()
    page.page.locator(".sky-file pre").get_by_text("step 1 <b>loss</b> 0.5").wait_for(timeout=PATIENCE)
    files.get_by_role("button", name="plot.png", exact=True).click()
    page.page.wait_for_function("document.querySelector('.sky-file img')?.naturalWidth === 1", timeout=PATIENCE)
    files.get_by_role("button", name="data.bin", exact=True).click()
    page.page.get_by_text("100 B: neither text nor a picture").wait_for(timeout=PATIENCE)
    page.picture("file-opened")

    for name in ("log.txt", "log (1).txt"):
        files.get_by_role("button", name="Fetch log.txt").click()
        page.page.get_by_text(f"{name} is in").first.wait_for(timeout=PATIENCE)
        assert (server.root / name).read_text() == "step 1 <b>loss</b> 0.5\n"

    files.get_by_label("Folder", exact=True).fill("/not/there")
    files.get_by_label("Folder", exact=True).press("Enter")
    files.get_by_role("alert").get_by_text("/not/there: No such file or directory").wait_for(timeout=PATIENCE)
    assert files.get_by_role("row", name="log.txt").count() == 1
    # The cell is still at it: nothing of this waited for it.
    assert page.page.locator(".jp-Notebook .jp-Cell").nth(BLOCKED).get_by_text("[*]").count() == 1
    problems = [entry for entry in page.log if entry[0] == "error" and "409" not in str(entry)]
    assert problems == []
    page.command("notebook:interrupt-kernel")
    page.wait_for(BLOCKED, "KeyboardInterrupt")
    page.page.close()
