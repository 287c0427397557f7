"""The button that copies to a dead rank's new kernel what the others have, as a person sees and presses it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser import lab
from tests.browser.view import View

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(bool(lab.missing(front=True)), reason=f"needs {lab.missing(front=True)}"),
]
DIED, LOOK = 2, 3
CELLS = [
    "%load_ext sky_jupyter",
    "%%sky --nodes 2\nimport os\nheld = [1, 2]",
    "%%sky --on 1\nos.kill(os.getpid(), 9)",
    "%%sky\nheld",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab.Server]:
    """A JupyterLab with our extension, and the notebook."""
    with lab.server_with_book(tmp_path_factory.mktemp("copy"), CELLS) as server:
        yield server


def test_the_button_brings_a_dead_ranks_names_back_and_goes(chromium, server):
    page = lab.Page(chromium, server.address("book.ipynb"), width=1280)
    page.wait_until_ready()
    # It stops at the cell that fails.
    page.command("notebook:run-all-cells")
    view = View(page, DIED)
    view.wait("missing on rank 1")
    button = view.node.get_by_role("button", name="Copy from another rank")
    button.wait_for(state="visible")
    page.picture("copy-names")
    button.click()
    view.wait("held: copied from rank 0 to rank 1")
    page.wait_until(lambda: not button.is_visible())
    page.picture("copy-names-done")
    page.page.locator(".jp-Notebook .jp-Cell").nth(LOOK).locator(".jp-InputArea-editor").click()
    page.command("notebook:run-cell")
    assert "Out, ranks 0-1" in page.wait_for(LOOK, "[1, 2]")
    page.page.close()
