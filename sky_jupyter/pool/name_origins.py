"""Texts on a name of the nodes: its value's origin and time, and other notes."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from ..util.text import rank_label
from .rank_names import NameRow, RankNames

_DAY = 24 * 3600.0


def origin(row: NameRow, modules: Collection[str]) -> str:
    """Return where the value of a name comes from."""
    one = row.facts
    if one is None:
        return "the nodes"
    if one.origin == "nodes":
        where = "the nodes" if one.ranks is None else rank_label(one.ranks)
        return f"import on {where}" if row.name in modules else where
    if one.parts:
        return f"the notebook, 1/{one.parts} on each rank" if one.parts > 1 else "the notebook"
    return "import" if one.origin == "module" else "the notebook"


def note(row: NameRow) -> str:
    """Return a further note on a name; mostly ""."""
    one = row.facts
    if one is not None and one.stale:
        return "the notebook has another now, which is sent when a cell reads it"
    if one is not None and one.parts > 1:
        return "sent whole when a cell reads it without --shard"
    if one is not None and one.gone:
        return "deleted there"
    only = row.ranks if one is None or one.ranks is None else None
    return f"on {rank_label(only)} only" if only else ""


def when(row: NameRow) -> str:
    """Return when the value was sent, or assigned on the nodes."""
    if row.facts is None:
        return ""
    at = row.facts.when
    form = "%H:%M:%S" if abs(time.time() - at) < _DAY else "%d %b %H:%M"
    return time.strftime(form, time.localtime(at))


def to_json(names: RankNames, rows: Collection[NameRow], modules: Collection[str]) -> dict[str, Any]:
    """Return the table for pages, as ``names`` and ``notes``."""
    return {
        "names": [
            {
                "name": row.name,
                "type": row.type,
                "value": row.value,
                "shape": row.shape,
                "dtype": row.dtype,
                "device": row.device,
                "size": "" if row.name in modules else row.size,
                "bytes": None if row.name in modules else row.bytes,
                "magnitude": row.magnitude,
                "origin": origin(row, modules),
                "when": None if row.facts is None else row.facts.when,
                "note": note(row),
            }
            for row in rows
        ],
        "notes": names.notes(),
    }
