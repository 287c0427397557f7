"""Timeline of a pool's runs: who was slow, what was sent, what was recreated.

Each part of the code notes what it does when it does it, as a row. Rows are data; nothing here asks a node.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ...util.validate import is_number

# Limits: rows of one kind in a run's log, and rows of all runs in a pool.
MOST_ROWS = 4096
MOST_ROWS_OF_RUNS = 100_000
# The limit of logs in a pool. Counting the rows of all logs is slow, so it is done once in so many runs.
MOST_RUNS = 1000
_COUNTED = 50
NOTEBOOK, NODE = "notebook", "node"
# Nodes may send any number, and the tables' times end in 2262.
LATEST, _LONGEST = 9_000_000_000, 1_000_000_000


@dataclass(frozen=True)
class EventRow:
    """One thing that happened; `CellResult.events` has these as a table.

    Parameters
    ----------
    kind : str
        ``cell`` or ``call`` (all of it), ``state`` (of a rank), ``output``, ``wait``, ``stack``, ``hang``, ``value``,
        ``sent``, ``fetched``, ``put``, ``get``, ``restart``, ``lost`` or ``back``.
    time : float
        When it began, in seconds since 1970, by the clock that `clock` names.
    seconds : float or None
        How long it took; None if it has no length.
    rank, node : int or None
        Where it happened; None if not on one rank or node.
    what : str
        What it was: a state, a name, a function.
    bytes : int or None
        Size of what was sent or printed.
    where : str
        Stack, one frame a line, if one was taken.
    run : str
        Id of the run; "" if it belonged to none.
    clock : str
        ``notebook``, or ``node`` of what only the node's journal knows.
    """

    kind: str
    time: float
    seconds: float | None = None
    rank: int | None = None
    node: int | None = None
    what: str = ""
    bytes: int | None = None
    where: str = ""
    run: str = ""
    clock: str = NOTEBOOK

    def to_dict(self) -> dict[str, Any]:
        """Return the row as a dict with the columns' names."""
        return asdict(self)


COLUMNS = tuple(field.name for field in fields(EventRow))


@dataclass
class _Printed:
    """What a rank has printed so far."""

    node: int
    first: float
    last: float
    size: int = 0


class EventLog:
    """Thread-safe log of one run, or of what belongs to no run.

    Parameters
    ----------
    run : str
        The run's id.
    """

    def __init__(self, run: str = "") -> None:
        self.run = run
        # Whose clock gives the times of ranks' events: the nodes' for a run that is read from journals.
        self.clock = NOTEBOOK
        # A ring for each kind, so that a thousand stacks displace no state.
        self._rings: dict[str, deque[EventRow]] = {}
        self._printed: dict[int, _Printed] = {}
        # Working ranks with their nodes, and since when they work; waits that have not ended.
        self._working: dict[int, int] = {}
        self._since = 0.0
        self._waits: dict[int, EventRow] = {}
        self._lock = threading.Lock()

    def note(self, kind: str, what: str = "", *, at: float | None = None, **facts: Any) -> None:
        """Append a row; ``at`` is its time, by default now less its seconds."""
        if at is None:
            at = time.time() - (facts.get("seconds") or 0.0)
        row = EventRow(kind, at, what=what, run=facts.pop("run", self.run), **facts)
        with self._lock:
            self._append(row)

    def keep(self, row: EventRow) -> None:
        """Append a row of another log."""
        with self._lock:
            self._append(row)

    def _append(self, row: EventRow) -> None:
        ring = self._rings.get(row.kind)
        if ring is None:
            ring = self._rings[row.kind] = deque(maxlen=MOST_ROWS)
        ring.append(row)

    @contextlib.contextmanager
    def timing(self, kind: str, what: str, **facts: Any) -> Iterator[dict[str, Any]]:
        """Note a row with the block's duration; the block may add to its facts."""
        began = time.time(), time.perf_counter()
        try:
            yield facts
        finally:
            seconds = time.perf_counter() - began[1]
            self.note(kind, facts.pop("what", what), at=began[0], seconds=seconds, **facts)

    # -- ranks -------------------------------------------------------------------------------------

    def ranks_began(self, nodes: Mapping[int, int], at: float | None = None) -> None:
        """Note that ranks began to work; ``nodes`` maps each to its node."""
        with self._lock:
            self._since = time.time() if at is None else at
            self._working = dict(nodes)

    def rank_ended(self, rank: int, node: int, end: Mapping[str, Any]) -> None:
        """Note a rank's end; the rank's own clock has measured how long it took."""
        at = self._time_of(end)
        elapsed = end.get("elapsed")
        with self._lock:
            self._working.pop(rank, None)
            self._waits.pop(rank, None)
            since = min(self._since or at, at)
            seconds = float(elapsed) if is_number(elapsed, 0.0, _LONGEST) else at - since
            facts: dict[str, Any] = {"rank": rank, "node": node, "run": self.run, "clock": self.clock}
            self._append(EventRow("state", at - seconds, seconds, what=str(end.get("status")), **facts))

    def ended(self, kind: str, what: str, seconds: float) -> None:
        """Note that all ranks have ended."""
        now = time.time()
        with self._lock:
            if self.clock == NODE:
                ends = [row.time + (row.seconds or 0.0) for row in self._rings.get("state", ())]
                seconds = max([*ends, self._since]) - self._since
            at = self._since or now - seconds
            self._append(EventRow(kind, at, seconds, what=what, run=self.run, clock=self.clock))

    def printed(self, rank: int, node: int, event: Mapping[str, Any]) -> None:
        """Count a rank's output; only the loop calls this."""
        text = event.get("text")
        if not isinstance(text, str):
            # A picture, which is text in its event. An event of an unknown kind may have anything.
            data = event.get("data")
            parts = data.values() if isinstance(data, dict) else ()
            text = "".join(part for part in parts if isinstance(part, str))
        size = len(text) if text.isascii() else len(text.encode(errors="replace"))
        at = self._time_of(event)
        so_far = self._printed.get(rank)
        if so_far is None:
            so_far = self._printed[rank] = _Printed(node, at, at)
        so_far.last = at
        so_far.size += size

    def _time_of(self, event: Mapping[str, Any]) -> float:
        told = event.get("t") if self.clock == NODE else None
        return float(told) if is_number(told, 0.0, LATEST) else time.time()

    def waits(self, rank: int, node: int, what: str, where: str = "") -> None:
        """Note that a rank was seen waiting; a wait that was noted before is extended."""
        with self._lock:
            known = self._waits.get(rank)
            if known is not None and (known.what, known.where) == (what, where):
                row = self._prolong(known)
            else:
                row = EventRow("wait", time.time(), 0.0, rank, node, what, where=where, run=self.run)
                self._append(row)
            self._waits[rank] = row

    def works(self, rank: int, *, until_now: bool = False) -> None:
        """Note that a rank no longer waits; ``until_now`` if it waited until this moment."""
        with self._lock:
            known = self._waits.pop(rank, None)
            if known is not None and until_now:
                self._prolong(known)

    def _prolong(self, known: EventRow) -> EventRow:
        row = replace(known, seconds=time.time() - known.time)
        ring = self._rings["wait"]
        with contextlib.suppress(ValueError):
            ring[ring.index(known)] = row
        return row

    # -- questions ---------------------------------------------------------------------------------

    def rows(self) -> list[EventRow]:
        """Return all rows by time; what has not ended counts until now."""
        with self._lock:
            now = time.time()
            rows = [row for ring in self._rings.values() for row in ring]
            facts: dict[str, Any] = {"run": self.run, "clock": self.clock}
            for rank, node in self._working.items():
                rows.append(EventRow("state", self._since, now - self._since, rank, node, "running", **facts))
            for rank, one in list(self._printed.items()):
                took = one.last - one.first
                rows.append(EventRow("output", one.first, took, rank, one.node, bytes=one.size, **facts))
        return sorted(rows, key=lambda row: row.time)

    @property
    def size(self) -> int:
        """The number of rows that it keeps."""
        return sum(map(len, self._rings.values()))

    def __getstate__(self) -> dict[str, Any]:
        return {"run": self.run, "rows": self.rows()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["run"])  # type: ignore[misc]
        for row in state["rows"]:
            self._append(row)


_cause: ContextVar[EventLog | None] = ContextVar("sky_jupyter_cause", default=None)


class PoolEvents:
    """Thread-safe logs of a pool's newest runs, and of the pool itself."""

    def __init__(self) -> None:
        # What belongs to no run, and calls of single ranks.
        self.own = EventLog()
        self._runs: dict[str, EventLog] = {}
        # Of short calls: id, title, when it ended, whether it was on all ranks, and rank, node and seconds of each.
        self._short: deque[tuple[str, str, float, bool, list[tuple[int, int, float]]]] = deque(maxlen=MOST_ROWS)
        self._added = 0
        self._lock = threading.Lock()

    def add(self, log: EventLog) -> None:
        """Keep the log of a run that begins; forget the oldest beyond the limit."""
        with self._lock:
            self._runs[log.run] = log
            if len(self._runs) > MOST_RUNS:
                del self._runs[next(iter(self._runs))]
            self._added += 1
            if self._added % _COUNTED:
                return
            sizes = [(run, one.size + 1) for run, one in self._runs.items()]
            excess = sum(size for _, size in sizes) - MOST_ROWS_OF_RUNS
            for run, size in sizes[:-1]:
                if excess <= 0:
                    break
                del self._runs[run]
                excess -= size

    def take_call(self, log: EventLog, name: str) -> None:
        """Copy a call's rows to the pool's log; its state becomes one row."""
        for row in log.rows():
            if row.kind == "state":
                self.own.keep(replace(row, kind="call", what=f"{name}: {row.what}"))
            elif row.kind in ("wait", "stack", "hang"):
                self.own.keep(row)

    def note_short(self, run: str, title: str, ranks: list[tuple[int, int, float]], *, everywhere: bool) -> None:
        """Note a short call, with (rank, node, seconds) each; rows are made on demand."""
        self._short.append((run, title, time.time(), everywhere, ranks))

    def _short_rows(self) -> Iterator[EventRow]:
        for run, title, ended, everywhere, ranks in list(self._short):
            kind, what = ("state", "ok") if everywhere else ("call", f"{title}: ok")
            for rank, node, seconds in ranks:
                yield EventRow(kind, ended - seconds, seconds, rank, node, what, run=run)
            if everywhere:
                longest = max(seconds for _, _, seconds in ranks)
                yield EventRow("call", ended - longest, longest, what=f"{title}: ok", run=run)

    def of(self, run: str) -> EventLog | None:
        """Return the log of a run; None if it is not kept any more."""
        return self._runs.get(run)

    def of_or_own(self, run: str) -> EventLog:
        """Return the log of a run, or else the pool's own."""
        return self._runs.get(run, self.own)

    def rows(self) -> list[EventRow]:
        """Return the rows of all runs and of the pool, by time."""
        with self._lock:
            logs = [self.own, *self._runs.values()]
        rows = [row for log in logs for row in log.rows()]
        return sorted([*rows, *self._short_rows()], key=lambda row: row.time)

    @contextlib.contextmanager
    def caused_by(self, log: EventLog) -> Iterator[None]:
        """Attribute repairs that begin in the block to a run."""
        token = _cause.set(log)
        try:
            yield
        finally:
            _cause.reset(token)

    @contextlib.contextmanager
    def restarting(self, ranks: Collection[int], per_node: int) -> Iterator[None]:
        """Note the block's new kernels in the log of the run that made them necessary."""
        log = self.own if (cause := _cause.get()) is None else cause
        began, at = time.perf_counter(), time.time()
        try:
            yield
        finally:
            seconds = time.perf_counter() - began
            if not ranks:
                log.note("restart", "frameworks set up again", at=at, seconds=seconds)
            for rank in ranks:
                log.note("restart", "new kernel", at=at, seconds=seconds, rank=rank, node=rank // per_node)


def table(rows: Iterable[EventRow]) -> Any:
    """Return rows as a pandas DataFrame, or as a list of dicts without pandas."""
    found = [row.to_dict() for row in rows]
    try:
        import pandas
    except ImportError:
        return found
    frame = pandas.DataFrame(found, columns=list(COLUMNS))
    frame["time"] = pandas.to_datetime(frame["time"], unit="s", utc=True)
    for column in ("rank", "node", "bytes"):
        frame[column] = frame[column].astype("Int64")
    frame["seconds"] = frame["seconds"].astype("float64")
    return frame


__all__ = ["COLUMNS", "EventLog", "EventRow", "PoolEvents", "table"]
