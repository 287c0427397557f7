"""Widgets that code shows on ranks, in a real notebook's kernel: they come out whole, and what a page says goes in."""

from __future__ import annotations

import contextlib
import importlib.util
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient

from tests.magics.notebook import Notebook, notebook

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("ipywidgets", "anywidget")),
    reason="needs the Python packages ipywidgets and anywidget",
)
SHOW = """%%sky --name default --nodes 2
import anywidget, ipywidgets, traitlets
import sky_jupyter as sky
rank = sky.instance_info().rank
class Counter(anywidget.AnyWidget):
    _esm = "export default { render({ model, el }) { el.textContent = model.get('count'); } }"
    count = traitlets.Int(rank).tag(sync=True)
    blob = traitlets.Any(bytes([rank])).tag(sync=True)
slider = ipywidgets.IntSlider(value=10 + rank)
counter = Counter()
seen, heard = [], []
slider.observe(lambda change: seen.append(change["new"]), "value")
counter.on_msg(lambda widget, content, buffers: heard.append((content, [bytes(one) for one in buffers])))
display(slider)
display(counter)
(slider.model_id, counter.model_id)"""


class Front:
    """A page beside the notebook's own client: it knows what was opened, and what it was told of its state."""

    def __init__(self, book: Notebook) -> None:
        # Not the manager's: two of those would have one identity.
        self.client = BlockingKernelClient(connection_file=book.manager.connection_file)
        self.client.load_connection_file()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.opened: dict[str, dict[str, Any]] = {}
        self.echoes: list[str] = []
        self.answers: list[dict[str, Any]] = []
        # As JupyterLab does: what it says through comms is not behind the cell that runs.
        self.client.control_channel.send(self.client.session.msg("create_subshell_request", {}))
        self.subshell = self.client.get_control_msg(timeout=60)["content"]["subshell_id"]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(queue.Empty):
                self._take(self.client.get_iopub_msg(timeout=0.1))

    def _take(self, message: dict[str, Any]) -> None:
        kind, content = message["msg_type"], message["content"]
        data = content.get("data", {})
        if kind == "comm_open":
            self.opened[content["comm_id"]] = {**data.get("state", {}), **self._bytes(message)}
        elif kind == "comm_close":
            self.opened.pop(content["comm_id"], None)
        elif kind == "comm_msg" and data.get("method") == "update_states":
            self.answers.append(data)
        elif kind == "comm_msg" and content["comm_id"] in self.opened:
            self.opened[content["comm_id"]].update({**data.get("state", {}), **self._bytes(message)})
            if data.get("method") == "echo_update":
                self.echoes.append(message["parent_header"]["msg_id"])

    @staticmethod
    def _bytes(message: dict[str, Any]) -> dict[str, bytes]:
        paths = message["content"]["data"].get("buffer_paths", [])
        return {path[0]: bytes(data) for path, data in zip(paths, message["buffers"], strict=True)}

    def say(self, comm: str, data: dict[str, Any], buffers: list[bytes] | None = None, kind: str = "comm_msg") -> str:
        """Say something through a comm; the id of the message."""
        content = {"comm_id": comm, "data": data}
        message = self.client.session.msg(kind, {**content, "target_name": "jupyter.widget.control"})
        message["metadata"]["version"] = "1.0.0"
        message["header"]["subshell_id"] = self.subshell
        self.client.session.send(self.client.shell_channel.socket, message, buffers=buffers)
        return str(message["header"]["msg_id"])

    def ask(self, widgets: list[str]) -> dict[str, Any]:
        """Ask on the control channel what widgets are."""
        message = self.client.session.msg("sky_widgets_request", {"widgets": widgets})
        self.client.control_channel.send(message)
        return dict(self.client.get_control_msg(timeout=60))

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end, what
            time.sleep(0.02)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self.client.stop_channels()


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    with notebook(tmp_path_factory.mktemp("widgets")) as book:
        book.run("%load_ext sky_jupyter")
        yield book


@pytest.fixture(scope="module")
def front(book: Notebook) -> Iterator[Front]:
    front = Front(book)
    yield front
    front.close()


@pytest.fixture
def ids(book: Notebook, front: Front) -> list[tuple[str, str]]:
    """Of each rank, the slider and the anywidget that it shows: new ones, in a pool of two nodes."""
    assert book.run(SHOW).status == "ok"
    found: list[tuple[str, str]] = book.value("_sky.values")
    front.wait(lambda: all(id in front.opened for pair in found for id in pair), "the widgets are not opened")
    return found


@pytest.mark.parametrize("kind", ["sky", "sky_view", "sky_widgets"])
def test_what_is_no_request_gets_the_same_answer_from_each_handler(
    book: Notebook, front: Front, ids: list[tuple[str, str]], kind: str
) -> None:
    message = front.client.session.msg(f"{kind}_request")
    message["content"] = '["nonsense"]'
    front.client.control_channel.send(message)
    while (reply := front.client.get_control_msg(timeout=60))["parent_header"].get("msg_id") != message["msg_id"]:
        pass
    assert reply["msg_type"] == f"{kind}_reply"
    assert reply["content"] == {"status": "error", "message": "a request is an object, not list"}


def on_ranks(book: Notebook, expression: str) -> list[Any]:
    assert book.run(f"%%sky\n{expression}").status == "ok"
    return list(book.value("_sky.values"))


def test_a_page_has_the_widgets_of_all_ranks_with_their_state_and_bytes(
    front: Front, ids: list[tuple[str, str]]
) -> None:
    assert len({id for pair in ids for id in pair}) == 4
    for rank, (slider, counter) in enumerate(ids):
        assert front.opened[slider]["value"] == 10 + rank
        assert front.opened[front.opened[slider]["layout"].removeprefix("IPY_MODEL_")]["_model_name"] == "LayoutModel"
        assert (front.opened[counter]["count"], front.opened[counter]["blob"]) == (rank, bytes([rank]))
        assert "model.get('count')" in front.opened[counter]["_esm"]


def test_what_a_rank_sets_shows_in_the_page(book: Notebook, front: Front, ids: list[tuple[str, str]]) -> None:
    book.run("%%sky --on 1\nfor value in range(100):\n    slider.value = value\ncounter.blob = b'new'")
    front.wait(lambda: front.opened[ids[1][0]]["value"] == 99, "the new value does not come")
    front.wait(lambda: front.opened[ids[1][1]]["blob"] == b"new", "the new bytes do not come")
    assert front.opened[ids[0][0]]["value"] == 10


def test_what_a_page_sets_changes_one_rank_and_its_observers_run(
    book: Notebook, front: Front, ids: list[tuple[str, str]]
) -> None:
    said = front.say(ids[0][0], {"method": "update", "state": {"value": 42}, "buffer_paths": []})
    front.wait(lambda: said in front.echoes, "the page does not hear that what it set has come")
    front.say(ids[0][1], {"method": "custom", "content": {"ask": 1}}, [b"\0\1"])
    front.say(ids[0][1], {"method": "update", "state": {}, "buffer_paths": [["blob"]]}, [b"from the page"])
    front.wait(lambda: front.opened[ids[0][1]]["blob"] == b"from the page", "the page's bytes do not come")
    values = on_ranks(book, "(slider.value, seen[-1:], bytes(counter.blob), heard)")
    assert values[0] == (42, [42], b"from the page", [({"ask": 1}, [b"\0\1"])])
    assert values[1][0] == 11


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs ipykernel 7.4, and that Python 3.11")
@pytest.mark.parametrize(("option", "value"), [("--timeout 30", 33), ("", 34)], ids=["long way", "short way"])
def test_a_cell_that_awaits_hears_pages(
    book: Notebook, front: Front, ids: list[tuple[str, str]], option: str, value: int
) -> None:
    def say() -> None:
        front.wait(lambda: front.opened[ids[0][1]]["count"] == -value, "the cell does not begin")
        front.say(ids[0][0], {"method": "update", "state": {"value": value}, "buffer_paths": []})

    page = threading.Thread(target=say)
    page.start()
    cell = book.run(
        f"%%sky --on 0 {option}\nimport asyncio, sys\ncounter.count = -{value}\n"
        f"while slider.value != {value}:\n    await asyncio.sleep(0.05)\nwritten = sys.stdout.write('heard')"
    )
    page.join()
    assert cell.status == "ok"
    assert book.value("_sky.stdout(0)") == "heard"


def test_what_is_printed_inside_of_an_output_widget_stands_in_it(book: Notebook, front: Front, ids: Any) -> None:
    book.run(
        "%%sky --on 0\nout = ipywidgets.Output()\ndial = ipywidgets.IntSlider()\n"
        "def show(change):\n    with out:\n        out.clear_output(wait=True)\n"
        "        print('now', change['new'])\n        1 // (change['new'] - 2)\n"
        "dial.observe(show, 'value')\nwith out:\n    print('in the run')\n(out.model_id, dial.model_id)"
    )
    out, dial = book.value("_sky.values")[0]
    front.wait(lambda: "in the run" in str(front.opened.get(out, {}).get("outputs")), "the run's print does not come")
    assert "in the run" in book.value("_sky.stdout(0)")
    front.say(dial, {"method": "update", "state": {"value": 1}, "buffer_paths": []})
    printed = [{"output_type": "stream", "name": "stdout", "text": "now 1\n"}]
    front.wait(lambda: front.opened[out]["outputs"] == printed, "the callback's print does not come")
    front.say(dial, {"method": "update", "state": {"value": 2}, "buffer_paths": []})
    front.wait(lambda: front.opened[out]["outputs"][-1].get("ename") == "ZeroDivisionError", "its error does not come")


@pytest.mark.parametrize(
    "output",
    [
        {"output_type": "stream", "name": "stdout", "text": ["set by code\n"]},
        {"output_type": "stream", "text": "set by code\n"},
    ],
    ids=["a list of lines", "no name"],
)
def test_what_is_printed_stands_behind_any_output_that_code_has_set(
    book: Notebook, front: Front, ids: Any, output: dict[str, Any]
) -> None:
    cell = book.run(
        f"%%sky --on 0 --timeout 60\nout = ipywidgets.Output()\nout.outputs = ({output!r},)\n"
        "with out:\n    print('inside')\nout.model_id"
    )
    assert cell.status == "ok", cell
    (out,) = (value for value in book.value("_sky.values") if value)
    printed = {"output_type": "stream", "name": "stdout", "text": "inside\n"}
    front.wait(lambda: front.opened.get(out, {}).get("outputs") == [output, printed], "its outputs do not come")


def test_a_page_that_is_opened_later_is_told_of_all_widgets(
    book: Notebook, front: Front, ids: list[tuple[str, str]]
) -> None:
    slider, counter = ids[0]
    for own in (False, True):
        if own:
            book.run("import ipywidgets\nown = ipywidgets.IntSlider(value=7)")
        front.answers.clear()
        control = f"control-{own}"
        front.say(control, {}, kind="comm_open")
        front.say(control, {"method": "request_states"})
        front.wait(lambda: bool(front.answers), "nothing answers who asks for all widgets")
        states = front.answers[0]["states"]
        assert states[slider]["model_name"] == "IntSliderModel"
        assert states[slider]["state"]["value"] == 10
        assert [counter, "state", "blob"] in front.answers[0]["buffer_paths"]
    assert states[book.value("own.model_id")]["state"]["value"] == 7


def test_a_page_has_widgets_both_ways_while_the_notebook_works(
    book: Notebook, front: Front, ids: list[tuple[str, str]]
) -> None:
    """What a page says comes in a subshell; the answer to who asks what a widget is, on the control channel."""
    book.client.execute("import time\nwhile not globals().get('go'): time.sleep(0.05)")
    said = front.say(ids[1][0], {"method": "update", "state": {"value": 5}, "buffer_paths": []})
    front.wait(lambda: said in front.echoes, "the rank does not hear the page")
    answer = front.ask([ids[1][0], ids[1][1]])
    comms = {one["content"]["comm_id"]: one for one in answer["content"]["comms"]}
    assert comms[ids[1][0]]["content"]["data"]["state"]["value"] == 5
    names = list(comms)
    assert names.index(comms[ids[1][0]]["content"]["data"]["state"]["layout"][10:]) < names.index(ids[1][0])
    assert sum(one["buffers"] for one in comms.values()) == len(answer["buffers"]) == 1
    done = front.client.session.msg("execute_request", {"code": "go = True", "silent": True, "store_history": False})
    done["header"]["subshell_id"] = front.subshell
    front.client.session.send(front.client.shell_channel.socket, done)
    assert book.run("1").status == "ok"


def test_a_widget_ends_with_the_runs_that_used_it_and_is_open_again_when_it_is_shown(
    book: Notebook, front: Front, ids: list[tuple[str, str]]
) -> None:
    box = "%%sky --on 0\nold = ipywidgets.VBox([ipywidgets.IntSlider(4)])\n(old.model_id, old.children[0].model_id)"
    book.run(box)
    ((box, slider),) = book.value("_sky.values")
    front.wait(lambda: box in front.opened, "the widget is not opened")
    book.run(
        "from sky_jupyter.pool.open_pools import pools\nfrom sky_jupyter.pool.base.event_loop import loop\n"
        "from sky_jupyter.node.protocol import rpc\n"
        "loop().call(pools.current.control.ask(rpc.FORGET_CALLS, attempts=[_sky.run]))"
    )
    front.wait(lambda: not {box, slider} & {*front.opened}, "the widget is not closed")
    book.run("%%sky --on 0\nold.children[0].value = 6\ndisplay(old)")
    front.wait(lambda: box in front.opened, "the widget is not opened again")
    assert front.opened[slider]["value"] == 6
    front.say(box, {}, kind="comm_close")
    front.wait(lambda: box not in front.opened, "one page closes it, and another is not told")


def test_the_widgets_of_a_kernel_that_is_replaced_end(book: Notebook, front: Front, ids: list[tuple[str, str]]) -> None:
    book.run("%%sky --on 1\nimport os\nos._exit(1)")
    front.wait(lambda: not {*ids[1]} & {*front.opened}, "the widgets of a kernel that has ended are still there")
    assert {*ids[0]} <= {*front.opened}
    front.say(ids[1][0], {"method": "update", "state": {"value": 1}, "buffer_paths": []})
    assert on_ranks(book, "'slider' in globals()") == [True, False]
    book.run("%sky down")
    front.wait(lambda: not {*ids[0]} & {*front.opened}, "the widgets of a pool that has ended are still there")
    assert (
        book.value("[type(comm).__name__ for comm in get_ipython().kernel.comm_manager.comms.values()]").count(
            "Mirrored"
        )
        == 0
    )


def test_who_takes_a_pool_up_has_its_widgets_and_who_had_it_has_not(
    book: Notebook, front: Front, tmp_path: Path
) -> None:
    assert book.run("%sky up --nodes 1 --keep --name kept").status == "ok"
    book.run("%%sky --name kept\nimport ipywidgets\nslider = ipywidgets.IntSlider(3)\nslider.model_id")
    (slider,) = book.value("_sky.values")
    front.wait(lambda: slider in front.opened, "the widget is not opened")
    with notebook(tmp_path) as later:
        second = Front(later)
        try:
            later.run("%load_ext sky_jupyter")
            assert later.run("%sky attach kept --take-over").status == "ok"
            second.wait(lambda: slider in second.opened, "the widget does not come to who takes the pool up")
            front.wait(lambda: slider not in front.opened, "the widget stays where the pool was taken from")
            said = second.say(slider, {"method": "update", "state": {"value": 8}, "buffer_paths": []})
            second.wait(lambda: said in second.echoes, "the page does not hear that what it set has come")
            later.run("%%sky\nslider.value")
            assert later.value("_sky.values") == [8]
            later.run("%sky down")
        finally:
            second.close()
