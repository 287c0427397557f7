"""Writes the table of docs/faults.md anew, from a recording of the tests.

SKY_RECORD=/tmp/faults.jsonl python -m pytest tests/faults && python -m tests.faults.table /tmp/faults.jsonl
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
COLUMNS = ("what happens", "what you see", "what is kept", "within (measured)", "test")


def table(records: list[dict[str, Any]]) -> str:
    """The rows in the order of their first appearance, those with the same text as one."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        rows.setdefault(record["what"], []).append(record)
    lines = [_line(COLUMNS), _line(["---"] * len(COLUMNS))]
    for what, same in rows.items():
        where = _places(record["on"] for record in same)
        tests = ", ".join(f"`{test.removeprefix('tests/')}`" for test in dict.fromkeys(item["test"] for item in same))
        lines.append(_line([what + where, _all(same, "see"), _all(same, "kept"), _seconds(same), tests]))
    loads = [record["load"] for record in records]
    cores = max(record["cores"] for record in records)
    lines += ["", f"Recorded on {cores} cores at loads of {min(loads):.1f} to {max(loads):.1f}."]
    return "\n".join(lines)


def _places(given: Iterable[str]) -> str:
    """Such as `` (jax on 2 and 4 ranks; torch on 2 ranks)``, from ``"jax, 2 ranks"`` and the like."""
    found: dict[str, dict[str, None]] = {}
    for place in filter(None, given):
        match = re.fullmatch(r"(.*), (\d+) ranks(.*)", place)
        sizes = found.setdefault(match[1] + match[3] if match else place, {})
        if match:
            sizes[match[2]] = None
    texts = [f"{place} on {' and '.join(sizes)} ranks" if sizes else place for place, sizes in found.items()]
    return f" ({'; '.join(texts)})" if texts else ""


def _line(cells: Any) -> str:
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |"


def _all(records: list[dict[str, Any]], key: str) -> str:
    return "; ".join(dict.fromkeys(record[key] for record in records))


def _seconds(records: list[dict[str, Any]]) -> str:
    names = dict.fromkeys(name for record in records for name in record["seconds"])
    parts = []
    for name in names:
        values = sorted(record["seconds"][name] for record in records if name in record["seconds"])
        low, high = f"{values[0]:.1f}", f"{values[-1]:.1f}"
        name = name.replace("_", " ")
        parts.append(f"{name} {low} s" if low == high else f"{name} {low} to {high} s")
    return ", ".join(parts)


def main(paths: list[str]) -> None:
    """Read recordings, and put their table between the page's markers."""
    records = [json.loads(line) for path in paths for line in Path(path).read_text().splitlines()]
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{table(records)}\n{END}{after}")


if __name__ == "__main__":
    main(sys.argv[1:])
