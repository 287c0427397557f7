"""What a person is told of ranks that do not heed an interrupt at once: which are being freed, and which cannot be.

A rank that waits in a collective is freed by breaking what it waits for. On a busy machine that takes a while, and
nobody is to be told meanwhile that only the loss of its names helps.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ...util.text import rank_label
from ..runs.stacks import IDLE, Place, Where


@dataclass(frozen=True)
class Held:
    """Ranks that do not heed an interrupt, by what can be done for them.

    Parameters
    ----------
    deaf : sequence of int
        Those that no broken connection frees: they compute, or stand still.
    waiting : sequence of int
        The others.
    calls : sequence of str
        What those wait in, as far as it has a name.
    """

    deaf: Sequence[int] = ()
    waiting: Sequence[int] = ()
    calls: Sequence[str] = ()

    @property
    def freeing(self) -> str:
        """What is told while they are being freed; empty where none can be."""
        if not self.waiting:
            return ""
        return f"freeing {rank_label(self.waiting)} from {', '.join(self.calls) or _UNNAMED} …; every name is kept"

    def warning(self, left: Collection[int], failed: bool) -> str:
        """Who of those that are ``left`` does not heed it, and what more can be done; ``failed`` says that they were
        to be freed, in vain. Empty where there is none."""
        ranks = sorted(rank for rank in left if failed or rank in self.deaf)
        if not ranks:
            return ""
        several = len(ranks) > 1
        vain = failed and not set(ranks) & set(self.deaf)
        why = f"and could not be freed from {', '.join(self.calls) or _UNNAMED}" if vain else _DEAF
        return (
            f"{rank_label(ranks)} {'do' if several else 'does'} not heed the interrupt, {why}: interrupt again to "
            f"replace {'their kernels' if several else 'its kernel'} and lose the names there, or wait"
        )


_UNNAMED = "what they wait in"
_DEAF = "in code that cannot be interrupted"


def held(left: Collection[int], where: Where | None) -> Held:
    """Tell the ranks that are ``left`` apart by where they were seen after an interrupt, if they were."""
    places = {place.rank: place for place in where.places} if where is not None else {}
    deaf = sorted(rank for rank in left if rank in places and _is_deaf(places[rank]))
    waiting = sorted(set(left) - set(deaf))
    calls = dict.fromkeys(places[rank].call for rank in waiting if rank in places and places[rank].call)
    return Held(deaf, waiting, list(calls))


def _is_deaf(place: Place) -> bool:
    return place.is_stopped or (place.doing == "runs" and place.main >= IDLE)
