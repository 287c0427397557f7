"""Kernel messages, which user code can forge, and the events that are made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sky_jupyter.node.journal.journal import Journal, lines_of
from sky_jupyter.node.protocol import journal_events as messages
from sky_jupyter.node.protocol.journal_events import checked, end_of, event_of, parts_of


def nested(depth: int) -> Any:
    value: Any = "inside"
    for _ in range(depth):
        value = [value]
    return value


def test_messages_of_a_kernel_become_events() -> None:
    assert event_of("stream", {"name": "stderr", "text": "a"}) == {"kind": "stream", "name": "stderr", "text": "a"}
    data, metadata = {"text/plain": "1", "image/png": "cG5n"}, {"image/png": {"width": 3}}
    content = {"data": data, "metadata": metadata, "transient": {"display_id": "d"}}
    shown = {"data": data, "metadata": metadata, "display_id": "d"}
    assert event_of("display_data", content) == {"kind": "display", **shown}
    assert event_of("update_display_data", content) == {"kind": "update", **shown}
    assert event_of("execute_result", content) == {"kind": "result", "data": data, "metadata": metadata}
    assert event_of("clear_output", {"wait": True}) == {"kind": "clear", "wait": True}
    assert event_of("status", {"execution_state": "idle"}) is None
    assert event_of("comm_msg", {"data": {}}) is None


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("stream", None),
        ("stream", {}),
        ("stream", {"name": "stdout"}),
        ("stream", {"name": "stdout", "text": 5}),
        ("stream", {"name": "stdout", "text": ["a"]}),
        ("display_data", {}),
        ("display_data", {"data": "text"}),
        ("display_data", []),
        ("execute_result", {"data": None, "metadata": {}}),
    ],
)
def test_a_message_without_what_belongs_to_it_tells_nothing(kind: str, content: Any) -> None:
    assert event_of(kind, content) is None


def test_what_is_of_another_type_is_left_out() -> None:
    content = {"data": {"text/plain": "1"}, "metadata": 5, "transient": "x"}
    assert event_of("display_data", content) == {
        "kind": "display", "data": {"text/plain": "1"}, "metadata": {}, "display_id": None
    }  # fmt: skip
    assert event_of("stream", {"name": ["x"], "text": "a"}) == {"kind": "stream", "name": "stdout", "text": "a"}
    assert event_of("clear_output", {"wait": "no"}) == {"kind": "clear", "wait": False}


def test_halves_of_characters_are_replaced() -> None:
    event = event_of("stream", {"name": "stdout", "text": "ä\ud800b"})
    assert event is not None
    assert event["text"] == "ä?b"
    event = event_of("display_data", {"data": {"text/plain\ud800": "\udfff"}})
    assert event is not None
    assert event["data"] == {"text/plain?": "?"}


def test_what_is_too_large_is_named_and_the_rest_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MOST_EVENT", 2_000_000)
    data = {"text/html": "h" * 3_000_000, "image/png": "p" * 1_500_000}
    event = event_of("display_data", {"data": data, "metadata": {"image/png": {"note": "n" * 1_000_000}}})
    assert event is not None
    assert event["data"]["image/png"] == data["image/png"]
    assert event["data"]["text/plain"] == (
        "(not shown: text/html of 3.0 MB, where one output can have 2 MB. "
        "Save it to a file on the node, or return it as the cell's value)"
    )
    assert event["metadata"] == {}


def test_a_bundle_of_hundreds_of_megabytes_is_not_passed_on() -> None:
    event = event_of("display_data", {"data": {"text/plain": "<x>", "image/png": "p" * 200_000_000}})
    assert event is not None
    assert event["data"] == {"text/plain": "<x>"}
    event = event_of("execute_result", {"data": {"application/json": ["x" * 1000] * 200_000}})
    assert event is not None
    assert list(event["data"]) == ["text/plain"]
    assert "64 MB" in event["data"]["text/plain"]


@pytest.mark.parametrize("depth", [101, 900, 100_000])
def test_what_is_nested_too_deep_is_named(depth: int) -> None:
    event = event_of("display_data", {"data": {"application/json": nested(depth)}})
    assert event is not None
    assert "application/json, nested too deep" in event["data"]["text/plain"]
    assert event_of("display_data", {"data": {"application/json": nested(90)}})["data"] == {  # type: ignore[index]
        "application/json": nested(90)
    }


def test_an_end_of_the_kernel_is_as_it_was() -> None:
    content = {
        "status": "error", "bound": True, "writes": ["a"], "modules": [], "elapsed": 0.5, "ename": "E", "evalue": "v",
        "sizes": {"a": 8, "b": None}, "uses": {"a": ["f"]},
        "traceback": ["t"], "exception": None, "later": {"version": [1]},
    }  # fmt: skip
    want = {key: value for key, value in content.items() if key != "exception"}
    assert end_of(content) == {"kind": "end", **want}
    assert end_of({"status": "ok", "type": "int", "value": "gASVAg=="})["value"] == "gASVAg=="


@pytest.mark.parametrize("status", [None, 5, [], "died", "lost", "aborted", "ok\n"])
def test_an_end_without_a_status_of_its_own_is_an_error(status: Any) -> None:
    end = end_of({"status": status})
    assert end["status"] == "error"
    assert end["evalue"] == "the rank did not say how it ended"
    assert end_of(None)["status"] == "error"


def test_an_end_cannot_say_what_only_agents_say() -> None:
    forged = {
        "status": "ok",
        "kind": "stream",
        "rank": 7,
        "seq": 9,
        "text": "killed",
        "tail": ["x"],
        "why": "y",
        "t": 1,
    }
    assert end_of(forged) == {"kind": "end", "status": "ok"}


def test_fields_of_an_end_of_the_wrong_type_are_left_out() -> None:
    wrong = {
        "bound": "yes", "writes": "abc", "modules": [1, "m", None], "elapsed": "5", "ename": 5, "evalue": [],
        "traceback": {"a": 1}, "exception": ["x"], "type": 1, "large": 1, "unpicklable": 5, "later": nested(5000),
        "sizes": ["a"], "uses": "a",
    }  # fmt: skip
    assert end_of({"status": "error", **wrong}) == {"kind": "end", "status": "error", "modules": ["m"]}


def test_sizes_that_cannot_be_are_left_out() -> None:
    end = end_of({"status": "ok", "sizes": {"a": -1, "b": True, "c": 1 << 70, 5: 1, "d": 0}})
    assert end["sizes"] == {"a": None, "b": None, "c": None, "d": 0}


def test_a_value_that_cannot_be_one_is_told_to_be_missing() -> None:
    for value in (5, "ä", "v" * 3_000_000):
        end = end_of({"status": "ok", "value": value})
        assert "value" not in end
        assert end["unpicklable"] == "what the rank sent of it cannot be read"


def test_long_texts_of_an_end_are_cut() -> None:
    end = end_of({"status": "error", "evalue": "e" * 50_000_000, "traceback": ["t" * 3_000_000] * 100})
    assert end["evalue"].endswith("… (48,951,424 more characters)")
    assert sum(map(len, end["traceback"])) < 6_000_000


def test_an_agent_may_say_more_of_an_end_than_a_kernel() -> None:
    died = {"kind": "end", "rank": 1, "seq": 3, "status": "died", "text": "killed", "tail": ["a", "b"], "t": 1.5}
    assert checked(died) == died


# -- messages of any content -----------------------------------------------------------------------

halves = st.text(st.characters(exclude_categories=()), max_size=8)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | halves
    | st.binary(max_size=3)
    | st.builds(nested, st.just(300)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(halves | st.integers(), inner, max_size=4),
    max_leaves=8,
)
WORDS = """name text data metadata transient display_id wait status writes modules traceback value large unpicklable
    ename evalue exception elapsed bound kind rank seq t tail why"""
names = st.sampled_from(WORDS.split())
contents = values | st.dictionaries(names | halves, values | st.dictionaries(names | halves, values), max_size=8)
kinds = st.sampled_from(
    ["stream", "display_data", "update_display_data", "execute_result", "clear_output", "sky_end", "error"]
)


def assert_sound(event: dict[str, Any]) -> None:
    """What the journal takes and the displays rely on."""
    again = json.loads(json.dumps(event))
    kind = again["kind"]
    if kind == "stream":
        assert again["name"] in ("stdout", "stderr")
        again["text"].encode()
    elif kind in ("display", "update", "result"):
        assert all(isinstance(name, str) for name in again["data"])
        assert isinstance(again["metadata"], dict)
        assert isinstance(again.get("display_id"), (str, type(None)))
    elif kind == "end":
        assert again["status"] in ("ok", "error", "interrupted", "died", "lost")
        for field in ("writes", "modules", "traceback", "tail"):
            assert all(isinstance(item, str) for item in again.get(field, []))
        for field in ("ename", "evalue", "text", "why", "type", "value", "exception"):
            assert isinstance(again.get(field, ""), str)


@pytest.mark.slow
@settings(max_examples=300)
@given(kinds, contents)
def test_no_message_raises_and_what_comes_of_it_is_sound(kind: str, content: Any) -> None:
    event = event_of(kind, content)
    if event is not None:
        assert_sound(event)
    assert_sound(end_of(content))
    for of in ("stream", "display", "update", "result", "clear", "end"):
        try:
            event = checked(json.loads(json.dumps({**content, "kind": of})))
        except (TypeError, ValueError):
            continue  # no JSON, as an agent's events are
        if event is not None:
            assert_sound(event)


@settings(max_examples=200)
@given(values, values, values)
def test_no_header_raises(kind: Any, parent: Any, content: Any) -> None:
    for message in (
        {"msg_type": kind, "parent_header": parent, "content": content},
        {},
        {"parent_header": {"msg_id": 5}},
    ):
        of_kind, run, _ = parts_of(message)
        assert isinstance(of_kind, str)
        assert isinstance(run, str)


@pytest.mark.slow
@settings(max_examples=200)
@given(st.lists(st.tuples(kinds, contents), max_size=5))
def test_what_comes_of_messages_can_be_journalled(
    tmp_path_factory: pytest.TempPathFactory, said: list[tuple[str, Any]]
) -> None:
    events = [event for kind, content in said if (event := event_of(kind, content)) is not None]
    folder: Path = tmp_path_factory.mktemp("journal")
    journal = Journal(folder / "run.jsonl")
    lines = lines_of(journal.append([{"rank": 0, **event} for event in events]))
    assert [line["kind"] for line in lines] == [event["kind"] for event in events]
    assert lines_of(journal.read(0)[0]) or not events
