"""The contract of a provider: six calls that make, find and end machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..machines.base import Machine
from ..spec.pool_spec import PoolSpec


@dataclass(frozen=True)
class Offer:
    """A kind of machine that a provider could make, and what it costs in dollars an hour; None where nobody knows."""

    name: str
    hourly: float | None
    accelerator: str = ""


@dataclass(frozen=True)
class MachineRecord:
    """A machine as its provider knows it: an id, and a state in the provider's words."""

    id: str
    state: str


class Provider(Protocol):
    """Makes and ends machines; a frozen value that compares by what it was given.

    Attributes
    ----------
    minds : tuple of str
        Which of `spec.WISHES` have a meaning for it; a pool says of the others that they have none.
    makes : bool
        Whether it makes machines, which may be had at another attempt, or has them already.
    """

    kind: str
    minds: tuple[str, ...] = ()
    makes: bool = False

    def offers(self, spec: PoolSpec) -> Sequence[Offer]:
        """What could serve the spec, cheapest first."""

    def create(self, spec: PoolSpec, count: int, pool: str) -> Sequence[str]:
        """Make ``count`` machines, marked with the pool's id; returns their ids."""

    def list(self, pool: str) -> Sequence[MachineRecord]:
        """All machines that are marked with the pool's id."""

    def describe(self, ids: Sequence[str]) -> Sequence[MachineRecord]:
        """The state of the given machines."""

    def destroy(self, ids: Sequence[str]) -> None:
        """End machines; those that are gone already are no error."""

    def connect(self, id: str) -> Machine:
        """A machine on which commands run."""
