"""What happened in a run, asked for afterwards: states, stacks, waits, values, output, calls and new kernels."""

from __future__ import annotations

import builtins
import json
import pickle
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy
import pandas
import pytest

import sky_jupyter as sky
from sky_jupyter.errors import SpecError
from sky_jupyter.magics import trace
from sky_jupyter.pool.base import run_timeline
from sky_jupyter.pool.base.run_timeline import COLUMNS, EventLog, EventRow, PoolEvents
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.result import CellError, CellResult
from sky_jupyter.pool.runs.stacks import RankStack, StackReport, note
from tests.pool.pools import local_pool, run, underway

RANK = "import os, sky_jupyter as sky\nrank = sky.instance_info().rank\n"
FRAME = ("/home/me/train.py", 9, "load_batch")


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with local_pool(nodes=2) as pool:
        yield pool


def of_kind(result: CellResult, kind: str) -> list[EventRow]:
    """The rows of a kind, by rank."""
    return sorted((row for row in result.event_rows() if row.kind == kind), key=lambda row: row.rank or 0)


def test_a_run_tells_what_each_rank_did_how_long_and_what_it_printed(pool):
    before = time.time()
    result = run(pool, f"{RANK}import time; print('é' * rank); time.sleep(0.4 * rank)", count=3)
    first, second = of_kind(result, "state")
    assert (first.what, first.node, second.what, second.node) == ("ok", 0, "ok", 1)
    assert second.seconds >= 0.4 > 0.0 < first.seconds
    assert before - 1 < first.time <= time.time()
    printed = {row.rank: row.bytes for row in of_kind(result, "output")}
    assert printed == {0: 1, 1: 3}
    (whole,) = of_kind(result, "cell")
    assert whole.what == "In[3]: ok"
    assert whole.seconds == result.elapsed
    assert {row.run for row in result.event_rows()} == {result.run}


def test_values_that_were_sent_have_their_bytes_and_what_the_nodes_have_is_not_sent_again(pool):
    namespace: dict[str, Any] = {"weights": numpy.ones(500_000), "rate": 0.1}
    first = run(pool, "weights.sum() * rate", namespace)
    sizes = {row.what: row.bytes for row in of_kind(first, "value")}
    assert sizes["weights"] > 4_000_000 > sizes["rate"]
    (sent,) = of_kind(first, "sent")
    assert sent.bytes > 4_000_000
    assert sent.seconds > 0
    assert of_kind(run(pool, "weights.sum() * rate", namespace), "sent") == []


def test_events_are_a_table_with_pandas_and_a_list_without(pool, monkeypatch):
    result = run(pool, "1")
    table = result.events
    assert list(table.columns) == list(COLUMNS)
    assert list(table[table.kind == "state"].groupby("rank").seconds.sum().index) == [0, 1]
    assert str(table.time.dt.tz) == "UTC"
    assert list(CellResult([], 0.0).events.columns) == list(COLUMNS)
    imported = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name == "pandas":
            raise ImportError(name)
        return imported(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    assert result.events == [row.to_dict() for row in result.event_rows()]


def test_a_result_that_is_pickled_keeps_its_events(pool):
    result = run(pool, "1")
    again = pickle.loads(pickle.dumps(result))
    assert again.event_rows() == result.event_rows()
    assert isinstance(again.events, pandas.DataFrame)


def test_stacks_that_were_taken_stay(pool):
    current = underway(pool, "import time\ntime.sleep(60)", count=7)
    pool.where(10.0)
    running = {row.rank: row.what for row in current.events.rows() if row.kind == "state"}
    assert running == {0: "running", 1: "running"}
    pool.interrupt(current)
    with pytest.raises(CellError) as raised:
        pool.attend(current)
    taken = of_kind(raised.value.result, "stack")
    assert {row.rank for row in taken} == {0, 1}
    assert "time.sleep(60)" in taken[0].where
    assert {row.what for row in of_kind(raised.value.result, "state")} == {"interrupted"}


def test_a_new_kernel_is_told_of_the_run_that_made_it_necessary(pool):
    with pytest.raises(CellError) as raised:
        run(pool, f"{RANK}if rank: os._exit(3)")
    pool.settle()
    (new,) = of_kind(raised.value.result, "restart")
    assert (new.rank, new.node, new.what) == (1, 1, "new kernel")
    assert new.seconds > 0
    assert {row.rank: row.what for row in of_kind(raised.value.result, "state")} == {0: "ok", 1: "died"}


def test_calls_are_told_with_their_names_ranks_and_times(pool):
    @sky.function
    def slow(seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    slow(0.2) >> pool
    # A call that takes longer than the short way allows is told of with its states.
    slow(1.0) @ pool
    with pytest.raises(TypeError):
        slow("x") >> pool
    calls = [row for row in pool.events.rows() if row.kind == "call"]
    one, both, failed = calls[-3:]
    assert (one.what, both.what, both.rank, failed.what) == ("slow: ok", "slow: ok", None, "slow: error")
    assert one.rank in (0, 1)
    assert one.seconds >= 0.2
    states = [row.rank for row in pool.events.of(both.run).rows() if row.kind == "state"]
    assert sorted(states) == [0, 1]


def test_files_and_values_that_are_fetched_have_their_bytes(pool, tmp_path):
    result = run(pool, "bytes(2_000_000)")
    assert len(result[1]) == 2_000_000
    (fetched,) = of_kind(result, "fetched")
    assert fetched.bytes > 2_000_000
    (tmp_path / "data").write_bytes(bytes(1000))
    pool.put(tmp_path / "data", str(tmp_path / "there"))
    put = pool.events.own.rows()[-1]
    assert (put.kind, put.bytes) == ("put", 1000)


def test_a_run_of_another_notebook_tells_what_the_journals_have(pool, monkeypatch):
    mine = run(pool, f"{RANK}print('x' * 10)", count=4)
    # As in a notebook that attaches: it knows nothing but the nodes.
    monkeypatch.setattr(pool.supervisor, "events", PoolEvents())
    known = pool.log(mine.run)
    assert {row.clock for row in known.event_rows()} == {"node"}
    kinds = [row.kind for row in known.event_rows()]
    assert sorted(kinds) == ["cell", "output", "output", "state", "state"]
    assert [row.bytes for row in of_kind(known, "output")] == [11, 11]
    for here, there in zip(of_kind(mine, "state"), of_kind(known, "state"), strict=True):
        # One machine has one clock.
        assert there.seconds == here.seconds
        assert abs(there.time - here.time) < 60


def test_a_trace_has_the_structure_that_its_format_asks_for(pool, tmp_path):
    result = run(pool, f"{RANK}import time; time.sleep(0.1)", {"data": 1}, count=9)
    file = tmp_path / "out.json"
    told = trace.write(pool, result.run, str(file))
    assert told.startswith(f"run {result.run}: ")
    assert str(file) in told
    read = json.loads(file.read_text(encoding="utf-8"))
    check(read)
    names = {
        (one["pid"], one["tid"]): one["args"]["name"] for one in read["traceEvents"] if one["name"] == "thread_name"
    }
    spans = {names[one["pid"], one["tid"]]: one for one in read["traceEvents"] if one["ph"] == "X"}
    assert sorted(spans) == ["cells", "rank 0", "rank 1"]
    assert spans["cells"]["name"] == "In[9]: ok"
    assert spans["rank 1"]["dur"] >= 100_000
    state = next(row for row in of_kind(result, "state") if row.rank == 1)
    assert spans["rank 1"]["ts"] == round(state.time * 1e6)


def check(read: dict[str, Any]) -> None:
    """Assert what the Trace Event Format asks of each event, and that spans of a thread nest."""
    events = read["traceEvents"]
    named = {"process": set(), "thread": set()}
    for event in events:
        assert event["ph"] in "MXibe"
        assert isinstance(event["ts"], int)
        assert event["pid"] > 0
        if event["ph"] == "M" and event["name"].endswith("_name"):
            assert isinstance(event["args"]["name"], str)
            named[event["name"][:-5]].add((event["pid"], event["tid"]))
        if event["ph"] == "X":
            assert isinstance(event["dur"], int)
            assert event["dur"] > 0
        if event["ph"] == "i":
            assert event["s"] == "t"
    real = [event for event in events if event["ph"] != "M"]
    assert {event["pid"] for event in real} == {pid for pid, _ in named["process"]}
    assert {(event["pid"], event["tid"]) for event in real} == named["thread"]
    assert [event["ts"] for event in real] == sorted(event["ts"] for event in real)
    begun = [event["id"] for event in events if event["ph"] == "b"]
    assert sorted(begun) == sorted(event["id"] for event in events if event["ph"] == "e")
    around: dict[tuple[int, int], list[int]] = {}
    for event in real:
        if event["ph"] == "X":
            ends = around.setdefault((event["pid"], event["tid"]), [])
            while ends and ends[-1] <= event["ts"]:
                ends.pop()
            end = event["ts"] + event["dur"]
            assert not ends or end <= ends[-1]
            ends.append(end)


def test_a_trace_has_calls_that_were_cancelled_before_they_began_with_the_notebook():
    rows = [EventRow("call", 20.0, 1.0, rank, -1, "f: cancelled") for rank in (0, 9)]
    read = trace.trace_of(rows, "big")
    check(read)
    lanes = [one["args"]["name"] for one in read["traceEvents"] if one["name"] in ("process_name", "thread_name")]
    assert lanes == ["notebook", "calls on all ranks"]
    assert [(one["name"], one["cat"]) for one in read["traceEvents"] if one["ph"] == "X"] == [
        ("f: cancelled", "call")
    ] * 2


def test_a_trace_of_all_that_a_pool_knows_has_every_kind(pool, tmp_path):
    rows = [
        EventRow("state", 10.0, 5.0, 0, 0, "ok"),
        # It seems to begin before the one before it has ended.
        EventRow("state", 14.5, 3.0, 0, 0, "error"),
        EventRow("wait", 15.5, 1.0, 0, 0, "waits in all_reduce", where="train.py:9"),
        EventRow("stack", 16.0, None, 0, 0, "waits in all_reduce", where="train.py:9"),
        EventRow("restart", 18.0, 0.5, 1, 3, "new kernel"),
        EventRow("restart", 18.0, 0.5, None, None, "frameworks set up again"),
        EventRow("lost", 19.0, None, None, 3, "it was taken away"),
        EventRow("sent", 9.0, 0.5, what="x", bytes=5),
        EventRow("put", 9.2, 0.5, what="y", bytes=6),
        EventRow("value", 9.0, None, what="x", bytes=5),
        EventRow("output", 11.0, 2.0, 0, 0, bytes=7),
        EventRow("call", 20.0, 1.0, what="f: ok"),
        EventRow("cell", 10.0, 5.0, what="In[1]: ok"),
    ]
    read = json.loads(json.dumps(trace.trace_of(rows, "big")))
    check(read)
    assert {one["cat"] for one in read["traceEvents"] if one["ph"] == "X"} >= {"state", "wait", "restart", "call"}
    assert {one["name"] for one in read["traceEvents"] if one["ph"] == "b"} == {"sent: x", "put: y"}
    processes = [one["args"]["name"] for one in read["traceEvents"] if one["name"] == "process_name"]
    assert processes == ["notebook", "big: node 0", "big: node 3"]
    (stack,) = [one for one in read["traceEvents"] if one["ph"] == "i" and one["cat"] == "stack"]
    assert stack["args"]["where"] == "train.py:9"
    told = trace.write(pool, None, str(tmp_path / "all.json"))
    assert "pool default: " in told
    check(json.loads((tmp_path / "all.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ((None, None), (None, None)),
        (("3F9a", None), ("3f9a", None)),
        (("out.json", None), (None, "out.json")),
        (("3f9a", "abc"), ("3f9a", "abc")),
    ],
)
def test_one_word_behind_trace_is_a_run_or_a_file(words, meant):
    assert trace.targets(*words) == meant


def test_two_words_behind_trace_begin_with_a_run():
    with pytest.raises(SpecError, match=r"3f9a2c1b, before the file, not 'out\.json'"):
        trace.targets("out.json", "3f9a")


def test_a_wait_that_is_seen_again_is_one_and_ends_where_the_rank_goes_on():
    log = EventLog("run")

    def see(doing: str) -> None:
        note(log, StackReport((RankStack(1, doing, (FRAME,), call="psum"),)), per_node=1)

    for doing in ("waits", "waits", "runs", "waits"):
        see(doing)
    waits = [row for row in log.rows() if row.kind == "wait"]
    assert [(row.rank, row.node) for row in waits] == [(1, 1), (1, 1)]
    assert waits[0].what.startswith("waits in psum")
    assert waits[0].seconds > 0.0
    assert waits[1].seconds == 0.0
    assert "load_batch" in waits[0].where
    assert len([row for row in log.rows() if row.kind == "stack"]) == 4


@pytest.mark.parametrize("told", [{"t": 1e12, "elapsed": 1e12}, {"t": -1.0, "elapsed": -1e12}, {"t": "x"}])
def test_times_that_cannot_be_leave_the_table_readable(told):
    log = EventLog("run")
    log.clock = run_timeline.NODE
    log.ranks_began({0: 0}, time.time() - 1.0)
    log.printed(0, 0, {**told, "text": 5})
    log.rank_ended(0, 0, {**told, "status": "ok"})
    log.ended("cell", "all", 1.0)
    table = run_timeline.table(log.rows())
    assert sorted(table.kind) == ["cell", "output", "state"]
    assert (table.seconds >= 0).all()


def test_a_log_is_bounded_by_kind_and_a_pool_forgets_its_oldest_runs(monkeypatch):
    log = EventLog("first")
    log.note("state", "ok", rank=0, node=0)
    for _ in range(2 * run_timeline.MOST_ROWS):
        log.note("stack")
    assert log.size == run_timeline.MOST_ROWS + 1
    assert [row.what for row in log.rows() if row.kind == "state"] == ["ok"]
    monkeypatch.setattr(run_timeline, "MOST_ROWS_OF_RUNS", run_timeline.MOST_ROWS + 10)
    monkeypatch.setattr(run_timeline, "_COUNTED", 1)
    events = PoolEvents()
    events.add(log)
    events.add(EventLog("second"))
    assert events.of("first") is log
    later = EventLog("third")
    deque(map(later.note, ["stack"] * 20), maxlen=0)
    events.add(later)
    assert events.of("first") is None
    assert events.of("second") is not None
    monkeypatch.setattr(run_timeline, "MOST_RUNS", 2)
    events.add(EventLog("fourth"))
    assert (events.of("second"), events.of("third")) == (None, later)
