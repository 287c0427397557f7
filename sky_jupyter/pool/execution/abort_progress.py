"""Messages on ranks that do not heed an interrupt: which are being freed.

A rank that waits in a collective is freed by aborting the collective. On a busy machine this takes a while. Meanwhile
the user must not be told that only a new kernel helps.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...util.text import rank_label
from ..runs.stacks import IDLE, RankStack, StackReport


@dataclass(frozen=True)
class UninterruptedRanks:
    """Ranks that do not heed an interrupt, by the remedy.

    Parameters
    ----------
    deaf : sequence of int
        Ranks that an aborted connection does not free: they compute, or are stopped.
    waiting : sequence of int
        Ranks that wait in a call, which can be aborted.
    calls : sequence of str
        Names of these calls, if known.
    """

    deaf: Sequence[int] = ()
    waiting: Sequence[int] = ()
    calls: Sequence[str] = ()

    @property
    def freeing(self) -> str:
        """The message while ranks are being freed, or ""."""
        if not self.waiting:
            return ""
        return f"freeing {rank_label(self.waiting)} from {', '.join(self.calls) or _UNNAMED} …; every name is kept"

    def warning(self, left: Collection[int], failed: bool) -> str:
        """Return the message on ranks that do not heed it, or "".

        It names the deaf ranks in ``left``; if ``failed``, all ranks in ``left``, as they could not be freed.
        """
        ranks = sorted(rank for rank in left if failed or rank in self.deaf)
        if not ranks:
            return ""
        several = len(ranks) > 1
        vain = failed and not set(ranks) & set(self.deaf)
        why = f"and could not be freed from {', '.join(self.calls) or _UNNAMED}" if vain else _DEAF
        return (
            f"{rank_label(ranks)} {'do' if several else 'does'} not respond to the interrupt, {why}: interrupt again "
            f"to replace {'their kernels' if several else 'its kernel'} and lose the names there, or wait"
        )


_UNNAMED = "what they wait in"
_DEAF = "in code that cannot be interrupted"


def held(left: Collection[int], where: StackReport | None) -> UninterruptedRanks:
    """Classify the ranks in ``left`` by where they were seen after an interrupt."""
    places = {place.rank: place for place in where.places} if where is not None else {}
    deaf = sorted(rank for rank in left if rank in places and _is_deaf(places[rank]))
    waiting = sorted(set(left) - set(deaf))
    calls = dict.fromkeys(places[rank].call for rank in waiting if rank in places and places[rank].call)
    return UninterruptedRanks(deaf, waiting, list(calls))


def _is_deaf(place: RankStack) -> bool:
    return place.is_stopped or (place.doing == "runs" and place.main >= IDLE)
