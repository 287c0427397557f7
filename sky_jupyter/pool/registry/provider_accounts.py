"""Providers that this registry bought from, kept after their pools, for sweeps.

A row is a provider, as `Provisioner.recipe` has it, and a region. No row has a secret.
"""

from __future__ import annotations

import secrets
import socket
import sqlite3
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .registry import Registry

# Created on first use, like the table of orders.
_TABLES = (
    "CREATE TABLE IF NOT EXISTS purchases (provider TEXT NOT NULL, recipe TEXT NOT NULL, region TEXT NOT NULL, "
    "bought REAL NOT NULL, looked REAL NOT NULL DEFAULT 0, PRIMARY KEY (provider, recipe, region))",
    "CREATE TABLE IF NOT EXISTS identity (one INTEGER PRIMARY KEY CHECK (one = 1), id TEXT NOT NULL)",
)
# A provider that sold nothing for so long is not asked any more: its machines have had their deadline.
_MOVED = 30 * 86_400.0


@dataclass(frozen=True)
class Purchase:
    """Provider that sold machines in some regions.

    Attributes
    ----------
    provider, recipe : str
        The provider's kind, and the JSON from which it is rebuilt.
    regions : tuple of str
        The regions; empty if it has none.
    """

    provider: str
    recipe: str
    regions: tuple[str, ...]


def note(connection: sqlite3.Connection, provider: str, recipe: str, region: str) -> None:
    """Note the provider and the region of an order, within its transaction."""
    for statement in _TABLES:
        connection.execute(statement)
    connection.execute("DELETE FROM purchases WHERE bought < ?", (time.time() - _MOVED,))
    connection.execute(
        "INSERT INTO purchases (provider, recipe, region, bought) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (provider, recipe, region) DO UPDATE SET bought = excluded.bought",
        (provider, recipe, region, time.time()),
    )


def of(registry: Registry, pause: float = 0.0) -> list[Purchase]:
    """Return the providers to ask now.

    Parameters
    ----------
    registry : Registry
        The registry.
    pause : float
        Providers that any process asked (`asked`) within this many seconds are left out.

    Returns
    -------
    list of Purchase
        The providers, each with its regions.
    """
    now = time.time()
    with registry.connection() as connection:
        rows = _read(connection, now)
    # A clock that was set back must not leave a provider out.
    due = {(kind, recipe) for kind, recipe, _, looked in rows if not pause or not now - pause < looked <= now}
    found: dict[tuple[str, str], list[str]] = {}
    for kind, recipe, region, _ in rows:
        if (kind, recipe) in due:
            found.setdefault((kind, recipe), []).extend([region] if region else [])
    return [Purchase(kind, recipe, tuple(regions)) for (kind, recipe), regions in found.items()]


def asked(registry: Registry, purchase: Purchase) -> None:
    """Note that a provider was asked just now."""
    where = (time.time(), purchase.provider, purchase.recipe)
    with registry.transaction() as connection:
        connection.execute("UPDATE purchases SET looked = ? WHERE provider = ? AND recipe = ?", where)


def _read(connection: sqlite3.Connection, now: float) -> list[tuple[str, str, str, float]]:
    select = "SELECT provider, recipe, region, looked FROM purchases WHERE bought > ? ORDER BY bought"
    try:
        return connection.execute(select, (now - _MOVED,)).fetchall()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return []
        raise


def owner(registry: Registry) -> str:
    """Return this registry's owner tag: the host's name and the registry's id.

    The id is random, so that no other registry takes the machines for its own; a registry that was removed loses it.
    """
    with registry.transaction() as connection:
        for statement in _TABLES:
            connection.execute(statement)
        connection.execute("INSERT OR IGNORE INTO identity VALUES (1, ?)", (secrets.token_hex(4),))
        (id,) = connection.execute("SELECT id FROM identity").fetchone()
    return f"{socket.gethostname()[:64]}/{id}"


def is_mine(owner_tag: str, mine: str) -> bool:
    """Return whether a machine's owner is this registry, whatever its host's name."""
    id = mine.rpartition("/")[2]
    return bool(id) and owner_tag.rpartition("/")[2] == id


__all__ = ["Purchase", "asked", "is_mine", "note", "of", "owner"]
