"""One-line titles of cells, for the registry, the status and the panel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_TITLE = 80
_SHORT = 50
_IMPORT = re.compile(r"(import|from)\s+[\w.]")
# The magic's line, which heads the code that the nodes run.
_OURS = "# %%sky"


def title_of(code: str) -> str:
    """Return the first line that is no import; a leading comment counts."""
    lines = [line.strip() for line in code.splitlines() if line.strip() and not line.startswith(_OURS)]
    said = list(_without_imports(lines))
    text = (said or lines or [""])[0].lstrip("# ")
    return text if len(text) <= _TITLE else f"{text[: _TITLE - 1]}…"


def short_title(title: str) -> str:
    """Shorten a title for a line that says more."""
    return title if len(title) <= _SHORT else f"{title[: _SHORT - 1]}…"


def _without_imports(lines: Sequence[str]) -> Iterator[str]:
    within = False
    for line in lines:
        begins = _IMPORT.match(line) is not None
        if not begins and not within:
            yield line
        # An import in parentheses spans several lines.
        within = (within or (begins and "(" in line)) and ")" not in line
