"""A cell with ``--detach`` and the ranks' variables, as a person looks at both while the kernel is free."""

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
DETACHED, LOCAL, PANEL = 2, 3, 4
CELLS = [
    "%load_ext sky_jupyter",
    "%%sky --nodes 2\nimport os, time\nbig = bytes(100_000)\nsmall = [1, 2]",
    """%%sky --detach
for step in range(3):
    print("step", step, flush=True)
    while not os.path.exists(f"go{step}"):
        time.sleep(0.05)
print("all done")""",
    "6 * 7",
    "%sky",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lab.Server]:
    """A JupyterLab with our extension, and the notebook."""
    with lab.server_with_book(tmp_path_factory.mktemp("let_go"), CELLS) as server:
        yield server


def test_a_detached_run_is_followed_without_blocking_and_after_a_reload(chromium, server):
    """The variables beside it are sorted, and a click on one copies what fetches it."""
    page = lab.Page(chromium, server.address("book.ipynb"), width=1280)
    page.wait_until_ready()
    page.command("notebook:run-all-cells")
    # The run waits for a file, and the kernel has run the cells after it.
    page.wait_for(LOCAL, "42")
    view = View(page, DETACHED)
    view.wait("step 0")
    (server.root / "go0").touch()
    view.wait("step 1")
    _look_at_variables(page)
    page.save()
    page.page.reload()
    page.wait_until_ready()
    view = View(page, DETACHED)
    view.wait("step 1")
    (server.root / "go1").touch()
    view.wait("step 2")
    (server.root / "go2").touch()
    view.wait("all done")
    page.wait_until(lambda: "done" in view.text(".sky-head"))
    assert [entry for entry in page.log if entry[0] == "error"] == []
    page.page.close()


def _look_at_variables(page: lab.Page) -> None:
    part = page.page.locator(".jp-Notebook .jp-Cell").nth(PANEL).locator(".sky-live-variables")
    part.locator("summary").click()
    names = part.locator("tbody th button")

    def shown() -> list[str]:
        return [name for name in names.all_inner_texts() if name in ("big", "small")]

    page.wait_until(lambda: shown() == ["big", "small"])
    part.locator('thead th[data-column="name"] button').click()
    page.wait_until(lambda: shown() == ["small", "big"])
    # Of numbers the largest comes first.
    part.locator('thead th[data-column="size"] button').click()
    page.wait_until(lambda: shown() == ["big", "small"])
    page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    names.get_by_text("small", exact=True).click()
    part.get_by_text("Copied: %sky pull small").wait_for()
    assert page.page.evaluate("() => navigator.clipboard.readText()") == "%sky pull small"
