"""Guests: notebooks that run cells on a pool that another notebook manages."""

from __future__ import annotations

import contextlib
import secrets

from ...errors import PoolError
from ..registry.ended_pools import Gone
from ..registry.pool_record import PoolRecord
from ..registry.registry import PoolRow, Registry


class Guest:
    """What a guest knows of its pool's manager; made when it joins.

    Parameters
    ----------
    registry : Registry
        The registry, which it only reads.
    row : PoolRow
        The pool, as it was when the guest joined.
    """

    def __init__(self, registry: Registry, row: PoolRow) -> None:
        self._registry, self._row, self._nodes = registry, row, PoolRecord.read_nodes(row)
        self.id = f"g{secrets.token_hex(4)}"
        # What became of the pool, once it is over.
        self.gone: Gone | None = None

    def look(self) -> PoolRow | None:
        """Return the pool's row now; None if it has ended."""
        return next((row for row in self._registry.pools() if row.id == self._row.id), None)

    def find_gone(self) -> int:
        """Return the fencing token of the last manager if its process has ended, else 0."""
        with contextlib.suppress(PoolError):
            row = self.look()
            if row is not None and not row.owner_lives:
                return row.generation
        return 0

    def refuse(self, done: str) -> None:
        """Raise PoolError: only a manager may change the pool. ``done`` as in "ended"."""
        row = self.look() or self._row
        name = row.name
        ways = [f"`%sky leave {name}` ends its use here"]
        if row.may_outlive:
            over = " --take-over" if row.owner_lives else ""
            ways.append(f"`%sky attach {name}{over}` makes this notebook its manager")
        manager = f"its manager, {row.who}" if row.owner_lives else "a manager, which it has not now"
        raise PoolError(
            f"this notebook is a guest of pool {name!r}, and cannot have it {done}. That is for {manager}; "
            f"{'; '.join(ways)}"
        )

    def find_over(self) -> Gone | None:
        """Return what became of the guest's pool; None if it is unchanged."""
        name, who = self._row.name, self._row.who
        anew = f"%sky join {name}"
        row = self.look()
        if row is None or row.state == "ending":
            return Gone(name, f"pool {name!r} was ended: it was managed by {who}", f"%sky up --name {name}")
        if row.state == "stopped":
            return Gone(name, f"pool {name!r} was stopped by {who}", f"%sky start {name}")
        if not (row.may_outlive or row.owner_lives):
            text = f"pool {name!r} has ended with what managed it, {who}"
            return Gone(name, text, f"%sky up --name {name}")
        if row.state != "ready":
            return Gone(name, f"pool {name!r} is being recreated by {row.who}", anew)
        with contextlib.suppress(PoolError):
            if row.folders != self._row.folders or PoolRecord.read_nodes(row) != self._nodes:
                return Gone(name, f"the nodes of pool {name!r} were changed by {row.who}", anew)
        return None

    def lose(self, why: str) -> Gone:
        """Return, and keep, what became of the pool; ``why`` is what was seen of it."""
        name = self._row.name
        try:
            found = self.find_over()
        except PoolError:
            found = None
        text = f"pool {name!r} is gone ({why}): it was managed by {self._row.who}"
        self.gone = found or Gone(name, text, f"%sky join {name}")
        return self.gone
