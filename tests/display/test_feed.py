"""What pages are told of a run that goes on: numbered deltas, a snapshot for who comes, and what the notebook keeps."""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from types import SimpleNamespace

import pytest
from IPython.core.events import EventManager, available_events

from sky_jupyter.display.model import saved_output
from sky_jupyter.display.model.run_model import RunModel
from sky_jupyter.display.model.transcript import RankOutput, Rich, Transcript
from sky_jupyter.display.notebook import run_view as channel
from sky_jupyter.display.notebook.deltas import Feed, Pending
from sky_jupyter.display.notebook.run_view import LiveRunView
from sky_jupyter.pool.base.events import NoticeEvent, OutputEvent

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def stream(rank, text, seq=0, name="stdout"):
    return OutputEvent("r1", rank, {"kind": "stream", "rank": rank, "name": name, "text": text, "seq": seq})


def shown(rank, data, id=None, kind="display"):
    return OutputEvent(
        "r1", rank, {"kind": kind, "rank": rank, "data": data, "metadata": {}, "display_id": id, "seq": 0}
    )


def end(rank, status="ok", **more):
    return OutputEvent("r1", rank, {"kind": "end", "rank": rank, "status": status, "seq": 0, **more})


class Page:
    """A page: what it was sent, and the text of each rank that it has put together."""

    def __init__(self, ranks=2):
        self.got = []
        self.model = RunModel("sky", range(ranks), "demo")
        self.feed = Feed(self.model, "v1", ranks, lambda content, buffers: self.got.append((content, buffers)))

    def texts(self):
        done = {}
        for content, buffers in self.got:
            data = buffers[0] if buffers else b""
            for entry in content["entries"]:
                if entry[0] == "s":
                    text, data = data[: entry[3]].decode(), data[entry[3] :]
                    done[entry[1]] = done.get(entry[1], "") + text
        return done

    def entries(self, kind):
        return [entry for content, _ in self.got for entry in content["entries"] if entry[0] == kind]


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_nobody_is_told_anything_before_a_page_comes_and_then_all_of_it_in_order():
    page = Page()
    page.feed.on_event(stream(0, "early\n"))
    time.sleep(0.12)
    assert page.got == []
    opened = page.feed.open()
    assert opened["ranks"][0]["parts"] == [{"text": "early\n"}]
    for step in range(500):
        page.feed.on_event(stream(step % 2, f"é {step}\n", step))
    page.feed.on_event(NoticeEvent("kernels are new"))
    wait_until(lambda: page.entries("n"))
    page.model.finish(3.0)
    page.feed.finish()
    assert [content["number"] for content, _ in page.got] == list(
        range(opened["number"] + 1, opened["number"] + 1 + len(page.got))
    )
    assert page.texts()[1] == "".join(f"é {step}\n" for step in range(1, 500, 2))
    assert page.entries("over") == [["over", 3.0]]
    assert json.dumps([content for content, _ in page.got])


def test_deltas_come_while_this_thread_is_busy_and_no_faster_than_twenty_a_second():
    page = Page()
    page.feed.open()
    began = time.monotonic()
    writer = threading.Thread(
        target=lambda: [(page.feed.on_event(stream(0, f"{step}\n")), time.sleep(0.002)) for step in range(200)]
    )
    writer.start()
    writer.join()
    took = time.monotonic() - began
    page.model.finish(took)
    page.feed.finish()
    assert page.texts()[0].split() == [str(step) for step in range(200)]
    # One more at each end.
    assert 3 <= len(page.got) <= took / 0.05 + 3


def test_a_second_page_gets_what_the_first_has_and_the_same_numbers_go_on():
    page = Page()
    first = page.feed.open()
    page.feed.on_event(stream(0, "a\n10%"))
    second = page.feed.open()
    assert second["number"] > first["number"]
    assert second["ranks"][0]["parts"] == [{"text": "a\n10%"}]
    assert second["order"] == [0, 1]
    page.feed.on_event(stream(0, "\r20%\n"))
    page.model.finish(1.0)
    page.feed.finish()
    assert page.texts()[0] == "a\n10%\r20%\n"
    # A page that comes after the end is told no more.
    assert page.feed.open()["finished"] is True
    assert not page.feed.watched.is_set()


def test_a_page_that_cannot_be_reached_costs_the_run_nothing():
    tried = []

    def fail(content, buffers):
        tried.append(content["number"])
        raise OSError

    feed = Feed(RunModel("sky", [0]), "v", 1, fail)
    feed.open()
    feed.on_event(stream(0, "a\n"))
    wait_until(lambda: tried)
    feed.on_event(stream(0, "b\n"))
    wait_until(lambda: len(tried) > 1)
    assert feed.open()["ranks"][0]["parts"] == [{"text": "a\nb\n"}]


def test_a_flood_keeps_its_end_and_counts_what_is_passed_over():
    pending = Pending(8)
    for rank in range(8):
        for step in range(0, 100_000, 1000):
            pending.add_text(rank, "stdout", "".join(f"line {step + index}\n" for index in range(1000)), step)
    entries, data = pending.take()
    assert len(data) < 3_000_000
    last = {}
    for entry in entries:
        text, data = data[: entry[3]].decode(), data[entry[3] :]
        told = last.setdefault(entry[1], [0, ""])
        told[0] += entry[4]
        told[1] += text
    for skipped, text in last.values():
        lines = text.splitlines()
        assert len(lines) >= 1000
        assert lines[-1] == "line 99999"
        assert skipped + len(lines) == 100_000
        assert lines[0] == f"line {skipped}"


def test_one_text_that_is_too_long_keeps_its_last_lines():
    pending = Pending(1)
    pending.add_text(0, "stdout", "".join(f"{index}\n" for index in range(1_000_000)), 7)
    [[_, _, _, size, skipped, seq]], data = pending.take()
    # The journal's number is that of what is gone.
    assert seq == -1
    assert size == len(data) < 2_000_000
    assert skipped + data.count(b"\n") == 1_000_000
    pending.add_text(0, "stdout", "x" * 9_000_000)
    [[_, _, _, size, skipped, _]], data = pending.take()
    assert skipped == 0
    assert size < 2_000_000


def test_a_line_longer_than_the_room_counts_as_passed_over_and_what_follows_is_shown():
    page = Page(1)
    page.feed.open()
    with page.feed._lock:
        page.feed._take(stream(0, "x" * 2_000_000 + "\n"))
        page.feed._take(stream(0, "after\n", 1))
    page.model.finish(1.0)
    page.feed.finish()
    [[_, _, _, size, skipped, _]] = page.entries("s")
    assert (size, skipped) == (len("after\n"), 1)
    pending = Pending(64)
    for rank in range(2):
        pending.add_text(rank, "stdout", "short\n")
        pending.add_text(rank, "stderr", "y" * 59_000 + "\n")
    entries, data = pending.take()
    assert data == b""
    assert [(rank, skipped) for _, rank, _, _, skipped, _ in entries] == [(0, 2), (1, 2)]


def test_of_a_display_that_is_updated_again_and_again_only_the_last_waits():
    page = Page(1)
    page.feed.open()
    with page.feed._lock:
        for step in range(100):
            page.feed._take(shown(0, {"text/plain": str(step)}, "plot", "update"))
    page.model.finish(1.0)
    page.feed.finish()
    assert [entry[3] for entry in page.entries("u")] == [{"text/plain": "99"}]


@pytest.mark.parametrize(
    "text",
    [
        "a\nb\n",
        "a\nb",
        "10%\r",
        "10%\r2",
        "a\nb\nc\x1b[2A",
        "a\nbb\n\x1b[1A\x1b[1C",
        "\x1b[31mred\nstill red",
        "a\n\nb\x1b[1A",
        "cut \x1b[3",
        "",
    ],
)
def test_what_a_page_is_given_ends_where_the_text_ended(text):
    """Whatever comes next does the same to both."""
    first, second = Transcript(), Transcript()
    first.feed(text)
    second.feed(first.replay(100))
    for transcript in (first, second):
        transcript.feed("1mX\x1b[KY\nZ")
    assert second.lines == first.lines


def test_parts_keep_items_between_lines_and_their_display_ids():
    output = RankOutput()
    output.feed("before\n")
    output.show({"text/plain": "plot"}, {}, "id")
    output.feed("after\n1\n2\n")
    parts, dropped = output.parts(2)
    assert [part.text for part in parts] == ["", "1\n2\n"]
    assert parts[0].rich == Rich({"text/plain": "plot"})
    assert parts[0].ids == ("id",)
    assert dropped == 2


def finished(*events, ranks=2):
    model = RunModel("sky", range(ranks), "demo")
    for event in events:
        model.on_event(event)
    model.finish(1.5)
    return model


def test_a_saved_run_is_json_html_and_text_without_a_widget():
    model = finished(
        stream(0, "hello\n"),
        stream(1, "hello\n"),
        shown(0, {"image/png": PIXEL, "text/plain": "plot"}),
        shown(1, {"image/png": PIXEL, "text/plain": "plot"}),
        shown(0, {"text/plain": "42"}, kind="result"),
        end(0),
        end(1, "error", traceback=["-----", "ValueError: no"]),
    )
    bundle = saved_output.bundle(model, "v")
    assert set(bundle) == {saved_output.MIME, "text/html", "text/plain"}
    run = json.loads(json.dumps(bundle[saved_output.MIME]))
    assert (run["state"], run["finished"], run["elapsed"]) == ("failed", True, 1.5)
    assert (run["pool"], run["run"]) == ("demo", "r1")
    assert [rank["state"] for rank in run["ranks"]] == ["done", "failed"]
    # Equal pictures are held once.
    assert [part.get("item") for rank in run["ranks"] for part in rank["parts"]] == [None, 0, None, 0]
    assert run["items"][run["ranks"][0]["result"]]["data"] == {"text/plain": "42"}
    assert run["ranks"][1]["traceback"] == "ValueError: no"
    assert run["order"] == [0, 1, 1, 1, 0, -1, 1, -1]


def test_a_saved_run_takes_a_megabyte_of_text_at_most():
    events = [stream(rank, "".join(f"{rank} {'x' * 100} {line}\n" for line in range(5000))) for rank in range(8)]
    bundle = saved_output.bundle(finished(*events, ranks=8), "v")
    size = len(json.dumps(bundle[saved_output.MIME])) + len(bundle["text/html"]) + len(bundle["text/plain"])
    assert size < 1_100_000
    for rank in bundle[saved_output.MIME]["ranks"]:
        assert rank["parts"][-1]["text"].endswith(f"{'x' * 100} 4999\n")
        assert rank["dropped"] + rank["parts"][-1]["text"].count("\n") == 5000


def test_a_saved_run_takes_more_text_where_that_is_asked_for():
    model = finished(stream(0, "".join(f"{line} {'x' * 100}\n" for line in range(9000))), ranks=1)
    model.most_text = 5_000_000
    bundle = saved_output.bundle(model, "v")
    for text in (bundle["text/plain"], bundle["text/html"], bundle[saved_output.MIME]["ranks"][0]["parts"][0]["text"]):
        assert text.count("x" * 100) == 9000
    model.most_text = 10_000
    bundle = saved_output.bundle(model, "v")
    assert 1000 < len(bundle["text/plain"]) < 10_000
    assert bundle["text/plain"].endswith(f"8999 {'x' * 100}")


def test_a_notebook_keeps_each_picture_once():
    plot, other = base64.b64encode(b"plot" * 3000).decode(), base64.b64encode(b"other" * 3000).decode()
    shown = {"data": {"image/png": f"{plot}\n", "text/plain": "<Figure>"}, "metadata": {}}
    # This one is not what the HTML shows.
    table = {"data": {"text/html": "<b>table</b>", "image/png": other}, "metadata": {}}
    model = finished(
        *(OutputEvent("r", rank, {"kind": "display", **shown}) for rank in range(2)),
        OutputEvent("r", 0, {"kind": "display", **table}),
        OutputEvent("r", 0, {"kind": "result", **shown}),
    )
    bundle = saved_output.bundle(model, "v")
    kept = json.dumps(bundle[saved_output.MIME])
    assert plot not in kept
    assert kept.count(other) == 1
    numbers = [item["data"]["image/png"] for item in bundle[saved_output.MIME]["items"]]
    assert numbers == [{"html": 0}, other]
    assert re.findall('base64,([^"]*)', bundle["text/html"])[0] == plot
    # A page that has no HTML gets them.
    assert saved_output.last(model, "v")["items"][0] == shown


class Kernel:
    """As much of a kernel as a view needs: what is sent goes nowhere."""

    def __init__(self):
        self.control_handlers = {}
        self.iopub_socket = object()
        self.session = self
        self.sent = []
        self.shell = SimpleNamespace(events=EventManager(self, available_events))

    def get_parent(self, channel=None):
        return {"header": {}, "metadata": {"cellId": "c1"}}

    def send(self, stream, kind, content=None, parent=None, ident=None, buffers=None):
        self.sent.append((kind, content, buffers))


def test_a_page_opens_a_view_by_the_control_channel_and_finds_what_is_kept_after_its_end(monkeypatch):
    drawn = []
    monkeypatch.setattr("sky_jupyter.display.base.frontends.Slot.show", lambda self, bundle: drawn.append(bundle))
    kernel = Kernel()
    view = LiveRunView(kernel, "sky", [0], "demo")
    assert channel.REQUEST in kernel.control_handlers
    view.on_event(stream(0, "a\n"))
    wait_until(lambda: view.refresh() or drawn)
    assert drawn[0][saved_output.MIME]["view"] == view.id
    assert "a" in drawn[0]["text/html"]
    assert {"view": view.id, "cell": "c1", "live": True} in channel.views.answer({"action": "views"})["views"]
    opened = channel.views.answer({"action": "open", "view": view.id})
    assert opened["run"]["ranks"][0]["parts"] == [{"text": "a\n"}]
    count = len(drawn)
    view.on_event(stream(0, "b\n"))
    wait_until(lambda: kernel.sent)
    kind, content, buffers = kernel.sent[0]
    assert (kind, content["data"]["content"]["entries"][0][:2], buffers) == ("comm_msg", ["s", 0], [b"b\n"])
    # The page draws by itself: the output is not drawn for it as well.
    view.refresh()
    assert len(drawn) == count
    view.on_event(end(0))
    view.finish(1.0)
    assert drawn[-1][saved_output.MIME]["finished"] is True
    assert channel.views.answer({"action": "open", "view": view.id})["bundle"] == drawn[-1]
    assert channel.views.answer({"action": "open", "view": "unknown"})["status"] == "error"
    # The cell runs anew: what it showed before does not come back.
    kernel.shell.events.trigger("pre_run_cell", None)
    assert view.id not in str(channel.views.answer({"action": "views"}))
    assert "no action" in channel.views.answer({"action": "sing"})["message"]
