"""A cell's code in a line, by which people know its run: in the registry, in a pool's facts and in the panel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_TITLE = 80
_IMPORT = re.compile(r"(import|from)\s+[\w.]")
# The line that stands above the code as the nodes run it.
_OURS = "# %%sky"


def title_of(code: str) -> str:
    """The first line that says something; a comment above the code is a title."""
    lines = [line.strip() for line in code.splitlines() if line.strip() and not line.startswith(_OURS)]
    said = list(_without_imports(lines))
    text = (said or lines or [""])[0].lstrip("# ")
    return text if len(text) <= _TITLE else f"{text[: _TITLE - 1]}…"


def _without_imports(lines: Sequence[str]) -> Iterator[str]:
    within = False
    for line in lines:
        begins = _IMPORT.match(line) is not None
        if not begins and not within:
            yield line
        # Names in parentheses go on in the next lines.
        within = (within or (begins and "(" in line)) and ")" not in line
