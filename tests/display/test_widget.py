"""The run view as an anywidget: a snapshot for pages that come, deltas, and no widget in the notebook at the end."""

from __future__ import annotations

import base64
import importlib.util
import json
from types import SimpleNamespace

import pytest

from sky_jupyter.display.base import frontends
from sky_jupyter.display.model import saved_output
from sky_jupyter.display.notebook import anywidget_view
from sky_jupyter.pool.base.events import OutputEvent
from sky_jupyter.session.calls_view import SharedRunView

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("anywidget") is None, reason="needs the Python package anywidget"),
    pytest.mark.skipif(not anywidget_view._module().is_file(), reason="needs the front end: `python3 dev.py front`"),
]
VIEW = "application/vnd.jupyter.widget-view+json"


class Kernel:
    """As much of a kernel as a view needs."""

    def __init__(self):
        self.session, self.iopub_socket, self.sent = self, object(), []

    def get_parent(self, channel=None):
        return {"header": {}, "metadata": {}}

    def send(self, stream, kind, content=None, parent=None, ident=None, buffers=None):
        self.sent.append((content["comm_id"], content["data"]["content"], buffers))


def printed(text, seq):
    return OutputEvent("r", 0, {"kind": "stream", "rank": 0, "name": "stdout", "text": text, "seq": seq})


def test_a_widget_shows_the_run_and_gives_way_to_the_bundle(monkeypatch):
    drawn = []
    monkeypatch.setattr("sky_jupyter.display.base.frontends.Slot.show", lambda self, bundle: drawn.append(bundle))
    kernel = Kernel()
    view = anywidget_view.WidgetRunView(kernel, "sky", [0], "demo")
    view.on_event(printed("a\n", 0))
    view._next = 0.0
    view.refresh()
    [first] = drawn
    assert set(first) == {VIEW, "text/plain"}
    assert view._widget.snapshot["ranks"][0]["parts"] == [{"text": "a\n"}]
    model_id = first[VIEW]["model_id"]
    number = view._widget.snapshot["number"]
    view.on_event(printed("b\n", 1))
    view.finish(1.0)
    told = [(comm, content["number"]) for comm, content, _ in kernel.sent]
    assert told == [(model_id, number + 1 + index) for index in range(len(told))]
    assert b"".join(buffers[0] for _, _, buffers in kernel.sent if buffers) == b"b\n"
    assert set(drawn[-1]) == {saved_output.MIME, "text/html", "text/plain"}
    assert view._widget is None


def test_where_buffers_may_get_lost_messages_are_json_alone(monkeypatch):
    monkeypatch.setattr("sky_jupyter.display.base.frontends.Slot.show", lambda self, bundle: None)
    monkeypatch.setattr(frontends, "front_end", lambda: "colab")
    kernel = Kernel()
    view = anywidget_view.WidgetRunView(kernel, "sky", [0], "demo")
    view._next = 0.0
    view.refresh()
    view.on_event(printed("größer ✓\n", 0))
    view.finish(1.0)
    assert kernel.sent
    assert not any(buffers for _, _, buffers in kernel.sent)
    text = b"".join(base64.b64decode(content["data"]) for _, content, _ in kernel.sent)
    assert text.decode() == "größer ✓\n"
    json.dumps([content for _, content, _ in kernel.sent])


def test_a_run_that_is_over_at_once_makes_no_widget(monkeypatch):
    drawn = []
    monkeypatch.setattr("sky_jupyter.display.base.frontends.Slot.show", lambda self, bundle: drawn.append(bundle))
    view = anywidget_view.WidgetRunView(Kernel(), "sky", [0])
    view.refresh()
    view.finish(0.1)
    assert [set(bundle) for bundle in drawn] == [{saved_output.MIME, "text/html", "text/plain"}]


def test_the_view_of_calls_that_nobody_waits_for_has_its_place_before_the_cell_ends(monkeypatch):
    drawn = []
    monkeypatch.setattr("sky_jupyter.display.base.frontends.Slot.show", lambda self, bundle: drawn.append(bundle))
    view = anywidget_view.WidgetRunView(Kernel(), "sky", [0])
    monkeypatch.setattr(SharedRunView, "_make_view", lambda *_: view)
    shared = SharedRunView(SimpleNamespace(id="p", spec=SimpleNamespace(world_size=1)), "f", waited=False)
    shared.go_on_alone()
    assert [set(bundle) for bundle in drawn] == [{VIEW, "text/plain"}]
    shared.leave()
    assert shared.over
    assert set(drawn[-1]) == {saved_output.MIME, "text/html", "text/plain"}
