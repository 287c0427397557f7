"""Orders of machines, recorded in the registry before they are sent.

A row is one call or, with an empty token, a pool's plan to make some. It has what a later process needs to find and
destroy the machines: provider, account, region, deadline. A pool's rows are deleted once all of its machines were seen
to end. No row has a secret.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import provider_accounts

if TYPE_CHECKING:
    from .registry import Registry

PLANNED, SENT, MADE, REFUSED = "planned", "sent", "made", "refused"
# Created on first use, like the table of traces.
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
    """Call that creates machines, or a pool's plan to send some.

    Attributes
    ----------
    provider, recipe : str
        The provider's kind, and the JSON from which it is rebuilt.
    account : str
        The account that pays.
    count : int
        Number of machines.
    until : float or None
        Deadline (Unix time) after which the machines may be destroyed in any case.
    state : str
        ``"planned"``, ``"sent"`` (without an answer), ``"made"`` or ``"refused"``.
    ids : tuple of str
        Created machines.
    touched : float
        Unix time of the row's last write.
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
    """Insert a row, or replace the one with its token.

    Raises PoolError if it cannot be written: the call must not be sent then.
    """
    values = (row.pool, row.token, row.provider, row.recipe, row.account, row.region, row.zone, row.count, row.until)
    with _durably(registry) as connection:
        connection.execute(
            f"INSERT OR REPLACE INTO orders ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*values, row.state, json.dumps(list(row.ids)), row.touched),
        )
        if row.token:
            provider_accounts.note(connection, row.provider, row.recipe, row.region)


def of(registry: Registry, pool: str) -> list[OrderRow]:
    """Return a pool's orders, the oldest first."""
    return [row for row in every(registry) if row.pool == pool]


def every(registry: Registry) -> list[OrderRow]:
    """Return all orders, the oldest first."""
    with registry.connection() as connection:
        try:
            found = connection.execute(f"SELECT {_COLUMNS} FROM orders ORDER BY rowid LIMIT ?", (_MOST,)).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise
    return [OrderRow(**{**dict(zip(_NAMES, row, strict=True)), "ids": _ids(row[-2])}) for row in found]


def forget(registry: Registry, rows: Iterable[OrderRow]) -> None:
    """Delete orders whose machines have ended, unless written since."""
    with registry.transaction() as connection, _if_there():
        for row in rows:
            where = (row.pool, row.token, row.touched)
            connection.execute("DELETE FROM orders WHERE pool = ? AND token = ? AND touched <= ?", where)


@contextlib.contextmanager
def _durably(registry: Registry) -> Iterator[sqlite3.Connection]:
    """Write with full sync, so that a loss of power loses no machine."""
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
