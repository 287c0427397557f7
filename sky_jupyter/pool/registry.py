"""The registry: one SQLite file of all pools and runs of this user, so that none goes unknown.

A row is written before anything is made and changed when it is there, and when it has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SCHEMA = """
CREATE TABLE IF NOT EXISTS pools (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, provider TEXT NOT NULL, nodes INTEGER NOT NULL,
    state TEXT NOT NULL, folders TEXT NOT NULL, owner INTEGER NOT NULL, owner_started REAL NOT NULL,
    keep INTEGER NOT NULL, began REAL NOT NULL, ended REAL
);
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY, pool TEXT NOT NULL, state TEXT NOT NULL, code TEXT NOT NULL,
    began REAL NOT NULL, elapsed REAL
);
"""
_MAX_CODE = 10_000


@dataclass(frozen=True)
class PoolRow:
    """A pool as the registry knows it."""

    id: str
    name: str
    provider: str
    nodes: int
    state: str
    folders: tuple[str, ...]
    owner: int
    owner_started: float
    keep: bool


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
    stand on the path of a cell.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_path()
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._later: ThreadPoolExecutor | None = None

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._connection is None:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._connection = sqlite3.connect(self.path, timeout=10, isolation_level=None, check_same_thread=False)
                self._connection.execute("PRAGMA journal_mode=WAL")
                self._connection.execute("PRAGMA synchronous=NORMAL")
                self._connection.executescript(_SCHEMA)
            yield self._connection

    def _write_later(self, statement: str, values: tuple[Any, ...]) -> None:
        def write() -> None:
            with self._open() as connection:
                connection.execute(statement, values)

        if self._later is None:
            self._later = ThreadPoolExecutor(1, thread_name_prefix="sky-registry")
        self._later.submit(write)

    def close(self) -> None:
        """Write what is still to be written, and close the file."""
        if self._later is not None:
            self._later.shutdown(wait=True)
            self._later = None
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def intend(self, id: str, name: str, provider: str, nodes: int, keep: bool) -> None:
        """Record a pool before anything of it is made."""
        import psutil

        me = psutil.Process()
        with self._open() as connection:
            connection.execute(
                "INSERT INTO pools VALUES (?, ?, ?, ?, 'starting', '[]', ?, ?, ?, ?, NULL)",
                (id, name, provider, nodes, me.pid, me.create_time(), int(keep), time.time()),
            )

    def update(self, id: str, state: str, folders: tuple[str, ...] = ()) -> None:
        """Record a pool's state, and its folders where they are given."""
        with self._open() as connection:
            ended = time.time() if state == "ended" else None
            connection.execute("UPDATE pools SET state = ?, ended = ? WHERE id = ?", (state, ended, id))
            if folders:
                connection.execute("UPDATE pools SET folders = ? WHERE id = ?", (json.dumps(folders), id))

    def pools(self) -> list[PoolRow]:
        """Pools that have not ended, as far as anybody said."""
        with self._open() as connection:
            rows = connection.execute(
                "SELECT id, name, provider, nodes, state, folders, owner, owner_started, keep "
                "FROM pools WHERE state != 'ended' ORDER BY began"
            ).fetchall()
        return [_row(row) for row in rows]

    def run_began(self, id: str, pool: str, code: str) -> None:
        """Record that a run begins."""
        values = (id, pool, code[:_MAX_CODE], time.time())
        self._write_later("INSERT INTO runs VALUES (?, ?, 'running', ?, ?, NULL)", values)

    def run_ended(self, id: str, state: str, elapsed: float) -> None:
        """Record how a run ended."""
        self._write_later("UPDATE runs SET state = ?, elapsed = ? WHERE id = ?", (state, elapsed, id))


def _row(row: tuple[Any, ...]) -> PoolRow:
    folders = json.loads(row[5])
    id, name, provider, nodes, state, _, owner, owner_started, keep = row
    return PoolRow(id, name, provider, nodes, state, tuple(map(str, folders)), owner, owner_started, bool(keep))


def sweep(registry: Registry) -> list[str]:
    """Remove the folders of local pools whose owner is gone, and record their end.

    A host removes its own folders; this is for the machine that lost its power, or a host that was
    killed together with its owner.
    """
    import shutil

    import psutil

    swept = []
    for row in registry.pools():
        alive = False
        with contextlib.suppress(psutil.Error):
            alive = abs(psutil.Process(row.owner).create_time() - row.owner_started) < 1
        if alive or row.keep or row.provider != "local":
            continue
        for folder in row.folders:
            # Only what we made: a registry row is input from outside.
            if Path(folder).name.startswith("sky-"):
                shutil.rmtree(folder, ignore_errors=True)
        registry.update(row.id, "ended")
        swept.append(row.name)
    return swept
