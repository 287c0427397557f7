"""How many ended runs and pools the registry keeps."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass

from ...errors import SpecError

RUNS_VARIABLE, POOLS_VARIABLE = "SKY_KEEP_RUNS", "SKY_KEEP_POOLS"
DEFAULT_RUNS, DEFAULT_POOLS = 1000, 200
_MAX = 10_000_000
# The limit of rows that are deleted at a time: a file that shrinks by much must not delay cells.
_AT_ONCE = 5000


@dataclass(frozen=True)
class Retention:
    """How many of the newest rows to keep; older live rows stay, too.

    Parameters
    ----------
    runs, pools : int
        The numbers of rows.
    """

    runs: int = DEFAULT_RUNS
    pools: int = DEFAULT_POOLS

    @classmethod
    def read(cls) -> Retention:
        """Return the limits of ``SKY_KEEP_RUNS`` and ``SKY_KEEP_POOLS``, or the defaults.

        Raises SpecError if one is no number, or not from 1 to 10,000,000.
        """
        return cls(_number(RUNS_VARIABLE, DEFAULT_RUNS), _number(POOLS_VARIABLE, DEFAULT_POOLS))

    def apply(self, connection: sqlite3.Connection) -> None:
        """Delete the oldest ended rows that are too many; must be in a transaction."""
        for statement, values in self.statements():
            connection.execute(statement, values)

    def statements(self) -> list[tuple[str, tuple[int, int]]]:
        """Return the statements that delete ended rows, with their values.

        They only visit rows to delete, and older live ones: row numbers rise by one from run to run.
        """
        kept = (("runs", "running", "!=", self.runs), ("pools", "ended", "=", self.pools))
        return [
            (
                f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE state {is_} '{state}' "
                f"AND rowid <= (SELECT max(rowid) FROM {table}) - ? ORDER BY rowid LIMIT ?)",
                (count, _AT_ONCE),
            )
            for table, state, is_, count in kept
        ]


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:12]) <= _MAX:
        raise SpecError(f"{variable} must be a whole number from 1 to {_MAX:,}, not {text[:40]!r}")
    return int(text)


__all__ = ["Retention"]
