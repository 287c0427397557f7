"""Comms' messages on their way, and what is held of them: whole, in order, and bounded."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from sky_jupyter.node.protocol.comm_messages import MOST_CUSTOM, CommMessage, CommQueue, read
from sky_jupyter.widgets.node.comm_hub import CommHub
from sky_jupyter.widgets.open_comms import VIEW, OpenComms


def message(kind: str, comm: str, data: dict[str, Any], *buffers: bytes, run: str = "run") -> dict[str, Any]:
    """A Jupyter message of a widget's comm."""
    content = {"comm_id": comm, "target_name": "jupyter.widget", "data": data}
    return {"msg_type": f"comm_{kind}", "content": content, "buffers": buffers, "parent_header": {"msg_id": run}}


def opened(comm: str, *paths: list[Any], **state: Any) -> dict[str, Any]:
    """The opening of a widget, with bytes at some paths."""
    return message("open", comm, {"state": state, "buffer_paths": list(paths)}, *(b"old" for _ in paths))


def told(comm: str, *paths: list[Any], **state: Any) -> dict[str, Any]:
    """A change of a widget, with bytes at some paths."""
    data = {"method": "update", "state": state, "buffer_paths": list(paths)}
    return message("msg", comm, data, *(b"new" for _ in paths))


def custom(comm: str, content: Any = None, *buffers: bytes) -> dict[str, Any]:
    return message("msg", comm, {"method": "custom", "content": content}, *buffers)


def made(raw: dict[str, Any]) -> CommMessage:
    found = read(raw, widget=True)
    assert found is not None
    return found


def state_of(found: CommMessage) -> tuple[dict[str, Any], list[Any], list[bytes]]:
    _, content, _, buffers = found.jupyter()
    return content["data"]["state"], content["data"]["buffer_paths"], buffers


def dropped(ids: list[str]) -> None:
    raise AssertionError(f"{ids} were dropped")


def test_what_is_held_is_the_whole_state_with_its_bytes() -> None:
    held = OpenComms(dropped)
    held.take(made(opened("a", ["data", 0], ["blob"], value=1, data=[None, 2])))
    assert state_of(held.openings()[0]) == ({"value": 1, "data": [None, 2]}, [["data", 0], ["blob"]], [b"old", b"old"])
    held.take(made(told("a", ["blob"], value=7)))
    assert state_of(held.openings()[0]) == ({"value": 7, "data": [None, 2]}, [["data", 0], ["blob"]], [b"old", b"new"])
    held.take(made(told("a", data="none")))
    assert state_of(held.openings()[0]) == ({"value": 7, "data": "none"}, [["blob"]], [b"new"])


def test_what_refers_to_others_is_opened_after_them() -> None:
    held = OpenComms(dropped)
    for id, refers in (("box", ""), ("child", "IPY_MODEL_box")):
        held.take(made(opened(id, children=[refers])))
    held.take(made(opened("later")))
    held.take(made(told("box", children=["IPY_MODEL_later", "IPY_MODEL_gone"])))
    order = [one.comm for one in held.openings()]
    assert order.index("later") < order.index("box") < order.index("child")
    # A cycle ends too.
    held.take(made(told("later", source="IPY_MODEL_child")))
    assert {one.comm for one in held.openings()} == {"box", "child", "later"}
    assert {one.comm for one in held.with_references(["later"])} == {"box", "child", "later"}


def test_a_message_travels_as_it_is_and_what_is_none_is_passed_over() -> None:
    first = made(opened("a", ["blob"], value=float("inf"), text="\ud800"))
    assert CommMessage.unwire(first.wire()) == first
    other = made(custom("a", {"x": [1]}, b"\0"))
    again = CommMessage.unwire(other.wire())
    assert again == other
    assert again is not None
    assert again.jupyter() == (
        "comm_msg",
        {"comm_id": "a", "data": {"method": "custom", "content": {"x": [1]}}},
        {},
        [b"\0"],
    )
    for wrong in (
        None,
        [],
        {},
        {**other.wire(), "kind": "no"},
        {**other.wire(), "data": "{"},
        {**other.wire(), "rank": "1"},
    ):
        assert CommMessage.unwire(wrong) is None
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for data in ({"method": "update", "state": {"a": deep}}, {"method": "update", "state": {}, "buffer_paths": [[{}]]}):
        assert read(message("msg", "a", data, b""), widget=True) is None
    for raw in (opened("a\n"), opened(""), opened("a" * 300), {**opened("a"), "content": None}, message("no", "a", {})):
        assert read(raw, widget=True) is None


def test_a_message_whose_comm_has_no_name_is_passed_over() -> None:
    hub = CommHub({}, "incarnation", lambda: True, lambda *batch: None)
    for id in (["a"], {"a": 1}, None, 1):
        hub.on_message(0, {"msg_type": "comm_msg", "content": {"comm_id": id, "data": {}}}, "run")
    assert not hub.held(0).openings()


def test_changes_that_follow_each_other_are_one_and_keep_their_order() -> None:
    pending = CommQueue(any_keys=True)
    for raw in (opened("a"), told("a", value=1), told("a", ["blob"], other=2), opened("b"), told("a", value=3)):
        pending.add(made(raw))
    pending.add(made(custom("a")))
    for value in range(1000):
        pending.add(made(told("a", value=value)))
    assert len(pending) == 5
    [*_, joined, between, last] = pending.take()
    assert state_of(joined) == ({"value": 3, "other": 2}, [["blob"]], [b"new"])
    assert (between.kind, state_of(last)[0]) == ("custom", {"value": 999})
    assert not pending


def test_a_page_waits_for_the_echo_of_each_of_its_changes_so_none_is_lost() -> None:
    pending = CommQueue(any_keys=False)
    for raw in (told("a", x=1), told("a", x=2), told("a", y=1), told("a", x=3, y=2)):
        pending.add(made(raw))
    assert [state_of(one)[0] for one in pending.take()] == [{"x": 2}, {"x": 3, "y": 2}]


def test_what_nobody_takes_is_bounded() -> None:
    pending = CommQueue(any_keys=True)
    for number in range(100):
        pending.add(made(custom("a", number, bytes(MOST_CUSTOM // 16))))
    left = pending.take()
    assert len(left) <= 17
    assert json.loads(left[-1].data)["content"] == 99


def test_the_least_used_goes_where_there_is_no_room() -> None:
    gone: list[str] = []
    held = OpenComms(gone.extend, most=10, most_bytes=100_000)
    for number in range(20):
        held.take(made(opened(f"c{number}")))
        held.use("c0")
    assert len(held) == 10
    assert "c0" not in gone
    assert gone == [f"c{number}" for number in range(1, 11)]
    held.take(made(opened("large", text="x" * 99_000)))
    assert len(held) < 10
    assert held.get("large") is not None


def test_10000_cells_leave_what_the_runs_that_are_known_have_used() -> None:
    sent: list[dict[str, Any]] = []
    comms = CommHub({0: lambda told, buffers: None}, "me", lambda: True, lambda batch, size: sent.append(batch))
    for number in range(10_000):
        run = f"run{number}"
        for raw in (opened(f"layout{number}"), opened(f"w{number}", layout=f"IPY_MODEL_layout{number}")):
            comms.on_message(0, raw, run)
        comms.on_shown(0, run, {VIEW: {"model_id": f"w{number}"}})
        # One of the first cell, a part of another, is changed in every cell.
        if number == 0:
            comms.on_message(0, opened("box", children=["IPY_MODEL_w0"]), run)
        comms.on_message(0, told("w0", value=number), run)
        if number >= 200:
            comms.forget(f"run{number - 200}")
        comms.flush()
    held = comms.held(0)
    assert {held.get(id) is not None for id in ("w0", "layout0", "box", "w9999", "w9800")} == {True}
    assert held.get("w9799") is None
    assert len(held) == 200 * 2 + 3
    closed = [one for batch in sent for one in batch["comms"] if one["kind"] == "close"]
    assert len(closed) == 2 * 10_000 + 1 - len(held)
    comms.on_end(0)
    assert len(held) == 0
    answer = asyncio.run(comms.sky_open_comms())
    assert (answer["open"], answer["number"]) == ([], 10_000)


def test_a_widget_that_was_let_go_is_open_again_when_it_is_shown() -> None:
    asked: list[dict[str, Any]] = []
    sent: list[dict[str, Any]] = []
    tell = {0: lambda told, buffers: asked.append(told["content"])}
    comms = CommHub(tell, "me", lambda: True, lambda batch, size: sent.extend(batch["comms"]))
    whole = {
        "layout": {"_model_name": "LayoutModel"},
        "slider": {"_model_name": "IntSliderModel", "layout": "IPY_MODEL_layout"},
        "box": {"_model_name": "BoxModel", "children": ["IPY_MODEL_slider"], "layout": "IPY_MODEL_layout"},
    }
    for id, state in whole.items():
        comms.on_message(0, opened(id, **state), "first")
    comms.forget("first")
    comms.flush()
    sent.clear()
    comms.on_shown(0, "later", {VIEW: {"model_id": "box"}})
    comms.on_shown(0, "later", {VIEW: {"model_id": "closed long ago"}})
    while asked:
        content = asked.pop()
        assert content["data"] == {"method": "request_state"}
        if content["comm_id"] in whole:
            comms.on_message(0, told(content["comm_id"], **whole[content["comm_id"]]), "")
    comms.flush()
    assert [(one["kind"], one["comm"]) for one in sent] == [("open", id) for id in whole]
    comms.forget("another")
    assert comms.held(0).get("slider") is not None
    comms.forget("later")
    assert len(comms.held(0)) == 0
