"""Detached runs: their views follow with an idle kernel, and pages hear of the end of long ones."""

from __future__ import annotations

import contextlib
import os
import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.pool.registry.registry import Registry
from tests.magics.notebook import Notebook, notebook

RUN = "application/vnd.sky.run.v1+json"
PATIENCE = 60.0
QUICK = "import sky_jupyter.session.run_end_notifications as ends\nends.LONG = 0.0"


class Listener:
    """A page that hears what the kernel publishes, whatever cell it is of."""

    def __init__(self, book: Notebook) -> None:
        self.client = book.manager.client()
        # A second shell channel under this manager's session would take the first one's replies.
        self.client.start_channels(shell=False, stdin=False, hb=False, control=False)
        # Only what is published once it is connected arrives.
        while True:
            book.run("0")
            with contextlib.suppress(queue.Empty):
                self.client.get_iopub_msg(timeout=1)
                break

    def until(self, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        end, seen = time.monotonic() + PATIENCE, []
        # The kernel tells every two seconds that a run goes on: a timeout of one message alone would never be over.
        while time.monotonic() < end:
            message = self.client.get_iopub_msg(timeout=PATIENCE)
            if holds(message):
                return dict(message)
            seen.append(message["msg_type"])
        raise AssertionError(f"it was not told; {seen}")

    def update(self, holds: Callable[[str], object]) -> dict[str, Any]:
        """The first update of a display whose text holds."""
        return self.until(
            lambda message: (
                message["msg_type"] == "update_display_data" and holds(message["content"]["data"]["text/plain"])
            )
        )

    def close(self) -> None:
        # `stop_channels` would open the others first.
        self.client.iopub_channel.stop()


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with notebook(tmp_path_factory.mktemp("book")) as opened:
        assert opened.run("%load_ext sky_jupyter").status == "ok"
        assert opened.run("%sky up --nodes 2").status == "ok"
        yield opened


@pytest.fixture
def page(book: Notebook) -> Iterator[Listener]:
    listener = Listener(book)
    yield listener
    listener.close()


@pytest.fixture
def go(book: Notebook, tmp_path: Path) -> Iterator[Path]:
    """A file that ends the wait of a detached run; there at the test's end, whatever came of it."""
    go = tmp_path / "go"
    yield go
    go.touch()
    book.run("%sky wait")


def waiting(go: Path) -> str:
    return f"import os, time\nwhile not os.path.exists({os.fspath(go)!r}): time.sleep(0.05)\n"


def test_the_view_of_a_detached_run_follows_while_the_kernel_is_idle(book: Notebook, page: Listener, go: Path) -> None:
    cell = book.run(f"%%sky --detach --out later\nprint('begun', flush=True)\n{waiting(go)}print('gone on')\n'kept'")
    assert "continues; `%sky wait` shows it and assigns later" in cell.stream()
    (shown,) = cell.displays
    assert not shown.data[RUN]["finished"]
    seen = page.update(lambda text: "begun" in text)
    # It is the cell's own output that changes, and not one of the cell that runs then.
    assert book.run("1 + 1").outputs[0].data["text/plain"] == "2"
    go.touch()
    # One rank's result may be shown before the other has ended.
    last = page.until(lambda message: message["content"].get("data", {}).get(RUN, {}).get("finished"))
    assert "[0-1] Out: 'kept'" in last["content"]["data"]["text/plain"]
    assert last["content"]["data"][RUN]["view"] == shown.data[RUN]["view"]
    assert "[0-1] gone on" in last["content"]["data"]["text/plain"]
    assert last["parent_header"]["msg_id"] == seen["parent_header"]["msg_id"]
    assert book.run("%sky wait").body == ["[0-1] begun", "[0-1] gone on", "[0-1] Out: 'kept'"]
    assert book.run("list(later)").outputs[0].data["text/plain"] == "['kept', 'kept']"


def test_the_end_of_a_detached_run_is_told_elsewhere_though_nobody_waits_for_it(
    book: Notebook, page: Listener, go: Path
) -> None:
    # The panel and the command line read the registry alone.
    cell = book.run(f"%%sky --detach\n{waiting(go)}import sky_jupyter as sky\nif sky.instance_info().rank: 1 / 0")
    run = cell.stream().split()[1]
    registry = Registry()
    try:
        assert registry.run(run).state == "running"
        go.touch()
        page.until(lambda message: message["content"].get("data", {}).get(RUN, {}).get("finished"))
        end = time.monotonic() + PATIENCE
        while (row := registry.run(run)).state == "running":
            assert time.monotonic() < end, "it runs still, as the registry has it"
            time.sleep(0.05)
        assert (row.state, row.elapsed > 0) == ("failed", True)
    finally:
        registry.close()
    assert book.run("%sky wait").error_name == "CellError"


def test_a_capture_of_output_takes_nothing_of_a_detached_run(
    book: Notebook, page: Listener, go: Path, tmp_path: Path
) -> None:
    before = tmp_path / "before"
    book.run(f"%%sky --detach\n{waiting(before)}print('gone on', flush=True)\n{waiting(go)}")
    captured = book.run(
        f"%%capture taken\nopen({os.fspath(before)!r}, 'w').close()\nimport time; time.sleep(1)\nprint('mine')"
    )
    assert captured.status == "ok"
    page.update(lambda text: "gone on" in text)
    go.touch()
    assert book.run("taken.stdout, len(taken.outputs)").outputs[0].data["text/plain"] == r"('mine\n', 0)"
    book.run("%sky wait")


def test_quiet_shows_nothing_of_a_detached_run(book: Notebook) -> None:
    assert not book.run("%%sky --detach --quiet\n1").displays
    book.run("%sky wait")


def test_pages_hear_of_the_end_of_long_runs(book: Notebook, page: Listener) -> None:
    # Short ones are not told.
    book.run("%%sky\n'short'")
    book.run(QUICK)
    failed = book.run("%%sky --detach\nimport sky_jupyter as sky\nepochs = 3\nif sky.instance_info().rank: 1 / 0")
    run = failed.stream().split()[1]
    heard = page.until(lambda message: message["msg_type"] == "sky_run_ended")["content"]
    assert heard["run"] == run
    assert {key: heard[key] for key in ("pool", "title", "state", "failed")} == {
        "pool": "default",
        "title": "epochs = 3",
        "state": "failed",
        "failed": "rank 1",
    }
    assert book.run("%sky wait").error_name == "CellError"
    book.run("%%sky\n'attended'")
    assert page.until(lambda message: message["msg_type"] == "sky_run_ended")["content"]["state"] == "ok"
    # Whoever stops a run knows of its end.
    stopped = book.run("%%sky --detach\nimport time\ntime.sleep(600)").stream().split()[1]
    book.run("%sky interrupt")
    book.run("%sky wait")
    book.run("%%sky\n'next'")
    told = page.until(lambda message: message["msg_type"] == "sky_run_ended")["content"]
    assert told["run"] != stopped
    assert told["title"] == "'next'"
