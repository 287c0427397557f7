"""``%sky trace``: write a pool's events to a file that Perfetto shows.

The file is in the Trace Event Format: a process for each node and one for the notebook, a thread for each rank; spans
for states, waits, calls and transfers; instants for stacks.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import SkyError, SpecError
from ..pool.base.run_timeline import EventRow
from .option_table import is_run_id

if TYPE_CHECKING:
    from ..pool.pool import Pool

# Numbers of processes; readers take 0 for the idle process of a system.
_NOTEBOOK, _FIRST_NODE = 1, 2
_LANES = {"cell": 1, "hang": 1, "call": 2, "restart": 3, "lost": 3, "back": 3}
_LANE_NAMES = {1: "cells", 2: "calls on all ranks", 3: "repairs"}
# Kinds of spans that may overlap: each such span has its own lane.
_TRANSFERS = ("sent", "fetched", "put", "get")
_LEFT_OUT, _INSTANT = ("value",), ("output",)
_LEAST = 1


def targets(first: str | None, second: str | None) -> tuple[str | None, str | None]:
    """Return the run and the file that the words after the verb mean.

    Raises SpecError if there are two words, and the first is not a run's id.
    """
    if second is None and first is not None and not is_run_id(first):
        return None, first
    if first is not None and not is_run_id(first):
        raise SpecError(f"trace takes a run's id or how it begins, such as 3f9a2c1b, before the file, not {first!r}")
    return None if first is None else first.lower(), second


def write(pool: Pool, run: str | None, file: str | None) -> str:
    """Write the trace of a run, or of a pool's whole history; say what was written.

    Parameters
    ----------
    pool : Pool
        The pool.
    run : str, optional
        Id of the run.
    file : str, optional
        Path of the file; by default, ``sky-trace-RUN.json`` or ``sky-trace-POOL.json`` in the working folder.

    Returns
    -------
    str
        One line.

    Raises
    ------
    SkyError
        When it cannot be written.
    """
    if run is None:
        rows = pool.events.rows()
    else:
        known = pool.events.of(run)
        rows = pool.log(run).event_rows() if known is None else known.rows()
    target = Path(os.path.expanduser(file or f"sky-trace-{run or pool.spec.name}.json"))
    trace = trace_of(rows, pool.spec.name)
    try:
        target.write_text(json.dumps(trace), encoding="utf-8")
    except OSError as error:
        raise SkyError(f"the trace cannot be written to {target}: {error.strerror}") from error
    what = f"pool {pool.spec.name}" if run is None else f"run {run}"
    return f"{what}: {len(rows)} events written to {target}; https://ui.perfetto.dev opens it"


def trace_of(rows: Sequence[EventRow], pool: str) -> dict[str, Any]:
    """Return rows as an object of the Trace Event Format.

    Parameters
    ----------
    rows : sequence of EventRow
        The events.
    pool : str
        The pool's name.

    Returns
    -------
    dict
        ``traceEvents`` in the order of their times, after the names of processes and threads.
    """
    shown = [row for row in rows if row.kind not in _LEFT_OUT]
    spans: list[EventRow] = []
    transfers: list[EventRow] = []
    instants: list[EventRow] = []
    for row in shown:
        is_instant = row.seconds is None or row.kind in _INSTANT
        (instants if is_instant else transfers if row.kind in _TRANSFERS else spans).append(row)
    events = [*_spans(spans), *_transfers(transfers), *map(_instant, instants)]
    clocks = sorted({row.clock for row in rows})
    about = {"pool": pool, "clocks": ", ".join(clocks)}
    # A span comes before those inside it.
    ordered = sorted(events, key=lambda event: (event["ts"], -event.get("dur", 0)))
    return {"traceEvents": [*_names(shown, pool), *ordered], "displayTimeUnit": "ms", "otherData": about}


def _place(row: EventRow) -> tuple[int, int]:
    """Return the process and the thread that a row belongs to."""
    # A call that was cancelled before it began was on no node.
    if row.rank is not None and (row.node is None or row.node >= 0):
        return _FIRST_NODE + (row.node or 0), row.rank + 1
    return _NOTEBOOK, _LANES.get(row.kind, 1)


def _common(row: EventRow) -> dict[str, Any]:
    process, thread = _place(row)
    facts = {"run": row.run, "bytes": row.bytes, "where": row.where, "node": row.node if row.rank is None else None}
    return {
        "name": f"{row.kind}: {row.what}" if row.kind not in ("cell", "call") else row.what,
        "cat": row.kind,
        "ts": round(row.time * 1e6),
        "pid": process,
        "tid": thread,
        "args": {name: value for name, value in facts.items() if value not in (None, "")},
    }


def _spans(rows: Iterable[EventRow]) -> Iterator[dict[str, Any]]:
    """Yield complete events; those of one thread do not overlap, or are nested.

    Readers drop events that overlap otherwise. Ends are reported with the network's delay, so that a state may seem to
    begin before the last one has ended.
    """
    by_place = itertools.groupby(sorted(rows, key=_place), _place)
    for _, group in by_place:
        around: list[int] = []
        for row in sorted(group, key=lambda row: (row.time, -(row.seconds or 0.0))):
            event = _common(row)
            end = event["ts"] + max(_LEAST, round((row.seconds or 0.0) * 1e6))
            while around and around[-1] <= event["ts"]:
                around.pop()
            while around and around[-1] < end:
                event["ts"] = around.pop()
            around.append(end)
            yield {**event, "ph": "X", "dur": end - event["ts"]}


def _transfers(rows: Iterable[EventRow]) -> Iterator[dict[str, Any]]:
    """Yield begin and end of spans that may overlap."""
    for number, row in enumerate(rows):
        event = {**_common(row), "cat": "transfer", "id": number + 1}
        yield {**event, "ph": "b"}
        yield {**event, "ph": "e", "ts": event["ts"] + max(_LEAST, round((row.seconds or 0.0) * 1e6))}


def _instant(row: EventRow) -> dict[str, Any]:
    return {**_common(row), "ph": "i", "s": "t"}


def _names(rows: Iterable[EventRow], pool: str) -> Iterator[dict[str, Any]]:
    """Yield the names of processes and threads, and their order."""
    places = sorted({_place(row) for row in rows})
    for process in sorted({process for process, _ in places}):
        name = "notebook" if process == _NOTEBOOK else f"{pool}: node {process - _FIRST_NODE}"
        yield _named("process_name", process, 0, name=name)
        yield _named("process_sort_index", process, 0, sort_index=process)
    for process, thread in places:
        name = _LANE_NAMES[thread] if process == _NOTEBOOK else f"rank {thread - 1}"
        yield _named("thread_name", process, thread, name=name)
        yield _named("thread_sort_index", process, thread, sort_index=thread)


def _named(what: str, process: int, thread: int, **facts: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "ts": 0, "pid": process, "tid": thread, "args": facts}
