"""The page "What happens when": its rows name tests that exist, and its text can be written anew."""

from __future__ import annotations

import re

from tests.faults.table import BEGIN, END, PAGE, table

RECORD = {
    "what": "a rank raises",
    "see": "its traceback",
    "kept": "every | name",
    "test": "tests/faults/test_ranks.py::test_one",
    "load": 1.0,
    "cores": 2,
}


def test_every_row_of_the_page_names_tests_that_exist() -> None:
    rows = PAGE.read_text().split(BEGIN)[1].split(END)[0].splitlines()
    named = [name for row in rows for name in re.findall(r"`([\w/]+\.py)::(\w+)`", row)]
    assert len(named) >= len([row for row in rows if row.startswith("|")]) - 2 > 10
    for file, test in named:
        text = (PAGE.parents[1] / "tests" / file).read_text()
        assert re.search(rf"^def {test}\(", text, re.MULTILINE), f"{file}::{test}"


def test_records_of_one_fault_are_one_row_with_the_range_of_their_times() -> None:
    records = [
        {**RECORD, "on": "jax, 2 ranks", "seconds": {"told": 0.123}},
        {**RECORD, "on": "jax, 4 ranks", "seconds": {"told": 0.5}},
        {**RECORD, "on": "torch, 4 ranks", "seconds": {"told": 0.9}},
    ]
    lines = table(records).splitlines()
    assert len(lines) == 5
    assert lines[2] == (
        "| a rank raises (jax on 2 and 4 ranks; torch on 4 ranks) | its traceback | every / name | "
        "told 0.1 to 0.9 s | `faults/test_ranks.py::test_one` |"
    )
