"""Requests as they are read, and what is answered to those that hold anything at all."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sky_jupyter.plugins import parse_plugins
from sky_jupyter.pool import frontend_requests
from sky_jupyter.pool.base.phases import PhaseLog
from sky_jupyter.pool.open_pools import pools
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs import journal_pages
from sky_jupyter.pool.runs.result import CellError
from tests.pool.pools import begin, local_pool, run

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
FIELDS = ("pool", "run", "rank", "ranks", "from", "count", "as", "since", "lines", "hard", "nodes", "add", "remove")
# What may be asked of a pool without its being changed.
HARMLESS = ("status", "interrupt", "log", "runs")


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with local_pool(nodes=1, ranks_per_node=2) as made:
        pools.add(made)
        run(made, "for i in range(20): print(f'line {i}')")
        yield made
    pools.discard(made)


def ask(action: str, **more: Any) -> dict[str, Any]:
    return frontend_requests.answer({"action": action, **more})


@settings(max_examples=80)
@given(content=JSON)
def test_anything_at_all_is_answered(content):
    reply = frontend_requests.answer(content)
    assert reply["status"] == "error"
    assert reply["message"]


@settings(max_examples=80)
@given(
    action=st.sampled_from(HARMLESS),
    more=st.dictionaries(st.sampled_from(FIELDS), JSON | st.sampled_from(["all", "events", "text", [0], 0, 1, -1])),
)
def test_whatever_a_request_holds_the_answer_is_json(pool, action, more):
    reply = ask(action, **more)
    assert reply["status"] in ("ok", "error")
    json.dumps(reply, allow_nan=False, ensure_ascii=False).encode()


def test_a_log_is_read_page_by_page_whoever_printed_it_and_also_from_its_end(pool):
    id = begin(pool, "import time\nfor i in range(40):\n    print(i)\n    time.sleep(0.001)").id
    pool.attend(pool.supervisor.runs[id])
    seen, start = {0: "", 1: ""}, 0
    while True:
        (page,) = ask("log", run=id, count=3, **{"from": start})["nodes"]
        assert page["from"] == start
        assert all(start <= event["seq"] < page["next"] for event in page["events"])
        for event in page["events"]:
            if event["kind"] == "stream":
                seen[event["rank"]] += event["text"]
        start = page["next"]
        if start >= page["end"]:
            break
    lines = "".join(f"{i}\n" for i in range(40))
    assert seen == {0: lines, 1: lines}
    (last,) = ask("log", run=id, rank=0, **{"from": -2})["nodes"]
    assert last["next"] == last["end"] == page["end"]
    assert all(event["seq"] >= page["end"] - 2 for event in last["events"])
    (whole,) = ask("log", run=id, rank=1, **{"as": "text"})["nodes"]
    assert whole["text"] == lines


def test_a_page_has_as_much_as_fits_and_says_where_the_next_one_begins(pool):
    id = begin(pool, "for i in range(3): print('x' * 900_000, flush=True)\nimport time\ntime.sleep(0.2)").id
    pool.attend(pool.supervisor.runs[id])
    pieces, start = 0, 0
    while True:
        (page,) = ask("log", run=id, rank=0, **{"from": start})["nodes"]
        assert page["next"] > start
        assert len(json.dumps(page)) < 4 * journal_pages.COUNT * 1000
        pieces += sum(len(event["text"]) for event in page["events"] if event["kind"] == "stream")
        start = page["next"]
        if start >= page["end"]:
            break
    assert pieces == 3 * 900_001


def test_half_characters_and_endless_numbers_are_made_fit_to_be_sent():
    assert frontend_requests.sound({"a": "\ud800x", "b": [float("nan"), 1.5], "c": {"\udfff": 1}}) == {
        "a": "?x",
        "b": [None, 1.5],
        "c": {"?": 1},
    }


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"first": 1, "next": 0, "end": 5, "data": b""},
        {"first": 0, "next": 2**70, "end": 2**71, "data": b""},
        {"first": 0, "next": 1, "end": 1, "data": "text"},
        {"first": True, "next": 1, "end": 1, "data": b""},
    ],
)
def test_a_node_that_answers_nonsense_is_named(answer):
    with pytest.raises(frontend_requests.PoolError, match="node 3 sent a page that cannot be read"):
        journal_pages.read(3, answer, None, 10)


@settings(max_examples=80)
@given(lines=st.lists(JSON.map(json.dumps) | st.text(), max_size=5), count=st.integers(1, 10))
def test_a_page_of_any_lines_is_read(lines, count):
    data = "\n".join(lines).encode(errors="replace")
    page = journal_pages.read(0, {"first": 0, "next": 5, "end": 9, "data": data}, None, count)
    assert min(5, count) <= page.next <= 9
    assert isinstance(page.text, str)


def test_answers_of_nodes_are_read_as_far_as_they_can_be_right():
    from sky_jupyter.pool.lifecycle.status import NodeStatus, take

    seen = NodeStatus()
    good = {"cores": 2, "memory": 100, "gpus": [["A100", 80]], "next": 1, "samples": [[0.5, 10, 0.25, 20]]}
    take(seen, {"incarnation": "a", "ranks": {0: {"pid": 5}}, "metrics": good}, 100.0)
    assert [sample for _, sample in seen.samples] == [(0.5, 10.0, 0.25, 20.0)]
    for bad in (None, [], {"samples": 7}, {**good, "samples": [[1], "no", [float("nan")] * 4]}, {**good, "gpus": 3}):
        take(seen, {"incarnation": "a", "ranks": [1], "metrics": bad, "accelerators": "x"}, 101.0)
    assert len(seen.samples) <= 2
    json.dumps([seen.facts, seen.metrics, list(seen.samples)], allow_nan=False)


def test_a_later_start_of_a_kind_knows_how_long_the_earlier_ones_took(pool):
    pool.registry.flush()
    told: list[Any] = []
    with local_pool(nodes=1, ranks_per_node=2, name="later") as second:
        told = second.phases.facts()
    usual = pool.phases.took()
    assert {phase["phase"] for phase in told} == set(usual)
    assert all(phase["usual"] is not None and phase["usual"] > 0 for phase in told)


def test_a_pool_that_is_being_restarted_is_not_ended_meanwhile(pool):
    with pool.changing("restarted"):
        assert ask("status")["pools"][0]["state"] == "restarting"
        for action in ("down", "restart"):
            assert "is being restarted just now: try again" in ask(action, pool="default")["message"]
    assert run(pool, "1").values == [1, 1]


def test_phases_are_told_with_their_last_lines_and_how_they_ended():
    log = PhaseLog()
    log.clear({"environment": 40.0})
    done, failed = log.begin("environment", "building"), log.begin("agent", "starting")
    for number in range(500):
        log.say(done, f"line {number}")
    done.end("done")
    failed.end("failed")
    first, second = log.facts()
    assert (first["state"], first["usual"], len(first["lines"])) == ("done", 40.0, 100)
    assert (second["state"], second["usual"], second["lines"]) == ("failed", None, [])
    assert log.facts(2)[0]["lines"] == ["line 498", "line 499"]
    assert set(log.took()) == {"environment"}


def test_a_phase_tells_what_each_node_is_at_while_it_is_on_and_later_to_who_asks_for_all():
    log = PhaseLog()
    phase = log.begin("environment", "looking")
    for node, state, line in ((0, "on", ""), (1, "on", ""), (0, "on", "building"), (1, "done", "")):
        log.on_node(node, state, line)
    zero, one = log.facts(parts=False)[0]["nodes"]
    assert (zero["node"], zero["state"], zero["line"]) == (0, "on", "building")
    assert (one["node"], one["state"], one["line"]) == (1, "done", "")
    assert zero["elapsed"] >= one["elapsed"]
    phase.end("failed")
    # Too late: nobody waits for it any more.
    log.on_node(0, "on", "still building")
    assert [part["state"] for part in log.facts()[0]["nodes"]] == ["failed", "done"]
    assert log.facts(parts=False)[0]["nodes"] == []


def test_so_many_lines_of_each_phase_come_as_are_asked_for(pool):
    (told,) = ask("status", lines=0)["pools"]
    assert {len(phase["lines"]) for phase in told["phases"]} == {0}
    assert ask("status", lines=101)["message"] == "status: 'lines' must be a number from 0 to 100"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("content", [{"action": "restart", "ranks": [1]}, {"action": "restart"}])
def test_ranks_in_a_collective_that_never_completes_are_restarted(content):
    both = (
        "import jax, jax.numpy as jnp\nfrom jax.experimental import multihost_utils as m\nrank = jax.process_index()\n"
    )
    both += "{}int(m.process_allgather(jnp.array([rank])).sum())"
    with local_pool(nodes=2, plugins=parse_plugins(["jax"]), name="jax") as pool:
        pools.add(pool)
        run(pool, "kept = 5")
        stuck = begin(pool, both.format("if rank == 0:\n    import time\n    time.sleep(600)\n"))
        while not all(
            outcome["run"] for node in ask("status", pool="jax")["pools"][0]["nodes"] for outcome in node["ranks"]
        ):
            time.sleep(0.1)
        assert ask(pool="jax", **content)["status"] == "ok"
        with pytest.raises(CellError) as caught:
            pool.attend(stuck)
        assert "its kernel was replaced" in str(caught.value.errors[1])
        pool.settle()
        assert run(pool, both.format("")).values == [1, 1]
        assert run(pool, "'kept' in globals()").values == ["ranks" in content, False]
    pools.discard(pool)
