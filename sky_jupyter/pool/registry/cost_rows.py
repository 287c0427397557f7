"""Costs of machines in the registry: a row for each stay in one state.

Rows are kept when their pool has ended: `%sky cost` shows past pools too.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .registry import Registry

RUNNING, STOPPED = "running", "stopped"
# Created on first use, like the table of orders.
_TABLE = (
    "CREATE TABLE IF NOT EXISTS machine_costs (pool TEXT NOT NULL, machine TEXT NOT NULL, number INTEGER NOT NULL, "
    "name TEXT NOT NULL, provider TEXT NOT NULL, kind TEXT NOT NULL, market TEXT NOT NULL, region TEXT NOT NULL, "
    "zone TEXT NOT NULL, state TEXT NOT NULL, began REAL NOT NULL, ended REAL, hourly REAL, dollars REAL, "
    "at REAL NOT NULL, disk_gb REAL, public INTEGER NOT NULL, PRIMARY KEY (pool, machine, number))"
)
_MOST = 10_000
_HOUR = 3600


@dataclass(frozen=True)
class CostRow:
    """Stay of a machine in one state.

    Attributes
    ----------
    number : int
        Number of the stay, from 0: a machine that was stopped and started has several.
    name : str
        The pool's name.
    state : str
        ``"running"`` or ``"stopped"``.
    began, ended : float, float or None
        Unix times; ``ended`` is None while it lasts.
    hourly : float or None
        Dollars per hour, as last known; None if unknown.
    dollars, at : float or None, float
        Dollars from ``began`` to ``at``; None if unknown.
    disk_gb, public : float or None, bool
        As in `MachineRecord`.
    """

    pool: str
    machine: str
    number: int
    name: str
    provider: str
    kind: str
    market: str
    region: str
    zone: str
    state: str
    began: float
    ended: float | None
    hourly: float | None
    dollars: float | None
    at: float
    disk_gb: float | None = None
    public: bool = False

    def so_far(self, now: float) -> float | None:
        """Return the dollars until ``now``, at the last known price; None if unknown."""
        if self.hourly is None:
            return self.dollars if self.at == self.ended else None
        until = now if self.ended is None else self.ended
        since, paid = (self.began, 0.0) if self.dollars is None else (self.at, self.dollars)
        return max(0.0, paid + self.hourly * (until - since) / _HOUR)


_NAMES = [one.name for one in fields(CostRow)]
_COLUMNS = ", ".join(_NAMES)


def write(registry: Registry, rows: Iterable[CostRow]) -> None:
    """Insert rows, or replace those of the same stay; forget the oldest of too many."""
    marks = ", ".join("?" * len(_NAMES))
    with registry.transaction() as connection:
        connection.execute(_TABLE)
        for row in rows:
            values = [getattr(row, name) for name in _NAMES]
            connection.execute(f"INSERT OR REPLACE INTO machine_costs ({_COLUMNS}) VALUES ({marks})", values)
        connection.execute(
            "DELETE FROM machine_costs WHERE ended IS NOT NULL AND rowid <= (SELECT max(rowid) FROM machine_costs) - ?",
            (_MOST,),
        )


def of(registry: Registry, pool: str) -> list[CostRow]:
    """Return a pool's rows, the oldest first."""
    return _read(registry, "WHERE pool = ?", pool)


def every(registry: Registry) -> list[CostRow]:
    """Return all rows, the oldest first."""
    return _read(registry, "")


def _read(registry: Registry, where: str, *values: str) -> list[CostRow]:
    with registry.connection() as connection:
        try:
            found = connection.execute(f"SELECT {_COLUMNS} FROM machine_costs {where} ORDER BY began, machine", values)
            return [CostRow(*row) for row in found.fetchall()]
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise


__all__ = ["RUNNING", "STOPPED", "CostRow", "every", "of", "write"]
