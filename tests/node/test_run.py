"""A run as its agent sees it: what is gathered, forwarded and bounded, and what is left of it after a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sky_jupyter.node.journal.journal import Journal, lines_of
from sky_jupyter.node.journal.run_record import RunRecord

MEBI = 1 << 20


def text(words: str, name: str = "stdout") -> dict[str, Any]:
    return {"kind": "stream", "name": name, "text": words}


def end(status: str = "ok") -> dict[str, Any]:
    return {"kind": "end", "status": status}


def everything(run: RunRecord) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    at = 0
    while at < run.journal.next:
        data, at = run.journal.read(at)
        events += lines_of(data)
    return events


def test_text_that_continues_is_joined_and_the_rest_keeps_its_order(tmp_path: Path) -> None:
    run = RunRecord("r", [0, 1], tmp_path / "r.jsonl")
    for event in (text("a"), text("b"), text("c", "stderr"), text("d")):
        run.add(0, event)
    run.add(1, text("e"))
    run.add(0, end())
    assert not run.over.is_set()
    run.add(1, end())
    assert run.over.is_set()
    batch = run.take()
    assert batch is not None
    first, count, data = batch
    assert (first, count) == (0, 6)
    assert [event.get("text") for event in lines_of(data)] == ["ab", "c", "d", "e", None, None]
    assert run.take() is None


def test_the_begin_is_event_0_and_is_forwarded_with_the_rest(tmp_path: Path) -> None:
    begin = {"mine": [0, 1], "ranks": [0, 1, 2], "t": 1.5}
    run = RunRecord("r", [0, 1], tmp_path / "r.jsonl", begin=begin)
    run.add(0, text("a"))
    batch = run.take()
    assert batch is not None
    events = lines_of(batch[2])
    assert events[0] == {**begin, "kind": "begin", "seq": 0}
    assert events[1]["seq"] == 1
    assert begin == {"mine": [0, 1], "ranks": [0, 1, 2], "t": 1.5}


def test_a_rank_ends_once_and_only_if_it_took_part(tmp_path: Path) -> None:
    run = RunRecord("r", [0], tmp_path / "r.jsonl")
    run.add(1, end())
    for _ in range(1000):
        run.add(0, end())
    run.settle()
    assert [(event["rank"], event["kind"]) for event in everything(run)] == [(0, "end")]


def test_a_long_text_becomes_several_events(tmp_path: Path) -> None:
    run = RunRecord("r", [0], tmp_path / "r.jsonl")
    words = "".join(f"{number:>9}\n" for number in range(MEBI // 2))
    run.add(0, text(words))
    run.settle()
    events = everything(run)
    assert "".join(event["text"] for event in events) == words
    assert max(len(event["text"]) for event in events) <= 2 * MEBI


def test_a_small_journal_has_both_ends_of_a_flood_that_comes_in_long_texts(tmp_path: Path) -> None:
    run = RunRecord("r", [0], tmp_path / "r.jsonl", limit=MEBI)
    for start in range(0, 200_000, 10_000):
        run.add(0, text("".join(f"{number:>99}\n" for number in range(start, start + 10_000))))
    run.settle()
    events = everything(run)
    assert [event["kind"] for event in events].count("gap") == 1
    gap = next(event for event in events if event["kind"] == "gap")
    assert abs(gap["bytes"] - 19 * MEBI) < MEBI
    head, tail = (
        [e["text"] for e in events if e["kind"] == "stream" and (e["seq"] < gap["seq"]) is ours]
        for ours in (True, False)
    )
    assert "".join(head).split()[0] == "0"
    assert "".join(tail).split()[-1] == "199999"
    assert len("".join(head)) > 0.15 * MEBI
    assert len("".join(tail)) > 0.5 * MEBI


def test_what_nobody_takes_is_bounded_and_can_be_read(tmp_path: Path) -> None:
    run = RunRecord("r", [0], tmp_path / "r.jsonl")
    for number in range(60):
        run.add(0, text(f"{number:>{MEBI}}"))
        run.add(0, text("", "stderr"))
        assert sum(len(data) for _, _, data in run.unsent) <= 9 * MEBI
        assert sum(len(event["text"]) for event in run.pending) <= 4 * MEBI
    batch = run.take()
    assert batch is not None
    first, count, data = batch
    assert first > 60
    assert first + count == run.journal.next == 120
    assert [event["seq"] for event in lines_of(data)] == list(range(first, first + count))
    before = [event for event in everything(run) if event["seq"] < first]
    assert len(before) == first
    assert run.take() is None


def test_what_nobody_takes_of_agents_that_share_a_process_has_the_bound_of_one(tmp_path: Path) -> None:
    runs = [RunRecord("r", [rank], tmp_path / f"{rank}.jsonl", sharers=8) for rank in range(8)]
    for number in range(40):
        for rank, run in enumerate(runs):
            run.add(rank, text(f"{number:>{MEBI // 10}}\n"))
        assert sum(len(data) for run in runs for _, _, data in run.unsent) <= 9 * MEBI
        assert sum(len(event["text"]) for run in runs for event in run.pending) <= 4 * MEBI
    for run in runs:
        batch = run.take()
        assert batch is not None
        assert batch[0] + batch[1] == run.journal.next
        assert "".join(event["text"] for event in everything(run)).split() == [str(number) for number in range(40)]


def test_one_batch_is_kept_for_its_taker_however_large(tmp_path: Path) -> None:
    run = RunRecord("r", [0], tmp_path / "r.jsonl")
    run.add(0, text("first"))
    run.settle()
    run.add(0, {"kind": "display", "data": {"text/html": "h" * 20 * MEBI}, "metadata": {}, "display_id": None})
    batch = run.take()
    assert batch is not None
    assert batch[:2] == (1, 1)
    assert lines_of(run.journal.read(0)[0])[0]["text"] == "first"


def test_large_displays_that_come_at_once_do_not_gather(tmp_path: Path) -> None:
    run = RunRecord("r", [0], tmp_path / "r.jsonl")
    for _ in range(10):
        run.add(0, {"kind": "display", "data": {"image/png": "i" * 3 * MEBI}, "metadata": {}, "display_id": None})
        assert len(run.pending) <= 1
        assert sum(len(data) for _, _, data in run.unsent) <= 9 * MEBI


def test_after_its_agents_death_a_run_is_over_and_its_ranks_are_lost(tmp_path: Path) -> None:
    run = RunRecord("r", [2, 3], tmp_path / "r.jsonl", begin={"mine": [2, 3]})
    run.add(2, text("before"))
    run.add(3, end())
    run.settle()
    after = RunRecord.reopen("r", tmp_path / "r.jsonl")
    assert after.over.is_set()
    assert after.replied
    assert after.left == set()
    events = everything(after)
    assert [event["seq"] for event in events] == [0, 1, 2, 3]
    lost = events[3]
    assert (lost["kind"], lost["rank"], lost["status"]) == ("end", 2, "lost")
    assert lost["text"] == "the agent of its node had ended"
    batch = after.take()
    assert batch is not None
    assert batch[:2] == (3, 1)
    # Once is enough, however often agents die.
    again = RunRecord.reopen("r", tmp_path / "r.jsonl")
    assert everything(again) == events
    assert again.take() is None


def test_a_run_that_was_over_is_as_it_was(tmp_path: Path) -> None:
    run = RunRecord("r", [0], tmp_path / "r.jsonl", begin={"mine": [0]})
    run.add(0, end())
    run.settle()
    after = RunRecord.reopen("r", tmp_path / "r.jsonl")
    assert everything(after) == everything(run)
    assert after.take() is None


def test_a_run_whose_begin_cannot_be_read_is_over(tmp_path: Path) -> None:
    for mine in (None, 5, "01", {"0": 1}, [[], {}, -1, True, 1.5]):
        journal = Journal(tmp_path / "r.jsonl")
        journal.append([{"kind": "begin", "mine": mine}, {"rank": 0, **text("a")}])
        after = RunRecord.reopen("r", tmp_path / "r.jsonl")
        assert after.over.is_set()
        assert after.journal.next == 2
        journal.remove()
    assert RunRecord.reopen("r", tmp_path / "nothing.jsonl").over.is_set()
