"""The registry: one SQLite file of all pools and runs of this user.

A row is written before anything is made, and updated when it is ready and when it has ended. Each pool has at most one
owner, the process that manages it; the owner's generation is its fencing token.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ...errors import PoolError
from ...node.protocol.version import HOST_PROCESS
from ...node.system import file_locks
from ...util import process_identity
from ...util.state_folder import registry_path as default_path
from ...util.text import format_ranks
from ..base.timeouts import TIMEOUTS
from . import folder_removal as pool_folders
from . import lease_expiry
from .database import all_or_nothing, connect, why_not
from .retention import Retention
from .rows import MAX_CODE, MAX_RANKS, POOL_COLUMNS, RUN_COLUMNS, BadRow, PoolRow, RunRow, pool_row
from .rows import run_row as read_run

PATIENCE, _GATHER = TIMEOUTS.registry.busy, TIMEOUTS.registry.gather
KEPT_PHASES = 100
_MOST_TOOK = 1e6
_TIDY_EVERY = 500
_MAX_POOLS = 1000
_MAX_TOLD = 100
# A pool without updates for this long counts as ended if its processes are visible from here; else it is not listed.
_FORGOTTEN = 30 * 86_400.0
_MAX_NODES, _MAX_WORDS = 1000, 10_000
# Texts that begin with a prefix sort below the prefix with this appended.
_LAST = "\U0010ffff"

# The connections of this process: reads of runs through one include what the others have queued.
_OPEN: weakref.WeakSet[Registry] = weakref.WeakSet()
_opening = threading.Lock()


class Registry:
    """Connection to the registry, one per manager; thread-safe.

    A background thread writes the rows of runs, in order, so that the disk does not delay cells. An end is written a
    moment later; if the process is killed before, the nodes know it (`take_stock`). Failures of the thread are warnings
    (`take_warnings`). Rows of pools are written before a call returns; a failure raises PoolError.

    Parameters
    ----------
    path : Path, optional
        The file, by default `default_path`.
    patience : float
        Timeout in seconds while another process writes.

    Raises
    ------
    SpecError
        If the environment has an impossible `Retention`.
    """

    def __init__(self, path: Path | None = None, patience: float = PATIENCE) -> None:
        self.path = path or default_path()
        self.patience = patience
        self.retention = Retention.read()
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._file = (0, 0)
        self._writer = _writer()
        self._last: Future[None] | None = None
        self._unwritten: deque[tuple[str, tuple[Any, ...]]] = deque()
        # Set to write at once what is queued.
        self._hurry = threading.Event()
        # By pool, the lock that shows to other containers that this process is alive.
        self._locks: dict[str, int] = {}
        self._ends = 0
        self._warnings: list[str] = []
        self._told: set[str] = set()
        with _opening:
            _OPEN.add(self)

    # -- the file ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection, exclusively in this process.

        Raises PoolError if the file cannot be used.
        """
        with self._lock:
            try:
                if self._connection is not None and self._file != _inode(self.path):
                    # The file was moved away: what is written to it would be lost.
                    self._connection.close()
                    self._connection = None
                if self._connection is None:
                    self._connection = connect(self.path, self.patience)
                    self._file = _inode(self.path)
                yield self._connection
            except UnicodeDecodeError as error:
                # The error's own message would show the file's content.
                raise PoolError(why_not(self.path, sqlite3.DatabaseError("it is malformed"))) from error
            except (sqlite3.Error, OSError) as error:
                raise PoolError(why_not(self.path, error)) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block in an exclusive transaction."""
        with self.connection() as connection:
            with all_or_nothing(connection):
                yield connection

    def close(self) -> None:
        """Write what is queued, and close the file."""
        writer, self._writer = self._writer, _writer()
        self._hurry.set()
        writer.shutdown(wait=True)
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @property
    def has_warnings(self) -> bool:
        """Whether there were warnings since the last `take_warnings`."""
        return bool(self._warnings)

    def take_warnings(self) -> list[str]:
        """Return the warnings since the last call; each is returned once."""
        told, self._warnings = self._warnings, []
        return told

    def _warn(self, text: str) -> None:
        if text not in self._told and len(self._told) < _MAX_TOLD:
            self._told.add(text)
            self._warnings.append(text)

    def has_rows(self, tables: Sequence[str]) -> bool:
        """Return whether one of the tables exists and has rows, or is unreadable."""
        with self.connection() as connection:
            known = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            try:
                return any(connection.execute(f"SELECT 1 FROM {one} LIMIT 1").fetchone() for one in known & {*tables})
            except sqlite3.Error:
                return True

    # -- pools -------------------------------------------------------------------------------------

    def intend(self, id: str, name: str, provider: str, nodes: int, keep: bool) -> int:
        """Record a pool before anything is made; return its generation.

        Raises PoolError if a kept pool of this name is live and this one is to be kept, or if it cannot be recorded.
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
            # With full sync: no machine may become unknown by a loss of power.
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
            # A pool that is being started has no host yet.
            if row.is_here and (row.host_lives or row.owner_lives or (not row.is_local and row.outlives)):
                raise PoolError(
                    f"a kept pool {name!r} is already running, managed by {row.who}: use it with `%sky attach {name}`, "
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
        """Record a pool's state, and its other facts where given.

        ``host`` is the pid of the pool's root process on this machine, and its `process_identity.started`. Raises
        PoolError if another process owns the pool.
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
        """Become the owner of a pool; return its generation.

        ``take_over`` allows to replace a live manager. The generation is higher than that of all owners before,
        unless this process is the owner already. Raises PoolError, with the owner and the remedy, if another live
        process manages it.
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
        """Lock a file that shows this process to other containers."""
        path = self.owner_lock(id)
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            held = file_locks.hold(path)
            if held is not None:
                self._locks[id] = held

    def _let_go(self, id: str) -> None:
        with contextlib.suppress(OSError):
            self.owner_lock(id).unlink()
        if (held := self._locks.pop(id, None)) is not None:
            os.close(held)

    def owner_lock(self, id: str) -> Path:
        """Return the file that a pool's owner has locked while it is alive."""
        return self.path.with_name(f"{self.path.name}.owners") / id

    def _claim(self, connection: sqlite3.Connection, row: PoolRow) -> int:
        here = process_identity.here()
        owner = (*process_identity.this(), process_identity.own_name(), here.host, here.text, time.time())
        # (The machine may have been renamed or rebooted.)
        connection.execute(
            "UPDATE pools SET owner = ?, owner_started = ?, owner_name = ?, owner_host = ?, owner_place = ?, "
            "owner_since = ?, generation = ?, machine = ?, machine_place = ? WHERE id = ?",
            (*owner, row.generation + 1, here.host, here.text, row.id),
        )
        return row.generation + 1

    def release(self, id: str) -> None:
        """Give up a pool for the next manager, if it is ours."""
        with self.transaction() as connection:
            row = self._find(connection, id)
            ours = row is not None and row.is_mine
            if ours:
                _disown(connection, id)
        if ours:
            self._let_go(id)

    def owns(self, id: str, generation: int) -> bool:
        """Return whether this process owns the pool, under this generation."""
        with self.connection() as connection:
            row = self._find(connection, id)
        return row is not None and row.is_mine and row.generation == generation

    def pools(self) -> list[PoolRow]:
        """Return the pools that have not ended, the oldest first."""
        with self.connection() as connection:
            return self._pools(connection)

    def unended(self) -> set[str]:
        """Return the ids of pools that have not ended, even unlisted ones."""
        with self.connection() as connection:
            return {id for (id,) in connection.execute("SELECT id FROM pools WHERE state != 'ended'")}

    def left_name(self, id: str) -> str | None:
        """Return the name of an ended or abandoned pool, else None.

        A pool is abandoned if it is not kept, has no manager, and nothing runs on it.
        """
        with self.connection() as connection:
            row = self._find(connection, id)
            if row is None:
                found = connection.execute(
                    "SELECT substr(name, 1, 64) FROM pools WHERE id = ? AND state = 'ended'", (id,)
                ).fetchone()
                return None if found is None else str(found[0])
        runs = row.keep or row.owner_lives or not row.is_here or self.running_runs(id, 1)
        return None if runs else row.name

    def pool(self, name_or_id: str) -> PoolRow | None:
        """Return the live pool of this id or name; prefer visible, kept, new ones."""
        rows = self.pools()
        same = [row for row in rows if row.id == name_or_id] or [row for row in rows if row.name == name_or_id]
        order = {row.id: number for number, row in enumerate(same)}
        return max(same, key=lambda row: (row.is_here, row.keep, order[row.id]), default=None)

    def _find(self, connection: sqlite3.Connection, id: str) -> PoolRow | None:
        return next(iter(self._pools(connection, "id = ?", id)), None)

    def _pools(self, connection: sqlite3.Connection, where: str = "1", *values: Any) -> list[PoolRow]:
        rows = connection.execute(
            f"SELECT {POOL_COLUMNS} FROM pools WHERE state != 'ended' AND ({where}) AND ({_NOT_FORGOTTEN}) "
            "ORDER BY +rowid DESC LIMIT ?",
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

    def run_began(
        self, id: str, pool: str, code: str, ranks: Sequence[int] = (), cell: int = 0, notebook: str | None = None
    ) -> None:
        """Record the begin of a run, by default on all ranks and by this notebook."""
        # Code may have lone surrogates, which cannot be encoded.
        text = code[:MAX_CODE].encode("utf-8", "replace").decode()
        values = (id, pool, text, time.time(), format_ranks(ranks[:MAX_RANKS]), cell)
        began_by = process_identity.own_name() if notebook is None else notebook
        self._write_later(
            "INSERT OR IGNORE INTO runs (id, pool, state, code, began, ranks, cell, notebook) "
            "VALUES (?, ?, 'running', ?, ?, ?, ?, ?)",
            (*values, began_by),
        )
        # After a kill, the process that finds the pool must learn what runs there.
        self._hurry.set()

    def run_ended(self, id: str, state: str, elapsed: float) -> None:
        """Record the end of a run."""
        self._write_later("UPDATE runs SET state = ?, elapsed = ? WHERE id = ?", (state, elapsed, id))
        self._ends += 1
        if self._ends % _TIDY_EVERY == 0:
            for statement, values in self.retention.statements():
                self._write_later(statement, values)

    def runs(self, pool: str | None = None, limit: int = 50) -> list[RunRow]:
        """Return the runs, of a pool's id or of all, the newest first."""
        where, values = ("pool = ?", (pool,)) if pool is not None else ("1", ())
        return self._runs(where, values, limit)

    def running_runs(self, pool: str, limit: int = 1000) -> list[RunRow]:
        """Return the runs of a pool's id that have not ended, the newest first."""
        return self._runs("pool = ? AND state = 'running'", (pool,), limit)

    def numbers(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the runs' places in the order of their begin; unknown ones have none."""
        self.flush()
        with self.connection() as connection:
            found = [connection.execute("SELECT id, rowid FROM runs WHERE id = ?", (id,)).fetchone() for id in ids]
        return dict(pair for pair in found if pair is not None)

    def run(self, id_or_prefix: str, pool: str | None = None) -> RunRow | None:
        """Return the run of this id or prefix of one, of all or of a pool's id.

        Raises PoolError, with the candidates, if the prefix is ambiguous.
        """
        where = "id >= ? AND id < ? AND coalesce(pool = ?, 1)"
        found = self._runs(where, (id_or_prefix, id_or_prefix + _LAST, pool), 10) if id_or_prefix else []
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

    # -- durations of starts -----------------------------------------------------------------------

    def note_phases(self, kind: str, took: Mapping[str, float]) -> None:
        """Record the durations of a start's phases; keep the newest of each.

        ``kind`` is equal for comparable starts.
        """
        self._write_later(_PHASES, ())
        for phase, seconds in took.items():
            self._write_later("INSERT INTO phases (kind, phase, seconds) VALUES (?, ?, ?)", (kind, phase, seconds))
        for statement, values in _FORGETTING_PHASES:
            self._write_later(statement, (kind, *values))

    def usual_phases(self, kind: str) -> dict[str, float]:
        """Return the median durations of earlier starts' phases."""
        self.flush()
        with self.connection() as connection:
            connection.execute(_PHASES)
            rows = connection.execute(
                "SELECT substr(phase, 1, 65), seconds FROM phases WHERE kind = ? ORDER BY rowid DESC LIMIT ?",
                (kind, KEPT_PHASES),
            ).fetchall()
        took: dict[str, list[float]] = {}
        for phase, seconds in rows:
            # The file is untrusted input.
            if isinstance(phase, str) and len(phase) <= 64 and isinstance(seconds, float) and 0 <= seconds < _MOST_TOOK:
                took.setdefault(phase, []).append(seconds)
        # Imported here: it brings fractions and decimals, and each `%load_ext` would wait for them.
        from statistics import median

        return {phase: median(found) for phase, found in took.items()}

    def forget_ended(self) -> None:
        """Delete the oldest ended runs and pools, as its retention says."""
        with self.transaction() as connection:
            self.retention.apply(connection)

    # -- the writer --------------------------------------------------------------------------------

    def flush(self) -> None:
        """Wait until the rows of runs of this process are written, or have failed."""
        with _opening:
            known = [one for one in _OPEN if one.path == self.path]
        for registry in known:
            registry.write_now()

    def write_now(self) -> None:
        """Wait until this connection's own rows of runs are written, or have failed."""
        if self._last is not None:
            self._hurry.set()
            self._last.result()

    def _write_later(self, statement: str, values: tuple[Any, ...]) -> None:
        self._unwritten.append((statement, values))
        try:
            self._last = self._writer.submit(self._write_soon)
        except RuntimeError:
            # The interpreter is exiting, and starts no more threads.
            self._write()

    def _write_soon(self) -> None:
        """Write what is queued; ends of runs wait a moment to share a transaction."""
        if self._unwritten:
            self._hurry.wait(_GATHER)
            self._hurry.clear()
            self._write()

    def _write(self) -> None:
        """Write all queued statements in one transaction."""
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


@contextlib.contextmanager
def opened() -> Iterator[Registry]:
    """Open the registry for a ``with`` block."""
    registry = Registry()
    try:
        yield registry
    finally:
        registry.close()


def _inode(path: Path) -> tuple[int, int]:
    """Return the file's device and inode."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        return 0, 0
    return facts.st_dev, facts.st_ino


def _writer() -> ThreadPoolExecutor:
    # Its thread starts with the first write, and is joined at the interpreter's exit.
    return ThreadPoolExecutor(1, thread_name_prefix="sky-registry")


def sweep(registry: Registry) -> list[str]:
    """Remove the folders of dead pools, record their end; return the names.

    Hosts and links remove their own folders; this is for a loss of power, or killed processes. Pools with a live owner
    or host stay, as do those whose processes are not visible from here, unless their locks are free. A live host
    without its owner loses the owner's name. Remote pools are judged by their lease. If the registry cannot be used,
    that becomes one of its warnings.
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
    """Check a pool whose owner is gone; return whether it has ended."""
    host = process_identity.ProcessIdentity(row.host_pid, row.host_started) if row.host_lives else None
    if host is None and row.is_local and not row.host_pid:
        # Its owner may have died before it had recorded the process that it started.
        host = _host_of(row.id)
    if host is not None or (not row.is_local and not _is_over(registry, row)):
        with registry.transaction() as connection:
            if registry._find(connection, row.id) == row:
                _disown(connection, row.id)
                if host is not None:
                    connection.execute("UPDATE pools SET host_pid = ?, host_started = ? WHERE id = ?", (*host, row.id))
        return False
    with registry.transaction() as connection:
        # A process that has just attached to the pool is using it.
        if registry._find(connection, row.id) != row:
            return False
        registry._claim(connection, row)
    if pool_folders.remove(row.id, row.folders) is None:
        # Its host is alive, though not visible.
        registry.release(row.id)
        return False
    registry.update(row.id, "ended")
    return True


def _sweep_beside(registry: Registry, row: PoolRow) -> bool:
    """End a local pool of a container that is gone; return whether it was.

    The kernel releases the locks of dead processes: those of the owner and of the hosts must be free. The owner's lock
    file must exist; for a kept pool, which does not end with its owner, a host's, too.
    """
    if not row.is_local:
        return False
    with contextlib.ExitStack() as stack:
        lock = registry.owner_lock(row.id)
        if row.owner and not (lock.exists() and stack.enter_context(file_locks.taken(lock))):
            return False
        seen = any((Path(folder) / file_locks.HOST).exists() for folder in row.folders)
        if (row.keep and not seen) or pool_folders.remove(row.id, row.folders) is None:
            return False
        with registry.transaction() as connection:
            if registry._find(connection, row.id) != row:
                return False
            connection.execute("UPDATE pools SET state = 'ended', ended = ? WHERE id = ?", (time.time(), row.id))
        registry._let_go(row.id)
    return True


def _is_over(registry: Registry, row: PoolRow) -> bool:
    """Return whether a remote pool has ended, or is long unheard of."""
    if row.provider not in lease_expiry.PROVIDERS:
        # Created machines outlive their processes: they must not be forgotten.
        return False
    if row.unfinished or time.time() - row.heard > _FORGOTTEN:
        return True
    return lease_expiry.has_ended(row, running=bool(registry.running_runs(row.id, 1)))


def _host_of(pool: str) -> process_identity.ProcessIdentity | None:
    """Return the pool's host process, found by its command line."""
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, IndexError):
            command = process.cmdline()
            at = command.index(HOST_PROCESS) if HOST_PROCESS in command else len(command)
            if Path(command[at + 1]).name.startswith(f"sky-{pool}-"):
                return process_identity.ProcessIdentity(process.pid, process_identity.started(process.pid))
    return None


def refuse_elsewhere(row: PoolRow) -> None:
    """Raise PoolError if a pool's processes are not visible here."""
    if not row.is_here:
        where = "runs" if row.is_local else "has its keys"
        raise PoolError(
            f"pool {row.name!r} {where} {row.where}: only there can it be attached to (`%sky attach {row.name}`) and "
            f"ended; it is managed by {row.who}"
        )


# Rows of this place, or of an earlier boot of this machine, are listed until their end is seen.
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
    """Mark unfinished runs of ended pools as lost."""
    connection.execute(
        "UPDATE runs SET state = 'lost' WHERE state = 'running' "
        "AND pool NOT IN (SELECT id FROM pools WHERE state != 'ended')"
    )


# Created on first use, so that versions that do not know it can use the same file.
_PHASES = "CREATE TABLE IF NOT EXISTS phases (kind TEXT NOT NULL, phase TEXT NOT NULL, seconds REAL NOT NULL)"
_FORGETTING_PHASES: Sequence[tuple[str, tuple[int, ...]]] = (
    (
        "DELETE FROM phases WHERE kind = ?1 AND rowid NOT IN "
        "(SELECT rowid FROM phases WHERE kind = ?1 ORDER BY rowid DESC LIMIT ?2)",
        (KEPT_PHASES,),
    ),
    ("DELETE FROM phases WHERE ?1 = ?1 AND rowid <= (SELECT max(rowid) FROM phases) - ?2", (20 * KEPT_PHASES,)),
)


def running(row: PoolRow) -> set[str]:
    """Return the ids of active runs in a kept pool, from its nodes' files."""
    found: set[str] = set()
    for folder in row.folders[:1]:
        for path in sorted(Path(folder).glob("n*/running"))[:_MAX_NODES]:
            with contextlib.suppress(OSError, UnicodeDecodeError):
                with path.open(encoding="ascii") as file:
                    found.update(word for word in file.read(_MAX_WORDS).split() if word.isalnum())
    return found


__all__ = ["PoolRow", "Registry", "RunRow", "default_path", "opened", "refuse_elsewhere", "running", "sweep"]
