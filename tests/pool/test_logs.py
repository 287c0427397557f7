"""What ranks print without end: what the notebook keeps of it, and how the rest is read."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from sky_jupyter.magics import logs
from sky_jupyter.magics.parsing import UsageError, parse
from sky_jupyter.pool.base.events import NoticeEvent, OutputEvent, Tape
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.runs.log_reader import Tail, newest
from sky_jupyter.pool.runs.output_cache import Bound, Printed
from sky_jupyter.pool.runs.result import CellResult
from tests.pool.pools import begin, local_pool, run, wait_until

MEBI = 1 << 20
# Numbered lines of 100 characters, and on rank 1 a single one.
MANY = """
import sky_jupyter as sky
count = {count} if sky.instance_info().rank == 0 else 1
for start in range(0, count, 1000):
    print("\\n".join(f"{{number:099d}}" for number in range(start, min(count, start + 1000))))
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with local_pool() as made:
        yield made


def expected(count: int) -> str:
    return "".join(f"{number:099d}\n" for number in range(count))


def test_who_prints_most_is_kept_least_of_and_the_newest_stays() -> None:
    loud, quiet = Printed(), Printed()
    bound = Bound(most=10_000)
    bound.add(0, "once", quiet, [loud, quiet])
    for number in range(1, 500):
        bound.add(number, f"{number:0100d}", loud, [loud, quiet])
    assert list(quiet) == ["once"]
    assert loud.size + quiet.size <= 10_000
    assert "".join(loud).endswith(f"{499:0100d}")
    assert loud.dropped == 100 * (loud.first - 1)


def test_a_text_that_is_larger_than_all_that_is_kept_stays_alone() -> None:
    printed, bound = Printed(), Bound(most=1000)
    for number in range(3):
        bound.add(number, "x" * 5000, printed, [printed])
    assert (len(printed), printed.first, printed.dropped) == (1, 2, 10_000)


def test_the_output_of_nodes_that_answer_is_shown_while_one_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKY_RANKS_PER_AGENT", "1")
    with local_pool(nodes=2) as pool:
        current = begin(pool, "import sky_jupyter as sky\nprint('rank', sky.instance_info().rank)")
        pool.attend(current)
        agent = pool.status()[1]["pid"]
        os.kill(agent, signal.SIGSTOP)
        try:
            wait_until(lambda: 1 in pool.control.silent)
            shown = {rank: tail.text() for rank, tail in newest(pool, current.id, [0, 1], 1000).items()}
        finally:
            os.kill(agent, signal.SIGCONT)
    assert shown[0] == "rank 0\n"
    assert "does not answer" in shown[1]


def test_what_the_notebook_does_not_keep_comes_from_the_journals(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sky_jupyter.pool.runs.run.Bound", lambda: Bound(MEBI))
    current = begin(pool, MANY.format(count=50_000))
    result = pool.attend(current)
    kept = current.outcomes[0].stdout
    assert kept.size <= MEBI
    assert kept.dropped
    assert result.stdout(0) == expected(50_000)
    assert result.stdout(1) == expected(1)


def test_what_is_nowhere_any_more_is_said_with_its_size() -> None:
    with local_pool(nodes=1) as pool:
        current = begin(pool, MANY.format(count=5))
        result = pool.attend(current)
        kept = current.outcomes[0].stdout
        kept.add(99, "the end")
        dropped = kept.drop(1)
        assert dropped
    text = result.stdout(0)
    assert text.endswith("the end")
    assert "500 bytes of output dropped (the notebook keeps the newest 64 MB of a run, and " in text


def test_logs_show_the_newest_and_say_where_the_rest_is(pool: Pool, tmp_path: Path) -> None:
    current = begin(pool, MANY.format(count=100_000))
    pool.attend(current)
    text = logs.text(pool, current.id, [0, 1])
    assert len(text) < 1.1 * MEBI
    first, *rest = text.split("\n")
    assert "rank 0" in first
    assert f"`%sky logs {current.id} --to FILE`" in first
    assert rest[0] == "── rank 0"
    assert rest[-2:] == ["── rank 1", "0" * 99]
    assert rest[-3] == f"{99_999:099d}"
    # Whole lines, in order.
    assert rest[1:-2] == expected(100_000).splitlines()[-len(rest[1:-2]) :]
    # Of the rank that is asked for there may be more; of so many lines, as many.
    assert len(logs.text(pool, current.id, [0])) > 1.5 * len(text) - 1000
    assert logs.text(pool, current.id, [0, 1], 2).split("\n") == [
        "── rank 0",
        f"{99_998:099d}",
        f"{99_999:099d}",
        "── rank 1",
        "0" * 99,
    ]
    assert "written to" in logs.write(pool, current.id, [0, 1], str(tmp_path / "printed"))
    assert (tmp_path / "printed" / "rank0.log").read_text() == expected(100_000)
    assert (tmp_path / "printed" / "rank1.log").read_text() == expected(1)
    logs.write(pool, current.id, [1], str(tmp_path / "one.txt"))
    assert (tmp_path / "one.txt").read_text() == expected(1)


def test_a_short_log_is_whole_and_in_the_order_in_which_it_was_printed(pool: Pool) -> None:
    current = begin(pool, "import sys\nfor i in range(3): print('out', i); print('err', i, file=sys.stderr)")
    pool.attend(current)
    one = "out 0\nerr 0\nout 1\nerr 1\nout 2\nerr 2"
    assert logs.text(pool, current.id, [1]) == one
    assert logs.text(pool, current.id, [0, 1]) == f"── rank 0\n{one}\n── rank 1\n{one}"


@pytest.mark.parametrize(
    ("most", "lines", "text", "cut"),
    [
        (100, None, "a\nb\nc\n", False),
        (4, None, "b\nc\n", True),
        (3, None, "c\n", True),
        (100, 2, "b\nc\n", True),
        (100, 3, "a\nb\nc\n", False),
        (100, 9, "a\nb\nc\n", False),
    ],
)
@pytest.mark.parametrize("pieces", [["a\nb\nc\n"], ["a\n", "b\n", "c\n"], ["a\nb", "\nc", "\n"]])
def test_a_tail_is_whole_lines(most: int, lines: int | None, text: str, cut: bool, pieces: list[str]) -> None:
    tail = Tail(most, lines)
    for piece in pieces:
        tail.add(piece)
    assert (tail.text(), tail.cut) == (text, cut)


def test_a_tape_of_what_nobody_watches_keeps_the_newest_and_says_so() -> None:
    tape, heard = Tape(most=10_000), []
    tape(NoticeEvent("begun"))
    for number in range(1000):
        tape(OutputEvent("r", 0, {"kind": "stream", "name": "stdout", "text": f"{number}\n"}))
    tape(OutputEvent("r", 0, {"kind": "end", "status": "ok"}))
    tape.play(heard.append)
    begun, left_out, *outputs, end = heard
    assert begun.text == "begun"
    assert "of earlier output is not shown; `%sky logs` has it" in left_out.text
    assert outputs[-1].event["text"] == "999\n"
    assert len(outputs) < 50
    assert end.event["kind"] == "end"
    tape(NoticeEvent("later"))
    assert heard[-1].text == "later"


def test_logs_take_either_a_number_of_lines_or_a_file() -> None:
    assert parse("logs 3f9a2c1b --last 20", cell=False).last == 20
    assert parse("logs --to out.txt --rank 1", cell=False).to == "out.txt"
    for line in ("logs --last 0", "logs --last many", "logs --last 3 --to x"):
        with pytest.raises(UsageError, match="--last"):
            parse(line, cell=False)


def test_a_result_that_travels_takes_what_is_kept(pool: Pool) -> None:
    result = run(pool, "print('told')")
    state = result.__getstate__()
    copy = CellResult.__new__(CellResult)
    copy.__setstate__(state)
    assert copy.stdout(1) == "told\n"
