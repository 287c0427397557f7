"""Tab after ``%sky put`` and ``%sky get``: paths here, or on the nodes."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence

from ..node.files.complete_path import complete as local_paths
from ..pool.open_pools import pools
from ..session import remote_completion
from .option_table import NAME, NODES, PATHS, chosen, options_of

_LINE = re.compile(r"\s*%sky\s+(?P<verb>\w+)\s(?P<rest>.*)\Z", re.DOTALL)
# A word that may be quoted; the last one of a line may still lack its closing quote.
_WORD = re.compile(r"""(?:\\.|"(?:\\.|[^"\\])*(?:"|\Z)|'[^']*(?:'|\Z)|[^\s'"\\]|\\\Z)+""", re.DOTALL)
_SPECIAL = re.compile(r"""([\s'"\\])""")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def complete(line: str) -> tuple[str, list[str]] | None:
    """Return the word that is being typed, with the words that may replace it.

    Parameters
    ----------
    line : str
        The line up to the cursor.

    Returns
    -------
    tuple or None
        None if no path is expected there.
    """
    match = _LINE.match(line)
    if match is None or match["verb"] not in PATHS:
        return None
    words = _WORD.findall(match["rest"])
    word = "" if not words or (line[-1:].isspace() and not line.endswith(words[-1])) else words.pop()
    flags = {option.flag for option in options_of(match["verb"])}
    if word.startswith("-") or (words and words[-1] in flags):
        return None
    values = {flag: value for flag, value in itertools.pairwise(words) if flag in flags}
    place = sum(not one.startswith("-") and last not in flags for last, one in itertools.pairwise(["", *words]))
    if place > 1:
        return word, []
    quote = word[0] if word[:1] in ("'", '"') else ""
    begun = word[1:] if quote else _ESCAPED.sub(r"\1", word)
    # The first path of `put` and the second one of `get` are here; the others are on the nodes.
    here = place == (match["verb"] == "get")
    found = local_paths(begun, os.curdir) if here else _there(begun, values)
    return word, [quote + path if quote else _SPECIAL.sub(r"\\\1", path) for path in found]


def _there(begun: str, values: dict[str, str]) -> Sequence[str]:
    """Return paths on the first of the nodes that the line means, or the head."""
    pool = pools.get(values[NAME.flag]) if NAME.flag in values else pools.current
    if pool is None:
        return []
    try:
        nodes = chosen(NODES.read(values[NODES.flag]), pool.spec.nodes) if NODES.flag in values else None
    except Exception:
        # It is still being typed.
        nodes = None
    there = [node for node in nodes or (0,) if node in range(pool.spec.nodes)]
    return (remote_completion.complete_path(pool, there[:1], begun) or []) if there else []
