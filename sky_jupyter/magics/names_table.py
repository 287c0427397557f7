"""``%sky names``: the names that the nodes have, and where each comes from."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from ..capture.ledger import NameFacts
from ..util.text import format_size, rank_label

_HEAD = ("name", "value from", "size", "when", "")
_DAY = 24 * 3600.0


def table(facts: Sequence[NameFacts], modules: Collection[str] = ()) -> str:
    """Return the names, a line each.

    Parameters
    ----------
    facts : sequence of NameFacts
        As `Ledger.facts` gives them.
    modules : collection of str
        Those of the nodes' own that are modules.

    Returns
    -------
    str
        The table.
    """
    if not facts:
        return "the nodes have no name of yours yet; a cell's names are sent when it reads them"
    rows = [_HEAD, *(_row(one, one.name in modules) for one in facts)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if column == 2 else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def kept_line(kept: Mapping[str, int] | None) -> str:
    """Return the line on values that nodes keep for later; empty if there are none."""
    if kept is None or not kept["kept"]:
        return ""
    size, loose, allowed = (format_size(kept[key]) for key in ("kept", "loose", "allowed"))
    return f"kept on a machine: {size}, of which no name holds {loose}; at most {allowed} of that (--blob-limit)"


def _row(one: NameFacts, module: bool) -> tuple[str, ...]:
    size = "" if one.size is None or module else format_size(one.size)
    return one.name, _origin(one, module), size, _when(one.when), _note(one)


def _origin(one: NameFacts, module: bool) -> str:
    if one.origin == "nodes":
        where = "the nodes" if one.ranks is None else rank_label(one.ranks)
        return f"import on {where}" if module else where
    if one.parts:
        return f"the notebook, 1/{one.parts} on each rank" if one.parts > 1 else "the notebook"
    return "import" if one.origin == "module" else "the notebook"


def _note(one: NameFacts) -> str:
    if one.stale:
        return "the notebook has another now, which is sent when a cell reads it"
    if one.parts > 1:
        return "sent whole when a cell reads it without --shard"
    return "deleted there" if one.gone else ""


def _when(when: float) -> str:
    form = "%H:%M:%S" if abs(time.time() - when) < _DAY else "%d %b %H:%M"
    return time.strftime(form, time.localtime(when))
