"""The registry: one SQLite file of all pools and runs of this user, so that none goes unknown.

A row is written before anything is made and changed when it is there, and when it has ended. Each
pool has at most one owner, the process that manages it; an owner's generation tells it from those
that were before it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from ...errors import PoolError
from ...node.protocol.version import HOST_PROCESS
from ...node.system import locks
from ...util import process_identity
from ...util.text import format_ranks
from ..base.timeouts import TIMEOUTS
from . import folders as pool_folders
from . import leases
from .database import all_or_nothing, connect, inode, why_not
from .rows import MAX_CODE, MAX_RANKS, POOL_COLUMNS, RUN_COLUMNS, BadRow, PoolRow, RunRow, pool_row
from .rows import run_row as read_run

PATIENCE = TIMEOUTS.registry.busy
KEPT_RUNS, KEPT_POOLS, KEPT_PHASES = 1000, 200, 100
_MOST_TOOK = 1e6
_TIDY_EVERY = 500
_MAX_POOLS = 1000
_MAX_TOLD = 100
# A pool of which nobody has said anything for so long is taken for ended where that can be seen from here,
# and is not listed where not.
_FORGOTTEN = 30 * 86_400.0
_MAX_NODES, _MAX_WORDS = 1000, 10_000


def default_path() -> Path:
    """``SKY_REGISTRY`` where it is set, else a file in the user's data folder."""
    given = os.environ.get("SKY_REGISTRY")
    if given:
        return Path(given)
    import platformdirs

    return platformdirs.user_data_path("sky_jupyter") / "registry.sqlite"


class Registry:
    """One connection a manager, made when first used; any thread may call, any kernel may write too.

    What is told of a run is written by a thread of the registry's own, in order: the disk must not
    stand on the path of a cell, and what cannot be written is a warning (`take_warnings`). What is
    told of a pool is written before the call returns, or the call raises PoolError.

    Parameters
    ----------
    path : Path, optional
        The file; `default_path` unless given.
    patience : float
        Seconds to wait for another process that writes.
    """

    def __init__(self, path: Path | None = None, patience: float = PATIENCE) -> None:
        self.path = path or default_path()
        self.patience = patience
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._file = (0, 0)
        self._writer = _writer()
        self._last: Future[None] | None = None
        self._unwritten: deque[tuple[str, tuple[Any, ...]]] = deque()
        # The locks that say to other containers that this process is there, by the pools that it manages.
        self._locks: dict[str, int] = {}
        self._ends = 0
        self._warnings: list[str] = []
        self._told: set[str] = set()

    # -- the file ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """The connection, for as long as nobody else of this process uses it.

        Raises
        ------
        PoolError
            When the file cannot be used, whatever the reason.
        """
        with self._lock:
            try:
                if self._connection is not None and self._file != inode(self.path):
                    # Somebody moved the file away: what went into it now would be seen by nobody.
                    self._connection.close()
                    self._connection = None
                if self._connection is None:
                    self._connection = connect(self.path, self.patience)
                    self._file = inode(self.path)
                yield self._connection
            except UnicodeDecodeError as error:
                # It would name what is wrong in the file with letters of the file's.
                raise PoolError(why_not(self.path, sqlite3.DatabaseError("it is malformed"))) from error
            except (sqlite3.Error, OSError) as error:
                raise PoolError(why_not(self.path, error)) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All that is written inside, or nothing of it; nobody else writes meanwhile."""
        with self.connection() as connection:
            with all_or_nothing(connection):
                yield connection

    def close(self) -> None:
        """Write what is still to be written, and close the file."""
        writer, self._writer = self._writer, _writer()
        writer.shutdown(wait=True)
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def take_warnings(self) -> list[str]:
        """What could not be written or read since this was last asked; each thing is told once."""
        told, self._warnings = self._warnings, []
        return told

    def _warn(self, text: str) -> None:
        if text not in self._told and len(self._told) < _MAX_TOLD:
            self._told.add(text)
            self._warnings.append(text)

    # -- pools -------------------------------------------------------------------------------------

    def intend(self, id: str, name: str, provider: str, nodes: int, keep: bool) -> int:
        """Record a pool before anything of it is made; this process is its owner.

        Returns
        -------
        int
            Its generation.

        Raises
        ------
        PoolError
            When a kept pool of this name lives, for a pool that is to be kept; or when it cannot
            be recorded.
        """
        now = time.time()
        me, here = process_identity.this(), process_identity.here()
        values = (
            id,
            name,
            provider,
            nodes,
            *me,
            int(keep),
            now,
            process_identity.own_name(),
            here.host,
            here.text,
            now,
        )
        with self.connection() as connection:
            # Not even a loss of power may make a machine unknown.
            connection.execute("PRAGMA synchronous=FULL")
            try:
                with all_or_nothing(connection):
                    if keep:
                        self._refuse_namesake(connection, name)
                    connection.execute(
                        "INSERT INTO pools (id, name, provider, nodes, state, folders, owner, owner_started, keep, "
                        "began, generation, owner_name, owner_host, owner_place, owner_since, machine, machine_place) "
                        "VALUES (?, ?, ?, ?, 'starting', '[]', ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?)",
                        (*values, here.host, here.text),
                    )
            finally:
                connection.execute("PRAGMA synchronous=NORMAL")
        self._hold(id)
        return 1

    def _refuse_namesake(self, connection: sqlite3.Connection, name: str) -> None:
        for row in self._pools(connection, "name = ? AND keep = 1", name):
            # One that is being started has no host yet.
            if row.is_here and (row.host_lives or row.owner_lives or (row.provider != "local" and row.outlives)):
                raise PoolError(
                    f"a kept pool {name!r} lives already, managed by {row.who}: use it with `%sky attach {name}`, "
                    "or give another --name"
                )

    def update(
        self,
        id: str,
        state: str,
        folders: Sequence[str] = (),
        host: tuple[int, float] | None = None,
        nodes: int | None = None,
    ) -> None:
        """Record a pool's state, and its folders, host process and number of nodes where they are given.

        Parameters
        ----------
        host : tuple of int and float, optional
            The number of the process at the pool's root on this machine, and its `identity.started`.

        Raises
        ------
        PoolError
            When another process owns the pool.
        """
        with self.transaction() as connection:
            row = self._find(connection, id)
            if row is not None and row.owner and not row.is_mine:
                raise PoolError(f"pool {row.name!r} is managed by {row.who}, and no more by this process")
            ended = time.time() if state == "ended" else None
            connection.execute("UPDATE pools SET state = ?, ended = ? WHERE id = ?", (state, ended, id))
            if folders:
                connection.execute("UPDATE pools SET folders = ? WHERE id = ?", (json.dumps(list(folders)), id))
            if host is not None:
                connection.execute("UPDATE pools SET host_pid = ?, host_started = ? WHERE id = ?", (*host, id))
            if nodes is not None:
                connection.execute("UPDATE pools SET nodes = ? WHERE id = ?", (nodes, id))
            if state == "ended":
                _lose_runs(connection)
        if state == "ended":
            self._let_go(id)

    def own(self, id: str, take_over: bool = False) -> int:
        """Make this process the owner of a pool that nobody else manages, or of any with ``take_over``.

        Returns
        -------
        int
            The pool's generation: higher than that of any owner before, unless this process was its owner already.

        Raises
        ------
        PoolError
            When another live process manages it; it says who, and how to take the pool over.
        """
        with self.transaction() as connection:
            row = self._find(connection, id)
            if row is None:
                raise PoolError(f"there is no live pool {id!r} in the registry; `%sky status` lists those there are")
            if row.is_mine:
                return row.generation
            refuse_elsewhere(row)
            if row.owner_lives and not take_over:
                raise PoolError(
                    f"pool {row.name!r} is managed by {row.who}; `%sky attach {row.name} --take-over` takes it over"
                )
            generation = self._claim(connection, row)
        self._hold(id)
        return generation

    def _hold(self, id: str) -> None:
        """Have other containers of this machine see that the owner of a pool lives, for as long as it does."""
        path = self.owner_lock(id)
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            held = locks.hold(path)
            if held is not None:
                self._locks[id] = held

    def _let_go(self, id: str) -> None:
        with contextlib.suppress(OSError):
            self.owner_lock(id).unlink()
        if (held := self._locks.pop(id, None)) is not None:
            os.close(held)

    def owner_lock(self, id: str) -> Path:
        """The file that a pool's owner has locked while it lives, as far as it could."""
        return self.path.with_name(f"{self.path.name}.owners") / id

    def _claim(self, connection: sqlite3.Connection, row: PoolRow) -> int:
        here = process_identity.here()
        owner = (*process_identity.this(), process_identity.own_name(), here.host, here.text, time.time())
        # (The machine may have another name by now, or have been started again.)
        connection.execute(
            "UPDATE pools SET owner = ?, owner_started = ?, owner_name = ?, owner_host = ?, owner_place = ?, "
            "owner_since = ?, generation = ?, machine = ?, machine_place = ? WHERE id = ?",
            (*owner, row.generation + 1, here.host, here.text, row.id),
        )
        return row.generation + 1

    def release(self, id: str) -> None:
        """Leave a pool to whoever attaches to it next; nothing where this process does not own it."""
        with self.transaction() as connection:
            row = self._find(connection, id)
            ours = row is not None and row.is_mine
            if ours:
                _disown(connection, id)
        if ours:
            self._let_go(id)

    def owns(self, id: str, generation: int) -> bool:
        """Whether this process is the pool's owner, and has been since it was given this generation."""
        with self.connection() as connection:
            row = self._find(connection, id)
        return row is not None and row.is_mine and row.generation == generation

    def pools(self) -> list[PoolRow]:
        """Pools that have not ended, as far as anybody said, the oldest first."""
        with self.connection() as connection:
            return self._pools(connection)

    def left_name(self, id: str) -> str | None:
        """The name of a pool that is of no use to anybody: it has ended, or nobody manages it, keeps it or runs on it.

        None for every other one, and for those that are not known here.
        """
        with self.connection() as connection:
            row = self._find(connection, id)
            if row is None:
                found = connection.execute(
                    "SELECT substr(name, 1, 64) FROM pools WHERE id = ? AND state = 'ended'", (id,)
                ).fetchone()
                return None if found is None else str(found[0])
        runs = any(run.state == "running" for run in self.runs(id, KEPT_RUNS))
        return None if row.keep or row.owner_lives or not row.is_here or runs else row.name

    def pool(self, name_or_id: str) -> PoolRow | None:
        """The live pool of this id or else name; of several, one that is here, is kept, and is the newest."""
        rows = self.pools()
        same = [row for row in rows if row.id == name_or_id] or [row for row in rows if row.name == name_or_id]
        order = {row.id: number for number, row in enumerate(same)}
        return max(same, key=lambda row: (row.is_here, row.keep, order[row.id]), default=None)

    def _find(self, connection: sqlite3.Connection, id: str) -> PoolRow | None:
        return next(iter(self._pools(connection, "id = ?", id)), None)

    def _pools(self, connection: sqlite3.Connection, where: str = "1", *values: Any) -> list[PoolRow]:
        rows = connection.execute(
            f"SELECT {POOL_COLUMNS} FROM pools WHERE state != 'ended' AND ({where}) AND ({_NOT_FORGOTTEN}) "
            "ORDER BY rowid DESC LIMIT ?",
            (*values, *_here_or_young(), _MAX_POOLS),
        ).fetchall()
        return [row for values in reversed(rows) if (row := self._readable(pool_row, values, "pool")) is not None]

    def _readable(self, read: Any, values: tuple[Any, ...], what: str) -> Any:
        try:
            return read(values)
        except BadRow as error:
            self._warn(f"the registry {self.path} has a {what} with an impossible {error}; it is left out")
            return None

    # -- runs --------------------------------------------------------------------------------------

    def run_began(self, id: str, pool: str, code: str, ranks: Sequence[int] = (), cell: int = 0) -> None:
        """Record that a run begins, on these ranks or on all; of the cell ``In[cell]``, unless 0."""
        # Code may hold halves of characters, which no file can.
        text = code[:MAX_CODE].encode("utf-8", "replace").decode()
        values = (id, pool, text, time.time(), format_ranks(ranks[:MAX_RANKS]), cell)
        self._write_later(
            "INSERT OR IGNORE INTO runs (id, pool, state, code, began, ranks, cell) "
            "VALUES (?, ?, 'running', ?, ?, ?, ?)",
            values,
        )

    def run_ended(self, id: str, state: str, elapsed: float) -> None:
        """Record how a run ended."""
        self._write_later("UPDATE runs SET state = ?, elapsed = ? WHERE id = ?", (state, elapsed, id))
        self._ends += 1
        if self._ends % _TIDY_EVERY == 0:
            for statement, count in _forgetting(KEPT_RUNS, KEPT_POOLS):
                self._write_later(statement, (count,))

    def runs(self, pool: str | None = None, limit: int = 50) -> list[RunRow]:
        """Runs, of one pool (its id) where it is given, the newest first."""
        where, values = ("pool = ?", (pool,)) if pool is not None else ("1", ())
        return self._runs(where, values, limit)

    def run(self, id_or_prefix: str) -> RunRow | None:
        """The run of this id, or whose id begins like this.

        Raises
        ------
        PoolError
            When several do; it says which.
        """
        found = self._runs("substr(id, 1, ?) = ?", (len(id_or_prefix), id_or_prefix), 10) if id_or_prefix else []
        exact = [row for row in found if row.id == id_or_prefix] or found
        if len(exact) > 1:
            raise PoolError(f"several runs begin with {id_or_prefix!r}: {', '.join(row.id for row in exact)}")
        return exact[0] if exact else None

    def _runs(self, where: str, values: tuple[Any, ...], limit: int) -> list[RunRow]:
        self.flush()
        with self.connection() as connection:
            rows = connection.execute(
                f"SELECT {RUN_COLUMNS} FROM runs WHERE {where} ORDER BY rowid DESC LIMIT ?", (*values, limit)
            ).fetchall()
        return [row for values in rows if (row := self._readable(read_run, values, "run")) is not None]

    # -- how long starts take ----------------------------------------------------------------------

    def note_phases(self, kind: str, took: Mapping[str, float]) -> None:
        """Record how many seconds each phase of a start took; the newest of each are kept.

        Parameters
        ----------
        kind : str
            What starts must have in common for one to tell of another.
        """
        self._write_later(_PHASES, ())
        for phase, seconds in took.items():
            self._write_later("INSERT INTO phases (kind, phase, seconds) VALUES (?, ?, ?)", (kind, phase, seconds))
        for statement, values in _FORGETTING_PHASES:
            self._write_later(statement, (kind, *values))

    def usual_phases(self, kind: str) -> dict[str, float]:
        """How many seconds each phase usually took in earlier starts of a kind: the median."""
        self.flush()
        with self.connection() as connection:
            connection.execute(_PHASES)
            rows = connection.execute(
                "SELECT substr(phase, 1, 65), seconds FROM phases WHERE kind = ? ORDER BY rowid DESC LIMIT ?",
                (kind, KEPT_PHASES),
            ).fetchall()
        took: dict[str, list[float]] = {}
        for phase, seconds in rows:
            # A file is input from outside.
            if isinstance(phase, str) and len(phase) <= 64 and isinstance(seconds, float) and 0 <= seconds < _MOST_TOOK:
                took.setdefault(phase, []).append(seconds)
        return {phase: median(found) for phase, found in took.items()}

    def forget_ended(self, runs: int = KEPT_RUNS, pools: int = KEPT_POOLS) -> None:
        """Keep the newest of the runs and pools that have ended, so that the file stays small."""
        with self.transaction() as connection:
            for statement, count in _forgetting(runs, pools):
                connection.execute(statement, (count,))

    # -- the writer --------------------------------------------------------------------------------

    def flush(self) -> None:
        """Wait until what was told of runs is in the file, or could not be written."""
        if self._last is not None:
            self._last.result()

    def _write_later(self, statement: str, values: tuple[Any, ...]) -> None:
        self._unwritten.append((statement, values))
        try:
            self._last = self._writer.submit(self._write)
        except RuntimeError:
            # The interpreter is ending, and starts no more threads.
            self._write()

    def _write(self) -> None:
        """Write all that has come up: a disk that is slow is asked for less often."""
        batch = []
        with contextlib.suppress(IndexError):
            while True:
                batch.append(self._unwritten.popleft())
        if not batch:
            return
        try:
            with self.transaction() as connection:
                for statement, values in batch:
                    connection.execute(statement, values)
        except PoolError as error:
            self._warn(f"what runs did is not recorded: {error}")


def _writer() -> ThreadPoolExecutor:
    # Its thread starts with the first thing to write, and is waited for at the interpreter's end.
    return ThreadPoolExecutor(1, thread_name_prefix="sky-registry")


def sweep(registry: Registry) -> list[str]:
    """Remove the folders of pools of which no process is left, and record their end.

    A host removes its own folders, and a link those of its pool; this is for the machine that lost its
    power, or a process that was killed. A pool whose owner or host lives is left as it is, and so is one
    whose processes cannot be seen from here, unless its locks show that they are gone. One whose owner is
    gone, and whose host is not, has no owner from now on. Of a pool on other machines, which are not asked,
    its lease decides.

    Returns
    -------
    list of str
        The names of the pools that are gone. A registry that cannot be used is a warning of its.
    """
    swept: list[str] = []
    try:
        rows = registry.pools()
        swept.extend(row.name for row in rows if row.is_here and not row.owner_lives and _sweep_one(registry, row))
        swept.extend(row.name for row in rows if row.is_beside and _sweep_beside(registry, row))
        with registry.transaction() as connection:
            _lose_runs(connection)
        registry.forget_ended()
    except PoolError as error:
        registry._warn(str(error))
    return swept


def _sweep_one(registry: Registry, row: PoolRow) -> bool:
    """Look after a pool whose owner is gone; whether it has ended."""
    host = process_identity.ProcessIdentity(row.host_pid, row.host_started) if row.host_lives else None
    if host is None and row.provider == "local" and not row.host_pid:
        # Its owner may have died before it could say which process it had started.
        host = _host_of(row.id)
    if host is not None or (row.provider != "local" and not _is_over(registry, row)):
        with registry.transaction() as connection:
            if registry._find(connection, row.id) == row:
                _disown(connection, row.id)
                if host is not None:
                    connection.execute("UPDATE pools SET host_pid = ?, host_started = ? WHERE id = ?", (*host, row.id))
        return False
    with registry.transaction() as connection:
        # Whoever attaches to the pool just now makes it anew: then it is not to be swept.
        if registry._find(connection, row.id) != row:
            return False
        registry._claim(connection, row)
    if pool_folders.remove(row.id, row.folders) is None:
        # Its host is there, although it is not seen.
        registry.release(row.id)
        return False
    registry.update(row.id, "ended")
    return True


def _sweep_beside(registry: Registry, row: PoolRow) -> bool:
    """End a pool of a container that is gone; whether it was.

    Locks say so, which the kernel takes from a process that ends: its owner's, without which a pool that is
    not kept ends by itself, and of one that is kept its host's. Where there is none, nothing is known.
    """
    if row.provider != "local":
        return False
    with contextlib.ExitStack() as stack:
        lock = registry.owner_lock(row.id)
        if row.owner and not (lock.exists() and stack.enter_context(locks.taken(lock))):
            return False
        seen = any((Path(folder) / locks.HOST).exists() for folder in row.folders)
        if (row.keep and not seen) or pool_folders.remove(row.id, row.folders) is None:
            return False
        with registry.transaction() as connection:
            if registry._find(connection, row.id) != row:
                return False
            connection.execute("UPDATE pools SET state = 'ended', ended = ? WHERE id = ?", (time.time(), row.id))
        registry._let_go(row.id)
    return True


def _is_over(registry: Registry, row: PoolRow) -> bool:
    """Whether a pool on other machines has ended, or nobody has heard of it for too long."""
    if row.provider not in leases.PROVIDERS:
        # Machines that were made for it are not forgotten because their processes have ended.
        return False
    if row.unfinished or time.time() - row.heard > _FORGOTTEN:
        return True
    running = any(run.state == "running" for run in registry.runs(row.id, KEPT_RUNS))
    return leases.has_ended(row, running=running)


def _host_of(pool: str) -> process_identity.ProcessIdentity | None:
    """The pool's host process, as its command tells."""
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, IndexError):
            command = process.cmdline()
            at = command.index(HOST_PROCESS) if HOST_PROCESS in command else len(command)
            if Path(command[at + 1]).name.startswith(f"sky-{pool}-"):
                return process_identity.ProcessIdentity(process.pid, process_identity.started(process.pid))
    return None


def refuse_elsewhere(row: PoolRow) -> None:
    """Refuse a pool whose processes cannot be seen from here; PoolError says where it is."""
    if not row.is_here:
        where = "runs" if row.provider == "local" else "has its keys"
        raise PoolError(
            f"pool {row.name!r} {where} {row.where}: only there can it be attached to (`%sky attach {row.name}`) and "
            f"ended; it is managed by {row.who}"
        )


# A row of this place, or of an earlier start of this machine, is there for as long as it takes to see its end.
_NOT_FORGOTTEN = (
    "machine = '' OR machine_place = ? OR (machine = ? AND (machine_place = '' OR machine_place LIKE ?)) "
    "OR max(began, owner_since) > ?"
)


def _here_or_young() -> tuple[str, str, str, float]:
    here = process_identity.here()
    return here.text, here.host, f"{here.machine}/%" if here.machine else here.text, time.time() - _FORGOTTEN


def _disown(connection: sqlite3.Connection, id: str) -> None:
    connection.execute(
        "UPDATE pools SET owner = 0, owner_started = 0, owner_name = '', owner_host = '', owner_place = '', "
        "owner_since = 0 WHERE id = ?",
        (id,),
    )


def _lose_runs(connection: sqlite3.Connection) -> None:
    """Runs that nobody saw end on pools that are gone will not be heard of again."""
    connection.execute(
        "UPDATE runs SET state = 'lost' WHERE state = 'running' "
        "AND pool NOT IN (SELECT id FROM pools WHERE state != 'ended')"
    )


# Made when it is first needed, so that versions which do not know it read and write the same file.
_PHASES = "CREATE TABLE IF NOT EXISTS phases (kind TEXT NOT NULL, phase TEXT NOT NULL, seconds REAL NOT NULL)"
_FORGETTING_PHASES: Sequence[tuple[str, tuple[int, ...]]] = (
    (
        "DELETE FROM phases WHERE kind = ?1 AND rowid NOT IN "
        "(SELECT rowid FROM phases WHERE kind = ?1 ORDER BY rowid DESC LIMIT ?2)",
        (KEPT_PHASES,),
    ),
    ("DELETE FROM phases WHERE ?1 = ?1 AND rowid <= (SELECT max(rowid) FROM phases) - ?2", (20 * KEPT_PHASES,)),
)


def _forgetting(runs: int, pools: int) -> list[tuple[str, int]]:
    runs_gone = "state != 'running' AND rowid NOT IN (SELECT rowid FROM runs WHERE state != 'running' "
    pools_gone = "state = 'ended' AND rowid NOT IN (SELECT rowid FROM pools WHERE state = 'ended' "
    return [
        (f"DELETE FROM runs WHERE {runs_gone} ORDER BY rowid DESC LIMIT ?)", runs),
        (f"DELETE FROM pools WHERE {pools_gone} ORDER BY rowid DESC LIMIT ?)", pools),
    ]


def running(row: PoolRow) -> set[str]:
    """The ids of the runs that are on in a kept pool, as its nodes left word; nothing is connected to."""
    found: set[str] = set()
    for folder in row.folders[:1]:
        for path in sorted(Path(folder).glob("n*/running"))[:_MAX_NODES]:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                with path.open(encoding="ascii") as file:
                    found.update(word for word in file.read(_MAX_WORDS).split() if word.isalnum())
    return found


__all__ = ["PoolRow", "Registry", "RunRow", "default_path", "refuse_elsewhere", "running", "sweep"]
