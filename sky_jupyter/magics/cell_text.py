"""Text of a cell that runs on a pool: its ``%%sky`` line, and the code below."""

from __future__ import annotations

import re
from dataclasses import dataclass

SKY_LINE = re.compile(r"%%sky(\s|\Z)")


@dataclass(frozen=True)
class SkyCell:
    """Cell with a ``%%sky`` line.

    Parameters
    ----------
    line : str
        The text after ``%%sky``.
    code : str
        The code below.
    start : int
        Position of the code in the cell's text; beyond its end if there is no code.
    """

    line: str
    code: str
    start: int


def first_line(lines: list[str]) -> int | None:
    """Return the index of the first line that is neither empty nor a comment."""
    return next((at for at, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")), None)


def with_body(lines: list[str]) -> list[str]:
    """Turn a cell with ``%%sky`` into a form that IPython takes for a cell magic.

    A line alone gets an empty body, which IPython requires even for ``--help``. Comments above the line are moved below
    it; the lines after it keep their numbers.
    """
    at = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith("#")), 0)
    if not SKY_LINE.match("".join(lines[at : at + 1])):
        return lines
    first = lines[at].rstrip("\n") + "\n"
    return [first, *lines[:at], *lines[at + 1 :]] if len(lines) > 1 else [first, "\n"]


# IPython leaves out transformers with this mark when it checks whether a cell is finished: so a terminal waits for the
# cell's lines.
with_body.has_side_effects = True  # type: ignore[attr-defined]


def sky_cell(text: str) -> SkyCell | None:
    """Return a cell's parts if it begins with a ``%%sky`` line; else None.

    Comments may precede the line.
    """
    start = 0
    for line in text.splitlines(keepends=True):
        start += len(line)
        if SKY_LINE.match(line):
            return SkyCell(line[len("%%sky") :].strip(), text[start:], start + (not line.endswith("\n")))
        if line.strip() and not line.startswith("#"):
            return None
    return None
