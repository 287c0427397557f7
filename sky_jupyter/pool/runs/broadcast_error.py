"""`BroadcastError`, raised when a broadcast fails on some ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .result import CellError, CellResult, Outcome


class BroadcastError(CellError):
    """Raised when a function failed on ranks; a group of their exceptions.

    ``except*`` catches them by type.

    Attributes
    ----------
    errors : mapping of int to Exception
        Each failed rank's exception.
    result : CellResult
        The whole run: `result[rank]` is a rank's value, or raises its error.
    """

    what = "call"

    def __new__(cls, result: CellResult, outcomes: Sequence[Outcome]) -> BroadcastError:
        self = super().__new__(cls, result, outcomes)
        assert isinstance(self, BroadcastError)
        return self

    @property
    def results(self) -> Mapping[int, Any]:
        """The values of the ranks that did not fail, by rank."""
        return {rank: self.result.value(rank) for rank in self.result.ranks if rank not in self.errors}
