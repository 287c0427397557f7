"""The journal: what is kept within its limit, on a full disk, after a crash, and from files of any content."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import textwrap
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sky_jupyter.node.journal.journal import MAX_READ, Journal, lines_of
from sky_jupyter.node.journal.spare_files import FileRecycler

ROOT = Path(__file__).resolve().parents[2]


def text(number: int, size: int = 100, rank: int = 0) -> dict[str, Any]:
    return {"rank": rank, "kind": "stream", "name": "stdout", "text": f"{number:>{size}}\n"}


def everything(journal: Journal, start: int = 0) -> list[dict[str, Any]]:
    """All events from ``start`` on as a reader gets them; they stand for each number once."""
    events: list[dict[str, Any]] = []
    at = start
    while at < journal.next:
        data, following = journal.read(at)
        assert following > at
        for event in lines_of(data):
            assert event["seq"] == at, (event, at)
            at += event.get("count", 1) if event["kind"] == "gap" else 1
            events.append(event)
        assert at == following
    return events


def gaps(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["kind"] == "gap"]


def size_on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@given(st.lists(st.text(st.characters(), max_size=40), min_size=1, max_size=20))
@settings(max_examples=50)
def test_any_text_comes_back_also_after_a_crash(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("any") / "run.jsonl"
    journal = Journal(path)
    journal.append([{"rank": 0, "kind": "stream", "name": "stdout", "text": one} for one in texts])
    assert [event["text"] for event in everything(journal)] == texts
    assert [event["text"] for event in everything(Journal.reopen(path))] == texts


# -- within the limit ------------------------------------------------------------------------------


def test_events_are_numbered_and_come_back_as_they_were_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.jsonl")
    first = journal.append([text(0), text(1)])
    second = journal.append([{"rank": 0, "kind": "end", "status": "ok"}])
    assert journal.next == 3
    assert journal.read(0) == (first + second, 3)
    assert journal.read(2) == (second, 3)
    assert journal.read(-5) == (first + second, 3)
    assert journal.read(3) == journal.read(10**9) == (b"", 3)
    assert journal.ended == {0}


def test_a_reading_takes_about_four_mebibytes_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.jsonl")
    written = b"".join(journal.append([text(number, 1000)]) for number in range(10_000))
    data, following = journal.read(0)
    assert MAX_READ <= len(data) < MAX_READ + 2000
    assert data == written[: len(data)]
    assert 0 < following < 10_000
    assert (
        b"".join(json.dumps(event, separators=(",", ":")).encode() + b"\n" for event in everything(journal)) == written
    )


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_the_first_and_the_newest_output_are_kept_and_a_gap_says_how_much_is_not(tmp_path: Path, step: int) -> None:
    limit = 100_000
    journal = Journal(tmp_path / "run.jsonl", limit)
    size = len(json.dumps({**text(0), "seq": 1000}, separators=(",", ":"))) + 1
    journal.append([{"kind": "begin", "mine": [0]}])
    for start in range(0, 5000, step):
        journal.append([text(number) for number in range(start, min(5000, start + step))])
        assert size_on_disk(tmp_path) <= limit + 4000
    events = everything(journal)
    (gap,) = gaps(events)
    place = events.index(gap)
    assert events[0] == {"kind": "begin", "mine": [0], "seq": 0}
    assert 0.15 * limit < place * size < 0.3 * limit
    assert 0.5 * limit < (len(events) - place) * size < 0.8 * limit
    assert int(events[-1]["text"]) == 4999
    assert gap["count"] == 5001 - len(events) + 1
    assert abs(gap["bytes"] - gap["count"] * size) < gap["count"] * 3
    assert gap["why"] == "journal limit 100 kB"
    assert gap["streams"] == [[0, "stdout", gap["bytes"]]]


def test_a_reader_that_begins_in_the_gap_is_told_of_the_rest_of_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.jsonl", 50_000)
    journal.append([text(number) for number in range(3000)])
    (whole,) = gaps(everything(journal))
    middle = whole["seq"] + whole["count"] // 2
    (rest,) = gaps(everything(journal, middle))
    assert rest["seq"] == middle
    assert rest["seq"] + rest["count"] == whole["seq"] + whole["count"]
    assert rest["bytes"] == pytest.approx(whole["bytes"] / 2, rel=0.01)


def test_ends_outlive_the_output_around_them(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.jsonl", 50_000)
    for number in range(3000):
        journal.append([text(number, rank=number % 3)])
        if number % 1000 == 500:
            journal.append([{"rank": number // 1000, "kind": "end", "status": "ok", "value": "v" * 100}])
    events = everything(journal)
    assert [event["rank"] for event in events if event["kind"] == "end"] == [0, 1, 2]
    assert len(gaps(events)) > 1
    assert {stream[0] for gap in gaps(events) for stream in gap["streams"]} == {0, 1, 2}
    assert everything(Journal.reopen(tmp_path / "run.jsonl", 50_000)) == events


def test_an_event_that_is_larger_than_a_quarter_of_the_limit_is_a_gap_of_its_own(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.jsonl", 10_000)
    line = journal.append([text(0), text(1, 9000), text(2)])
    assert len(line) > 9000  # which is forwarded all the same
    events = everything(journal)
    assert [event["kind"] for event in events] == ["stream", "gap", "stream"]
    assert events[1]["why"] == "journal limit 10 kB"
    assert size_on_disk(tmp_path) < 2000


def test_an_end_is_kept_however_large(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.jsonl", 10_000)
    journal.append([{"rank": 0, "kind": "end", "status": "ok", "value": "v" * 20_000}])
    journal.append([text(number) for number in range(1000)])
    assert len(everything(journal)[0]["value"]) == 20_000


def test_a_line_longer_than_a_reading_comes_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.jsonl")
    journal.append([text(0), text(1, 3 * MAX_READ), text(2)])
    assert [len(event["text"]) for event in everything(journal)] == [101, 3 * MAX_READ + 1, 101]


def test_events_that_are_on_the_disk_cost_no_memory_each(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.jsonl")
    tracemalloc.start()
    try:
        for _ in range(10):
            journal.append([{"rank": 0, "kind": "clear", "wait": False} for _ in range(1000)])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert journal.next == 10_000
    assert held < 200_000
    assert lines_of(journal.read(9_990)[0])[0]["seq"] == 9_990


def test_many_rounds_of_random_sizes_stay_whole_and_within_the_limit(tmp_path: Path) -> None:
    chance = random.Random(7)
    for round in range(12):
        folder = tmp_path / str(round)
        folder.mkdir()
        limit = chance.choice([2000, 20_000, 200_000])
        journal = Journal(folder / "run.jsonl", limit)
        for _ in range(chance.randrange(100)):
            journal.append([text(0, chance.choice([1, 50, 500, 5000])) for _ in range(chance.choice([0, 1, 2, 50]))])
        held = sum(path.stat().st_size for path in folder.iterdir() if path.suffix[1:].isdigit())
        assert held <= limit
        events = everything(journal)
        assert everything(Journal.reopen(folder / "run.jsonl", limit)) == events


def test_what_is_no_json_is_replaced_and_an_end_stays_one(tmp_path: Path) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    circle: list[Any] = []
    circle.append(circle)
    journal = Journal(tmp_path / "run.jsonl")
    for value in (object(), deep, circle, {("a",): 1}, 10**6000, b"bytes"):
        journal.append([{"rank": 3, "kind": "display", "data": value}, {"rank": 3, "kind": "end", "value": value}])
    events = everything(journal)
    assert [event["kind"] for event in events][:2] == ["notice", "end"]
    assert len(events) == 12
    assert events[1]["rank"] == 3
    assert events[1]["status"] == "error"


# -- on a disk that takes no more ------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of its own with 256 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid():
        pytest.skip("mounting a file system needs root")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.decode()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Leave no byte free."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return path


@pytest.mark.root
def test_on_a_full_disk_the_run_goes_on_and_says_once_that_nothing_is_kept(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Journal, "patience", 0.0)
    journal = Journal(small_disk / "run.jsonl")
    journal.append([{"kind": "begin", "mine": [0]}, *(text(number) for number in range(100))])
    filler = fill(small_disk)
    seen = b""
    for number in range(100, 1000):
        seen += journal.append([text(number)])
    seen += journal.append([{"rank": 0, "kind": "end", "status": "ok"}])
    # All are forwarded, with each number once.
    forwarded = lines_of(seen)
    assert [event["seq"] for event in forwarded] == list(range(101, journal.next))
    (notice,) = [event for event in forwarded if event["kind"] == "notice"]
    assert notice["text"] == "the disk of this node is full: output is shown, but not kept"
    # What is on the disk is whole; of the rest a gap says why, and the end is there.
    events = everything(journal)
    assert [event["kind"] for event in events[:101]] == ["begin", *["stream"] * 100]
    assert [event["kind"] for event in events[-2:]] == ["gap", "end"]
    assert events[-2]["why"] == "the disk of this node is full"
    for path in small_disk.glob("run.jsonl.0*"):
        assert path.read_bytes().endswith(b"\n")
    # An agent that dies now has given no number twice.
    after = Journal.reopen(small_disk / "run.jsonl")
    assert after.next == journal.next
    # With room again, it keeps again.
    filler.unlink()
    journal.append([text(1000)])
    assert everything(journal)[-1]["text"] == text(1000)["text"]
    assert [event["kind"] for event in everything(journal)[-3:]] == ["gap", "end", "stream"]
    assert everything(Journal.reopen(small_disk / "run.jsonl")) == everything(journal)


@pytest.mark.root
def test_a_disk_that_is_full_from_the_start_costs_no_output(small_disk: Path) -> None:
    fill(small_disk)
    journal = Journal(small_disk / "run.jsonl")
    forwarded = lines_of(journal.append([{"kind": "begin", "mine": [0]}, text(0)]))
    assert [event["kind"] for event in forwarded] == ["begin", "stream", "notice"]
    assert [event["kind"] for event in everything(journal)] == ["begin", "gap"]
    journal.remove()
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


@pytest.mark.root
def test_a_limit_that_a_small_disk_cannot_hold_is_of_no_harm(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "patience", 0.0)
    journal = Journal(small_disk / "run.jsonl", 10 << 20)
    for number in range(0, 20_000, 50):
        journal.append([text(n) for n in range(number, number + 50)])
    events = everything(journal)
    assert int(events[0]["text"]) == 0
    assert events[-1]["kind"] == "gap"
    assert events[-1]["why"] == "the disk of this node is full"


def test_a_file_that_may_not_grow_is_followed_by_another_and_by_a_gap_where_none_may(tmp_path: Path) -> None:
    """By the limit on the size of files, which needs no root; in a process of its own."""
    program = textwrap.dedent(
        """
        import json, resource, sys
        from pathlib import Path
        from sky_jupyter.node.journal.journal import Journal, lines_of
        Journal.patience = 0.0
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        journal = Journal(Path(sys.argv[1]) / "run.jsonl")
        def say(first, last):
            events = [{"rank": 0, "kind": "stream", "name": "stdout", "text": str(n)} for n in range(first, last)]
            return lines_of(journal.append(events))
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
        said = say(0, 100)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        said += say(100, 200)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        said += say(200, 300)
        kept, at = [], 0
        while at < journal.next:
            data, at = journal.read(at)
            kept += lines_of(data)
        print(json.dumps([said, kept]))
        """
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    said, kept = json.loads(done.stdout)
    assert [event["seq"] for event in said] == list(range(301))
    (notice,) = [event for event in said if event["kind"] == "notice"]
    assert notice["text"].startswith("the disk of this node cannot be written (File too large)")
    (gap,) = gaps(kept)
    assert (gap["seq"], gap["count"]) == (100, 101)
    assert [event["text"] for event in kept if event["kind"] == "stream"] == [
        str(n) for n in [*range(100), *range(200, 300)]
    ]
    assert len(list(tmp_path.glob("run.jsonl.0*"))) > 2


def test_a_folder_that_is_gone_costs_no_output(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    journal = Journal(folder / "run.jsonl")
    journal.append([text(0)])
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    forwarded = lines_of(journal.append([text(1)]))
    assert [event["kind"] for event in forwarded] == ["stream", "notice"]
    assert "No such file" in forwarded[1]["text"]
    assert [event["kind"] for event in everything(journal)] == ["gap", "gap"]


# -- its files -------------------------------------------------------------------------------------


def test_what_was_written_stays_readable_after_closing_and_is_gone_after_removing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.jsonl", 20_000)
    other = Journal(tmp_path / "run.jsonl2")
    other.append([text(0)])
    journal.append([text(number) for number in range(1000)])
    journal.close()
    kept = everything(journal)
    assert len(lines_of(journal.append([text(1000)]))) == 1
    assert everything(journal)[:-1] == kept
    assert everything(journal)[-1]["why"] == "the run was forgotten"
    assert Journal.found(tmp_path) == [tmp_path / "run.jsonl", tmp_path / "run.jsonl2"]
    journal.remove()
    assert Journal.found(tmp_path) == [tmp_path / "run.jsonl2"]
    assert everything(other)


def test_no_descriptor_is_held(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    journals = [Journal(tmp_path / f"{number}.jsonl") for number in range(50)]
    for journal in journals:
        journal.append([text(0)])
        journal.read(0)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("cut", [1, 50, 100])
def test_after_a_crash_a_broken_last_line_is_dropped_and_numbers_go_on(tmp_path: Path, cut: int) -> None:
    journal = Journal(tmp_path / "run.jsonl")
    journal.append([{"kind": "begin", "mine": [0, 1]}, text(1), {"rank": 1, "kind": "end", "status": "ok"}, text(3)])
    (path,) = tmp_path.glob("run.jsonl.0*")
    path.write_bytes(path.read_bytes()[:-cut])
    after = Journal.reopen(tmp_path / "run.jsonl")
    assert after.next == 3
    assert after.begin == {"kind": "begin", "mine": [0, 1], "seq": 0}
    assert after.ended == {1}
    after.append([text(3)])
    assert [event["seq"] for event in everything(after)] == [0, 1, 2, 3]
    assert everything(Journal.reopen(tmp_path / "run.jsonl")) == everything(after)


def test_a_line_that_was_broken_later_costs_what_follows_it_in_its_file_and_no_number(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.jsonl")
    journal.append([text(number) for number in range(100)])
    (path,) = tmp_path.glob("run.jsonl.0*")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] + b"\0\0" + data[len(data) // 2 :])
    after = Journal.reopen(tmp_path / "run.jsonl")
    assert after.next == 100
    events = everything(after)
    assert events[-1]["kind"] == "gap"
    assert 40 < len(events) < 60


def test_files_that_change_under_a_journal_are_read_as_a_gap(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.jsonl")
    journal.append([text(number) for number in range(100)])
    (path,) = tmp_path.glob("run.jsonl.0*")
    path.write_bytes(path.read_bytes()[:1000])
    events = everything(journal)
    assert events[-1]["kind"] == "gap"
    assert events[-1]["why"] == "the journal's file cannot be read any more"
    assert events[-1]["seq"] + events[-1]["count"] == 100


# -- files and lines of any content ----------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)
fields = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["stream", "gap", "end", "begin", "notice", "display"]) | json_values,
        "seq": st.integers(-2, 30) | st.sampled_from([2**53, 2**63, 10**30, -(10**30), 1.0, True]) | json_values,
        "count": st.integers(-2, 30) | st.sampled_from([2**53, 10**30]) | json_values,
        "bytes": st.integers(-2, 30) | json_values,
        "rank": st.integers(-2, 5) | json_values,
        "mine": json_values,
        "why": json_values,
        "streams": json_values
        | st.lists(st.tuples(st.integers(-1, 3), st.sampled_from(["stdout", "x"]), st.integers())),
        "text": json_values,
    },
)
lines = st.one_of(
    fields.map(lambda event: json.dumps(event).encode() + b"\n"),
    st.binary(max_size=60),
    st.sampled_from(
        [b"[" * 20_000, b'{"a":' * 20_000, b"\n", b"{}\n", b"[]\n", b"9" * 10_000, b"\xff\xfe{}", b"NaN\n"]
    ),
)
files = st.lists(lines, max_size=8).map(b"".join)


@pytest.mark.slow
@settings(max_examples=300)
@given(files)
def test_lines_of_raises_nothing_but_value_errors(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert all(isinstance(event, dict) for event in lines_of(data))


@pytest.mark.slow
@settings(max_examples=200)
@given(
    st.dictionaries(
        st.sampled_from(["000000000000", "000000000003", "000000000009", "held", "mark", "999999999999999999"]), files
    )
)
def test_any_files_can_be_reopened_read_and_written_on(
    tmp_path_factory: pytest.TempPathFactory, contents: dict[str, bytes]
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    for name, data in contents.items():
        (folder / f"run.jsonl.{name}").write_bytes(data)
    journal = Journal.reopen(folder / "run.jsonl", 1000)
    start = journal.next
    covered(journal)
    journal.append([text(0)])
    journal.append([text(number) for number in range(8)])
    assert journal.next == start + 9
    covered(journal)
    covered(Journal.reopen(folder / "run.jsonl", 1000))
    journal.remove()
    assert Journal.found(folder) == []


def covered(journal: Journal) -> None:
    """Reading goes forward to the end, from the first number and from some others."""
    for start in (0, 1, 5, journal.next // 2, journal.next - 1, journal.next):
        at, rounds = max(0, start), 0
        while at < journal.next:
            _, following = journal.read(at)
            assert at < following <= journal.next
            at, rounds = following, rounds + 1
            assert rounds < 100


@settings(max_examples=200)
@given(data=st.data())
def test_a_journal_cut_or_overwritten_anywhere_gives_no_number_twice(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    journal = Journal(folder / "run.jsonl", 4000)
    for number in range(data.draw(st.integers(1, 60))):
        journal.append([text(number, 20)])
    path = data.draw(st.sampled_from(sorted(folder.iterdir())))
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, max(0, len(content) - 1)))
    content[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path.write_bytes(content)
    after = Journal.reopen(folder / "run.jsonl", 4000)
    # The lines that were hurt may be the last of all.
    assert after.next >= journal.next - 2
    covered(after)


def test_files_of_journals_that_are_gone_become_those_of_new_ones(tmp_path: Path) -> None:
    spares = FileRecycler(tmp_path)
    numbers: set[int] = set()
    for number in range(20):
        journal = Journal(tmp_path / f"{number}.jsonl", spares=spares)
        journal.append([{"kind": "begin", "number": number}])
        again = Journal.reopen(tmp_path / f"{number}.jsonl")
        assert again.begin is not None
        assert again.begin["number"] == number
        assert again.next == journal.next == 1
        numbers |= {path.stat().st_ino for path in tmp_path.iterdir()}
        journal.remove()
        assert not Journal.found(tmp_path)
    assert len(numbers) == 2
    FileRecycler(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_spare_file_has_nothing_of_the_journal_that_it_was(tmp_path: Path) -> None:
    spares = FileRecycler(tmp_path)
    journal = Journal(tmp_path / "old.jsonl", spares=spares)
    journal.append([{"kind": "begin"}, {"kind": "stream", "rank": 0, "name": "stdout", "text": "secret"}])
    journal.remove()
    kept = list(tmp_path.iterdir())
    assert kept
    assert not any(path.read_bytes() for path in kept)
