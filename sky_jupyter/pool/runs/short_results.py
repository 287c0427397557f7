"""Values of short calls, as they come from ranks."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .result import CellResult, Outcome


@dataclass(frozen=True)
class ShortResult:
    """Value of a short call on one rank.

    Parameters
    ----------
    rank, node : int
        The rank and its node.
    elapsed : float
        Seconds that it took there.
    pickled : bytes
        Pickle of the value.
    type : str
        The name of the value's type.
    """

    rank: int
    node: int
    elapsed: float
    pickled: bytes
    type: str

    def value(self) -> Any:
        """Return the value; a `RemoteRepr` if it cannot be rebuilt here."""
        try:
            return pickle.loads(self.pickled)
        except Exception:
            return CellResult([Outcome(self.rank, self.node, "ok", self.end())], self.elapsed).head

    def end(self) -> dict[str, Any]:
        """Return the end event that a run would have."""
        value = base64.b64encode(self.pickled).decode()
        about = {"kind": "end", "status": "ok", "bound": True, "rank": self.rank, "elapsed": self.elapsed}
        return {**about, "type": self.type, "value": value}


def values_of(results: Iterable[ShortResult]) -> list[Any]:
    """Return the values in the order of ranks."""
    return [one.value() for one in sorted(results, key=lambda one: one.rank)]
