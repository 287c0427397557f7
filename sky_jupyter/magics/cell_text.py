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
        What stands behind ``%%sky``.
    code : str
        The code below.
    start : int
        Where that begins in the cell's text; beyond its end if there is none.
    """

    line: str
    code: str
    start: int


def sky_cell(text: str) -> SkyCell | None:
    """Return the parts of a cell with a ``%%sky`` line, which only comments may precede; else None."""
    start = 0
    for line in text.splitlines(keepends=True):
        start += len(line)
        if SKY_LINE.match(line):
            return SkyCell(line[len("%%sky") :].strip(), text[start:], start + (not line.endswith("\n")))
        if line.strip() and not line.startswith("#"):
            return None
    return None
