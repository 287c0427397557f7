"""Listing of the names that a node's ranks have, by a call of the manager.

A rank answers only between requests. While it is busy, the agent returns the rank's last answer.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from .kernel_client import RankKernel


@dataclass(frozen=True)
class _Answer:
    generation: int
    at: float
    facts: dict[str, Any]


class NameListing:
    """Listing of names; made by the agent.

    Parameters
    ----------
    ranks : mapping of int to RankKernel
        The node's ranks.
    """

    def __init__(self, ranks: Mapping[int, RankKernel]) -> None:
        self.ranks = ranks
        self._last: dict[int, _Answer] = {}
        self._asking: dict[int, asyncio.Task[None]] = {}
        # The latest request of each rank.
        self._requests: dict[int, str] = {}
        self._numbers = itertools.count()

    def asked(self, rank: int) -> str | None:
        """Return the latest request for a rank's names."""
        return self._requests.get(rank)

    async def sky_list_names(self, within: float) -> dict[int, dict[str, Any]]:
        """Return each rank's names, or those of its last answer if it is busy.

        Parameters
        ----------
        within : float
            Seconds to wait for idle ranks.

        Returns
        -------
        dict
            For each rank ``"state"``: ``"fresh"``, ``"busy"`` if the answer is an earlier one, or ``"gone"`` if it has
            no kernel; ``"age"``, the answer's age in seconds; and its ``"names"`` and ``"more"``, see
            `name_summaries.summarize`. The last three are missing if its present kernel has never answered.
        """
        asked = [number for number, rank in self.ranks.items() if number in self._asking or self._ask(rank)]
        if asked:
            await asyncio.wait([self._asking[number] for number in asked], timeout=within)
        late = {number for number in asked if number in self._asking and not self._asking[number].done()}
        fresh = set(asked) - late
        return {number: self._known(rank, fresh) for number, rank in self.ranks.items()}

    def _ask(self, rank: RankKernel) -> bool:
        """Ask a rank; return False if it could not answer at once."""
        if rank.waiting or not rank.pid or not rank.entered:
            return False
        task = self._asking[rank.number] = asyncio.create_task(self._take(rank))
        task.add_done_callback(lambda _: self._asking.pop(rank.number, None))
        return True

    async def _take(self, rank: RankKernel) -> None:
        generation = rank.generation
        request = self._requests[rank.number] = f"names-{rank.number}-{generation}-{next(self._numbers)}"
        end = await rank.request(request, {"kind": "names"})
        if end["status"] == "ok":
            facts = {"names": end.get("names"), "more": end.get("more")}
            self._last[rank.number] = _Answer(generation, time.monotonic(), facts)

    def _known(self, rank: RankKernel, fresh: Collection[int]) -> dict[str, Any]:
        answer = self._last.get(rank.number)
        if not rank.pid:
            return {"state": "gone"}
        state = {"state": "fresh" if rank.number in fresh else "busy"}
        if answer is None or answer.generation != rank.generation:
            return {**state, "state": "busy"}
        return {**state, "age": round(time.monotonic() - answer.at, 1), **answer.facts}
