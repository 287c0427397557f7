"""The run view where no extension of ours draws, as in VS Code: widget messages of a real kernel, played back."""

from __future__ import annotations

import base64
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sky_jupyter.display.notebook import anywidget_view
from tests.magics.notebook import Notebook, notebook

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("anywidget") is None, reason="needs the Python package anywidget"),
    pytest.mark.skipif(not anywidget_view._module().is_file(), reason="needs the front end: `python3 dev.py front`"),
]
VIEW = "application/vnd.jupyter.widget-view+json"
CELL = "%%sky\nimport os, time\nprint('grüße', flush=True)\nwhile not os.path.exists({mark!r}): time.sleep(0.02)\n"


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with notebook(tmp_path_factory.mktemp("book")) as opened:
        # As VS Code names a notebook's file in its namespace.
        assert opened.run("__vsc_ipynb_file__ = '/tmp/a.ipynb'\n%load_ext sky_jupyter").status == "ok"
        assert opened.run("%sky up --name default --nodes 1").status == "ok"
        yield opened


def messages_of(book: Notebook, source: str, on_text: Any, **options: Any) -> list[dict[str, Any]]:
    """What the page gets while a cell runs; ``on_text`` is called with what the widget was told so far."""
    found: list[dict[str, Any]] = []

    def take(message: dict[str, Any]) -> None:
        found.append(message)
        on_text(told(found))

    answer = {"allow_stdin": True, "stdin_hook": lambda message: None, **options}
    reply = book.client.execute_interactive(source, output_hook=take, timeout=240, **answer)
    assert reply["content"]["status"] == "ok"
    return found


def told(messages: list[dict[str, Any]]) -> str:
    """The text in a widget's state and in the messages to it."""
    text = ""
    for message in messages:
        data = message["content"].get("data", {})
        if message["msg_type"] == "comm_open":
            text += json.dumps(data["state"].get("snapshot", {}), ensure_ascii=False)
        elif message["msg_type"] == "comm_msg" and data.get("method") == "custom":
            text += base64.b64decode(data["content"].get("data", "")).decode()
    return text


def test_a_run_is_a_widget_of_json_messages_and_then_html_that_needs_no_kernel(book: Notebook, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    found = messages_of(book, CELL.format(mark=str(mark)), lambda text: "grüße" in text and mark.touch())
    (opened,) = [
        one["content"]
        for one in found
        if one["msg_type"] == "comm_open" and one["content"]["data"]["state"].get("_model_name") == "AnyModel"
    ]
    (shown,) = [one["content"] for one in found if one["msg_type"] == "display_data"]
    assert set(shown["data"]) == {VIEW, "text/plain"}
    assert shown["data"][VIEW]["model_id"] == opened["comm_id"]
    deltas = [one for one in found if one["msg_type"] == "comm_msg" and one["content"]["comm_id"] == opened["comm_id"]]
    assert not any(one["buffers"] for one in deltas)
    last = [one["content"]["data"] for one in found if one["msg_type"] == "update_display_data"][-1]
    assert set(last) == {"text/html", "text/plain"}
    assert "grüße" in last["text/html"]
    assert found[-1]["content"].get("execution_state") == "idle"
    assert [one["content"]["comm_id"] for one in found if one["msg_type"] == "comm_close"].count(opened["comm_id"]) == 1


def test_html_is_shown_where_it_is_asked_for_and_where_nobody_looks(book: Notebook, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    cell = CELL.format(mark=str(mark)) + "time.sleep(0.5)"

    def displays(**options: Any) -> set[str]:
        found = messages_of(book, cell, lambda text: None, **options)
        kinds = ("display_data", "update_display_data")
        return {kind for one in found if one["msg_type"] in kinds for kind in one["content"]["data"]}

    assert displays(allow_stdin=False) == {"text/html", "text/plain"}
    assert book.run("import os; os.environ['SKY_VIEW'] = 'html'").status == "ok"
    try:
        assert displays() == {"text/html", "text/plain"}
    finally:
        book.run("del os.environ['SKY_VIEW']")
