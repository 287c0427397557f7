"""``%debug RANK``: IPython's ``%debug``, for the failures of ranks too."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from ..pool.open_pools import pools
from ..util.text import rank_label

if TYPE_CHECKING:
    from ..pool.pool import Pool

_RANK = re.compile(r"\s*(?:rank\s+)?(\d+)\s*", re.ASCII)
_NAME = "debug"
_MORE = """

        While there is a pool, ``%debug RANK`` debugs the failure of a rank's last cell, with a prompt here, as
        ``%sky debug RANK`` does.
        """


class RankDebug:
    """Replacement of ``%debug`` in one shell; held by the magics.

    Parameters
    ----------
    shell : Any
        The notebook's IPython shell.
    debug : callable
        Debugs a rank of a pool.
    """

    def __init__(self, shell: Any, debug: Callable[[Pool, int], None]) -> None:
        self._shell, self._debug = shell, debug
        self._own: Any = None
        self._ours: Any = None

    def install(self) -> None:
        """Replace IPython's magic, once; looking it up loads it, in milliseconds."""
        if self._ours is not None:
            return
        self._own = self._shell.find_line_magic(_NAME)
        if self._own is None:
            return
        own = self._own

        @functools.wraps(own)
        def debug(line: str = "", *more: Any, **options: Any) -> Any:
            found = _RANK.fullmatch(line)
            if found is None or not pools.all():
                return own(line, *more, **options)
            rank = int(found[1])
            return self._debug(pool_of(rank), rank)

        debug.__doc__ = f"{(own.__doc__ or '').rstrip()}{_MORE}"
        self._ours = self._table()[_NAME] = debug

    def remove(self) -> None:
        """Undo `install`, unless another magic has replaced this one since."""
        if self._ours is not None and self._table().get(_NAME) is self._ours:
            self._table()[_NAME] = self._own
        self._ours = None

    def _table(self) -> dict[str, Any]:
        found: dict[str, Any] = self._shell.magics_manager.magics["line"]
        return found


def pool_of(rank: int) -> Pool:
    """Return the pool with a failure of this rank: the current one, or another.

    Raises UsageError if there is none; the message names the ranks that have one.
    """
    every = sorted(pools.all(), key=lambda pool: pool is not pools.current)
    for pool in every:
        if rank in pool.failed:
            return pool
    there = [f"{rank_label(pool.failed)} of pool {pool.spec.name}" for pool in every if pool.failed]
    which = f"there is one on {', and on '.join(there)}" if there else "no rank's last cell has failed"
    raise UsageError(f"%debug: rank {rank} has no failure to debug: {which}")
