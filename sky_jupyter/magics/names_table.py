"""``%sky names``: the nodes' names, what they are, and where each comes from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..pool.name_origins import note, origin, when
from ..pool.rank_names import NameRow
from ..util.text import format_size

_HEAD = ("name", "type", "value", "shape", "dtype", "device", "size", "value from", "when", "")
_SIZE = _HEAD.index("size")
# Longer texts would break the lines of a terminal.
_MOST_TEXT = 60


def table(rows: Sequence[NameRow], modules: Collection[str] = ()) -> str:
    """Return the names, a line each, without empty columns.

    Parameters
    ----------
    rows : sequence of NameRow
        As `RankNames.rows` gives them.
    modules : collection of str
        The nodes' own names that are modules.

    Returns
    -------
    str
        The table.
    """
    if not rows:
        return "the nodes have no name of yours yet; a cell's names are sent when it reads them"
    lines = [_HEAD, *(_texts(row, modules) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    used = [column for column in range(len(_HEAD)) if any(line[column] for line in lines[1:])]
    return "\n".join(
        "  ".join(
            line[column].rjust(widths[column]) if column == _SIZE else line[column].ljust(widths[column])
            for column in used
        ).rstrip()
        for line in lines
    )


def kept_line(kept: Mapping[str, int] | None) -> str:
    """Return the line about values that nodes keep for later; empty if none."""
    if kept is None or not kept["kept"]:
        return ""
    size, loose, allowed = (format_size(kept[key]) for key in ("kept", "loose", "allowed"))
    return f"kept on a machine: {size}, of which no name holds {loose}; at most {allowed} of that (--blob-limit)"


def _texts(row: NameRow, modules: Collection[str]) -> tuple[str, ...]:
    what = (row.type, row.value, row.shape, row.dtype, row.device)
    size = "" if row.name in modules else row.size
    return (row.name, *map(_cut, what), size, origin(row, modules), when(row), note(row))


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"
