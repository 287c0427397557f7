"""The contract of a provider: what makes, finds, connects and ends machines.

`tests/providers/conformance.py` is a suite that every provider passes; `docs/providers.md` says how one is written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from .values import MachineRecord, Offer, Order

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..machines.base import Machine
    from ..machines.link.client import Link
    from ..machines.ssh.types import Prompts
    from ..spec.pool_spec import PoolSpec

__all__ = ["ConnectionSession", "MachineRecord", "Offer", "Order", "Provider", "Provisioner", "is_provisioner"]


@dataclass(frozen=True)
class ConnectionSession:
    """What connections are made with; made by whoever connects, for one call of `Provider.connect`.

    Parameters
    ----------
    prompts : Prompts, optional
        Whom to ask for a passphrase, or whether a host key is right; nobody is asked unless given.
    open_link : callable, optional
        Starts the process that holds SSH connections for the pool, also when the notebook has ended, or
        returns the one that there is. Connections end with this process unless given.
    stop : threading.Event
        Set when the connections are not wanted any more.
    known : mapping of str to mapping
        By id, `Machine.facts` of machines that are connected to again.
    """

    prompts: Prompts | None = None
    open_link: Callable[[], Link] | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    known: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Provider(Protocol):
    """Makes, finds, connects and ends machines; a frozen value that compares by what it was given.

    It is pickled with its pool's spec. Its ``str`` is what messages call it.
    """

    @property
    def kind(self) -> str:
        """Its name, as ``--provider`` takes it."""

    @property
    def provisions(self) -> bool:
        """Whether it makes machines, so that a failed attempt may be repeated; False where they are there."""

    @property
    def survives_manager(self) -> bool:
        """Whether its machines, and the pool on them, go on when the notebook's machine or process ends.

        Such a pool's hosts are prepared over `Machine`, end by a lease, and are taken up again by ``attach``.
        """

    @property
    def offline(self) -> bool:
        """Whether machines are sent all packages from here, as they have no way to a package index."""

    @property
    def supported_options(self) -> tuple[str, ...]:
        """Which of `spec.WISHES` have a meaning for it; a pool says of the others that they have none."""

    def default_nodes(self) -> int:
        """How many nodes a pool has unless the user says."""

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

    def connect(self, ids: Sequence[str], session: ConnectionSession) -> Sequence[Machine]:
        """Connect to machines, side by side; in the order of ``ids``. Where one fails, none is left connected.

        Raises
        ------
        MachineError
            For the first that cannot be connected to; the others that cannot are named in it.
        """

    def spares(self, ids: Sequence[str]) -> Sequence[str] | None:
        """Machines that are there and are not among these, by which a pool can grow; None where they are made."""

    def resized(self, ids: Sequence[str], add: Sequence[str], remove: Sequence[str]) -> Provider:
        """The provider of a pool whose machines change.

        Parameters
        ----------
        ids : sequence of str
            The pool's machines that stay, in the order of its nodes.
        add : sequence of str
            The names of machines that the user adds.
        remove : sequence of str
            The ids of machines that the user removes by name: they are not used again.

        Raises
        ------
        SpecError
            When machines cannot be added by name.
        """


class Provisioner(Provider, Protocol):
    """A provider that makes machines (``provisions``), which cost money until they are ended.

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


def is_provisioner(provider: Provider) -> TypeGuard[Provisioner]:
    """Return whether a provider makes machines, and so is a `Provisioner`."""
    return provider.provisions
