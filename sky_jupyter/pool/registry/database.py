"""The registry's SQLite file: creation, migration, transactions, messages."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from ...errors import PoolError
from ...util.text import cleaned

VERSION = 1
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
# The migrations to each version; the tables above are version 0.
_ADDED = {
    1: (
        "ALTER TABLE pools ADD COLUMN generation INTEGER NOT NULL DEFAULT 1",
        "ALTER TABLE pools ADD COLUMN owner_name TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE pools ADD COLUMN owner_host TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE pools ADD COLUMN owner_since REAL NOT NULL DEFAULT 0",
        "ALTER TABLE pools ADD COLUMN machine TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE pools ADD COLUMN host_pid INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE pools ADD COLUMN host_started REAL NOT NULL DEFAULT 0",
        "ALTER TABLE runs ADD COLUMN ranks TEXT NOT NULL DEFAULT ''",
    )
}
# Columns added without a new version: packages that do not know them use the same file.
_MORE = {
    "pools": {
        "owner_place": "TEXT NOT NULL DEFAULT ''",
        "machine_place": "TEXT NOT NULL DEFAULT ''",
    },
    "runs": {
        "cell": "INTEGER NOT NULL DEFAULT 0",
        "notebook": "TEXT NOT NULL DEFAULT ''",
    },
}
# Added in the same way. The time of queries during a cell, or from a page, must not depend on the number of rows.
_INDICES = {
    "runs_by_pool": "runs (pool)",
    "runs_running": "runs (pool) WHERE state = 'running'",
    "pools_live": "pools (name) WHERE state != 'ended'",
}
_making = threading.Lock()


def connect(path: Path, patience: float) -> sqlite3.Connection:
    """Open the file and migrate its tables; create it if it is missing."""
    _make(path)
    deadline = time.monotonic() + patience
    while True:
        connection = sqlite3.connect(path, timeout=patience, isolation_level=None, check_same_thread=False)
        try:
            # A single text that is not UTF-8 must not make the other rows unreadable.
            connection.text_factory = lambda data: data.decode("utf-8", "replace")
            _migrate(connection, path)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute("PRAGMA journal_size_limit=4194304")
            return connection
        except sqlite3.OperationalError as error:
            connection.close()
            # A concurrent change of the journal mode fails at once, without the busy timeout.
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        except BaseException:
            connection.close()
            raise


def _make(path: Path) -> None:
    """Create the file if it is missing, and restrict it to its user.

    An existing file is not opened: closing it would drop the locks that SQLite has for this process's other
    connections, and their last writes.
    """
    with _making:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.parent.name == "sky_jupyter":
            with contextlib.suppress(OSError):
                path.parent.chmod(0o700)
        try:
            facts = path.stat()
        except FileNotFoundError:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            return
        if not stat.S_ISREG(facts.st_mode):
            raise OSError("it is not a file")
        if facts.st_uid == os.geteuid() and stat.S_IMODE(facts.st_mode) != 0o600:
            path.chmod(0o600)


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Migrate the tables to this version.

    Raises PoolError if the file is of a later version, or another program's.
    """
    if _standing(connection, path) == VERSION and not _missing(connection):
        return
    with all_or_nothing(connection):
        # Another process may have migrated them meanwhile.
        version = _standing(connection, path)
        if version is None:
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
        for number in range((version or 0) + 1, VERSION + 1):
            for statement in _ADDED[number]:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version={VERSION}")
        for statement in _missing(connection):
            connection.execute(statement)


def _missing(connection: sqlite3.Connection) -> list[str]:
    """Return the statements that add missing columns and indices."""
    indices = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
    found = [f"CREATE INDEX {name} ON {what}" for name, what in _INDICES.items() if name not in indices]
    for table, columns in _MORE.items():
        there = {name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")}
        found += [
            f"ALTER TABLE {table} ADD COLUMN {name} {kind}" for name, kind in columns.items() if name not in there
        ]
    return found


def _standing(connection: sqlite3.Connection, path: Path) -> int | None:
    """Return the version of the tables; None if there are none."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if not 0 <= version <= VERSION:
        raise PoolError(
            f"the registry {path} is from a later version of sky_jupyter ({version}; this one knows {VERSION}); "
            "update sky_jupyter, or set SKY_REGISTRY to another file"
        )
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if (tables or version) and not {"pools", "runs"} <= tables:
        raise PoolError(f"{path} is another program's database; set SKY_REGISTRY to a file for the registry alone")
    return version if tables else None


@contextlib.contextmanager
def all_or_nothing(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block in an exclusive transaction; roll back on an error."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise


def why_not(path: Path, error: Exception) -> str:
    """Return a message on why the file cannot be used, and what to do."""
    text = cleaned((error.strerror if isinstance(error, OSError) else "") or str(error))
    if "locked" in text:
        todo = "another process writes into it, try again"
    elif "full" in text or "No space" in text:
        todo = "make room on its disk"
    elif "not a database" in text or "malformed" in text:
        todo = "move it away if it is not needed, and a new one is made; or set SKY_REGISTRY to another file"
    else:
        todo = "see that it can be read and written, or set SKY_REGISTRY to another file"
    return f"the registry {path} cannot be used: {text}; {todo}"
