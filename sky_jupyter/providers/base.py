"""The contract of a provider: six calls that make, find and end machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..machines.base import Machine
from ..spec.pool_spec import PoolSpec
from .values import MachineRecord, Offer, Order

__all__ = ["MachineRecord", "Offer", "Order", "Provider", "Provisioner"]


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

    def create(self, spec: PoolSpec, count: int, order: Order) -> Sequence[str]:
        """Make ``count`` machines, marked with the order's pool; return their ids."""

    def list(self, pool: str | None, regions: Sequence[str] = ()) -> Sequence[MachineRecord]:
        """Return all machines that are marked with a pool's id."""

    def describe(self, ids: Sequence[str]) -> Sequence[MachineRecord]:
        """The state of the given machines."""

    def destroy(self, ids: Sequence[str]) -> None:
        """End machines; those that are gone already are no error."""

    def connect(self, id: str) -> Machine:
        """A machine on which commands run."""


class Provisioner(Provider, Protocol):
    """A provider that makes machines (``makes``), which cost money until they are ended.

    It answers calls one by one. That nothing is bought twice and nothing is lost is seen to by the pool: it records
    an `Order` before each call, repeats a call that had no answer with the same token, adopts what `list` finds, and
    ends all that `list` finds.

    Attributes
    ----------
    visible_within : float
        Seconds after which `list` shows a machine that was made, at the latest.
    """

    visible_within: float

    def account(self) -> str:
        """Return who pays, for a person to read."""

    def recipe(self) -> Mapping[str, Any]:
        """Return what `restore` makes it again from, as JSON has it; no secrets."""

    @classmethod
    def restore(cls, recipe: Mapping[str, Any]) -> Provisioner:
        """Make it again from its `recipe`."""

    def offers(self, spec: PoolSpec) -> Sequence[Offer]:
        """Return what could serve the spec, the best first."""

    def create(self, spec: PoolSpec, count: int, order: Order) -> Sequence[str]:
        """Send one call that makes machines at one place; return their ids, fewer where it made fewer.

        Raises
        ------
        NoCapacity
            When nothing was made, and another place may have machines.
        OrderSpent
            When the order's token cannot be used again.
        ProvisionError
            When nothing was made, and it is of no use to try another place; where ``passing`` is set, the call is
            sent again as it was. Any other error leaves it unknown what was made.
        """

    def list(self, pool: str | None, regions: Sequence[str] = ()) -> Sequence[MachineRecord]:
        """Return all machines that are marked with a pool's id, or with any; those that have ended may be left out."""
