"""What pools have ordered from providers that make machines, in the registry before each call is sent.

A row is one call, or with an empty token a pool's plan to make some. It says what a later process needs to find
and end the machines: the provider, the account, the region, when they may be ended. The rows of a pool go when
all of its machines were seen to end. No row holds a secret.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .registry import Registry

PLANNED, SENT, MADE, REFUSED = "planned", "sent", "made", "refused"
# Made when it is first needed, as that of traces.
_TABLE = (
    "CREATE TABLE IF NOT EXISTS orders (pool TEXT NOT NULL, token TEXT NOT NULL, provider TEXT NOT NULL, "
    "recipe TEXT NOT NULL, account TEXT NOT NULL, region TEXT NOT NULL, zone TEXT NOT NULL, count INTEGER NOT NULL, "
    "until REAL, state TEXT NOT NULL, ids TEXT NOT NULL, touched REAL NOT NULL, PRIMARY KEY (pool, token))"
)
_COLUMNS = "pool, token, provider, recipe, account, region, zone, count, until, state, ids, touched"
_NAMES = _COLUMNS.split(", ")
_MOST = 10_000


@dataclass(frozen=True)
class OrderRow:
    """A call that makes machines, or the plan of a pool to send some.

    Attributes
    ----------
    provider, recipe : str
        The provider's kind, and as JSON what it is made again from.
    account : str
        Who pays.
    count : int
        How many machines are ordered.
    until : float or None
        When the machines may be ended whatever they do, by the time of day.
    state : str
        ``"planned"``, ``"sent"``: nobody knows whether machines were made, ``"made"`` or ``"refused"``.
    ids : tuple of str
        The machines that were made.
    touched : float
        When the row was last written, by the time of day.
    """

    pool: str
    token: str
    provider: str
    recipe: str
    account: str = ""
    region: str = ""
    zone: str = ""
    count: int = 0
    until: float | None = None
    state: str = PLANNED
    ids: tuple[str, ...] = ()
    touched: float = 0.0


def write(registry: Registry, row: OrderRow) -> None:
    """Write a row, in the place of the one with its token.

    Raises
    ------
    PoolError
        When it cannot be written: then the call may not be sent.
    """
    values = (row.pool, row.token, row.provider, row.recipe, row.account, row.region, row.zone, row.count, row.until)
    with _durably(registry) as connection:
        connection.execute(
            f"INSERT OR REPLACE INTO orders ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*values, row.state, json.dumps(list(row.ids)), row.touched),
        )


def of(registry: Registry, pool: str) -> list[OrderRow]:
    """What a pool has ordered, the oldest first."""
    return [row for row in every(registry) if row.pool == pool]


def every(registry: Registry) -> list[OrderRow]:
    """All rows, the oldest first."""
    with registry.connection() as connection:
        try:
            found = connection.execute(f"SELECT {_COLUMNS} FROM orders ORDER BY rowid LIMIT ?", (_MOST,)).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise
    return [OrderRow(**{**dict(zip(_NAMES, row, strict=True)), "ids": _ids(row[-2])}) for row in found]


def forget(registry: Registry, rows: Iterable[OrderRow]) -> None:
    """Forget calls whose machines were all seen to end; one that was recorded since, or again, stays."""
    with registry.transaction() as connection, _if_there():
        for row in rows:
            where = (row.pool, row.token, row.touched)
            connection.execute("DELETE FROM orders WHERE pool = ? AND token = ? AND touched <= ?", where)


@contextlib.contextmanager
def _durably(registry: Registry) -> Iterator[sqlite3.Connection]:
    """Write so that not even a loss of power makes a machine unknown."""
    from .database import all_or_nothing

    with registry.connection() as connection:
        connection.execute("PRAGMA synchronous=FULL")
        try:
            with all_or_nothing(connection):
                connection.execute(_TABLE)
                yield connection
        finally:
            connection.execute("PRAGMA synchronous=NORMAL")


@contextlib.contextmanager
def _if_there() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise


def _ids(text: Any) -> tuple[str, ...]:
    with contextlib.suppress(ValueError, TypeError):
        found: Sequence[Any] = json.loads(text)
        return tuple(str(id) for id in found)
    return ()


__all__ = ["MADE", "PLANNED", "REFUSED", "SENT", "OrderRow", "every", "forget", "of", "write"]
