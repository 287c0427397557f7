"""A run that prints more than its journal holds: shown as it comes, and both ends of it kept."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.faults.families import family, peaks
from tests.magics.notebook import Cell, Notebook, notebook
from tests.magics.test_reattach import LOAD, kill, name, the_pool, up

__all__ = ["name"]
MB = 1_000_000
COUNT = 100_000
GAP = r"^… ([\d.]+) MB of output dropped \(journal limit 1 MB\) …$"
PRINTED = f"%%sky\nfor i in range({COUNT}): print(f'{{i:08d}}' + '.' * 91)\n'the end'"
NATIVE = f"""%%sky
import os
for start in range(0, {COUNT}, 1000):
    os.write(1, b"".join(b"%08d%s\\n" % (i, b"." * 91) for i in range(start, start + 1000)))
"the end\""""
ONE_LINE = f"%%sky\nprint('<' + 'x' * ({COUNT} * 100 - 2) + '>', end='')\n'the end'"


def in_order(text: str) -> list[int]:
    """The numbers of the lines, which only grow."""
    found = [int(line[:8]) for line in text.splitlines() if len(line) == 99 and line[:8].isdigit()]
    assert found == sorted(set(found))
    return found


def numbers(folder: Path) -> list[int]:
    """The numbers of all events in a node's journals."""
    return [
        int(n) for path in sorted(folder.glob("*.jsonl.0*")) for n in re.findall(rb'"seq":(\d+)', path.read_bytes())
    ]


def flooded(page: Notebook, code: str, pool: str) -> Cell:
    """Run a cell that floods; no process of the pool may grow by all that it prints."""
    shown: list[float] = []

    def look(cell: Any) -> bool:
        shown.append(len(cell.updates))
        return False

    processes = {kind: process for kind, process in family(page, pool).items() if kind != "manager"}
    with peaks(processes) as grown:
        cell = page.run(code, until=look, timeout=120)
    assert cell.status == "ok", cell.outputs
    assert {kind: size // MB for kind, size in grown.items() if size > 70 * MB} == {}
    # It was shown as it came, and what is saved of it is small.
    assert len(cell.updates) > 2
    assert len(str(cell.outputs)) < MB
    return cell


@pytest.mark.slow
@pytest.mark.parametrize("code", [PRINTED, NATIVE], ids=["printed", "native"])
def test_of_a_flood_the_notebook_has_all_and_the_journal_both_ends(tmp_path: Path, name: str, code: str) -> None:
    with notebook(tmp_path) as page:
        up(page, name, "--journal 1MB")
        row = the_pool(name)
        cell = flooded(page, code, row.id)
        assert "lines left out" in cell.run
        assert f"{COUNT - 1:08d}" in cell.run
        for rank in (0, 1):
            text = page.value(f"_sky.stdout({rank})")
            live = re.findall(GAP, text, re.MULTILINE)
            # Where the notebook could not follow, a part of the middle is missing, and it says so.
            assert live or in_order(text) == list(range(COUNT))
            kept = page.run(f"%sky logs --rank {rank}").stream()
            (dropped,) = re.findall(GAP, kept, re.MULTILINE)
            assert 8 < float(dropped) < 12
            found = in_order(kept)
            assert (found[0], found[-1]) == (0, COUNT - 1)
            assert 5_000 < len(found) < 10_500
            journal = Path(row.folders[0]) / f"n{rank}" / "journal"
            assert sum(path.stat().st_size for path in journal.iterdir()) < 1.1 * MB
            # Native output goes to the rank's log too, and not without end.
            assert (journal.parent / f"rank{rank}.log").stat().st_size < 5 * MB
            assert len(numbers(journal)) == len(set(numbers(journal)))
        # Whoever takes the pool up is told the same.
        if code is NATIVE:
            kill(page)
            with notebook(tmp_path) as other:
                other.run(LOAD)
                assert other.run(f"%sky attach {name}").status == "ok"
                kept = other.run("%sky logs --rank 1").stream()
                assert len(re.findall(GAP, kept, re.MULTILINE)) == 1
                assert in_order(kept)[-1] == COUNT - 1
                other.run("%sky down")
        else:
            page.run("%sky down")


def test_one_enormous_line_is_shown_in_part_and_its_ends_are_kept(tmp_path: Path, name: str) -> None:
    with notebook(tmp_path) as page:
        up(page, name, "--journal 1MB")
        flooded(page, ONE_LINE, the_pool(name).id)
        assert page.value("_sky.values") == ["the end", "the end"]
        text = page.value("_sky.stdout(0)")
        assert (text[:2], text[-2:]) == ("<x", "x>")
        assert len(text) == COUNT * 100 or "of output dropped" in text
        kept = page.run("%sky logs --rank 0").stream()
        assert "of output dropped (journal limit 1 MB)" in kept
        assert len(kept) < 1.1 * MB
        page.run("%%sky\n40 + 2")
        assert page.value("_sky.values") == [42, 42]
        page.run("%sky down")
