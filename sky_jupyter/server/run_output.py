"""Newest output of a run, from the journals of local nodes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..access import log_pages
from ..node.journal.journal import Journal, lines_of
from ..node.protocol.journal_events import text_of
from ..pool.registry.registry import PoolRow

# Bytes that are read from the end of each node's journal; characters that are shown of each rank.
_READ = 1 << 20
SHOWN = 64 << 10
_MAX_NODES = 256


def local(row: PoolRow, run: str) -> list[dict[str, Any]] | None:
    """Return the newest output of a run by rank; None if its journals are elsewhere."""
    if not row.is_local or not row.is_here or not row.folders:
        return None
    folders = sorted(Path(row.folders[0]).glob("n*/journal"))[:_MAX_NODES]
    # A call's journal is named by its attempt too.
    tries: dict[str, list[Path]] = {}
    for path in (path for folder in folders for path in Journal.found(folder)):
        if path.name.partition(".")[0] == run:
            tries.setdefault(path.name, []).append(path)
    last = max(tries.values(), key=_began) if len(tries) > 1 else [path for paths in tries.values() for path in paths]
    return by_rank(event for path in last for event in _tail(path))


def _began(paths: Iterable[Path]) -> float:
    """Return when a try began; this reads its journals as a whole."""
    return max(log_pages.began(Journal.reopen(path)) for path in paths)


def by_rank(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events as text, cut to the end of each rank's."""
    texts: dict[int, list[str]] = {}
    for event in events:
        rank, text = event.get("rank"), text_of(event)
        if isinstance(rank, int) and text:
            texts.setdefault(rank, []).append(text)
    return [{"rank": rank, "text": "".join(parts)[-SHOWN:]} for rank, parts in sorted(texts.items())]


def _tail(path: Path) -> list[dict[str, Any]]:
    """Return the last events of a journal that its agent may be writing."""
    files = [file for file in path.parent.glob(f"{path.name}.*") if file.suffix[1:].isdecimal()]
    data = b""
    for file in sorted(files, reverse=True):
        if len(data) >= _READ:
            break
        data = _end(file, _READ - len(data)) + data
    try:
        return lines_of(data[: data.rfind(b"\n") + 1])
    except ValueError:
        return []


def _end(file: Path, size: int) -> bytes:
    """Return a file's last complete lines, of about so many bytes."""
    try:
        with file.open("rb") as opened:
            start = max(0, os.fstat(opened.fileno()).st_size - size)
            opened.seek(start)
            data = opened.read(size)
    except OSError:
        return b""
    return data if start == 0 else data[data.find(b"\n") + 1 :]
