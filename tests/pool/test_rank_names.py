"""What the ranks have under their names: asked of real ranks, merged, and shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sky_jupyter.magics import names_table
from sky_jupyter.pool import frontend_requests, rank_names
from sky_jupyter.pool.open_pools import pools
from sky_jupyter.pool.pool import Pool
from sky_jupyter.pool.rank_names import NameRow, RankAnswer, RankNames, RankSummary
from sky_jupyter.pool.runs.result import CellError
from tests.pool.pools import local_pool, run, underway

RANK = "import sky_jupyter as sky\nrank = sky.instance_info().rank\n"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with local_pool() as pool:
        yield pool


def rows_of(pool: Pool) -> dict[str, NameRow]:
    return {row.name: row for row in pool.names().rows(pool.ledger.facts({}))}


def test_each_name_is_told_with_what_it_is_and_where_ranks_differ(pool: Pool) -> None:
    code = (
        f"{RANK}loss = 0.31 + 0.03 * rank\nparts = data[: 10 + rank] * 2\nif rank:\n    extra = [1, 2]\nname = 'adam'"
    )
    run(pool, code, {"data": np.zeros(1000)})
    rows = rows_of(pool)
    assert rows["loss"].value == "0.31 to 0.34 on 2 ranks"
    assert (rows["data"].type, rows["data"].shape, rows["data"].dtype) == ("ndarray", "1000", "float64")
    assert rows["data"].facts is not None
    assert rows["data"].facts.origin == "notebook"
    assert rows["parts"].shape == "10 on rank 0, 11 on rank 1"
    assert (rows["parts"].size, rows["parts"].bytes) == ("80 bytes to 88 bytes", 88)
    assert (rows["extra"].shape, rows["extra"].ranks) == ("2 items", (1,))
    assert rows["name"].value == "'adam'"
    table = names_table.table(list(rows.values()), pool.modules)
    head, *lines = table.splitlines()
    assert head.split() == ["name", "type", "value", "shape", "dtype", "size", "value", "from", "when"]
    assert next(line for line in lines if line.startswith("extra")).endswith("on rank 1 only")


def test_a_busy_rank_tells_what_it_had_and_is_not_disturbed(pool: Pool) -> None:
    run(pool, "step = 1")
    assert rows_of(pool)["step"].value == "1"
    current = underway(pool, "import time\ntime.sleep(600)\nstep = 2", ranks=[0])
    try:
        names = pool.names()
        assert names.answers[0].state == "busy"
        assert names.answers[1].state == "fresh"
        assert names.answers[0].names["step"].value == 1
        (note,) = names.notes()
        assert note.startswith("rank 0 is busy: shown as of ")
    finally:
        pool.interrupt()
        with pytest.raises(CellError):
            pool.attend(current)
    pool.settle()
    assert pool.names().answers[0].state == "fresh"


def test_a_page_gets_the_names_as_json(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    run(pool, "shown = 7")
    monkeypatch.setattr(frontend_requests, "_need", lambda name: pool)
    answer = frontend_requests.answer({"action": "names"})
    assert answer["status"] == "ok"
    assert answer["notes"] == []
    (row,) = [one for one in answer["names"] if one["name"] == "shown"]
    assert {key: row[key] for key in ("type", "value", "magnitude", "bytes", "origin", "note")} == {
        "type": "int",
        "value": "7",
        "magnitude": 7,
        "bytes": 28,
        "origin": "the nodes",
        "note": "",
    }
    assert pools.get("nobody") is None


def test_new_kernels_have_no_names_of_before(pool: Pool) -> None:
    run(pool, "before = 1")
    assert "before" in pool.names().answers[0].names
    pool.restart()
    assert [dict(answer.names) for answer in pool.names().answers.values()] == [{}, {}]


def row_of(*summaries: RankSummary, **more: Any) -> NameRow:
    answers = {rank: RankAnswer("fresh", 1.0, {"x": one}) for rank, one in enumerate(summaries)}
    (row,) = RankNames(answers).rows([])
    return row


def test_what_differs_on_many_ranks_is_told_in_short() -> None:
    losses = [RankSummary("float", value=0.31 + rank / 100, bytes=24) for rank in range(8)]
    assert row_of(*losses).value == "0.31 to 0.38 on 8 ranks"
    assert row_of(*[RankSummary("ndarray", (rank,)) for rank in range(8)]).shape == "8 different"
    assert row_of(RankSummary("int", value=1), RankSummary("str", value="'a'")).type == "int on rank 0, str on rank 1"
    assert row_of(RankSummary("Net", weights=1_200_000)).shape == "1,200,000 weights"
    assert row_of(RankSummary("ndarray", (), value=0.5)).value == "0.5"


@pytest.mark.parametrize(
    "told",
    [
        None,
        {"state": "odd"},
        {"state": ["fresh"]},
        {"state": "fresh", "age": "old", "names": {}},
        {"state": "fresh", "age": 0, "names": {"x": 1, "not a name": {"type": "int"}, "y": {"type": "\x1b[2J"}}},
        {"state": "fresh", "age": 0, "names": {"x": {"type": "t" * 1000}}, "more": -1},
    ],
)
def test_what_a_rank_makes_up_is_not_taken(told: Any) -> None:
    answer = rank_names.read(told, 10.0)
    assert answer.names == {}
    assert answer.more == 0


def test_wrong_fields_of_a_summary_are_left_out() -> None:
    facts = {"type": "int", "shape": [-1], "bytes": 1.5, "items": True, "dtype": 3, "value": float("inf")}
    answer = rank_names.read({"state": "fresh", "age": 0, "names": {"x": facts}, "more": 0}, 10.0)
    assert answer.names == {"x": RankSummary("int")}
